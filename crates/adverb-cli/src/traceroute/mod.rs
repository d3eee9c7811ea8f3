//! `adverb traceroute`: shows the routers between this machine and another one, for each path.

mod report;
mod text;

use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use adverb::probe::route::{
    NoResponder, PathEnd, QueueResponder, Route, RouteResponder, RouteTarget, RouteTrace, TraceOptions,
    TraceProgress,
};
use adverb::probe::ud_queue::UdQueue;
use adverb::probe::{DEFAULT_PORT, Key};
use adverb::verbs::Device;
use anyhow::{Context, Result, bail};

use crate::json;
use crate::ping::{destination, route_source};
use crate::respond::read_key;
use report::Report;

/// The options of `adverb traceroute`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command sends RoCE v2 packets whose hop limit is too small to reach HOST,
and prints the routers that report them. Networks choose one of several paths by
the source port, so with --paths the command traces several source ports, and
prints one of them for each path. It needs no privileges.

Routers limit how often they report, so a trace of many paths may take minutes.
A hop is printed as inferred if it was not probed from this source port, because
all other source ports pass it. A router that doesn't report is printed as *.

  adverb traceroute 192.0.2.7
  adverb traceroute storage-3 --paths 16 --dscp 26
  adverb traceroute 192.0.2.7 --paths 4 --json | jq '.paths[].source_port'

Exit status: 0 all paths lead to HOST; 1 an error; 2 wrong options; 3 a path
does not lead to HOST, or HOST does not answer. An RDMA NIC answers only if
`adverb respond` runs on HOST.")]
pub(crate) struct Args {
    /// The name or IP address of the destination.
    #[arg(value_name = "HOST")]
    host: String,
    /// The port at which HOST's responder is looked up. Without a responder, HOST answers only if it has no RDMA device.
    #[arg(long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// The maximum number of paths to find.
    #[arg(long, value_name = "N", default_value = "1")]
    paths: NonZeroUsize,
    /// The differentiated services code point of the packets.
    #[arg(long, value_name = "DSCP", default_value = "0", value_parser = clap::value_parser!(u8).range(0..64))]
    dscp: u8,
    /// The maximum number of hops.
    #[arg(long, value_name = "N", default_value = "30", value_parser = clap::value_parser!(u8).range(1..))]
    max_hops: u8,
    /// The time to wait for each answer, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    timeout: Duration,
    /// The local address. The default is the address from which the system routes to HOST.
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// The name of the device. The default is the device with the local address, or else a software device.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// A file with the secret that HOST's responder has.
    #[arg(long, value_name = "FILE")]
    key_file: Option<std::path::PathBuf>,
    /// Print JSON. Its fields keep their names and meanings while `version` is 1.
    #[arg(long)]
    json: bool,
}

/// The minimum time to look up the responder.
const MIN_LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Traces the paths to a host and prints them.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let host = resolve(&args.host, args.port, args.address)?;
    let local = match args.address {
        Some(local) => local,
        None => route_source(host).with_context(|| format!("no route to {}", host.ip()))?,
    };
    let device = match &args.device {
        Some(name) => Device::open(name)?,
        None => Device::open_by_addr(local)?,
    };
    let mut options = TraceOptions::new();
    options.max_paths = args.paths.get();
    options.max_hops = args.max_hops;
    options.timeout = args.timeout;
    let key = args.key_file.as_deref().map(read_key).transpose()?;
    let start = Instant::now();
    let progress = Progress { is_shown: io::stderr().is_terminal() };
    progress.show(format_args!("looking up the responder of {}", host.ip()));
    let traced = trace(&device, local, host, key.as_ref(), args.dscp, options, |state| {
        progress.show_trace(&state);
        true
    })?;
    let TraceResult { trace, route, has_responder } = traced;
    drop(progress);
    if route.paths.is_empty() {
        bail!("no source port of {local} could be used: other programs have all of them");
    }
    let report = Report::new(&args.host, &trace, has_responder.then_some(args.port), &route, start.elapsed());
    let output = match args.json {
        true => json::line("traceroute", &report)? + "\n",
        false => text::of(&report, &options),
    };
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(output.as_bytes())
        .and_then(|()| stdout.flush())
        .context("could not write to standard output")?;
    let is_reached = route.paths.iter().all(|path| path.end == PathEnd::Destination);
    Ok(if is_reached { ExitCode::SUCCESS } else { ExitCode::from(NOT_REACHED) })
}

