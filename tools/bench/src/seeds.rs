//! `cargo xtask bench seeds`: posting, processing, polling and notifying, beside what RDMA adapters are said to do.

use std::process::ExitCode;

use anyhow::Result;

use super::{Program, median, report::figure};

/// The options of `cargo xtask bench seeds`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How often everything is measured; the table has the medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
}

/// The links.
const LINKS: &[&str] = &["loopback", "mem", "udp"];

/// How many requests are under way at once.
const DEPTHS: &[u32] = &[1, 16, 128, 1024];

/// What is measured once per link: its name, its unit, and the range in which it should be.
const LATENCIES: &[(&str, &str, f64, f64)] = &[
    ("post", "µs", 0.1, 1.0),
    ("process", "µs", 0.1, 5.0),
    ("poll", "µs", 0.1, 5.0),
    ("notify", "µs", 1.0, 10.0),
];

/// How many a second there should be.
const RATE: (f64, f64) = (1e6, 10e6);

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let program = Program::build()?;
    let mut said = Vec::new();
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        for link in LINKS {
            said.push((*link, program.run(&format!("seeds {link} 300"))?));
        }
    }
    let number = |link: &str, name: &str| -> Result<f64> {
        let of_link = said.iter().filter(|(of, _)| *of == link);
        Ok(median(of_link.map(|(_, said)| said.number(name)).collect::<Result<_>>()?))
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
                misses.push(format!("{link}: {what} is {}: {}", figure(value), cause(link, name)));
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
        line(format!("depth {depth}: processor s per million"), &format!("processor-{depth}"), None, true)?;
    }
    println!("better than the range isn't a miss. Misses:");
    for miss in &misses {
        println!("- {miss}");
    }
    if misses.is_empty() {
        println!("- none");
    }
    Ok(ExitCode::SUCCESS)
}

/// Why a link can't do better, as it was measured: system calls were counted with strace, instructions with callgrind,
/// and times taken of the same calls from C.
fn cause(link: &str, name: &str) -> &'static str {
    match (link, name) {
        (_, "notify") => {
            "there and back (see `process`), and a wake-up: from a write to an eventfd until who sleeps on it runs, 3.0 µs pass in \
             a C program that does nothing else"
        }
        ("udp", "post") => {
            "one system call: 1.2 µs of 2.1 are `sendmsg`, in which the packet goes all the way to the peer's socket (1.1 \
             with `sendto`); the rest are 3300 instructions"
        }
        ("udp", "process") => "four system calls: `sendmsg` and `recvmsg` there and back are 3.4 µs in C",
        ("udp" | "mem", "wqe-1" | "cqe-1") => "one at a time is a round trip each: see `post` and `process`",
        ("udp", _) => "a packet through sockets costs most of a µs, also when many travel as one",
        ("mem", "post") => {
            "no system call: 3100 instructions, to post, to write the packet and to copy it into the switch"
        }
        ("mem", _) => "no system call: each packet is written, copied through a switch, checked and answered",
        _ => {
            "no system call: one lock, and the whole of requester and responder, in the one thread that posts"
        }
    }
}
