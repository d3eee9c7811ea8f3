//! `cargo xtask probe timing`: delays that are injected into the network, the responder and the prober, compared with
//! those that `adverb ping` reports.
//!
//! ```text
//!  adverb ping ─ veth ─ relay.c ─ veth ─ adverb respond        each in a network namespace
//! ```
//!
//! The relay holds packets for a time, and the kernel's stamps at its two interfaces show for how long: these are the
//! injected delay of the network, and the time that the responder took. A process is delayed by SIGSTOP and SIGCONT. The
//! same delays are injected between two software NICs that are joined in memory (`examples/timing.rs` of adverb-probe).

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use support::{packages, paths, process, programs};

use super::parts::{Interface, Namespace, Output, Process, cpu_hogs};

/// The options of `cargo xtask probe timing`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of probes of each case.
    #[arg(long, default_value_t = 2000)]
    probes: u32,
    /// Number of processes that use a CPU each while the measurement is repeated.
    #[arg(long, default_value_t = 4)]
    hogs: usize,
}

/// The injected delays.
struct Case {
    name: &'static str,
    /// The delays to the responder and back, in microseconds.
    network: [u64; 2],
    stopped: Option<Side>,
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Prober,
    Responder,
}

const CASES: [Case; 4] = [
    Case { name: "none", network: [0, 0], stopped: None },
    Case { name: "network 2 + 3 ms", network: [2000, 3000], stopped: None },
    Case { name: "network, responder", network: [2000, 3000], stopped: Some(Side::Responder) },
    Case { name: "network, prober", network: [2000, 3000], stopped: Some(Side::Prober) },
];

const PROBER: &str = "10.93.1.1";
const RESPONDER: &str = "10.93.1.2";
/// Time for which a process is stopped.
const STOP_TIME: Duration = Duration::from_millis(20);
/// Time between two stops.
const RUN_TIME: Duration = Duration::from_millis(80);
/// Time after a stop. A probe that is sent in this time may have been posted before the stop.
const MARGIN: u64 = 2_000_000;

/// Prints the table.
pub(crate) fn run(args: &Args) -> Result<()> {
    packages::ensure(&["gcc", "iproute2"])?;
    let program = programs::adverb()?;
    let in_memory = process::build("build --release -p adverb-probe --example timing")?;
    let network = Network::new()?;
    println!("All times in microseconds. The error is the reported delay minus the injected one.");
    println!("The responder's injected delay is the time that the relay observed, including two links.");
    println!("The prober's is the rest of its stop when ACK1 left the relay, without its wait for a CPU.");
    println!("Of the cases with stops (20 of each 100 ms), only probes that a stop delayed are counted.");
    println!(
        "{:<7} {:<6} {:<7} {:<19} {:<9} {:>6} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "load",
        "link",
        "stamps",
        "injected",
        "figure",
        "probes",
        "injected",
        "reported",
        "error p50",
        "p99 |e|",
        "max |e|"
    );
    for hogs in [0, args.hogs] {
        let load = if hogs == 0 { "no hogs".to_owned() } else { format!("{hogs} hogs") };
        // Other programs may use CPUs, too.
        println!("load average before: {}", fs::read_to_string("/proc/loadavg")?.trim());
        let _hogs = cpu_hogs(hogs)?;
        let output = process::text(Command::new(&in_memory).arg((args.probes / 20).to_string()))?;
        for (case, delays) in parse_in_memory(&output)? {
            delays.print(&format!("{load:<7} {:<6} {:<7} {case:<19}", "memory", "process"));
        }
        for stamps in ["kernel", "process"] {
            for case in &CASES {
                let measured = network.measure(&program, case, stamps == "process", args.probes)?;
                measured.delays.print(&format!("{load:<7} {:<6} {stamps:<7} {:<19}", "veth", case.name));
                if !measured.other_results.is_empty() {
                    println!("    probes without figures: {:?}", measured.other_results);
                }
            }
        }
    }
    Ok(())
}

/// Pairs of an injected and a reported delay in nanoseconds, for each figure.
#[derive(Default)]
struct Delays {
    network: Vec<(i64, i64)>,
    responder: Vec<(i64, i64)>,
    prober: Vec<(i64, i64)>,
}

impl Delays {
    fn print(&self, prefix: &str) {
        let figures = [("network", &self.network), ("responder", &self.responder), ("prober", &self.prober)];
        for (name, pairs) in figures {
            let sorted = |value: fn(&(i64, i64)) -> i64| {
                let mut values: Vec<i64> = pairs.iter().map(value).collect();
                values.sort_unstable();
                values
            };
            let [injected, reported] = [sorted(|pair| pair.0), sorted(|pair| pair.1)];
            let [errors, distances] =
                [sorted(|pair| pair.1 - pair.0), sorted(|pair| (pair.1 - pair.0).abs())];
            println!(
                "{prefix} {name:<9} {:>6} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>10.1}",
                pairs.len(),
                percentile(&injected, 50),
                percentile(&reported, 50),
                percentile(&errors, 50),
                percentile(&distances, 99),
                percentile(&distances, 100),
            );
        }
    }
}

