//! `adverb exporter`: metrics of RDMA devices for Prometheus.
//!
//! A scrape has three steps: `gather` reads the values into a `Snapshot`, `encode` converts the snapshot to text
//! (both without network), and `serve` sends the text.

mod classify;
mod encode;
mod exposition;
mod gather;
mod http;
mod metrics;
mod probing;
mod serve;
mod snapshot;
#[cfg(test)]
mod tests;
mod totals;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use adverb::verbs::Device;
use anyhow::{Context, Result};

use crate::interrupt::Interrupt;
use crate::respond::read_key;
use gather::Gatherer;
use probing::{Plan, Probing, Target};
use serve::Exporter;

/// The options of `adverb exporter`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The exporter serves the counters of RDMA devices, and the pause and discard
counters of their network interfaces, at http://ADDRESS:PORT/metrics. It reads
sysfs and opens no RDMA device, so it needs neither rdma-core nor privileges. It
has no TLS and no authentication: listen on a loopback or management address
only.

With --probe it also probes hosts that run `adverb respond`, as `adverb ping`
does, and serves the losses and the delays of the network and of both hosts.
Probing opens the RDMA device with the local address of the route, or a software
NIC.

The counters of a software NIC belong to the process that opened it, and no
other process can read them. The exporter therefore exports a software NIC only
if --device names it or --probe uses it, and then counts only its own traffic.

  adverb exporter --listen 192.0.2.7:9879
  adverb exporter --probe storage-1 --probe storage-2 --probe-dscp 0,26
  adverb exporter --once | promtool check metrics

docs/operate has the list of metrics, alert rules, a Grafana dashboard and a
systemd unit.")]
pub(crate) struct Args {
    /// The TCP address to listen on.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9879")]
    listen: SocketAddr,
    /// The name of a device. The option can be repeated. The default is all devices of the kernel.
    #[arg(long, value_name = "NAME")]
    device: Vec<String>,
    /// The directory of sysfs, for example that of the host's sysfs in a container.
    #[arg(long, value_name = "DIRECTORY", default_value = "/sys")]
    sysfs: PathBuf,
    /// Print the metrics once, and exit.
    #[arg(long, conflicts_with = "probe")]
    once: bool,
    /// A host to probe, on which `adverb respond` runs. The option can be repeated.
    #[arg(long, value_name = "HOST[:PORT]")]
    probe: Vec<String>,
    /// The time between two probes of a host and class, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, requires = "probe")]
    probe_interval: Duration,
    /// The differentiated services code points (DSCP) of probes. Each is a class with its own metrics.
    #[arg(long, value_name = "DSCP", value_delimiter = ',', default_value = "0",
          value_parser = clap::value_parser!(u8).range(0..64), requires = "probe")]
    probe_dscp: Vec<u8>,
    /// A file with the secret that the responders have.
    #[arg(long, value_name = "FILE", requires = "probe")]
    probe_key_file: Option<PathBuf>,
}

/// Prints the metrics once, or serves them until a signal ends the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // The first process of a container gets only the signals that it handles.
    let interrupt = if args.once { None } else { Some(Interrupt::new()?) };
    let (software, kernel): (Vec<_>, Vec<_>) = args.device.iter().partition(|name| is_software(name));
    let mut software =
        software.into_iter().map(|name| Device::open(name)).collect::<adverb::verbs::Result<Vec<_>>>()?;
    let targets = targets(&args.probe)?;
    for target in &targets {
        let is_known = software.iter().any(|device| device.name() == target.device.name());
        if target.device.is_software() && !is_known {
            software.push(target.device.clone());
        }
    }
    let mut gatherer = Gatherer::new(&args.sysfs, software);
    if !args.device.is_empty() {
        gatherer.limit_to(kernel.into_iter().cloned().collect());
    }
    if !targets.is_empty() {
        let key = args.probe_key_file.as_deref().map(read_key).transpose()?;
        let dscps = BTreeSet::from_iter(args.probe_dscp.iter().copied()).into_iter().collect();
        let plan = Plan { interval: args.probe_interval, dscps, key };
        gatherer.set_probes(Probing::start(&targets, &plan)?);
    }
    let exporter = Arc::new(Exporter::new(gatherer));
    let mut stdout = io::stdout().lock();
    let Some(interrupt) = interrupt else {
        stdout
            .write_all(exporter.scrape().as_bytes())
            .and_then(|()| stdout.flush())
            .context("could not write to standard output")?;
        return Ok(ExitCode::SUCCESS);
    };
    let (listener, address) =
        serve::bind(args.listen).with_context(|| format!("could not listen on {}", args.listen))?;
    // A closed standard output is no reason to stop.
    let _ = writeln!(stdout, "serving http://{address}/metrics").and_then(|()| stdout.flush());
    drop(stdout);
    let thread = std::thread::Builder::new().name("adverb-accept".to_owned());
    thread.spawn(move || exporter.serve(&listener)).context("could not start a thread")?;
    interrupt.wait(None);
    Ok(ExitCode::SUCCESS)
}

/// Resolves the hosts to probe, each once.
fn targets(names: &[String]) -> Result<Vec<Target>> {
    names.iter().collect::<BTreeSet<_>>().into_iter().map(|name| Target::resolve(name)).collect()
}

/// Parses the time between two probes.
fn seconds(word: &str) -> std::result::Result<Duration, String> {
    let number: f64 = word.parse().map_err(|_| "the interval must be a number of seconds".to_owned())?;
    let is_allowed = (0.01..=3600.0).contains(&number);
    is_allowed
        .then(|| Duration::from_secs_f64(number))
        .ok_or_else(|| "the interval must be from 0.01 to 3600".to_owned())
}

/// Whether this is the name of a software NIC.
fn is_software(name: &str) -> bool {
    name == "soft" || name.starts_with("soft:")
}
