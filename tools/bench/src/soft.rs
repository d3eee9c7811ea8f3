//! `cargo xtask bench soft`: two processes over UDP on the loopback interface, compared with other stacks.

use std::process::ExitCode;

use anyhow::Result;

use super::baseline::Baselines;
use super::report::{self, Goal, Row};
use super::{Program, soft_roce};

/// The options of `cargo xtask bench soft`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of measurements of each value; the table shows the medians.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Skip the comparison with soft-RoCE, which needs a virtual machine.
    #[arg(long)]
    no_vm: bool,
}

/// The duration of each bandwidth and rate measurement, in milliseconds.
const MILLISECONDS: u32 = 700;

/// The number of round trips of each latency measurement.
const ROUND_TRIPS: u32 = 20_000;

/// The measured values, one of each per round.
#[derive(Default)]
struct Figures {
    write: Vec<f64>,
    udp_bandwidth: Vec<f64>,
    ucx_put: Vec<f64>,
    ucx_tag: Vec<f64>,
    iperf3: Vec<f64>,
    rate: Vec<f64>,
    plain_rate: Vec<f64>,
    recorded_rate: Vec<f64>,
    ucx_rate: Vec<f64>,
    latency: Vec<f64>,
    udp_latency: Vec<f64>,
    ucx_latency: Vec<f64>,
    fetch_add: Vec<f64>,
    fetch_add_asleep: Vec<f64>,
    ucx_fetch_add: Vec<f64>,
    few: Vec<f64>,
    many: Vec<f64>,
    memory: Vec<f64>,
    memory_peer: Vec<f64>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let baselines = Baselines::prepare()?;
    let program = Program::build()?;
    let mut figures = Figures::default();
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        figures.measure(&program, &baselines)?;
    }
    let mut rows = figures.rows();
    if !args.no_vm {
        rows.push(soft_roce::compare(&program)?);
    }
    let missed = report::print(&rows);
    println!("all messages over the {MANY_CONNECTIONS} connections arrived once and in order");
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The numbers of connections in the scaling measurement.
const FEW_CONNECTIONS: u32 = 16;
const MANY_CONNECTIONS: u32 = 10_000;

impl Figures {
    /// Measures each value and its baselines once.
    fn measure(&mut self, program: &Program, baselines: &Baselines) -> Result<()> {
        let time = MILLISECONDS.to_string();
        let trips = ROUND_TRIPS.to_string();
        self.udp_bandwidth.push(baselines.udp_bandwidth(MILLISECONDS)?);
        self.write.push(program.run_pair("write", &time)?.number("bandwidth")?);
        self.ucx_put.push(baselines.ucx("ucp_put_bw", 65_536, 20_000)?.megabytes);
        self.ucx_tag.push(baselines.ucx("tag_bw", 65_536, 20_000)?.megabytes);
        self.iperf3.push(baselines.iperf3()?);
        self.rate.push(program.run_pair("rate", &time)?.number("rate")?);
        self.plain_rate.push(program.run_pair("rate", &format!("{time} 64"))?.number("rate")?);
        let recorded = program.run_pair("rate", &format!("{time} 64 recorded"))?;
        self.recorded_rate.push(recorded.number("rate")?);
        self.ucx_rate.push(baselines.ucx("tag_bw", 8, 400_000)?.messages);
        self.udp_latency.push(baselines.udp_latency(ROUND_TRIPS)?);
        self.latency.push(program.run_pair("latency", &trips)?.number("half-round-us-p50")?);
        self.ucx_latency.push(baselines.ucx("tag_lat", 8, ROUND_TRIPS)?.latency);
        self.fetch_add.push(program.run_pair("fetch-add", &trips)?.number("round-us-p50")?);
        self.ucx_fetch_add.push(baselines.ucx("ucp_fadd", 8, ROUND_TRIPS)?.latency);
        let asleep = program.run_pair("fetch-add", &format!("{trips} asleep"))?;
        self.fetch_add_asleep.push(asleep.number("round-us-p50")?);
        self.few.push(program.run_pair("queue-pairs", &format!("{FEW_CONNECTIONS} {time}"))?.number("rate")?);
        let many = program.run_pair("queue-pairs", &format!("{MANY_CONNECTIONS} {time}"))?;
        self.many.push(many.number("rate")?);
        self.memory.push(many.number("KiB-per-queue-pair")?);
        self.memory_peer.push(many.number("KiB-per-queue-pair-peer")?);
        Ok(())
    }

    fn rows(self) -> Vec<Row> {
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
        let none = Vec::new();
        let write = "64 KiB WRITE";
        row(write, "MB/s", &self.write, "UCX tcp put", &self.ucx_put, Some(Goal::AtLeast(1.5)));
        row(
            write,
            "MB/s",
            &self.write,
            "plain UDP, GSO and GRO",
            &self.udp_bandwidth,
            Some(Goal::AtLeast(0.4)),
        );
        row(write, "MB/s", &self.write, "UCX tcp tagged message", &self.ucx_tag, None);
        row(write, "MB/s", &self.write, "iperf3 (TCP)", &self.iperf3, None);
        row(
            "8 B SEND",
            "1/s",
            &self.rate,
            "UCX tcp tagged message",
            &self.ucx_rate,
            Some(Goal::AtLeast(5.0)),
        );
        row(
            "64 B SEND, recording",
            "1/s",
            &self.recorded_rate,
            "without recording",
            &self.plain_rate,
            Some(Goal::AtLeast(0.95)),
        );
        let one_way = "8 B SEND one way, p50";
        row(
            one_way,
            "µs",
            &self.latency,
            "UCX tcp tagged message",
            &self.ucx_latency,
            Some(Goal::AtMost(1.0)),
        );
        row(
            one_way,
            "µs",
            &self.latency,
            "plain UDP, busy polling",
            &self.udp_latency,
            Some(Goal::AtMost(1.7)),
        );
        let fetch_add = "8 B fetch-add, target polling, p50";
        row(
            fetch_add,
            "µs",
            &self.fetch_add,
            "UCX tcp fetch-add",
            &self.ucx_fetch_add,
            Some(Goal::AtMost(1.0)),
        );
        let asleep = "8 B fetch-add, target asleep, p50";
        row(
            asleep,
            "µs",
            &self.fetch_add_asleep,
            "UCX tcp fetch-add, target polling",
            &self.ucx_fetch_add,
            None,
        );
        row(
            "8 B SEND, 10,000 connections",
            "1/s",
            &self.many,
            "16 connections",
            &self.few,
            Some(Goal::AtLeast(0.7)),
        );
        row("memory per connection, sender", "KiB", &self.memory, "", &none, None);
        row("memory per connection, receiver", "KiB", &self.memory_peer, "", &none, None);
        rows
    }
}