pub(crate) struct TraceResult<'a> {
    trace: RouteTrace<'a>,
    pub(crate) route: Route,
    /// Whether a responder was found.
    has_responder: bool,
}

/// Traces the paths from an address of a device to a host, whose responder is looked up at the port. Ends early if
/// `progress` returns `false`.
pub(crate) fn trace<'a>(
    device: &'a Device,
    local: IpAddr,
    host: SocketAddr,
    key: Option<&Key>,
    dscp: u8,
    options: TraceOptions,
    progress: impl FnMut(TraceProgress) -> bool,
) -> Result<TraceResult<'a>> {
    let random = random();
    let (name, mut opened) = (device.name().to_owned(), Some(device.clone()));
    let open = move || opened.take().map_or_else(|| Device::open(&name), Ok);
    let mut queue = UdQueue::builder(open).local_addr(local).open()?;
    let lookup_timeout = options.timeout.max(MIN_LOOKUP_TIMEOUT);
    let found = QueueResponder::find(&mut queue, host, lookup_timeout);
    let has_responder = found.is_ok();
    let (target, mut responder): (RouteTarget, Box<dyn RouteResponder + '_>) = match found {
        Ok((target, responder)) => {
            let responder = responder.dscp(dscp);
            (target, Box::new(key.into_iter().fold(responder, QueueResponder::key)))
        }
        Err(_) => (RouteTarget::without_responder(host.ip()), Box::new(NoResponder)),
    };
    let trace = RouteTrace { device, local, target, dscp, options, random };
    let route = trace.run(&mut *responder, progress)?;
    Ok(TraceResult { trace, route, has_responder })
}

/// The exit status if a path doesn't lead to the destination, or the destination doesn't answer.
const NOT_REACHED: u8 = 3;

/// Returns the address of a host, of the same IP version as the local address.
fn resolve(host: &str, port: u16, local: Option<IpAddr>) -> Result<SocketAddr> {
    let mut found =
        (host, port).to_socket_addrs().with_context(|| format!("could not resolve the name {host}"))?;
    let usable =
        found.find(|address| local.is_none_or(|local| local.is_ipv4() == destination(*address).is_ipv4()));
    usable.with_context(|| format!("{host} has no address of the same IP version as the local address"))
}

/// Parses a time.
fn seconds(word: &str) -> Result<Duration, String> {
    let number: f64 = word.parse().map_err(|_| "the time must be a number of seconds".to_owned())?;
    let is_allowed = (0.001..=60.0).contains(&number);
    is_allowed
        .then(|| Duration::from_secs_f64(number))
        .ok_or_else(|| "the time must be from 0.001 to 60 seconds".to_owned())
}

/// Returns a number that differs from run to run.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// A line at the bottom of a terminal. Without a terminal nothing is shown.
pub(crate) struct Progress {
    pub(crate) is_shown: bool,
}

/// The escape sequence that clears the line.
const CLEAR: &str = "\r\x1b[K";

impl Progress {
    pub(crate) fn show_trace(&self, state: &TraceProgress) {
        let TraceProgress { finished_port_count, port_count, path_count, probe_count, .. } = state;
        self.show(format_args!(
            "{finished_port_count}/{port_count} source ports, {path_count} paths, {probe_count} probes"
        ));
    }

    fn show(&self, state: std::fmt::Arguments<'_>) {
        if self.is_shown {
            // A failed write only hides the line.
            let _ = write!(io::stderr(), "{CLEAR}{state}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "{CLEAR}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_resolved_to_the_ip_version_of_the_local_address() {
        let [v4, v6] = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse::<IpAddr>().unwrap());
        assert_eq!(resolve("192.0.2.7", 7, Some(v4)).unwrap().to_string(), "192.0.2.7:7");
        assert!(resolve("192.0.2.7", 7, Some(v6)).is_err());
        assert!(resolve("100::12b8:c000:207", 7, Some(v4)).is_ok(), "a GID with the UDP port of 192.0.2.7");
    }

    #[test]
    fn a_link_local_address_keeps_its_interface() {
        assert_eq!(resolve("fe80::7%lo", 7, None).unwrap().to_string(), "[fe80::7%1]:7");
    }
}
