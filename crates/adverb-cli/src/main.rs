//! The `adverb` command.

mod completions;
mod devices;
mod doctor;
mod explain;
mod exporter;
mod install_to;
mod interrupt;
mod json;
mod man;
mod mesh;
mod peertest;
mod ping;
mod prose;
mod report;
mod respond;
mod run;
mod selftest;
mod stat;
mod symbols;
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
    max_term_width = prose::MAX_WIDTH,
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
    /// Find the reasons why RDMA does not work here, or on the path to another host.
    Doctor(doctor::Args),
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
    /// Print the environment of programs on the software NIC, for shells and build systems.
    Env(run::EnvArgs),
    /// Explain a completion status, error number, event, syndrome, opcode or reject reason.
    Explain(explain::Args),
    /// Print the completions of a shell.
    Completions(completions::Args),
    /// Write the manual pages.
    #[command(hide = true)]
    Man(man::Args),
    /// Copy the command and its libraries to a directory.
    #[command(hide = true)]
    InstallTo(install_to::Args),
}

impl Command {
    fn run(self) -> Result<ExitCode> {
        match self {
            Self::Devices(args) => devices::run(&args),
            Self::Doctor(args) => doctor::run(&args),
            Self::Selftest(args) => selftest::run(&args),
            Self::Peertest(args) => peertest::run(&args),
            Self::Ping(args) => ping::run(&args),
            Self::Respond(args) => respond::run(&args),
            Self::Mesh(args) => mesh::run(&args),
            Self::Stat(args) => stat::run(&args),
            Self::Exporter(args) => exporter::run(&args),
            Self::Traceroute(args) => traceroute::run(&args),
            Self::Run(args) => run::run(&args),
            Self::Env(args) => run::run_env(&args),
            Self::Explain(args) => explain::run(&args),
            Self::Completions(args) => completions::run(&args),
            Self::Man(args) => man::run(&args),
            Self::InstallTo(args) => install_to::run(&args),
        }
    }
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(code) => code,
        Err(error) => report::failure(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::{CommandFactory, Parser};

    use super::{Cli, prose};

    #[test]
    fn command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_is_as_listed() {
        let mut cli = Cli::command().term_width(prose::MAX_WIDTH);
        cli.build();
        let mut commands = vec![cli];
        let mut sections = Vec::new();
        while let Some(mut command) = commands.pop() {
            let name = command.get_bin_name().unwrap_or("adverb").to_owned();
            let help = command.render_long_help().to_string();
            let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
            let is_short = |line: &&str| line.chars().count() <= prose::MAX_WIDTH;
            assert!(lines.iter().all(is_short), "{name}: {help}");
            // A terminal would break a longer line, with only one or two words in its next line.
            if let Some(text) = command.get_after_help().map(ToString::to_string) {
                let long: Vec<&str> = text.lines().filter(|line| !is_short(line)).collect();
                assert!(long.is_empty(), "{name}: these lines are longer than a terminal's: {long:#?}");
            }
            sections.push(format!("## {name} --help\n\n{}\n\n", lines.join("\n").trim_end()));
            let subcommands = command.get_subcommands().filter(|command| command.get_name() != "help");
            commands.extend(subcommands.cloned().collect::<Vec<_>>().into_iter().rev());
        }
        let (file, help) = (concat!(env!("CARGO_MANIFEST_DIR"), "/help.txt"), sections.concat());
        let help = format!("{}\n", help.trim_end());
        if std::env::var_os("HELP").is_some_and(|value| value == "overwrite") {
            return fs::write(file, help).unwrap();
        }
        let tracked = fs::read_to_string(file).unwrap();
        let changed = help.lines().zip(tracked.lines()).find(|(now, before)| now != before);
        assert!(
            help == tracked,
            "the help texts differ from help.txt, at {changed:?}; run the test with HELP=overwrite, and read the changed lines"
        );
    }

    /// The files of Kubernetes name the image of this version and valid options.
    #[test]
    fn kubernetes_starts_the_command_with_valid_arguments() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/kubernetes");
        let mut count = 0;
        for entry in fs::read_dir(directory).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            let mut image = "";
            for line in text.lines().map(str::trim) {
                if let Some(name) = line.strip_prefix("image: ") {
                    image = name;
                    let own = concat!("/adverb:", env!("CARGO_PKG_VERSION"));
                    assert_eq!(name.contains("/adverb:"), name.ends_with(own), "{name}");
                }
                let Some(list) = line.strip_prefix("args: ") else { continue };
                // The container of the tests has an image of its own, and runs the command from the volume.
                assert!(image.contains("/adverb:") || list.starts_with("[\"run\""), "{image}: {list}");
                let list = list.replace("$(POD_IP)", "192.0.2.7").replace("$(NODE_IP)", "192.0.2.8");
                let words: Vec<String> = serde_json::from_str(&list).unwrap();
                let words = ["adverb".to_owned()].into_iter().chain(words);
                Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{list}: {error}"));
                count += 1;
            }
        }
        assert_eq!(count, 6);
    }

    /// The exporter's port is the same in its default, in the files of Kubernetes, and in the annotations for Prometheus.
    #[test]
    fn the_port_of_the_exporter_is_the_same_everywhere() {
        let mut cli = Cli::command();
        let exporter = cli.find_subcommand_mut("exporter").unwrap();
        let listen = exporter.get_arguments().find(|argument| argument.get_id() == "listen").unwrap();
        let default = listen.get_default_values()[0].to_str().unwrap();
        let port = default.rsplit_once(':').unwrap().1;
        for file in ["daemonset-hardware.yaml", "daemonset-software.yaml"] {
            let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/kubernetes");
            let text = fs::read_to_string(format!("{directory}/{file}")).unwrap();
            for part in [
                format!("containerPort: {port}"),
                format!("prometheus.io/port: \"{port}\""),
                format!(":{port}\"]"),
            ] {
                assert!(text.contains(&part), "{file} lacks {part}");
            }
        }
    }
}
