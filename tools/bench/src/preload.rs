//! `cargo xtask bench preload`: perftest on adverb-preload, compared with perftest on the kernel's soft-RoCE.
//!
//! The guest has one CPU and a clock that counts instructions. Two processes that poll would wait for the scheduler's
//! ticks, so the programs wait for events, except in the tests of WRITEs, where only one end polls. adverb-preload runs
//! in the namespace without RDMA, because both use the RoCE port. Its packets pass through the loopback interface;
//! soft-RoCE delivers packets to itself directly.

use std::process::ExitCode;

use anyhow::{Context, Result};
use support::process;
use vm::virtual_time;

use super::perf::{PAIR, columns};
use super::report::{self, Row};

/// The options of `cargo xtask bench preload`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Number of measurements of each value; the table shows the medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
}

/// A program of perftest with its options, and a column of its table.
struct Work {
    what: &'static str,
    unit: &'static str,
    command: &'static str,
    column: &'static str,
    /// The factor from the column's unit to `unit`.
    factor: f64,
}

const LATENCY: &str = "t_avg[usec]";
const BANDWIDTH: &str = "BW average[MB/sec]";
const MESSAGE_RATE: &str = "MsgRate[Mpps]";

const WORKS: &[Work] = &[
    Work::latency("SEND of 2 B, one way, events", "ib_send_lat -e -s 2 -r 16 -n 1000"),
    Work::latency("READ of 2 B, events", "ib_read_lat -e -s 2 -n 1000"),
    Work::rate("SENDs of 64 B, events", "ib_send_bw -e -s 64 -n 3000"),
    Work::rate("WRITEs of 64 B", "ib_write_bw -s 64 -n 3000"),
    Work::bandwidth("SENDs of 64 KiB, events", "ib_send_bw -e -s 65536 -n 300"),
    Work::bandwidth("WRITEs of 64 KiB", "ib_write_bw -s 65536 -n 300"),
];

impl Work {
    const fn latency(what: &'static str, command: &'static str) -> Work {
        Work { what, unit: "µs", command, column: LATENCY, factor: 1.0 }
    }

    const fn rate(what: &'static str, command: &'static str) -> Work {
        Work { what, unit: "messages/s", command, column: MESSAGE_RATE, factor: 1e6 }
    }

    const fn bandwidth(what: &'static str, command: &'static str) -> Work {
        Work { what, unit: "MiB/s", command, column: BANDWIDTH, factor: 1.0 }
    }

    /// Returns the shell commands on adverb-preload and on soft-RoCE.
    fn lines(&self, adverb: &str, libraries: &str) -> [String; 2] {
        let run = format!("ip netns exec peer {adverb} run --quiet --libraries {libraries} --");
        let preload = format!("{run} {} -d adverb0 -x 0 -F", self.command);
        let rxe = format!("{} -d rxe0 -x 1 -F", self.command);
        [(preload, "127.0.0.1"), (rxe, "10.77.0.1")]
            .map(|(server, address)| format!("{PAIR}pair '{server}' '{server} {address}'"))
    }

    fn value(&self, output: &str) -> Result<f64> {
        let columns = columns(output, &[self.column]);
        let value = columns.with_context(|| format!("{} printed no result:\n{output}", self.command))?;
        Ok(value[0] * self.factor)
    }
}

/// Measures, and prints a table.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let adverb = process::build("build --release -p adverb-cli")?;
    let printed = process::text(&mut process::cargo("xtask preload"))?;
    let libraries = printed.lines().last().context("`cargo xtask preload` printed no directory")?;
    let mut lines = Vec::new();
    for work in WORKS {
        for _ in 0..args.rounds {
            lines.extend(work.lines(&adverb, libraries));
        }
    }
    let output = virtual_time::run(9000, &lines)?;
    let mut rows = Vec::new();
    for (work, output) in WORKS.iter().zip(output.chunks(2 * usize::from(args.rounds))) {
        let mut figures = [Vec::new(), Vec::new()];
        for (number, output) in output.iter().enumerate() {
            figures[number % 2].push(work.value(output)?);
        }
        let [values, baseline_values] = figures;
        let (what, unit) = (work.what, work.unit);
        rows.push(Row { what, unit, values, baseline: "soft-RoCE (rxe)", baseline_values, goal: None });
    }
    report::print(&rows);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_in_perftests_tables() {
        let bandwidth = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                         64         3000             1.90              0.83   \t\t   0.013600\n";
        assert_eq!(Work::rate("", "").value(bandwidth).unwrap().round(), 13_600.0);
        assert_eq!(Work::bandwidth("", "").value(bandwidth).unwrap(), 0.83);
        assert!(Work::latency("", "").value(bandwidth).is_err());
    }
}
