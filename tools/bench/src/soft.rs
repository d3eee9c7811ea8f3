//! `cargo xtask bench soft`: two processes over UDP on loopback, beside what else there is.

use std::process::ExitCode;

use anyhow::Result;

use super::baseline::Baselines;
use super::report::{self, Goal, Row};
use super::{Program, soft_roce};

/// The options of `cargo xtask bench soft`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How often everything is measured; the table has the medians.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Don't compare with soft-RoCE, which takes a virtual machine.
    #[arg(long)]
    no_vm: bool,
}

/// For how long each bandwidth and rate is measured.
const MILLISECONDS: u32 = 700;

/// How many round trips each latency is the median of.
const ROUND_TRIPS: u32 = 20_000;

/// What was measured, once per round.
#[derive(Default)]
struct Figures {
    write: Vec<f64>,
    udp_bandwidth: Vec<f64>,
    ucx_put: Vec<f64>,
    ucx_tag: Vec<f64>,
    iperf3: Vec<f64>,
    rate: Vec<f64>,
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
    println!("every message over the {MANY} connections came, once and in order");
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How many connections are few, and many.
const FEW: u32 = 16;
const MANY: u32 = 10_000;

impl Figures {
    /// Measures each once, beside its baselines.
    fn measure(&mut self, program: &Program, baselines: &Baselines) -> Result<()> {
        let time = MILLISECONDS.to_string();
        let trips = ROUND_TRIPS.to_string();
        self.udp_bandwidth.push(baselines.udp_bandwidth(MILLISECONDS)?);
        self.write.push(program.duel("write", &time)?.number("bandwidth")?);
        self.ucx_put.push(baselines.ucx("ucp_put_bw", 65_536, 20_000)?.megabytes);
        self.ucx_tag.push(baselines.ucx("tag_bw", 65_536, 20_000)?.megabytes);
        self.iperf3.push(baselines.iperf3()?);
        self.rate.push(program.duel("rate", &time)?.number("rate")?);
        self.ucx_rate.push(baselines.ucx("tag_bw", 8, 400_000)?.messages);
        self.udp_latency.push(baselines.udp_latency(ROUND_TRIPS)?);
        self.latency.push(program.duel("latency", &trips)?.number("half-round-us-p50")?);
        self.ucx_latency.push(baselines.ucx("tag_lat", 8, ROUND_TRIPS)?.latency);
        self.fetch_add.push(program.duel("fetch-add", &trips)?.number("round-us-p50")?);
        self.ucx_fetch_add.push(baselines.ucx("ucp_fadd", 8, ROUND_TRIPS)?.latency);
        let asleep = program.duel("fetch-add", &format!("{trips} asleep"))?;
        self.fetch_add_asleep.push(asleep.number("round-us-p50")?);
        self.few.push(program.duel("queue-pairs", &format!("{FEW} {time}"))?.number("rate")?);
        let many = program.duel("queue-pairs", &format!("{MANY} {time}"))?;
        self.many.push(many.number("rate")?);
        self.memory.push(many.number("KiB-per-queue-pair")?);
        self.memory_peer.push(many.number("KiB-per-queue-pair-peer")?);
        Ok(())
    }

    fn rows(self) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut row = |what, unit, ours: &Vec<f64>, beside, theirs: &Vec<f64>, goal| {
            rows.push(Row { what, unit, ours: ours.clone(), beside, theirs: theirs.clone(), goal });
        };
        let none = Vec::new();
        let write = "64 KiB WRITE";
        row(write, "MB/s", &self.write, "UCX tcp put", &self.ucx_put, Some(Goal::AtLeast(1.5)));
        row(
            write,
            "MB/s",
            &self.write,
            "bare UDP, GSO and GRO",
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
        let one_way = "8 B SEND one way, p50";
        row(
            one_way,
            "µs",
            &self.latency,
            "UCX tcp tagged message",
            &self.ucx_latency,
            Some(Goal::AtMost(1.0)),
        );
        row(one_way, "µs", &self.latency, "bare UDP, spinning", &self.udp_latency, Some(Goal::AtMost(1.7)));
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
        row(asleep, "µs", &self.fetch_add_asleep, "UCX tcp fetch-add (it can't)", &self.ucx_fetch_add, None);
        row(
            "8 B SEND, 10,000 connections",
            "1/s",
            &self.many,
            "16 connections",
            &self.few,
            Some(Goal::AtLeast(0.7)),
        );
        row("memory of a connection, who sends", "KiB", &self.memory, "", &none, None);
        row("memory of a connection, who receives", "KiB", &self.memory_peer, "", &none, None);
        rows
    }
}
