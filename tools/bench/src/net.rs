//! `cargo xtask bench net`: connections beside the device under them, and beside TCP; tonic over both.

use std::process::{Command, ExitCode};

use anyhow::Result;
use support::process;

use super::report::{self, Goal, Row};
use super::{OURS, Said, THEIRS};

/// The options of `cargo xtask bench net`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How often everything is measured; the table has the medians.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
}

/// For how long each rate is measured.
const MILLISECONDS: &str = "500";

/// How many round trips each latency is the median of.
const ROUND_TRIPS: &str = "10000";

/// How many calls are under way where many are.
const CALLS: &str = "64";

/// For how long nothing happens.
const IDLE_MILLISECONDS: u32 = 3000;

/// One of those who are compared, as the program has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    Raw,
    RawSingle,
    Threads,
    Fed,
    Given,
    Tasks,
    Stream,
    Tcp,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Who::Raw => "raw",
            Who::RawSingle => "raw-single",
            Who::Threads => "threads",
            Who::Fed => "fed",
            Who::Given => "given",
            Who::Tasks => "tasks",
            Who::Stream => "stream",
            Who::Tcp => "tcp",
        }
    }
}

/// What is measured of whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// Messages of 64 bytes, one way.
    Short,
    /// Messages of 1 MiB, one way.
    Long,
    /// 64 bytes there and back.
    Latency,
    /// tonic's unary calls, one at a time.
    Call,
    /// tonic's unary calls, many at a time.
    Calls,
    /// Nothing.
    Idle,
}

/// All that is measured, each beside what it is compared with.
const MEASURED: &[(What, &[Who])] = &[
    (What::Short, &[Who::Raw, Who::Fed, Who::RawSingle, Who::Threads, Who::Tasks]),
    (What::Long, &[Who::Raw, Who::Given, Who::Threads, Who::Tasks, Who::Tcp, Who::Stream]),
    (What::Latency, &[Who::Raw, Who::Threads, Who::Tasks, Who::Tcp, Who::Stream]),
    (What::Call, &[Who::Tcp, Who::Stream]),
    (What::Calls, &[Who::Tcp, Who::Stream]),
];

/// What is measured once, because it takes long.
const MEASURED_ONCE: &[(What, &[Who])] = &[(What::Idle, &[Who::Threads, Who::Tasks, Who::Tcp, Who::Stream])];

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let programs = Programs {
        net: process::build("bench -p adverb --bench net --features serde,soft,tokio --no-run")?,
        calls: process::build("bench -p adverb-greeter --bench calls --no-run")?,
    };
    let mut readings = Vec::new();
    let mut measure = |measured: &[(What, &[Who])]| -> Result<()> {
        for &(what, whos) in measured {
            for &who in whos {
                readings.push((what, who, one(&programs, what, who)?));
            }
        }
        Ok(())
    };
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        measure(MEASURED)?;
    }
    measure(MEASURED_ONCE)?;
    let rows = rows(&readings)?;
    println!(
        "{} rounds, each by turns: {MILLISECONDS} ms of messages, {ROUND_TRIPS} round trips; idle once, {IDLE_MILLISECONDS} ms",
        args.rounds
    );
    let missed = report::print(&rows);
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The programs that measure: that of the connections, and that of tonic's calls over them.
struct Programs {
    net: String,
    calls: String,
}

/// Measures one thing of one of them, once.
fn one(programs: &Programs, what: What, who: Who) -> Result<Said> {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let addresses = [111, 112].map(|network| format!("127.{network}.{high}.{low}"));
    // TCP has addresses where others have devices.
    let prefix = if who == Who::Tcp { "" } else { "soft:" };
    let idle = IDLE_MILLISECONDS.to_string();
    let (program, numbers): (&[&str], &[&str]) = match what {
        What::Short => (&[&programs.net, "rate"], &[MILLISECONDS, "64"]),
        What::Long => (&[&programs.net, "rate"], &[MILLISECONDS, "1048576"]),
        What::Latency => (&[&programs.net, "latency"], &[ROUND_TRIPS]),
        What::Call => (&[&programs.calls], &[MILLISECONDS, "1"]),
        What::Calls => (&[&programs.calls], &[MILLISECONDS, CALLS]),
        What::Idle => (&[&programs.net, "idle"], &[&idle]),
    };
    let mut command = Command::new("timeout");
    command.args(["60", "taskset", "-c", OURS]).args(program).arg(who.name()).env("PEER_CPU", THEIRS);
    command.args(addresses.map(|address| format!("{prefix}{address}"))).args(numbers);
    process::text(&mut command).map(Said)
}

