//! `adverb ping`: probes an RDMA path, and distinguishes the delays of the network from those of both hosts.

mod paths;
mod text;

use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use adverb::probe::format::{MAX_PROBE_LEN, PROBE_LEN, Probe};
use adverb::probe::histogram::{DurationHistogram, Summary};
use adverb::probe::paths as ports;
use adverb::probe::route::TraceOptions;
use adverb::probe::session::{ProbeCounts, ProbeEvent, ProbeEventKind, ProbeResult};
use adverb::probe::{DEFAULT_LOOKUP_TIMEOUT, DEFAULT_PORT, Key, Peer, ProbePath, Prober, ProberOptions};
use adverb::verbs::{Device, Gid};
use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::interrupt::Interrupt;
use crate::json::{self, nanos};
use crate::respond::read_key;
use crate::traceroute;
use paths::{Direction, Paths};

/// The options of `adverb ping`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Another host runs `adverb respond`. Each probe is an unreliable datagram (UD),
and each answer tells how long the responder took. Three figures result:

  network    the round trip, without the delays of both hosts
  prober     the delay of this host: posting, polling, scheduling
  responder  the delay of the other host

The NIC, the kernel or a process stamps the packets. A round trip from stamps of
a process is no evidence about the network; loss is.

With --paths, the command names a path that loses more packets than the others,
as soon as the probability of an error is at most 0.1 %. With --trace, it also
names the routers of that path. Each path needs hundreds of probes:

  adverb ping 192.0.2.7 --paths 16 --trace --count 5000 --interval 0.005

SIGINT (Ctrl-C) and SIGTERM end the command with the summary so far.

Exit status: 0 all probes were answered; 1 an error, for example if no responder
was found; 2 wrong options; 3 some probes were lost; 4 the responder was found,
but no probe was answered (check the keys of both hosts). After a signal, the
same for the probes so far; 130 after a second SIGINT.")]
pub(crate) struct Args {
    /// The responder's host: an address or a name.
    host: String,
    /// The port at which the responder is looked up.
    #[arg(long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// The name of the device: see `adverb devices`. The default is the RDMA NIC with the address from which the system
    /// routes to the host, or else the software NIC at that address.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The device's address to use, if it has several.
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// The number of probes.
    #[arg(long, short, default_value_t = 10, value_parser = count)]
    count: u32,
    /// The time between two probes, in seconds.
    #[arg(long, short, value_name = "SECONDS", default_value = "0.2", value_parser = seconds)]
    interval: Duration,
    /// The time after which a probe without answers has timed out, in seconds. The lookup of the responder, at the start,
    /// takes up to 5 s, or up to this time if it is longer.
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    timeout: Duration,
    /// The number of UDP source ports that probes use in turn, because switches choose paths by ports.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=ports::MAX_PATHS as i64))]
    paths: u16,
    /// Trace the paths first, as `adverb traceroute` does, and probe each one from one port. Finds up to --paths paths.
    #[arg(long)]
    trace: bool,
    /// The differentiated services code points (DSCP) of probes, used in turn.
    #[arg(long, value_delimiter = ',', default_value = "0", value_parser = clap::value_parser!(u8).range(0..64))]
    dscp: Vec<u8>,
    /// The length of probes in bytes, up to the MTU.
    #[arg(long, value_name = "BYTES", default_value_t = PROBE_LEN as u16,
          value_parser = clap::value_parser!(u16).range(PROBE_LEN as i64..=MAX_PROBE_LEN as i64))]
    size: u16,
    /// Send each probe as soon as an earlier one is answered, with 16 outstanding, and print only the summary.
    #[arg(long, conflicts_with = "interval")]
    flood: bool,
    /// A file with the secret that the responder has.
    #[arg(long, value_name = "FILE")]
    key_file: Option<std::path::PathBuf>,
    /// Use only stamps of the process, to compare them with those of the NIC or the kernel.
    #[arg(long)]
    process_stamps: bool,
    /// Print JSON: a line at the start, one per probe, and one with the summary. The fields keep their names and
    /// meanings while `version` is 1.
    #[arg(long)]
    json: bool,
}

/// The number of outstanding probes of a flood.
const FLOOD_OUTSTANDING: usize = 16;
/// The maximum time until a signal is noticed.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);
/// The exit status if some probes were lost.
const SOME_LOST: u8 = 3;
/// The exit status if no probe was answered.
const NONE_ANSWERED: u8 = 4;

