//! Attacks responders and probers over real sockets on the loopback interface: run by `cargo xtask attack --probe`.
//!
//! Each round has a seed, and devices of its own (`round.rs`). A round that fails is repeated by giving its seed.

mod datagrams;
mod report;
mod round;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use report::Report;

/// The rounds after which the process must not grow any more, and the growth that the allocator may cause.
const WARM_UP_ROUNDS: u64 = 8;
const MAX_GROWTH_KIB: u64 = 32 << 10;

fn main() -> ExitCode {
    let (seconds, first) = (option("--seconds", 10), option("--seed", 0));
    let start = Instant::now();
    let mut report = Report::default();
    let mut warm = None;
    for seed in first.. {
        let mut result = round::attack(seed, &mut report);
        if seed - first == WARM_UP_ROUNDS {
            warm = resident_kib();
        }
        if let (Ok(()), Some(before), Some(now)) = (&result, warm, resident_kib())
            && now > before + MAX_GROWTH_KIB
        {
            result = Err(format!("the process grew from {before} KiB to {now} KiB"));
        }
        if let Err(failure) = result {
            println!("{report}");
            println!("seed {seed}: {failure}");
            println!("to repeat it: cargo xtask attack --probe --seconds 1 --seed {seed}");
            return ExitCode::FAILURE;
        }
        if start.elapsed() >= Duration::from_secs(seconds) {
            println!("{report}");
            let kib = |kib: Option<u64>| kib.map_or("unknown".to_owned(), |kib| format!("{kib} KiB"));
            println!(
                "seeds {first} to {seed}: no failure; resident memory after {WARM_UP_ROUNDS} rounds {}, at the end {}",
                kib(warm),
                kib(resident_kib())
            );
            break;
        }
    }
    ExitCode::SUCCESS
}

/// Returns the value of a command-line option.
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
