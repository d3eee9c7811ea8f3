//! `adverb mesh`: finds the part of a network that is at fault, with probes between many addresses.

mod agent;
mod host;
mod json;
mod members;
mod results;
mod text;
mod view;

use std::process::ExitCode;

use anyhow::Result;

/// The subcommands of `adverb mesh`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Probe between all NICs of this host, or between the addresses named, and name the part that is at fault.
    Host(host::Args),
}

/// Runs a subcommand.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Host(args) => host::run(args),
    }
}
