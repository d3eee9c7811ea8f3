//! `cargo xtask bench`: how fast the software NIC is, beside what else there is.
//!
//! Machines are noisy: everything is measured beside its baseline, by turns, several times, and the table has medians.

mod baseline;
mod net;
pub mod perf;
mod report;
mod seeds;
mod soft;
mod soft_roce;

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use support::process;

/// The options of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

/// What is measured.
#[derive(Debug, clap::Subcommand)]
enum What {
    /// Two processes over UDP, beside UCX over TCP, bare UDP and iperf3; ten thousand connections; and beside
    /// soft-RoCE.
    Soft(soft::Args),
    /// Connections between two processes, beside the device under them and beside TCP.
    Net(net::Args),
    /// Posting, processing, polling and notifying, over every link, beside what RDMA adapters are said to do.
    Seeds(seeds::Args),
}

/// Measures, prints a table, and fails if a goal is missed.
pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        What::Soft(args) => soft::run(args),
        What::Net(args) => net::run(args),
        What::Seeds(args) => seeds::run(args),
    }
}

/// Adverb's program for this: its benchmark `soft`.
struct Program(String);

impl Program {
    fn build() -> Result<Program> {
        process::build("bench -p adverb --bench soft --features serde,soft --no-run").map(Program)
    }

    /// Runs it, and gives what it said: lines of a name and a number.
    fn run(&self, words: &str) -> Result<Said> {
        let mut command = Command::new("timeout");
        command.arg("60").arg(&self.0).args(words.split_whitespace());
        process::text(&mut command).map(Said)
    }

    /// Runs it with two devices on loopback addresses that hardly anybody else has, on a processor each.
    fn duel(&self, what: &str, words: &str) -> Result<Said> {
        let host = std::process::id() as u16;
        let [high, low] = host.to_be_bytes();
        let mut command = Command::new("timeout");
        command.args(["60", "taskset", "-c", OURS, &self.0, what]).env("PEER_CPU", THEIRS);
        command.args([format!("soft:127.111.{high}.{low}"), format!("soft:127.112.{high}.{low}")]);
        process::text(command.args(words.split_whitespace())).map(Said)
    }
}

/// The processors of who connects and who is connected to: processes that poll must not share one, and where others are
/// at work the scheduler may well put them together.
const OURS: &str = "0";
const THEIRS: &str = "1";

/// What a program said.
struct Said(String);

impl Said {
    fn number(&self, name: &str) -> Result<f64> {
        let mut lines = self.0.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let number = lines.next().and_then(|number| number.trim().parse().ok());
        number.with_context(|| format!("no {name} in:\n{}", self.0))
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_whole_name() {
        let said = Said("rate-best 3.0\nrate 2.5\n".to_owned());
        assert_eq!(said.number("rate").unwrap(), 2.5);
        assert!(said.number("rat").is_err());
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert!(median(vec![]).is_nan());
    }
}
