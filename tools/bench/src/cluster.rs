//! `cargo xtask bench cluster`: messages and calls between brokers, compared with TCP, tonic and UCX.

use std::process::{Command, ExitCode};

use anyhow::Result;
use support::{packages, process};

use super::baseline::{self, Ucx};
use super::report::{self, Goal, Row};
use super::{CONNECTOR_CPU, LISTENER_CPU, Output};

/// The options of `cargo xtask bench cluster`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of measurements of each value; the table shows the medians.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
}

/// The duration of each measurement, in milliseconds.
const MILLISECONDS: &str = "500";

/// The length of the data of messages, requests and replies, in bytes.
const LEN: u32 = 64;

/// The numbers of messages per doorbell.
const BATCHES: [&str; 4] = ["1", "4", "16", "64"];

/// The numbers of outstanding calls.
const OUTSTANDING: [&str; 2] = ["1", "64"];

/// The numbers of active messages that UCX sends to measure its latency and its rate.
const UCX_ROUND_TRIPS: u32 = 20_000;
const UCX_MESSAGES: u32 = 200_000;

/// The benchmark programs.
struct Programs {
    /// The program for brokers, and for calls over brokers and over TCP.
    cluster: String,
    /// The program for tonic's calls.
    tonic: String,
}

/// A protocol of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Protocol {
    /// Calls between brokers.
    Rpc,
    /// Messages over TCP; each side writes all messages that it has with one system call.
    Tcp,
    /// Messages over TCP; each side writes each message with its own system call.
    TcpSingle,
    Tonic,
}

const PROTOCOLS: [Protocol; 4] = [Protocol::Rpc, Protocol::Tcp, Protocol::TcpSingle, Protocol::Tonic];

/// The measured values of one protocol and number of outstanding calls, one of each per round.
#[derive(Default)]
struct Calls {
    rate: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    p999: Vec<f64>,
}

