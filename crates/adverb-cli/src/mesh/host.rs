//! `adverb mesh host`: the NICs of this host probe each other.

use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use adverb::probe::DEFAULT_PORT;
use adverb::probe::mesh::{Verdict, WINDOW};
use anyhow::{Context, Result};
use serde_json::Value;

use super::agent::{Agent, Plan, Report};
use super::members::{self, LOCAL_PROCESS};
use super::results::Results;
use super::view::View;
use super::{json, text, view};
use crate::interrupt::Interrupt;
use crate::prose;

/// The options of `adverb mesh host`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
All members probe each other and answer each other's probes. An address that is
not one of this host's is probed only; `adverb respond` must run there, without
a key. An address without an RDMA NIC has a software NIC.

The diagnosis names the NIC, path, rail or traffic class (DSCP) that loses
packets, a process that is stopped or starved of CPU time, and members that are
dead. At least 3 other members must witness a fault of the network, so it takes
4 to 64 addresses to name one. A file has an address per line, and optionally
the name of its rail: the addresses of a rail share a switch, for example. A
comment begins with #.

In the matrix, a row is a source, and a column is a destination. A cell is the
loss or, without loss, the median round trip of the network. A cell `stall`
means that a process did not run for 50 ms or more, and `.` that there are no
results.

On a terminal, the live matrix follows the diagnosis. Arrow keys, Page Up and
Page Down scroll a matrix that is larger than the terminal, and q quits.

  adverb mesh host
  adverb mesh host 192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 --dscp 0,26
  adverb mesh host --file rack7.txt --duration 60 --json

Exit status: 0 healthy; 1 an error; 2 wrong options; 3 a fault was named; 4 not
enough evidence.")]
pub(super) struct Args {
    /// The addresses. The default is all IPv4 addresses of this host's RDMA devices.
    #[arg(value_name = "ADDRESS")]
    addresses: Vec<IpAddr>,
    /// A file with more addresses.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The differentiated services code points (DSCP) of probes, used in turn.
    #[arg(long, value_delimiter = ',', default_value = "0", value_parser = clap::value_parser!(u8).range(0..64))]
    dscp: Vec<u8>,
    /// The number of probes per second that each member sends.
    #[arg(long, value_name = "PROBES", default_value_t = 10, value_parser = clap::value_parser!(u32).range(8..=1000))]
    rate: u32,
    /// The time after which the command ends. The default is 30 s, or no limit for the live matrix on a terminal.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    duration: Option<u64>,
    /// The port of the responders.
    #[arg(long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Print lines of text instead of a live matrix.
    #[arg(long, conflicts_with = "json")]
    plain: bool,
    /// Print JSON: a line at the start, a line for each fault, and a summary. The fields keep their names and meanings
    /// while `version` is 1.
    #[arg(long)]
    json: bool,
}

/// The exit status if a fault was named.
const FAULTY: u8 = 3;
/// The exit status if the evidence is not enough.
const NOT_ENOUGH_EVIDENCE: u8 = 4;
/// The time limit without a terminal.
const DEFAULT_DURATION: Duration = Duration::from_secs(30);
/// The time between two updates of the screen.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);

/// The destination of the output.
enum Output {
    Live(View),
    Plain,
    Json,
}