fn rows(readings: &[(What, Who, Said)]) -> Result<Vec<Row>> {
    let numbers = |what: What, who: Who, number: &dyn Fn(&Said) -> Result<f64>| -> Result<Vec<f64>> {
        let said = readings.iter().filter(|(of, by, _)| (*of, *by) == (what, who));
        said.map(|(_, _, said)| number(said)).collect()
    };
    let rate = |said: &Said| said.number("rate");
    let bandwidth = |said: &Said| said.number("bandwidth");
    let round_trip = |said: &Said| said.number("round-us-p50");
    let call = |said: &Said| said.number("call-us-p50");
    let processor = |said: &Said| -> Result<f64> {
        Ok(said.number("processor-seconds")? + said.number("processor-seconds-peer")?)
    };
    let per_gibibyte = |said: &Said| -> Result<f64> { Ok(processor(said)? / said.number("gibibytes")?) };
    let per_minute =
        |said: &Said| -> Result<f64> { Ok(processor(said)? * 60e3 / f64::from(IDLE_MILLISECONDS)) };
    let mut rows = Vec::new();
    let mut row = |name: &'static str,
                   unit: &'static str,
                   what: What,
                   (ours, theirs): (Who, Who),
                   beside: &'static str,
                   number: &dyn Fn(&Said) -> Result<f64>,
                   goal: Option<Goal>|
     -> Result<()> {
        let [ours, theirs] = [numbers(what, ours, number)?, numbers(what, theirs, number)?];
        rows.push(Row { what: name, unit, ours, beside, theirs, goal });
        Ok(())
    };
    use What::{Call, Calls, Idle, Latency, Long, Short};
    use Who::{Fed, Given, Raw, RawSingle, Stream, Tasks, Tcp, Threads};
    let (least, most) = (Some(Goal::AtLeast(0.8)), Some(Goal::AtMost(1.3)));
    let raw = "raw SEND";
    row("64 B messages, fed", "1/s", Short, (Fed, Raw), "raw SEND, 64 a doorbell", &rate, least)?;
    row(
        "64 B messages, one by one",
        "1/s",
        Short,
        (Threads, RawSingle),
        "raw SEND, 2048 under way",
        &rate,
        None,
    )?;
    row(
        "64 B messages, one by one, tasks",
        "1/s",
        Short,
        (Tasks, RawSingle),
        "raw SEND, 2048 under way",
        &rate,
        None,
    )?;
    row("1 MiB messages, buffers of the pool", "MB/s", Long, (Given, Raw), raw, &bandwidth, least)?;
    row("1 MiB messages, copied", "MB/s", Long, (Threads, Raw), raw, &bandwidth, least)?;
    row("1 MiB messages, copied, tasks", "MB/s", Long, (Tasks, Raw), raw, &bandwidth, least)?;
    row("64 B there and back, p50", "µs", Latency, (Threads, Raw), raw, &round_trip, most)?;
    row("64 B there and back, tasks, p50", "µs", Latency, (Tasks, Raw), raw, &round_trip, most)?;
    row("64 B there and back, stream, p50", "µs", Latency, (Stream, Tcp), "tokio TCP", &round_trip, None)?;
    row(
        "stream, 1 MiB writes",
        "MB/s",
        Long,
        (Stream, Tcp),
        "tokio TCP",
        &bandwidth,
        Some(Goal::AtLeast(1.0)),
    )?;
    row("tonic calls, one at a time", "1/s", Call, (Stream, Tcp), "tokio TCP", &rate, None)?;
    row("tonic calls, one at a time, p50", "µs", Call, (Stream, Tcp), "tokio TCP", &call, None)?;
    row("tonic calls, 64 at a time", "1/s", Calls, (Stream, Tcp), "tokio TCP", &rate, None)?;
    row("processor per GiB, messages", "s", Long, (Threads, Tcp), "tokio TCP", &per_gibibyte, None)?;
    row("processor per GiB, stream", "s", Long, (Stream, Tcp), "tokio TCP", &per_gibibyte, None)?;
    row("processor per idle minute, threads", "s", Idle, (Threads, Tcp), "tokio TCP", &per_minute, None)?;
    row("processor per idle minute, tasks", "s", Idle, (Tasks, Tcp), "tokio TCP", &per_minute, None)?;
    row("processor per idle minute, stream", "s", Idle, (Stream, Tcp), "tokio TCP", &per_minute, None)?;
    Ok(rows)
}
