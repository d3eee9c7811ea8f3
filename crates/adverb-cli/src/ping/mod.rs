//! `adverb ping`: probes an RDMA path, and tells the delays of the network from those of both hosts.

mod text;

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use adverb::probe::format::{MAX_PROBE_LEN, PROBE_LEN, Probe};
use adverb::probe::histogram::{DurationHistogram, Summary};
use adverb::probe::session::{ProbeCounts, ProbeEvent, ProbeEventKind, ProbeResult};
use adverb::probe::{DEFAULT_PORT, Peer, ProbePath, Prober, ProberOptions, paths};
use adverb::verbs::Device;
use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::respond::read_key;

/// The options of `adverb ping`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Another host runs `adverb respond`. Each probe is an unreliable datagram (UD),
and each answer tells how long the responder took. Three figures result:

  network    the round trip, without the delays of both hosts
  prober     the delay of this host: posting, polling, scheduling
  responder  the delay of the other host

The stamps of packets are by the NIC, the kernel or a process. A round trip from
stamps of a process says nothing about the network, only loss does.

Exit status: 0 all probes were answered; 1 an error; 2 wrong options; 3 some
probes were lost; 4 no probe was answered.")]
pub(crate) struct Args {
    /// The responder's host: an address or a name.
    host: String,
    /// The port at which the responder is looked up.
    #[arg(long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// The name of the device: see `adverb devices`. The default is the device with the address from which the system
    /// routes to the host.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The device's address to use, if it has several.
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// The number of probes.
    #[arg(long, short, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    count: u32,
    /// The time between two probes, in seconds.
    #[arg(long, short, value_name = "SECONDS", default_value = "0.2", value_parser = seconds)]
    interval: Duration,
    /// The time after which a probe without answers has timed out, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    timeout: Duration,
    /// The number of paths: probes use so many UDP source ports in turn, because switches choose paths by ports.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=paths::MAX_PATHS as i64))]
    paths: u16,
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
    /// Print JSON: one line per probe, and one with the summary.
    #[arg(long)]
    json: bool,
}

/// Number of outstanding probes of a flood.
const FLOOD_OUTSTANDING: usize = 16;
/// Exit status if some probes were lost.
const SOME_LOST: u8 = 3;
/// Exit status if no probe was answered.
const NONE_ANSWERED: u8 = 4;

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is expected".to_owned())?;
    let is_allowed = (0.001..=3600.0).contains(&seconds);
    is_allowed.then(|| Duration::from_secs_f64(seconds)).ok_or_else(|| "from 0.001 to 3600".to_owned())
}

/// Probes the host.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let host = resolve(&args.host, args.port)?;
    let device = open_device(args, host)?;
    let mut options = ProberOptions::new()
        .timeout(args.timeout, args.timeout)
        .probe_len(args.size.into())
        .process_stamps(args.process_stamps)
        .max_outstanding(if args.flood { FLOOD_OUTSTANDING } else { 1024 });
    if let Some(address) = args.address.or_else(|| local_addr_of(&device, host)) {
        options = options.local_addr(address);
    }
    if let Some(path) = &args.key_file {
        options = options.key(&read_key(path)?);
    }
    let name = device.name().to_owned();
    let mut first = Some(device);
    let mut prober = options.open(move || match first.take() {
        Some(device) => Ok(device),
        None => Device::open(&name),
    })?;
    let mut session = Session::new(args, host, &prober);
    session.print_start()?;
    let peer = prober.connect(host)?;
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
fn open_device(args: &Args, host: SocketAddr) -> Result<Device> {
    if let Some(name) = &args.device {
        return Ok(Device::open(name)?);
    }
    if host.ip().is_loopback() {
        return Ok(Device::open("soft")?);
    }
    let local = match args.address {
        Some(address) => address,
        None => route_source(host).with_context(|| format!("there is no route to {}", host.ip()))?,
    };
    Device::open_by_addr(local).with_context(|| {
        format!("no RDMA device has the address {local}: name one, such as `--device soft:{local}`")
    })
}

/// Returns the address from which the system sends to the host. Nothing is sent.
fn route_source(host: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match host {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(host)?;
    Ok(socket.local_addr()?.ip())
}

/// Returns an address of the device in the family of the host, the one that the system routes from if possible.
fn local_addr_of(device: &Device, host: SocketAddr) -> Option<IpAddr> {
    let gids = device.gids().ok()?;
    let addresses = || gids.iter().map(|entry| entry.gid.udp_addr().ip());
    let routed = route_source(host).ok().filter(|&routed| addresses().any(|address| address == routed));
    routed.or_else(|| addresses().find(|address| address.is_ipv4() == host.is_ipv4()))
}

/// The run of the command.
struct Session<'a> {
    args: &'a Args,
    host: SocketAddr,
    start: text::Start,
    /// The paths and classes, which probes use in turn.
    paths: Vec<ProbePath>,
    /// One summary for each path and class.
    summaries: Vec<Summary>,
    total: Summary,
}

