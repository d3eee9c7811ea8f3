//! `cargo xtask bench net`: connections, compared with raw SENDs on the same device and with TCP; tonic over both.

use std::process::{Command, ExitCode};

use anyhow::Result;
use support::process;

use super::report::{self, Goal, Row};
use super::{CONNECTOR_CPU, LISTENER_CPU, Output};

/// The options of `cargo xtask bench net`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of measurements of each value; the table shows the medians.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
}

/// The duration of each rate measurement.
const MILLISECONDS: &str = "500";

/// The number of round trips of each latency measurement.
const ROUND_TRIPS: &str = "10000";

/// The number of outstanding calls in [`Measurement::Calls`].
const CALLS: &str = "64";

/// The duration of the idle measurement.
const IDLE_MILLISECONDS: u32 = 3000;

/// A transport, as the program names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transport {
    /// SENDs on queue pairs, posted in batches.
    Raw,
    /// SENDs on queue pairs, posted one at a time.
    RawSingle,
    /// Blocking connections.
    Threads,
    /// Blocking connections that coalesce messages.
    Fed,
    /// Blocking connections that send the pool's buffers without a copy.
    Given,
    /// Async connections.
    Tasks,
    /// A connection as a byte stream.
    Stream,
    /// TCP, through tokio.
    Tcp,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Transport::Raw => "raw",
            Transport::RawSingle => "raw-single",
            Transport::Threads => "threads",
            Transport::Fed => "fed",
            Transport::Given => "given",
            Transport::Tasks => "tasks",
            Transport::Stream => "stream",
            Transport::Tcp => "tcp",
        }
    }
}

/// A measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Measurement {
    /// Messages of 64 bytes, one way.
    Short,
    /// Messages of 1 MiB, one way.
    Long,
    /// Round trips of 64 bytes.
    Latency,
    /// Unary calls of tonic, one at a time.
    Call,
    /// Unary calls of tonic, many at a time.
    Calls,
    /// CPU time of an idle connection.
    Idle,
}

/// The measurements of each round, with the transports to compare.
const MEASURED: &[(Measurement, &[Transport])] = &[
    (
        Measurement::Short,
        &[Transport::Raw, Transport::Fed, Transport::RawSingle, Transport::Threads, Transport::Tasks],
    ),
    (
        Measurement::Long,
        &[
            Transport::Raw,
            Transport::Given,
            Transport::Threads,
            Transport::Tasks,
            Transport::Tcp,
            Transport::Stream,
        ],
    ),
    (
        Measurement::Latency,
        &[Transport::Raw, Transport::Threads, Transport::Tasks, Transport::Tcp, Transport::Stream],
    ),
    (Measurement::Call, &[Transport::Tcp, Transport::Stream]),
    (Measurement::Calls, &[Transport::Tcp, Transport::Stream]),
];

