//! Attacks complete software NICs over real sockets on the loopback interface: run by `cargo xtask attack --nic`.
//!
//! Each round has a seed and its own NICs (`round/mod.rs`). To repeat a failed round, pass its seed.

#[cfg(target_os = "linux")]
mod round;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: the software NIC needs Linux");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::process::ExitCode;
    use std::time::{Duration, Instant};

    use adverb_sim::{DecisionSource, Random};

    use crate::round::{Report, attack};

    /// The number of hostile packets per round.
    const ROUND_PACKETS: u64 = 10_000;

    /// The number of rounds after which the process must not grow by more than `MAX_GROWTH_KIB`.
    const WARM_UP_ROUNDS: u64 = 4;
    const MAX_GROWTH_KIB: u64 = 64 << 10;

    pub(super) fn main() -> ExitCode {
        let (seconds, first) = (option("--seconds", 10), option("--seed", 0));
        let start = Instant::now();
        let mut report = Report::default();
        let mut resident_before = None;
        for seed in first.. {
            let decisions = DecisionSource::Random(Random::new(seed ^ 0x6e69_6361_7474_636b));
            let mut result = attack(decisions, ROUND_PACKETS, &mut report);
            if seed - first == WARM_UP_ROUNDS {
                resident_before = resident_kib();
            }
            if let (Ok(()), Some(before), Some(now)) = (&result, resident_before, resident_kib())
                && now > before + MAX_GROWTH_KIB
            {
                result = Err(format!("the process grew from {before} KiB to {now} KiB"));
            }
            if let Err(error) = result {
                println!("{report}");
                println!("seed {seed}: {error}");
                println!("to repeat it: cargo xtask attack --nic --seconds 1 --seed {seed}");
                return ExitCode::FAILURE;
            }
            if start.elapsed() >= Duration::from_secs(seconds) {
                println!("{report}");
                let kib = resident_kib().map_or("unknown".to_owned(), |kib| format!("{kib} KiB"));
                println!("seeds {first} to {seed}: no failure; resident memory {kib}");
                break;
            }
        }
        ExitCode::SUCCESS
    }

    /// Returns the number after an option of the command line.
    fn option(name: &str, default: u64) -> u64 {
        let mut arguments = std::env::args().skip_while(|argument| argument != name).skip(1);
        arguments
            .next()
            .map_or(default, |text| text.parse().unwrap_or_else(|error| panic!("{name} {text}: {error}")))
    }

    /// Returns the resident memory of this process.
    fn resident_kib() -> Option<u64> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    }
}
