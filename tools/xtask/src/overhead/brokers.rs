//! The instructions of brokers' messages and calls, both ends together, within one software NIC.
//!
//! A message of 64 bytes costs its share of a doorbell batch: the difference between batches of 1 and of 64 shows the cost
//! of a doorbell. A call is a request and a reply of 64 bytes.

use std::path::Path;

use anyhow::Result;

/// The modes of the benchmark, the number of messages or calls per doorbell, and the allowed number of instructions per
/// message or call: today's number and 10 %, because other builds of the same code have other numbers.
const MODES: &[(&str, u64, u64)] = &[
    ("broker-1", 1, 8400),
    ("broker-4", 4, 6400),
    ("broker-16", 16, 5900),
    ("broker-64", 64, 5800),
    ("call", 32, 1710),
];

/// Counts the instructions, prints a table, and returns whether a limit is exceeded.
pub(super) fn run(directory: &Path, messages: &Path) -> Result<bool> {
    println!("{:14} {:>12} {:>12} {:>8}", "brokers", "per message", "per doorbell", "allowed");
    let (mut exceeded, mut counts) = (false, Vec::new());
    for &(name, batch, allowed) in MODES {
        let message = super::min_instructions(directory, messages, name)?;
        println!("{name:14} {message:>12} {:>12} {allowed:>8}", message * batch);
        exceeded |= message > allowed;
        counts.push(message);
    }
    if let [single, .., most, _] = counts[..] {
        // single = message + doorbell; most = message + doorbell / 64.
        println!("a doorbell costs {} instructions", single.saturating_sub(most) * 64 / 63);
    }
    Ok(exceeded)
}