/// The measurements that run only once, because they take long.
const MEASURED_ONCE: &[(Measurement, &[Transport])] =
    &[(Measurement::Idle, &[Transport::Threads, Transport::Tasks, Transport::Tcp, Transport::Stream])];

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let programs = Programs {
        net: process::build("bench -p adverb --bench net --features serde,soft,tokio --no-run")?,
        calls: process::build("bench -p adverb-greeter --bench calls --no-run")?,
    };
    let mut readings = Vec::new();
    let mut measure = |measured: &[(Measurement, &[Transport])]| -> Result<()> {
        for &(measurement, transports) in measured {
            for &transport in transports {
                readings.push((measurement, transport, measure_one(&programs, measurement, transport)?));
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
        "{} rounds: {MILLISECONDS} ms per rate, {ROUND_TRIPS} round trips per latency; {IDLE_MILLISECONDS} ms idle, once",
        args.rounds
    );
    let missed = report::print(&rows);
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The benchmark programs: for connections, and for tonic's calls over them.
struct Programs {
    net: String,
    calls: String,
}

/// Runs one measurement of one transport.
fn measure_one(programs: &Programs, measurement: Measurement, transport: Transport) -> Result<Output> {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let addresses = [111, 112].map(|network| format!("127.{network}.{high}.{low}"));
    // TCP takes addresses instead of devices.
    let prefix = if transport == Transport::Tcp { "" } else { "soft:" };
    let idle = IDLE_MILLISECONDS.to_string();
    let (program, numbers): (&[&str], &[&str]) = match measurement {
        Measurement::Short => (&[&programs.net, "rate"], &[MILLISECONDS, "64"]),
        Measurement::Long => (&[&programs.net, "rate"], &[MILLISECONDS, "1048576"]),
        Measurement::Latency => (&[&programs.net, "latency"], &[ROUND_TRIPS]),
        Measurement::Call => (&[&programs.calls], &[MILLISECONDS, "1"]),
        Measurement::Calls => (&[&programs.calls], &[MILLISECONDS, CALLS]),
        Measurement::Idle => (&[&programs.net, "idle"], &[&idle]),
    };
    let mut command = Command::new("timeout");
    command
        .args(["60", "taskset", "-c", CONNECTOR_CPU])
        .args(program)
        .arg(transport.name())
        .env("PEER_CPU", LISTENER_CPU);
    command.args(addresses.map(|address| format!("{prefix}{address}"))).args(numbers);
    process::text(&mut command).map(Output)
}

fn rows(readings: &[(Measurement, Transport, Output)]) -> Result<Vec<Row>> {
    let numbers = |measurement: Measurement,
                   transport: Transport,
                   number: &dyn Fn(&Output) -> Result<f64>|
     -> Result<Vec<f64>> {
        let outputs = readings.iter().filter(|(of, by, _)| (*of, *by) == (measurement, transport));
        outputs.map(|(_, _, output)| number(output)).collect()
    };
    let rate = |output: &Output| output.number("rate");
    let bandwidth = |output: &Output| output.number("bandwidth");
    let round_trip = |output: &Output| output.number("round-us-p50");
    let call = |output: &Output| output.number("call-us-p50");
    let cpu_seconds = |output: &Output| -> Result<f64> {
        Ok(output.number("processor-seconds")? + output.number("processor-seconds-peer")?)
    };
    let per_gibibyte =
        |output: &Output| -> Result<f64> { Ok(cpu_seconds(output)? / output.number("gibibytes")?) };
    let per_minute =
        |output: &Output| -> Result<f64> { Ok(cpu_seconds(output)? * 60e3 / f64::from(IDLE_MILLISECONDS)) };
    let mut rows = Vec::new();
    let mut row = |name: &'static str,
                   unit: &'static str,
                   measurement: Measurement,
                   (transport, baseline_transport): (Transport, Transport),
                   baseline: &'static str,
                   number: &dyn Fn(&Output) -> Result<f64>,
                   goal: Option<Goal>|
     -> Result<()> {
        let values = numbers(measurement, transport, number)?;
        let baseline_values = numbers(measurement, baseline_transport, number)?;
        rows.push(Row { what: name, unit, values, baseline, baseline_values, goal });
        Ok(())
    };
    use Measurement::{Call, Calls, Idle, Latency, Long, Short};
    use Transport::{Fed, Given, Raw, RawSingle, Stream, Tasks, Tcp, Threads};
    let (at_least, at_most) = (Some(Goal::AtLeast(0.8)), Some(Goal::AtMost(1.3)));
    let raw = "raw SEND";
    row("64 B messages, feed", "1/s", Short, (Fed, Raw), "raw SEND, 64 per doorbell", &rate, at_least)?;
    row("64 B messages, send", "1/s", Short, (Threads, RawSingle), "raw SEND, 2048 in flight", &rate, None)?;
    row(
        "64 B messages, send, tasks",
        "1/s",
        Short,
        (Tasks, RawSingle),
        "raw SEND, 2048 in flight",
        &rate,
        None,
    )?;
    row("1 MiB messages, pool buffers", "MB/s", Long, (Given, Raw), raw, &bandwidth, at_least)?;
    row("1 MiB messages, copied", "MB/s", Long, (Threads, Raw), raw, &bandwidth, at_least)?;
    row("1 MiB messages, copied, tasks", "MB/s", Long, (Tasks, Raw), raw, &bandwidth, at_least)?;
    row("64 B round trip, p50", "µs", Latency, (Threads, Raw), raw, &round_trip, at_most)?;
    row("64 B round trip, tasks, p50", "µs", Latency, (Tasks, Raw), raw, &round_trip, at_most)?;
    row("64 B round trip, stream, p50", "µs", Latency, (Stream, Tcp), "tokio TCP", &round_trip, None)?;
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
    row("CPU time per GiB, messages", "s", Long, (Threads, Tcp), "tokio TCP", &per_gibibyte, None)?;
    row("CPU time per GiB, stream", "s", Long, (Stream, Tcp), "tokio TCP", &per_gibibyte, None)?;
    row("CPU time per idle minute, threads", "s", Idle, (Threads, Tcp), "tokio TCP", &per_minute, None)?;
    row("CPU time per idle minute, tasks", "s", Idle, (Tasks, Tcp), "tokio TCP", &per_minute, None)?;
    row("CPU time per idle minute, stream", "s", Idle, (Stream, Tcp), "tokio TCP", &per_minute, None)?;
    Ok(rows)
}