/// Returns a percentile of sorted nanoseconds, in microseconds.
fn percentile(sorted: &[i64], percent: usize) -> f64 {
    let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(index).map_or(f64::NAN, |&nanos| nanos as f64 / 1000.0)
}

/// Parses lines with a case, a figure, an injected and a reported delay in nanoseconds, separated by tabs.
fn parse_in_memory(output: &str) -> Result<Vec<(String, Delays)>> {
    let mut cases = Vec::<(String, Delays)>::new();
    for line in output.lines() {
        let [case, figure, injected, reported] =
            line.split('\t').collect::<Vec<_>>().try_into().ok().context("a line without four fields")?;
        if cases.last().is_none_or(|(last, _)| last != case) {
            cases.push((case.to_owned(), Delays::default()));
        }
        let (_, delays) = cases.last_mut().context("a case")?;
        let pairs = match figure {
            "network" => &mut delays.network,
            "responder" => &mut delays.responder,
            _ => &mut delays.prober,
        };
        pairs.push((injected.parse()?, reported.parse()?));
    }
    Ok(cases)
}

/// The namespaces, and the program between them.
struct Network {
    prober: Namespace,
    link: Namespace,
    responder: Namespace,
    relay: PathBuf,
}

struct Measured {
    delays: Delays,
    /// The number of probes without figures, by result.
    other_results: BTreeMap<String, u64>,
}

impl Network {
    fn new() -> Result<Network> {
        let relay = std::env::temp_dir().join(format!("adverb-relay-{}", std::process::id()));
        let source = paths::root().join("tools/xtask/src/probe/relay.c");
        process::run(Command::new("gcc").args(["-O2", "-Wall", "-o"]).arg(&relay).arg(source))?;
        let [prober, link, responder] = ["prober", "link", "responder"].map(Namespace::new);
        let network = Network { prober: prober?, link: link?, responder: responder?, relay };
        let sides = [(&network.prober, PROBER, "left"), (&network.responder, RESPONDER, "right")];
        for (namespace, address, name) in sides {
            let address = format!("{address}/24");
            let end = Interface { name: "net", address: Some(&address) };
            namespace.connect(end, &network.link, Interface { name, address: None })?;
        }
        Ok(network)
    }

    fn measure(&self, program: &str, case: &Case, is_process: bool, count: u32) -> Result<Measured> {
        let mut relay = self.link.command(self.relay.to_str().context("a path that is not UTF-8")?);
        relay.args(["left", "right"]).args(case.network.map(|delay| delay.to_string()));
        let (mut relay, mut packets) = Process::start(&mut relay)?;
        packets.next().context("the relay ended")??;
        let packets = std::thread::spawn(move || Packets::read(packets));

        let stamps: &[&str] = if is_process { &["--process-stamps"] } else { &[] };
        let mut respond = self.responder.command(program);
        respond.args(["respond", "--json", "--device", &format!("soft:{RESPONDER}")]).args(stamps);
        let responder = Process::respond(&mut respond)?;
        let mut ping = self.prober.command(program);
        ping.args(["ping", RESPONDER, "--json", "--device", &format!("soft:{PROBER}"), "--timeout", "2"]);
        ping.args(["--interval", "0.002", "--count", &count.to_string()]).args(stamps);
        let (prober, output) = Process::start(&mut ping)?;

        let is_over = AtomicBool::new(false);
        let stopped = case.stopped.map(|side| match side {
            Side::Prober => prober.id(),
            Side::Responder => responder.id(),
        });
        let (lines, stops) = std::thread::scope(|scope| {
            let stops = scope.spawn(|| stopped.map_or(Ok(Vec::new()), |id| stop_repeatedly(id, &is_over)));
            let lines = output.collect::<Result<Vec<String>, _>>();
            is_over.store(true, Ordering::Relaxed);
            (lines, stops.join())
        });
        let stops = stops.map_err(|_| anyhow::anyhow!("the thread that stops a process panicked"))??;
        relay.kill()?;
        let packets = packets.join().map_err(|_| anyhow::anyhow!("the thread of the relay panicked"))??;
        compare(&lines?, &packets, case.stopped, &stops)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.relay);
    }
}

/// Compares the reported delays with those that the relay and the stops caused.
fn compare(lines: &[String], packets: &Packets, stopped: Option<Side>, stops: &[Stop]) -> Result<Measured> {
    let mut measured = Measured { delays: Delays::default(), other_results: BTreeMap::new() };
    let mut answered = 0;
    for line in lines {
        let line: Value = serde_json::from_str(line)?;
        if line["event"] != "probe" {
            continue;
        }
        let figures = ["round_trip_ns", "responder_ns", "prober_ns"].map(|name| line[name].as_i64());
        let [Some(network), Some(responder), Some(prober)] = figures else {
            let result = line["result"].as_str().unwrap_or_default().to_owned();
            *measured.other_results.entry(result).or_default() += 1;
            continue;
        };
        answered += 1;
        let sequence = ["epoch", "number"].map(|name| line[name].as_u64().unwrap_or_default());
        let [probe, ack] = [PROBE, ACK1].map(|kind| packets.0.get(&(kind, sequence)));
        let (probe, ack) = probe.zip(ack).context("the relay did not see a probe that was answered")?;
        let prober_injected = match stopped {
            None => 0,
            Some(Side::Responder) if is_during(stops, probe.sent) => 0,
            Some(Side::Prober) => match stopped_time(stops, probe, ack) {
                Some(time) => time.cast_signed(),
                None => continue,
            },
            Some(Side::Responder) => continue,
        };
        let between = |from: u64, to: u64| to.cast_signed() - from.cast_signed();
        let held = between(probe.received, probe.sent) + between(ack.received, ack.sent);
        measured.delays.network.push((held, network));
        measured.delays.responder.push((between(probe.sent, ack.received), responder));
        measured.delays.prober.push((prober_injected, prober));
    }
    ensure!(answered > 0, "no probe was answered: {:?}", measured.other_results);
    Ok(measured)
}