/// All measured values.
#[derive(Default)]
struct Figures {
    /// The rates of messages, by the index of the batch.
    messages: [Vec<f64>; BATCHES.len()],
    /// The calls, by the index of the protocol and that of the number of outstanding calls.
    calls: [[Calls; OUTSTANDING.len()]; PROTOCOLS.len()],
    /// The rate of UCX's active messages in one direction, and the percentiles of their round trips.
    ucx: Calls,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let has_ucx = packages::ensure(&["ucx-utils"]);
    if let Err(error) = &has_ucx {
        eprintln!("the comparison with UCX is skipped: {error:#}");
    }
    let programs = Programs {
        cluster: process::build("bench -p adverb --bench cluster --features cluster,soft,tokio --no-run")?,
        tonic: process::build("bench -p adverb-greeter --bench calls --no-run")?,
    };
    let mut figures = Figures::default();
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        figures.measure(&programs, has_ucx.is_ok())?;
    }
    println!(
        "{} rounds of {MILLISECONDS} ms; {LEN} bytes of data per message, request and reply; two processes on two CPUs",
        args.rounds
    );
    let missed = report::print(&figures.rows(has_ucx.is_ok()));
    println!(
        "Brokers and UCX poll, and tokio sleeps. A round trip of UCX is twice its latency in one direction, and its rate \
         counts messages in one direction: each call has two. With coalesced writes, a side of TCP writes all messages \
         that it has with one system call."
    );
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Figures {
    /// Measures each value and its baselines once.
    fn measure(&mut self, programs: &Programs, has_ucx: bool) -> Result<()> {
        for (batch, rates) in BATCHES.iter().zip(&mut self.messages) {
            let words = [&programs.cluster, "messages"];
            rates.push(run_pair(&words, "soft:", &[MILLISECONDS, batch])?.number("rate")?);
        }
        for (index, outstanding) in OUTSTANDING.iter().enumerate() {
            for (protocol, calls) in PROTOCOLS.iter().zip(&mut self.calls) {
                let (words, prefix): (&[&str], &str) = match protocol {
                    Protocol::Rpc => (&[&programs.cluster, "calls", "rpc"], "soft:"),
                    Protocol::Tcp => (&[&programs.cluster, "calls", "tcp"], ""),
                    Protocol::TcpSingle => (&[&programs.cluster, "calls", "tcp-single"], ""),
                    Protocol::Tonic => (&[&programs.tonic, "tcp"], ""),
                };
                calls[index].add(&run_pair(words, prefix, &[MILLISECONDS, outstanding])?)?;
            }
            if has_ucx {
                self.measure_ucx(outstanding)?;
            }
        }
        Ok(())
    }

    fn measure_ucx(&mut self, outstanding: &str) -> Result<()> {
        if outstanding != "1" {
            let options = ["-O", outstanding];
            let Ucx { messages, .. } = baseline::ucx("ucp_am_bw", LEN, UCX_MESSAGES, &options)?;
            self.ucx.rate.push(messages);
            return Ok(());
        }
        let Calls { p50, p99, p999, .. } = &mut self.ucx;
        for (rank, latencies) in [("50", p50), ("99", p99), ("99.9", p999)] {
            let Ucx { latency, .. } = baseline::ucx("ucp_am_lat", LEN, UCX_ROUND_TRIPS, &["-R", rank])?;
            latencies.push(2.0 * latency);
        }
        Ok(())
    }

    fn calls(&self, protocol: Protocol, outstanding: usize) -> &Calls {
        &self.calls[protocol as usize][outstanding]
    }

    fn rows(&self, has_ucx: bool) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut row = |what, unit, values: &Vec<f64>, baseline, baseline_values: &Vec<f64>, goal| {
            rows.push(Row {
                what,
                unit,
                values: values.clone(),
                baseline,
                baseline_values: baseline_values.clone(),
                goal,
            });
        };
        let [batch_1, batch_4, batch_16, batch_64] = &self.messages;
        row("messages, 1 per doorbell", "1/s", batch_1, "", &Vec::new(), None);
        row("messages, 4 per doorbell", "1/s", batch_4, "1 per doorbell", batch_1, None);
        row("messages, 16 per doorbell", "1/s", batch_16, "1 per doorbell", batch_1, None);
        row("messages, 64 per doorbell", "1/s", batch_64, "1 per doorbell", batch_1, None);

        let (coalesced, separate, tonic) =
            ("tokio TCP, coalesced writes", "tokio TCP, a write per message", "tonic over TCP");
        let tcp = [(Protocol::Tcp, coalesced), (Protocol::TcpSingle, separate), (Protocol::Tonic, tonic)];
        let many = self.calls(Protocol::Rpc, 1);
        for (protocol, name) in tcp {
            let goal = if protocol == Protocol::Tonic { 3.0 } else { 1.5 };
            let baseline_values = self.calls(protocol, 1);
            row(
                "calls, 64 outstanding",
                "1/s",
                &many.rate,
                name,
                &baseline_values.rate,
                Some(Goal::AtLeast(goal)),
            );
        }
        if has_ucx {
            let (name, goal) = ("UCX tcp, one direction", Some(Goal::AtLeast(1.5)));
            row("calls, 64 outstanding", "1/s", &many.rate, name, &self.ucx.rate, goal);
        }
        for (protocol, name) in tcp {
            let baseline_values = self.calls(protocol, 1);
            row("call, 64 outstanding, p50", "µs", &many.p50, name, &baseline_values.p50, None);
            row("call, 64 outstanding, p99", "µs", &many.p99, name, &baseline_values.p99, None);
            row("call, 64 outstanding, p99.9", "µs", &many.p999, name, &baseline_values.p999, None);
        }
        let one = self.calls(Protocol::Rpc, 0);
        if has_ucx {
            let name = "UCX tcp, round trip";
            row("call, 1 outstanding, p50", "µs", &one.p50, name, &self.ucx.p50, Some(Goal::AtMost(1.5)));
            row("call, 1 outstanding, p99", "µs", &one.p99, name, &self.ucx.p99, None);
            row("call, 1 outstanding, p99.9", "µs", &one.p999, name, &self.ucx.p999, None);
        }
        for (protocol, name) in tcp.into_iter().filter(|(protocol, _)| *protocol != Protocol::TcpSingle) {
            let baseline_values = self.calls(protocol, 0);
            row("calls, 1 outstanding", "1/s", &one.rate, name, &baseline_values.rate, None);
            row("call, 1 outstanding, p50", "µs", &one.p50, name, &baseline_values.p50, None);
            row("call, 1 outstanding, p99", "µs", &one.p99, name, &baseline_values.p99, None);
            row("call, 1 outstanding, p99.9", "µs", &one.p999, name, &baseline_values.p999, None);
        }
        rows
    }
}

impl Calls {
    fn add(&mut self, output: &Output) -> Result<()> {
        let Calls { rate, p50, p99, p999 } = self;
        let names = ["rate", "call-us-p50", "call-us-p99", "call-us-p999"];
        for (numbers, name) in [rate, p50, p99, p999].into_iter().zip(names) {
            numbers.push(output.number(name)?);
        }
        Ok(())
    }
}

/// Runs a program with two devices, or two addresses if `prefix` is empty, each process on its own CPU.
fn run_pair(words: &[&str], prefix: &str, numbers: &[&str]) -> Result<Output> {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let places = [113, 114].map(|network| format!("{prefix}127.{network}.{high}.{low}"));
    let mut command = Command::new("timeout");
    command.args(["60", "taskset", "-c", CONNECTOR_CPU]).args(words).args(places).args(numbers);
    process::text(command.env("PEER_CPU", LISTENER_CPU)).map(Output)
}
