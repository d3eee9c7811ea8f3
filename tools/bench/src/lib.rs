//! `cargo xtask bench` and `cargo xtask perf`: Adverb's speed, compared with other stacks.
//!
//! Machines are noisy, so each value and its baseline are measured in turn, several times, and the table shows the
//! medians.

mod baseline;
mod cluster;
mod kv;
mod net;
pub mod perf;
mod preload;
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
    benchmark: Benchmark,
}

/// A benchmark.
#[derive(Debug, clap::Subcommand)]
enum Benchmark {
    /// Benchmark the software NIC between two processes against UCX over TCP, plain UDP, iperf3 and soft-RoCE.
    Soft(soft::Args),
    /// Benchmark connections between two processes against raw SENDs on the same device and against TCP.
    Net(net::Args),
    /// Benchmark messages and calls between the brokers of two processes against TCP, tonic and UCX over TCP.
    Cluster(cluster::Args),
    /// Benchmark posting, processing, polling and notification over every link.
    Seeds(seeds::Args),
    /// Compare perftest on adverb-preload with perftest on soft-RoCE, in virtual time.
    Preload(preload::Args),
    /// Compare GETs of the example cache by READ, by RPC and over TCP, and of Redis.
    Kv(kv::Args),
}

/// Measures, prints a table, and returns failure if a goal is missed.
///
/// # Errors
///
/// Returns an error if a program can't be built, fails, or prints no result.
pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.benchmark {
        Benchmark::Soft(args) => soft::run(args),
        Benchmark::Net(args) => net::run(args),
        Benchmark::Cluster(args) => cluster::run(args),
        Benchmark::Seeds(args) => seeds::run(args),
        Benchmark::Preload(args) => preload::run(args),
        Benchmark::Kv(args) => kv::run(args),
    }
}

/// Adverb's benchmark program `soft`.
struct Program(String);

impl Program {
    fn build() -> Result<Program> {
        process::build("bench -p adverb --bench soft --features serde,soft --no-run").map(Program)
    }

    /// Runs the program, and returns its output: lines of a name and a number.
    fn run(&self, words: &str) -> Result<Output> {
        let mut command = Command::new("timeout");
        command.arg("60").arg(&self.0).args(words.split_whitespace());
        process::text(&mut command).map(Output)
    }

    /// Runs the program with two devices on loopback addresses derived from the process ID, each process on its own
    /// CPU.
    fn run_pair(&self, what: &str, words: &str) -> Result<Output> {
        let host = std::process::id() as u16;
        let [high, low] = host.to_be_bytes();
        let mut command = Command::new("timeout");
        command.args(["60", "taskset", "-c", CONNECTOR_CPU, &self.0, what]).env("PEER_CPU", LISTENER_CPU);
        command.args([format!("soft:127.111.{high}.{low}"), format!("soft:127.112.{high}.{low}")]);
        process::text(command.args(words.split_whitespace())).map(Output)
    }
}

/// The CPUs of the connector and of the listener. Polling processes must not share a CPU, and on a busy machine the
/// scheduler may place them on the same one.
const CONNECTOR_CPU: &str = "0";
const LISTENER_CPU: &str = "1";

/// The output of a program.
struct Output(String);

impl Output {
    fn number(&self, name: &str) -> Result<f64> {
        let mut lines = self.0.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let number = lines.next().and_then(|number| number.trim().parse().ok());
        number.with_context(|| format!("the program printed no value `{name}`:\n{}", self.0))
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
        let output = Output("rate-best 3.0\nrate 2.5\n".to_owned());
        assert_eq!(output.number("rate").unwrap(), 2.5);
        assert!(output.number("rat").is_err());
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert!(median(vec![]).is_nan());
    }
}