fn count(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| (1..=10_000_000).contains(count));
    count.ok_or_else(|| "the number of probes must be from 1 to 10000000".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is expected".to_owned())?;
    let is_allowed = (0.001..=3600.0).contains(&seconds);
    is_allowed
        .then(|| Duration::from_secs_f64(seconds))
        .ok_or_else(|| "the time must be from 0.001 to 3600 seconds".to_owned())
}

/// Probes the host.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let interrupt = Interrupt::new()?;
    let host = resolve(&args.host, args.port)?;
    let device = open_device(args.device.as_deref(), args.address, host)?;
    let key = args.key_file.as_deref().map(read_key).transpose()?;
    let mut options = ProberOptions::new()
        .timeout(args.timeout)
        .grace(args.timeout)
        .lookup_timeout(args.timeout.max(DEFAULT_LOOKUP_TIMEOUT))
        .probe_len(args.size.into())
        .process_stamps(args.process_stamps)
        .max_outstanding(if args.flood { FLOOD_OUTSTANDING } else { 1024 });
    if let Some(address) = args.address.or_else(|| local_addr_of(&device, host)) {
        options = options.local_addr(address);
    }
    if let Some(key) = &key {
        options = options.key(key);
    }
    let name = device.name().to_owned();
    let mut first = Some(device.clone());
    let mut prober = options.open(move || match first.take() {
        Some(device) => Ok(device),
        None => Device::open(&name),
    })?;
    let mut session = Session::new(args, host, &prober, interrupt);
    session.print_start()?;
    if args.trace {
        session.trace(&device, key.as_ref(), &prober)?;
    }
    let peer = prober
        .connect(host)
        .with_context(|| format!("no responder was found at {host}: start `adverb respond` on that host"))?;
    session.run(&mut prober, &peer)?;
    let counts = prober.counts(&peer);
    session.print_summary(&counts, &prober)?;
    Ok(exit_status(&session.total.counts))
}

fn exit_status(counts: &ProbeCounts) -> ExitCode {
    let missing = counts.lost + counts.return_lost + counts.unreachable;
    match counts.conclusive() {
        conclusive if missing == 0 && conclusive > 0 => ExitCode::SUCCESS,
        conclusive if missing < conclusive => ExitCode::from(SOME_LOST),
        _ => ExitCode::from(NONE_ANSWERED),
    }
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    let addrs = (host, port).to_socket_addrs().with_context(|| format!("could not resolve {host}"))?;
    addrs.into_iter().next().with_context(|| format!("{host} has no address"))
}

/// Opens the device that was named, or the one from whose address the system routes to the host.
pub(crate) fn open_device(name: Option<&str>, address: Option<IpAddr>, host: SocketAddr) -> Result<Device> {
    if let Some(name) = name {
        return Ok(Device::open(name)?);
    }
    if destination(host).ip().is_loopback() {
        return Ok(Device::open("soft")?);
    }
    let local = match address {
        Some(address) => address,
        None => route_source(host).with_context(|| format!("there is no route to {}", host.ip()))?,
    };
    Device::open_by_addr(local).with_context(|| {
        format!("no RDMA device has the address {local}: name one, such as `--device soft:{local}`")
    })
}

/// Returns the address to which packets to a host are sent. It differs from the host's if that is a GID with a UDP port.
pub(crate) fn destination(host: SocketAddr) -> SocketAddr {
    let gid = Gid::from(host.ip());
    // The GID of a link-local address doesn't have its interface.
    if gid.has_udp_port() { gid.udp_addr() } else { host }
}

/// Returns the address from which the system sends to the host. Nothing is sent.
pub(crate) fn route_source(host: SocketAddr) -> io::Result<IpAddr> {
    let destination = destination(host);
    let any: IpAddr = match destination {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(destination)?;
    Ok(socket.local_addr()?.ip())
}

/// Returns an address of the device in the family of the host, the one that the system routes from if possible.
pub(crate) fn local_addr_of(device: &Device, host: SocketAddr) -> Option<IpAddr> {
    let gids = device.gids().ok()?;
    let addresses = || gids.iter().map(|entry| entry.gid.udp_addr().ip());
    let routed = route_source(host).ok().filter(|&routed| addresses().any(|address| address == routed));
    routed.or_else(|| addresses().find(|address| address.is_ipv4() == destination(host).is_ipv4()))
}

/// The run of the command.
struct Session<'a> {
    args: &'a Args,
    host: SocketAddr,
    start: text::Start,
    paths: Paths,
    /// Each path in each class, which probes use in turn.
    probe_paths: Vec<ProbePath>,
    /// One summary for each path and class.
    summaries: Vec<Summary>,
    total: Summary,
    interrupt: Interrupt,
}

