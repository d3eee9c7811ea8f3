//! `cargo xtask bench seeds`: posting, processing, polling and notification, compared with figures of hardware
//! adapters.

use std::process::ExitCode;

use anyhow::Result;

use super::{Program, median, report::figure};

/// The options of `cargo xtask bench seeds`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of measurements of each value; the table shows the medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
}

/// The links to measure.
const LINKS: &[&str] = &["loopback", "mem", "udp"];

/// The numbers of requests in flight.
const DEPTHS: &[u32] = &[1, 16, 128, 1024];

/// The latencies, measured once per link: name, unit, and target range.
const LATENCIES: &[(&str, &str, f64, f64)] = &[
    ("post", "µs", 0.1, 1.0),
    ("process", "µs", 0.1, 5.0),
    ("poll", "µs", 0.1, 5.0),
    ("notify", "µs", 1.0, 10.0),
];

/// The target range of rates, per second.
const RATE: (f64, f64) = (1e6, 10e6);

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let program = Program::build()?;
    let mut output = Vec::new();
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        for link in LINKS {
            output.push((*link, program.run(&format!("seeds {link} 300"))?));
        }
    }
    let number = |link: &str, name: &str| -> Result<f64> {
        let of_link = output.iter().filter(|(of, _)| *of == link);
        Ok(median(of_link.map(|(_, output)| output.number(name)).collect::<Result<_>>()?))
    };
    let mut misses = Vec::new();
    println!("{:34} {:>10} {:>10} {:>10}  range", "8-byte WRITEs, medians", LINKS[0], LINKS[1], LINKS[2]);
    let mut line = |what: String, name: &str, range: Option<(f64, f64)>, best_is_low: bool| -> Result<()> {
        let mut text = format!("{what:34}");
        for link in LINKS {
            let value = number(link, name)?;
            text += &format!(" {:>10}", figure(value));
            if let Some((low, high)) = range
                && (if best_is_low { value > high } else { value < low })
            {
                misses.push(format!("{link}: {what} is {}: {}", figure(value), miss_reason(link, name)));
            }
        }
        if let Some((low, high)) = range {
            text += &format!("  {} – {}", figure(low), figure(high));
        }
        println!("{text}");
        Ok(())
    };
    for (name, unit, low, high) in LATENCIES {
        line(format!("{name}, p50, {unit}"), name, Some((*low, *high)), true)?;
    }
    for depth in DEPTHS {
        line(format!("depth {depth}: WQE/s"), &format!("wqe-{depth}"), Some(RATE), false)?;
        line(format!("depth {depth}: CQE/s"), &format!("cqe-{depth}"), Some(RATE), false)?;
        line(format!("depth {depth}: CPU seconds per million"), &format!("processor-{depth}"), None, true)?;
    }
    println!("values worse than their range (better values are not listed):");
    for miss in &misses {
        println!("- {miss}");
    }
    if misses.is_empty() {
        println!("- none");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the reason why a link misses a range. The figures were measured: system calls with strace, instructions with
/// callgrind, and durations of the same calls in a C program.
fn miss_reason(link: &str, name: &str) -> &'static str {
    match (link, name) {
        (_, "notify") => {
            "a round trip (see `process`) and a wake-up: in a C program, 3.0 µs pass between a write to an eventfd and the \
             return of the sleeping thread"
        }
        ("udp", "post") => {
            "one system call: 1.2 µs of 2.1 are `sendmsg`, which delivers the packet to the peer's socket (1.1 with \
             `sendto`); the rest are 3300 instructions"
        }
        ("udp", "process") => {
            "four system calls: `sendmsg` and `recvmsg` in both directions take 3.4 µs in C"
        }
        ("udp" | "mem", "wqe-1" | "cqe-1") => "each request waits for a round trip: see `post` and `process`",
        ("udp", _) => "a packet through sockets costs most of a µs, even in a GSO batch",
        ("mem", "post") => {
            "no system call: 3100 instructions to post, write the packet and copy it into the switch"
        }
        ("mem", _) => {
            "no system call: each packet is written, copied through a switch, checked and acknowledged"
        }
        _ => "no system call: one lock, and requester and responder in the posting thread",
    }
}