impl<'a> Session<'a> {
    fn new(args: &'a Args, host: SocketAddr, prober: &Prober) -> Session<'a> {
        let labels = match args.paths {
            1 => vec![0],
            // The same ports at every call, so that two runs measure the same paths.
            count => paths::choose_flow_labels(count.into(), 0x9e37_79b9_7f4a_7c15),
        };
        let mut paths = Vec::new();
        for &flow_label in &labels {
            paths.extend(args.dscp.iter().map(|&dscp| ProbePath { flow_label, dscp }));
        }
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
        };
        let summaries = vec![Summary::new(); paths.len()];
        Session { args, host, start, paths, summaries, total: Summary::new() }
    }

    fn run(&mut self, prober: &mut Prober, peer: &Peer) -> Result<()> {
        let (mut posted, mut next) = (0, Instant::now());
        let mut last_posted = Instant::now();
        // Time for late answers, and for the lookup of a responder that doesn't answer.
        let settle = 2 * self.args.timeout + Duration::from_secs(2);
        while posted < self.args.count || prober.open_count(peer) > 0 {
            let now = Instant::now();
            let is_due = self.args.flood || now >= next;
            if posted < self.args.count && is_due {
                let path = self.paths[posted as usize % self.paths.len()];
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
                false => (last_posted + settle).saturating_duration_since(Instant::now()),
            };
            if posted == self.args.count && timeout.is_zero() {
                prober.finish(peer);
            }
            let mut events = Vec::new();
            prober.wait(timeout, |_, event| events.push(event));
            for event in events {
                self.handle(&event)?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: &ProbeEvent) -> Result<()> {
        if let ProbeEventKind::Finished(result) = &event.kind {
            let index = event.probe.sequence.number as usize % self.paths.len();
            let has_path =
                |path: &ProbePath| path.flow_label == event.probe.flow_label && path.dscp == event.probe.dscp;
            // After a restart of the responder, numbers begin at 0 again.
            let index = match has_path(&self.paths[index]) {
                true => Some(index),
                false => self.paths.iter().position(has_path),
            };
            if let Some(index) = index {
                self.summaries[index].record(result);
            }
            self.total.record(result);
        }
        if self.args.flood {
            return Ok(());
        }
        let line = match (&event.kind, self.args.json) {
            (ProbeEventKind::Finished(result), true) => probe_json(&event.probe, result).to_string(),
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
                "paths": start.paths,
            });
            writeln!(out, "{line}")?;
        } else {
            writeln!(out, "{}", self.start)?;
        }
        Ok(out.flush()?)
    }

    fn print_summary(&self, counts: &ProbeCounts, prober: &Prober) -> Result<()> {
        let mut out = io::stdout().lock();
        let strays = prober.strays();
        if self.args.json {
            let paths = self.paths.iter().zip(&self.summaries).map(|(path, summary)| {
                let mut line = summary_json(summary);
                line["flow_label"] = path.flow_label.into();
                line["source_port"] = paths::source_port_of(path.flow_label).into();
                line["dscp"] = path.dscp.into();
                line
            });
            let mut line = summary_json(&self.total);
            line["event"] = "summary".into();
            line["duplicate_acks"] = counts.duplicate_acks.into();
            line["stale_acks"] = counts.stale_acks.into();
            line["unmatched_acks"] = (counts.unmatched_acks + strays.unmatched_acks).into();
            line["bad_tags"] = strays.bad_tags.into();
            line["per_path"] = paths.collect();
            writeln!(out, "{line}")?;
        } else {
            let unmatched = counts.unmatched_acks + strays.unmatched_acks;
            write!(
                out,
                "{}",
                text::summary(&self.start, &self.total, counts.duplicate_acks, unmatched, strays.bad_tags)
            )?;
            if self.paths.len() > 1 {
                write!(out, "{}", text::path_table(self.paths.iter().zip(&self.summaries)))?;
            }
        }
        Ok(out.flush()?)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
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

/// Percentiles in nanoseconds, and the buckets, from which histograms can be merged.
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
    fn the_exit_status_tells_loss_from_silence() {
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