/// Whether a process was stopped at a time.
fn is_during(stops: &[Stop], time: u64) -> bool {
    stops.iter().any(|stop| (stop.effective..stop.continued).contains(&time))
}

/// Returns the time for which ACK1 waited for a stopped prober, or `None` if it didn't wait, or if the prober may have
/// been stopped before it had sent the probe.
fn stopped_time(stops: &[Stop], probe: &Held, ack: &Held) -> Option<u64> {
    let is_uncertain = |stop: &Stop| (stop.requested..stop.continued + MARGIN).contains(&probe.received);
    let stop = stops.iter().find(|stop| (stop.effective..stop.continued).contains(&ack.sent))?;
    (!stops.iter().any(is_uncertain)).then_some(stop.continued - ack.sent)
}

/// The kind of a probe.
const PROBE: u64 = 1;
/// The kind of a first acknowledgement.
const ACK1: u64 = 2;

/// A packet that the relay held: the kernel's stamps, in nanoseconds of the system clock.
struct Held {
    received: u64,
    sent: u64,
}

/// The packets by kind, epoch and number.
struct Packets(HashMap<(u64, [u64; 2]), Held>);

impl Packets {
    fn read(lines: Output) -> Result<Packets> {
        let mut packets = HashMap::new();
        for line in lines {
            let numbers: Result<Vec<u64>, _> = line?.split(' ').map(str::parse).collect();
            let [_, kind, epoch, number, received, sent] =
                numbers?.try_into().ok().context("a line of the relay without six numbers")?;
            ensure!(received > 0 && sent > 0, "the kernel did not stamp a packet at the relay");
            packets.insert((kind, [epoch, number]), Held { received, sent });
        }
        Ok(Packets(packets))
    }
}

/// An interval in which a process was stopped, in nanoseconds of the system clock.
struct Stop {
    requested: u64,
    /// The time from which all threads were stopped.
    effective: u64,
    continued: u64,
}

/// Stops a process again and again, until the measurement is over.
fn stop_repeatedly(id: u32, is_over: &AtomicBool) -> Result<Vec<Stop>> {
    let pid = Pid::from_raw(id.cast_signed());
    let mut stops = Vec::new();
    loop {
        std::thread::sleep(RUN_TIME);
        let requested = now();
        if is_over.load(Ordering::Relaxed) || kill(pid, Signal::SIGSTOP).is_err() {
            return Ok(stops);
        }
        // A thread that ends can't be read. The measurement is over then.
        while !is_stopped(id).unwrap_or(false) {
            if is_over.load(Ordering::Relaxed) {
                return Ok(stops);
            }
        }
        let effective = now();
        std::thread::sleep(STOP_TIME);
        let continued = now();
        kill(pid, Signal::SIGCONT)?;
        stops.push(Stop { requested, effective, continued });
    }
}

/// Whether all threads of a process are stopped.
fn is_stopped(id: u32) -> Result<bool> {
    let mut is_stopped = true;
    for thread in fs::read_dir(format!("/proc/{id}/task"))? {
        let stat = fs::read_to_string(thread?.path().join("stat"))?;
        is_stopped &= stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'));
    }
    Ok(is_stopped)
}

fn now() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values() {
        let sorted: Vec<i64> = (1..=200).map(|value| value * 1000).collect();
        assert_eq!([50, 99, 100].map(|percent| percentile(&sorted, percent)), [100.0, 198.0, 200.0]);
        assert!(percentile(&[], 50).is_nan());
    }

    #[test]
    fn acknowledgements_wait_until_a_stopped_prober_continues() {
        let at = |millis: u64| millis * 1_000_000;
        let stops = [Stop { requested: at(100), effective: at(101), continued: at(120) }];
        let time = |probe, ack| {
            let [probe, ack] = [probe, ack].map(|millis| Held { received: at(millis), sent: at(millis) });
            stopped_time(&stops, &probe, &ack)
        };
        assert_eq!(time(95, 105), Some(at(15)));
        // The prober handled ACK1 before or after it was stopped, or may have posted the probe before.
        assert_eq!([time(90, 95), time(95, 100), time(121, 127), time(130, 135)], [None; 4]);
        assert!(is_during(&stops, at(101)) && !is_during(&stops, at(100)) && !is_during(&stops, at(120)));
    }
}
