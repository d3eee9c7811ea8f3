//! What people type: `adverb …`.

mod devices;
mod peertest;
mod prose;
mod report;
mod selftest;
mod stat;
mod table;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "adverb", version, about = "RDMA: what there is on this machine, and how it does.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What can be typed after `adverb`.
#[derive(Debug, Subcommand)]
enum Command {
    /// List RDMA devices, their ports and addresses (GIDs), or say why there are none.
    Devices(devices::Args),
    /// Check whether a device does what an RDMA device must do, and write a report of it.
    Selftest(selftest::Args),
    /// Check, with another machine, whether two devices understand each other.
    Peertest(peertest::Args),
    /// Show what devices do, and how much of it goes wrong: rates of their counters.
    Stat(stat::Args),
}

impl Command {
    fn run(self) -> Result<ExitCode> {
        match self {
            Self::Devices(args) => devices::run(&args),
            Self::Selftest(args) => selftest::run(&args),
            Self::Peertest(args) => peertest::run(&args),
            Self::Stat(args) => stat::run(&args),
        }
    }
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(code) => code,
        Err(error) => report::failure(&error),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