impl<'a> Session<'a> {
    fn new(args: &'a Args, host: SocketAddr, prober: &Prober, interrupt: Interrupt) -> Session<'a> {
        let labels = match args.paths {
            1 => vec![0],
            // The ports are the same at every call, so that two runs measure the same paths.
            count => ports::choose_flow_labels(count.into(), 0x9e37_79b9_7f4a_7c15),
        };
        let queue = prober.queue();
        let start = text::Start {
            host: args.host.clone(),
            addr: host,
            device: queue.device().map(|device| device.name().to_owned()).unwrap_or_default(),
            gid: queue.gid().map(|entry| entry.gid.to_string()).unwrap_or_default(),
            gid_index: queue.gid().map_or(0, |entry| entry.index),
            size: args.size,
            dscp: args.dscp.clone(),
            paths: args.paths,
            is_traced: args.trace,
        };
        let mut session = Session {
            args,
            host,
            start,
            paths: Paths::default(),
            probe_paths: Vec::new(),
            summaries: Vec::new(),
            total: Summary::new(),
            interrupt,
        };
        session.set_paths(Paths::of_labels(labels));
        session
    }

    fn set_paths(&mut self, paths: Paths) {
        self.probe_paths.clear();
        for path in &paths.list {
            let flow_label = path.flow_label;
            self.probe_paths.extend(self.args.dscp.iter().map(|&dscp| ProbePath { flow_label, dscp }));
        }
        self.summaries = vec![Summary::new(); self.probe_paths.len()];
        self.paths = paths;
    }

    /// Finds the paths, and prints them.
    fn trace(&mut self, device: &Device, key: Option<&Key>, prober: &Prober) -> Result<()> {
        let local = prober.queue().gid().context("the device has failed")?.gid.udp_addr().ip();
        let mut options = TraceOptions::new();
        options.max_paths = self.args.paths.into();
        let progress = traceroute::Progress { is_shown: io::stderr().is_terminal() };
        let interrupt = self.interrupt.clone();
        let dscp = self.args.dscp[0];
        let started = Instant::now();
        let traced = traceroute::trace(device, local, self.host, key, dscp, options, |state| {
            progress.show_trace(&state);
            !interrupt.is_requested()
        })?;
        drop(progress);
        let route = traced.route;
        if route.paths.is_empty() {
            // No port was free, or a signal ended the trace.
            return Ok(());
        }
        self.set_paths(Paths::of_route(&route));
        let mut out = io::stdout().lock();
        if self.args.json {
            let paths = self.paths.list.iter().map(
                |path| json!({ "source_port": ports::source_port_of(path.flow_label), "hops": path.hops }),
            );
            let line = json!({
                "event": "trace", "paths": paths.collect::<Vec<_>>(), "source_port_count": route.port_count,
                "probe_count": route.probe_count, "elapsed_ns": nanos(started.elapsed()),
            });
            writeln!(out, "{}", json::line("ping", &line)?)?;
        } else {
            let seconds = started.elapsed().as_secs_f64();
            write!(out, "{}", text::traced(&self.paths.list, seconds))?;
        }
        Ok(out.flush()?)
    }

    fn run(&mut self, prober: &mut Prober, peer: &Peer) -> Result<()> {
        let (mut posted, mut next) = (0, Instant::now());
        let mut last_posted = Instant::now();
        // The command waits for late answers, and for the lookup of a responder that doesn't answer.
        let late_time = 2 * self.args.timeout + Duration::from_secs(2);
        while posted < self.args.count || prober.open_count(peer) > 0 {
            if self.interrupt.is_requested() {
                prober.finish(peer);
                prober.wait(Duration::ZERO, |_, event| self.record(&event));
                break;
            }
            let now = Instant::now();
            let is_due = self.args.flood || now >= next;
            if posted < self.args.count && is_due {
                let path = self.probe_paths[posted as usize % self.probe_paths.len()];
                if prober.post(peer, path)? {
                    posted += 1;
                    last_posted = now;
                    next = (next + self.args.interval).max(now);
                    if self.args.flood {
                        continue;
                    }
                } else {
                    next = now + Duration::from_millis(10);
                }
            }
            let timeout = match posted < self.args.count {
                true if self.args.flood => Duration::from_millis(10),
                true => next.saturating_duration_since(Instant::now()),
                false => (last_posted + late_time).saturating_duration_since(Instant::now()),
            };
            if posted == self.args.count && timeout.is_zero() {
                prober.finish(peer);
            }
            let mut events = Vec::new();
            prober.wait(timeout.min(SIGNAL_INTERVAL), |_, event| events.push(event));
            for event in events {
                self.handle(&event)?;
            }
        }
        Ok(())
    }

    /// Records the result of a probe.
    fn record(&mut self, event: &ProbeEvent) {
        let ProbeEventKind::Finished(result) = &event.kind else { return };
        let index = event.probe.sequence.number as usize % self.probe_paths.len();
        let has_path =
            |path: &ProbePath| path.flow_label == event.probe.flow_label && path.dscp == event.probe.dscp;
        // After a restart of the responder, numbers begin at 0 again.
        let index = match has_path(&self.probe_paths[index]) {
            true => Some(index),
            false => self.probe_paths.iter().position(has_path),
        };
        if let Some(index) = index {
            self.summaries[index].record(result);
        }
        self.total.record(result);
    }

    fn handle(&mut self, event: &ProbeEvent) -> Result<()> {
        self.record(event);
        self.print_probe(event)?;
        let is_lost = matches!(
            event.kind,
            ProbeEventKind::Finished(ProbeResult::Lost | ProbeResult::ReturnLost | ProbeResult::Unreachable)
        );
        if is_lost && self.paths.list.len() > 1 {
            let found = self.paths.find_lossy(event.probe.sequence, &self.summaries);
            let mut out = io::stdout().lock();
            for named in found.iter().filter(|_| !self.args.flood) {
                if self.args.json {
                    let mut line = self.paths.named_json(named, &self.summaries);
                    line["event"] = "lossy_path".into();
                    writeln!(out, "{}", json::line("ping", &line)?)?;
                } else {
                    let text = self.paths.named_text(named, &self.summaries);
                    writeln!(out, "after {} probes: {text}", named.after)?;
                }
            }
            out.flush()?;
        }
        Ok(())
    }

    /// Prints the line of a probe.
    fn print_probe(&self, event: &ProbeEvent) -> Result<()> {
        if self.args.flood {
            return Ok(());
        }
        let line = match (&event.kind, self.args.json) {
            (ProbeEventKind::Finished(result), true) => {
                json::line("ping", &probe_json(&event.probe, result))?
            }
            (_, true) => return Ok(()),
            (kind, false) => text::probe_line(&self.start, &event.probe, kind),
        };
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        Ok(out.flush()?)
    }

    fn print_start(&self) -> Result<()> {
        let mut out = io::stdout().lock();
        if self.args.json {
            let start = &self.start;
            let line = json!({
                "event": "start", "host": start.host, "address": self.host.to_string(), "device": start.device,
                "gid": start.gid, "gid_index": start.gid_index, "size": start.size, "dscp": start.dscp,
                "paths": start.paths, "trace": start.is_traced,
            });
            writeln!(out, "{}", json::line("ping", &line)?)?;
        } else {
            writeln!(out, "{}", self.start)?;
        }
        Ok(out.flush()?)
    }

    fn print_summary(&self, counts: &ProbeCounts, prober: &Prober) -> Result<()> {
        let mut out = io::stdout().lock();
        let strays = prober.strays();
        if self.args.json {
            let classes = self.args.dscp.len();
            let [forward, back] = [Direction::Forward, Direction::Return]
                .map(|direction| self.paths.counts(direction, &self.summaries));
            let rows = self.probe_paths.iter().zip(&self.summaries).enumerate();
            let paths = rows.map(|(index, (path, summary))| {
                let mut line = summary_json(summary);
                line["path"] = (index / classes + 1).into();
                line["flow_label"] = path.flow_label.into();
                line["source_port"] = ports::source_port_of(path.flow_label).into();
                line["dscp"] = path.dscp.into();
                // The losses are those of all classes of the path.
                line["forward_loss"] = forward[index / classes].rate().into();
                line["return_loss"] = back[index / classes].rate().into();
                line
            });
            let mut line = summary_json(&self.total);
            line["event"] = "summary".into();
            line["duplicate_acks"] = counts.duplicate_acks.into();
            line["stale_acks"] = counts.stale_acks.into();
            line["unmatched_acks"] = (counts.unmatched_acks + strays.unmatched_acks).into();
            line["bad_tags"] = strays.bad_tags.into();
            line["per_path"] = paths.collect();
            if self.paths.list.len() > 1 {
                let named = self.paths.named.iter();
                let named = named.map(|named| self.paths.named_json(named, &self.summaries));
                line["lossy_paths"] = named.collect();
                line["probes_to_name"] = self.paths.needed_json();
            }
            writeln!(out, "{}", json::line("ping", &line)?)?;
        } else {
            let unmatched = counts.unmatched_acks + strays.unmatched_acks;
            write!(
                out,
                "{}",
                text::summary(&self.start, &self.total, counts.duplicate_acks, unmatched, strays.bad_tags)
            )?;
            if self.probe_paths.len() > 1 {
                write!(
                    out,
                    "{}",
                    text::path_table(&self.probe_paths, &self.summaries, self.args.dscp.len())
                )?;
            }
            if self.paths.list.len() > 1 {
                write!(out, "{}", self.paths.verdict(&self.summaries))?;
            }
        }
        Ok(out.flush()?)
    }
}

fn probe_json(probe: &Probe, result: &ProbeResult) -> Value {
    let mut line = json!({
        "event": "probe",
        "epoch": probe.sequence.epoch,
        "number": probe.sequence.number,
        "flow_label": probe.flow_label,
        "dscp": probe.dscp,
        "result": result.name(),
    });
    if let Some(figures) = result.figures() {
        line["network_ns"] = figures.network_rtt().map(nanos).into();
        line["round_trip_ns"] = nanos(figures.round_trip).into();
        line["prober_ns"] = nanos(figures.prober_delay).into();
        line["responder_ns"] = nanos(figures.responder_delay).into();
        line["stamps"] = figures.stamps.to_string().into();
    }
    line
}

fn summary_json(summary: &Summary) -> Value {
    let counts = &summary.counts;
    json!({
        "probes": counts.conclusive() + counts.ended + counts.not_sent,
        "answered": counts.answered,
        "late": counts.late,
        "lost": counts.lost,
        "return_lost": counts.return_lost,
        "unreachable": counts.unreachable,
        "ended": counts.ended,
        "not_sent": counts.not_sent,
        "impossible": counts.impossible,
        "unstamped": counts.unstamped,
        "loss": counts.loss(),
        "network": histogram_json(&summary.network_rtt),
        "round_trip_by_process": histogram_json(&summary.process_rtt),
        "prober": histogram_json(&summary.prober_delay),
        "responder": histogram_json(&summary.responder_delay),
    })
}

/// Returns percentiles in nanoseconds, and the buckets, by which histograms can be merged.
fn histogram_json(histogram: &DurationHistogram) -> Value {
    if histogram.is_empty() {
        return Value::Null;
    }
    let at = |percentile| histogram.percentile(percentile).map(nanos);
    let buckets = histogram.buckets().map(|(duration, count)| json!([nanos(duration), count]));
    json!({
        "count": histogram.count(),
        "min_ns": histogram.min().map(nanos),
        "p50_ns": at(50.0),
        "p90_ns": at(90.0),
        "p99_ns": at(99.0),
        "max_ns": histogram.max().map(nanos),
        "buckets_ns": buckets.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_address_is_the_one_that_reaches_the_host() {
        // The second one is the GID of a device at UDP port 4792 of 127.3.4.5.
        for host in ["127.3.4.5", "100::12b8:7f03:405"] {
            let host = SocketAddr::new(host.parse().unwrap(), DEFAULT_PORT);
            assert_eq!(route_source(host).unwrap().to_string(), "127.0.0.1");
        }
    }

    #[test]
    fn the_exit_status_distinguishes_loss_from_silence() {
        let status = |change: fn(&mut ProbeCounts)| {
            let mut counts = ProbeCounts::default();
            change(&mut counts);
            format!("{:?}", exit_status(&counts))
        };
        let code = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(status(|counts| counts.answered = 5), code(0));
        assert_eq!(status(|counts| (counts.answered, counts.ended) = (5, 1)), code(0));
        assert_eq!(status(|counts| (counts.answered, counts.lost) = (5, 1)), code(SOME_LOST));
        assert_eq!(status(|counts| (counts.late, counts.return_lost) = (5, 1)), code(SOME_LOST));
        assert_eq!(status(|counts| counts.unreachable = 3), code(NONE_ANSWERED));
        assert_eq!(status(|counts| counts.ended = 3), code(NONE_ANSWERED));
    }
}
