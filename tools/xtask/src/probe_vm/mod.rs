//! `cargo xtask probe-vm`: probes between the software NIC and soft-RoCE, in a virtual machine.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use support::{process, programs};

use crate::{Cli, interop};

/// The options of `cargo xtask probe-vm`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of probes in each direction, for IPv4 and for IPv6.
    #[arg(long, default_value_t = 10_000)]
    count: u32,
}

/// The shell functions.
const FUNCTIONS: &str = include_str!("guest.sh");

/// Builds `adverb`, and runs a prober and a responder in a guest, in each direction. All probes must be answered.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let program = programs::adverb()?;
    let command = command(&program, args.count);
    // Run it through the command-line parser, so that a developer can type the same command.
    Cli::try_parse_from(["xtask", "vm", "--timeout", "3600", "--run", &command])?.command.run()
}

/// Returns the shell command for the guest, which prints a table and fails if a probe was not answered.
pub(crate) fn command(program: &str, count: u32) -> String {
    let (common, program) = (interop::FUNCTIONS, process::quote(program));
    format!(
        "# Probes between the software NIC and soft-RoCE.\n{common}\n{FUNCTIONS}\nprobe_vm {program} {count}"
    )
}
