//! `adverb exporter`: metrics of RDMA devices for Prometheus.
//!
//! A scrape passes three steps: `gather` reads the values into a `Snapshot`, `encode` converts the snapshot to text
//! (both without network), and `serve` sends the text.

mod classify;
mod encode;
mod exposition;
mod gather;
mod http;
mod metrics;
mod serve;
mod snapshot;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use adverb::verbs::Device;
use anyhow::{Context, Result};

use gather::Gatherer;
use serve::Exporter;

/// The options of `adverb exporter`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Serves the counters of RDMA devices, and the pause and discard counters of their
network interfaces, at http://ADDRESS:PORT/metrics. It reads sysfs and opens no
RDMA device, so it needs neither rdma-core nor privileges. There is no TLS and no
authentication: listen on a loopback or management address only.

The counters of a software NIC belong to the process that opened it, and no other
process can read them. The exporter therefore exports a software NIC only if
--device names it, and then counts only the exporter's own traffic.

  adverb exporter --listen 192.0.2.7:9879
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
    /// The directory of sysfs, for example of the host's in a container.
    #[arg(long, value_name = "DIRECTORY", default_value = "/sys")]
    sysfs: PathBuf,
    /// Print the metrics once, and exit.
    #[arg(long)]
    once: bool,
}

/// Prints the metrics once, or serves them until the process ends.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let (software, kernel): (Vec<_>, Vec<_>) = args.device.iter().partition(|name| is_software(name));
    let software = software.into_iter().map(|name| Device::open(name)).collect::<adverb::Result<Vec<_>>>()?;
    let mut gatherer = Gatherer::new(&args.sysfs, software);
    if !args.device.is_empty() {
        gatherer.only(kernel.into_iter().cloned().collect());
    }
    let exporter = Arc::new(Exporter::new(gatherer));
    let mut stdout = io::stdout().lock();
    if args.once {
        stdout
            .write_all(exporter.scrape().as_bytes())
            .and_then(|()| stdout.flush())
            .context("could not write to standard output")?;
        return Ok(ExitCode::SUCCESS);
    }
    let (listener, address) =
        serve::bind(args.listen).with_context(|| format!("could not listen on {}", args.listen))?;
    // A closed standard output is no reason to stop.
    let _ = writeln!(stdout, "serving http://{address}/metrics").and_then(|()| stdout.flush());
    drop(stdout);
    exporter.serve(&listener)
}

/// Whether this is the name of a software NIC.
fn is_software(name: &str) -> bool {
    name == "soft" || name.starts_with("soft:")
}
