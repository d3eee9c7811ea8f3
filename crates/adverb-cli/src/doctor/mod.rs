//! `adverb doctor`: finds the reasons why RDMA doesn't work on this machine, or on the path to another one.
//!
//! [`Facts`] come from the kernel's files, so they are known even if no device can be opened. [`checks`] turns facts into
//! results without I/O. [`live`] and [`path`] try things: rdma-core, the software NIC, packets.

mod checks;
mod dcb;
mod facts;
mod live;
mod path;
mod result;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use adverb::probe::DEFAULT_PORT;
use anyhow::{Context, Result};

use crate::json;
use facts::Facts;
pub(crate) use live::ROCE_PORT;
use result::Report;

/// The options of `adverb doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without HOST, the command checks this machine: rdma-core, devices, device files,
ports, addresses (GIDs), network interfaces, limits, and the software NIC. With
HOST, it also tests the path: TCP, RoCE packets and the path MTU. The other host
runs `adverb respond` for it.

  adverb doctor
  adverb doctor 192.0.2.7

Each problem is printed with its cause and a command that fixes it. A firewall
of a host (nft, iptables) stops the packets of the software NIC and of
soft-RoCE, not those of RDMA NICs, which bypass the kernel.

The exit status is 0 if no problem was found, and 1 otherwise.")]
pub(crate) struct Args {
    /// Another host, to test the path to it: an address or a name.
    host: Option<String>,
    /// The port of the other host's `adverb respond`.
    #[arg(long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// The device that sends the RoCE packets. The default is chosen as by `adverb ping`.
    #[arg(long, value_name = "NAME", requires = "host")]
    device: Option<String>,
    /// Read /sys, /proc and /dev below this directory, for example a copy from another machine. Nothing is tried then.
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "host")]
    root: Option<PathBuf>,
    /// Print JSON. Its fields keep their names and meanings while `version` is 1.
    #[arg(long)]
    json: bool,
}

/// Prints the results of the checks.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let facts = args.root.as_deref().map_or_else(Facts::of_this_machine, Facts::read);
    let mut results = checks::all(&facts);
    if args.root.is_none() {
        results.extend(live::all(&facts));
    }
    if let Some(host) = &args.host {
        results.extend(path::all(host, args.port, args.device.as_deref()));
    }
    let report = Report::new(results);
    let output = match args.json {
        true => json::pretty("doctor", &report)?,
        false => report.text(),
    };
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(output.as_bytes())
        .and_then(|()| stdout.flush())
        .context("could not write to standard output")?;
    Ok(if report.problem_count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