/// Probes until the time is over or the user quits, and prints the diagnosis.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    // The threads of devices inherit the blocked signals.
    let interrupt = Interrupt::with_terminal(view::restore)?;
    let members = members::members(&args.addresses, args.file.as_deref())?;
    let addresses: Vec<IpAddr> = members.iter().map(|member| member.address).collect();
    let mut classes = args.dscp.clone();
    classes.sort_unstable();
    classes.dedup();
    // All members answer before the first one sends.
    let local = members.iter().filter(|member| member.process == LOCAL_PROCESS);
    let opened =
        local.map(|member| Agent::open(member.address, args.port, args.rate)).collect::<Result<Vec<_>>>()?;
    let (sender, reports) = mpsc::channel();
    let start = Instant::now();
    let interval = Duration::from_secs(1) / args.rate;
    let plan = Plan { port: args.port, interval, classes: classes.clone(), window: WINDOW, start };
    let mut agents = Vec::new();
    for opened in opened {
        agents.push(opened.start(&addresses, &plan, sender.clone())?);
    }
    drop(sender);
    let mut devices = agents.iter().map(|agent| agent.device.clone());
    let described: Vec<(String, Option<String>, Option<String>)> = members
        .iter()
        .map(|member| {
            let device = (member.process == LOCAL_PROCESS).then(|| devices.next()).flatten();
            (member.address.to_string(), device, member.rail.clone())
        })
        .collect();
    let is_live = !args.json && !args.plain && io::stdout().is_terminal();
    let mut output = match (args.json, is_live) {
        (true, _) => Output::Json,
        (_, true) => Output::Live(View::open().context("could not use the terminal")?),
        _ => Output::Plain,
    };
    match &output {
        Output::Json => print_json(&json::start(&described, &classes))?,
        Output::Plain => print(&introduction(&described, &classes, args.rate))?,
        Output::Live(_) => {}
    }
    let mut results = Results::new(&members, &classes);
    let limit = args.duration.map(Duration::from_secs).or((!is_live).then_some(DEFAULT_DURATION));
    watch(&mut results, &reports, start, limit, &mut output, &interrupt)?;
    let elapsed = start.elapsed();
    drop(agents);
    let is_json = matches!(output, Output::Json);
    // The terminal is restored before the summary is printed.
    drop(output);
    match is_json {
        true => print_json(&json::summary(&results, elapsed))?,
        false => {
            // The end of the output is what a terminal shows.
            print(&text::matrix(&results))?;
            print(&prose::wrap(&text::diagnosis(&results)))?;
        }
    }
    Ok(match json::verdict(&results) {
        Verdict::Healthy => ExitCode::SUCCESS,
        Verdict::Faulty => ExitCode::from(FAULTY),
        Verdict::NotEnoughEvidence => ExitCode::from(NOT_ENOUGH_EVIDENCE),
    })
}

/// Collects results until the time limit, a signal, or until the user quits.
fn watch(
    results: &mut Results,
    reports: &Receiver<Report>,
    start: Instant,
    limit: Option<Duration>,
    output: &mut Output,
    interrupt: &Interrupt,
) -> Result<()> {
    let mut window = 0;
    while limit.is_none_or(|limit| start.elapsed() < limit) && !interrupt.is_requested() {
        let until = Instant::now() + REFRESH_INTERVAL;
        if let Output::Live(view) = output {
            if view.handle_keys(REFRESH_INTERVAL)? {
                return Ok(());
            }
            reports.try_iter().for_each(|report| results.record(report));
        } else {
            collect_reports(results, reports, until);
        }
        let elapsed = start.elapsed();
        let current = u64::try_from(elapsed.as_nanos() / WINDOW.as_nanos()).unwrap_or(u64::MAX);
        if current > window {
            window = current;
            for fault in results.advance(window, elapsed) {
                match output {
                    Output::Json => print_json(&json::named(elapsed, &fault))?,
                    Output::Plain => {
                        print(&prose::wrap(&format!("after {:.0} s: {fault}", elapsed.as_secs_f64())))?;
                    }
                    Output::Live(_) => {}
                }
            }
        }
        if let Output::Live(view) = output {
            view.draw(results, elapsed)?;
        }
    }
    Ok(())
}

fn collect_reports(results: &mut Results, reports: &Receiver<Report>, until: Instant) {
    loop {
        match reports.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(report) => results.record(report),
            Err(RecvTimeoutError::Timeout) => return,
            // All probers have ended, which only a panic can cause.
            Err(RecvTimeoutError::Disconnected) => {
                return std::thread::sleep(until.saturating_duration_since(Instant::now()));
            }
        }
    }
}

fn introduction(members: &[(String, Option<String>, Option<String>)], classes: &[u8], rate: u32) -> String {
    let mut text = String::new();
    for (n, (address, device, rail)) in members.iter().enumerate() {
        let device = device.as_ref().map_or("not an address of this host: probed only", |device| device);
        let rail = rail.as_ref().map(|rail| format!(", rail {rail}")).unwrap_or_default();
        text += &format!("{:>3} {address}: {device}{rail}\n", n + 1);
    }
    let classes: Vec<String> = classes.iter().map(ToString::to_string).collect();
    text + &format!("{rate} probes/s from each member, DSCP {}\n", classes.join(", "))
}

fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

fn print_json(value: &Value) -> Result<()> {
    print(&(crate::json::line("mesh host", value)? + "\n"))
}
