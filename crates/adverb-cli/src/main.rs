//! The `adverb` command.

mod devices;
mod explain;
mod exporter;
mod interrupt;
mod mesh;
mod peertest;
mod ping;
mod prose;
mod report;
mod respond;
mod run;
mod selftest;
mod stat;
mod table;
mod traceroute;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "adverb",
    version,
    about = "Inspect and test RDMA devices, probe RDMA paths, and explain errors."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
enum Command {
    /// List RDMA devices, their ports and addresses (GIDs), or the reason why there are none.
    Devices(devices::Args),
    /// Run the conformance tests on a device, and write a report.
    Selftest(selftest::Args),
    /// Test two devices against each other, usually on two machines.
    Peertest(peertest::Args),
    /// Probe an RDMA path: loss, and the delays of the network and of both hosts.
    Ping(ping::Args),
    /// Answer the probes of `adverb ping`.
    Respond(respond::Args),
    /// Find the part of a network that is at fault, with probes between many addresses.
    Mesh(mesh::Args),
    /// Show the rates of devices' traffic and error counters.
    Stat(stat::Args),
    /// Serve metrics of RDMA devices and their network interfaces to Prometheus.
    Exporter(exporter::Args),
    /// Show the routers on the paths to another machine.
    Traceroute(traceroute::Args),
    /// Run an unmodified verbs program on the software NIC.
    Run(run::Args),
    /// Explain a completion status, error number, event, syndrome, opcode or reject reason.
    Explain(explain::Args),
}

impl Command {
    fn run(self) -> Result<ExitCode> {
        match self {
            Self::Devices(args) => devices::run(&args),
            Self::Selftest(args) => selftest::run(&args),
            Self::Peertest(args) => peertest::run(&args),
            Self::Ping(args) => ping::run(&args),
            Self::Respond(args) => respond::run(&args),
            Self::Mesh(args) => mesh::run(&args),
            Self::Stat(args) => stat::run(&args),
            Self::Exporter(args) => exporter::run(&args),
            Self::Traceroute(args) => traceroute::run(&args),
            Self::Run(args) => run::run(&args),
            Self::Explain(args) => explain::run(&args),
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

    #[test]
    fn help_is_as_listed() {
        let mut cli = Cli::command().term_width(100);
        cli.build();
        let mut commands = vec![cli];
        let mut sections = Vec::new();
        while let Some(mut command) = commands.pop() {
            let name = command.get_bin_name().unwrap_or("adverb").to_owned();
            let help = command.render_long_help().to_string();
            let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
            sections.push(format!("## {name} --help\n\n{}\n\n", lines.join("\n").trim_end()));
            let subcommands = command.get_subcommands().filter(|command| command.get_name() != "help");
            commands.extend(subcommands.cloned().collect::<Vec<_>>().into_iter().rev());
        }
        messages::check(concat!(env!("CARGO_MANIFEST_DIR"), "/help.txt"), &sections);
    }
}
