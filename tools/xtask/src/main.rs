//! Adverb's developer commands: `cargo xtask …`.
//!
//! Every check that a change must pass is a command here, so a developer can run exactly the checks that CI runs.
//! `cargo xtask ci` runs them all (see `ci::JOBS`). This crate depends on no product crate: it builds when they
//! do not.

#[cfg(test)]
mod action;
mod asan;
mod attack;
mod blocking_calls;
mod ci;
mod clippy;
mod cluster;
mod conformance;
mod coverage;
mod deny;
mod device_tests;
mod dist;
mod doc;
#[cfg(test)]
mod documents;
mod examples;
mod fmt;
mod fuzz;
mod hack;
mod install_check;
mod interop;
mod mesh;
mod metadata;
mod miri;
#[cfg(test)]
mod module_order;
mod msrv;
mod net;
mod newcomer;
mod overhead;
mod package;
mod pictures;
mod preload;
mod probe;
mod probe_vm;
mod redial;
mod registry;
mod sample;
mod sanitizer;
mod setup;
mod shared_address;
mod sim;
mod site;
mod soak;
mod spelling;
mod spine;
mod test;
mod tools;
mod traffic;
mod tsan;
mod unsafe_inventory;
mod wasm;
mod wire_check;
mod workflows;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The commands, by subject, as `cargo xtask --help` lists them.
const GROUPS: &[(&str, &[&str])] = &[
    ("Every change", &["ci", "setup", "fmt", "clippy", "spelling", "doc", "test", "examples"]),
    (
        "Sources",
        &["workflows", "msrv", "deny", "unsafe-inventory", "hack", "wasm", "miri", "loom", "coverage"],
    ),
    ("Packets and protocols", &["exhaustive", "wire-check", "sim", "attack", "fuzz"]),
    ("Devices", &["conformance", "interop", "device-tests", "net", "vm", "asan", "tsan", "traffic"]),
    ("Many connections and processes", &["soak", "cluster", "redial", "blocking-calls", "shared-address"]),
    ("Probes", &["probe", "probe-vm", "mesh", "spine", "pictures"]),
    ("C programs, packages and the site", &["preload", "package", "dist", "install-check", "site"]),
    ("Speed", &["overhead", "bench", "perf"]),
];

/// The command line.
#[derive(Debug, Parser)]
#[command(
    bin_name = "cargo xtask",
    about = "Adverb's developer commands.",
    help_template = "{about}\n\n{usage-heading} {usage}{after-help}",
    after_help = grouped_commands()
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// A command, as typed after `cargo xtask`.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run every check that a change must pass, and print the time of each.
    Ci(ci::Args),
    /// Install missing Debian packages and cargo tools that the other commands need.
    Setup,
    /// Check the formatting of both workspaces, or fix it.
    Fmt(fmt::Args),
    /// Lint all code; warnings are errors.
    Clippy,
    /// Build the documentation; warnings are errors.
    Doc,
    /// Run the tests and doctests, except the slow tests (see `exhaustive`).
    Test(test::Args),
    /// Run the examples of connections and clusters, each as two processes, and those of traces.
    Examples,
    /// Run adverb-wire's exhaustive and property tests in release mode.
    Exhaustive,
    /// Run the tests of the lock-free rings and of the wait protocol under loom, in every thread interleaving.
    Loom,
    /// Check the licenses, sources and versions of dependencies.
    Deny(deny::Args),
    /// Check the spelling of sources and texts, and the length of commit subjects.
    Spelling,
    /// Validate the files in .github against their schemas.
    Workflows,
    /// Compile the published crates with the oldest supported compiler.
    Msrv,
    /// Run the fuzz targets, each for an equal share of the time.
    Fuzz(fuzz::Args),
    /// Run the tests that need an RDMA device, on soft-RoCE in a virtual machine.
    DeviceTests,
    /// Run the conformance suite on a device.
    Conformance(conformance::Args),
    /// Test the software NIC against soft-RoCE and against C programs, for every operation.
    Interop(interop::Args),
    /// Test connections between every pair of devices: the software NIC and soft-RoCE.
    Net(net::Args),
    /// Probe soft-RoCE from the software NIC and the reverse, in a virtual machine.
    ProbeVm(probe_vm::Args),
    /// Run the engine in a simulated fabric with injected faults, and check its invariants.
    Sim(sim::Args),
    /// Start processes at one address, which connect to each other, end, and are killed.
    SharedAddress(shared_address::Args),
    /// Count the blocking system calls of a runtime whose connections break and reconnect.
    BlockingCalls(blocking_calls::Args),
    /// Run processes under load over a lossy network, and kill some of them.
    Soak(soak::Args),
    /// Break the lanes of many connections at once, and print the time until all have resumed, and the number of threads.
    Redial(redial::Args),
    /// Run the processes of a cluster, kill some of them, and check all data that they exchange.
    Cluster(cluster::Args),
    /// Make the pictures of `adverb ping` and of the dashboard's data in docs/pictures.
    Pictures(pictures::Args),
    /// Check that `adverb ping` names the lossy spine of a leaf-spine network, and count the probes that it needs.
    Spine(spine::Args),
    /// Measure probes: injected and reported delays, restarts, CPU time and memory.
    Probe(probe::Args),
    /// Check that the kernel sees the software NIC's DSCP and ECN marks and its congestion notifications.
    Traffic,
    /// Run `adverb mesh host` with faults of networks and processes, and check its diagnosis.
    Mesh(mesh::Args),
    /// Send malformed and hostile packets to the engine in every state, and check its invariants.
    Attack(attack::Args),
    /// Print a crate's line coverage, and fail if it is below a minimum.
    Coverage(coverage::Args),
    /// Check the crates that need no operating system for WebAssembly, if the target is installed.
    Wasm,
    /// Compare adverb-wire's packets with tshark's dissection, and with test vectors where tshark has none.
    WireCheck,
    /// Compare instruction counts of the safe API and of C, on a no-op device.
    Overhead(overhead::Args),
    /// Link libibverbs on the software NIC (adverb-preload), and test it with rdma-core's programs.
    Preload(preload::Args),
    /// Build the documentation site from the manual, and check its links.
    Site(site::Args),
    /// Build the packages of a release: a tarball, a Debian package, a Python wheel and an OCI image.
    Dist(dist::Args),
    /// Install the packages of a release in clean Debian systems, and run a program of perftest on each.
    InstallCheck(install_check::Args),
    /// Package every crate for publishing, build the packages, and use them as a new user would.
    Package,
    /// Build every published crate with each of its features separately.
    Hack,
    /// Run the tests of the lock-free ring under miri, if it is installed.
    Miri,
    /// Check that unsafe code is only in the places that UNSAFE.md lists, and that each use is justified.
    UnsafeInventory(unsafe_inventory::Args),
    /// Run memory tests under AddressSanitizer, on the software NIC and on soft-RoCE.
    Asan,
    /// Run multi-threaded tests of the software NIC under ThreadSanitizer.
    Tsan,
    /// Benchmark the software NIC and connections against other stacks.
    Bench(bench::Args),
    /// Compare speed and system calls with perftest, on soft-RoCE.
    Perf(bench::perf::Args),
    /// Run commands in a virtual machine that has soft-RoCE (rdma_rxe).
    Vm(vm::Args),
}

/// Returns the list of commands for the help, by group.
fn grouped_commands() -> String {
    let commands = Command::augment_subcommands(clap::Command::new("xtask"));
    let mut text = String::new();
    for (group, names) in GROUPS {
        text += &format!("{group}:\n");
        for name in *names {
            let about = commands.find_subcommand(name).and_then(clap::Command::get_about);
            text += &format!("  {name:18}{}\n", about.map(ToString::to_string).unwrap_or_default());
        }
        text += "\n";
    }
    text + "`cargo xtask COMMAND --help` prints the options of a command."
}

impl Command {
    /// Runs the command. An error and a failing exit code both mean failure; only commands that pass on the exit
    /// status of another program (`vm`) choose a code.
    fn run(self) -> Result<ExitCode> {
        match self {
            Self::Ci(args) => return ci::run(&args),
            Self::Vm(args) => return vm::run(args),
            Self::Perf(args) => return bench::perf::run(&args),
            Self::Asan => return asan::run(),
            Self::Bench(args) => return bench::run(&args),
            Self::Tsan => tsan::run()?,
            Self::Setup => setup::run()?,
            Self::Fmt(args) => fmt::run(&args)?,
            Self::Clippy => clippy::run()?,
            Self::Doc => doc::run()?,
            Self::Test(args) => test::run(&args)?,
            Self::Examples => examples::run()?,
            Self::Exhaustive => test::run_exhaustive()?,
            Self::Loom => test::run_loom()?,
            Self::Deny(args) => deny::run(&args)?,
            Self::Spelling => spelling::run()?,
            Self::Workflows => workflows::run()?,
            Self::Msrv => msrv::run()?,
            Self::Fuzz(args) => fuzz::run(&args)?,
            Self::DeviceTests => return device_tests::run(),
            Self::Conformance(args) => return conformance::run(args),
            Self::Interop(args) => return interop::run(&args),
            Self::Net(args) => return net::run(&args),
            Self::ProbeVm(args) => return probe_vm::run(&args),
            Self::Sim(args) => sim::run(&args)?,
            Self::SharedAddress(args) => shared_address::run(&args)?,
            Self::BlockingCalls(args) => return blocking_calls::run(&args),
            Self::Soak(args) => soak::run(&args)?,
            Self::Redial(args) => redial::run(&args)?,
            Self::Cluster(args) => return cluster::run(&args),
            Self::Pictures(args) => pictures::run(&args)?,
            Self::Spine(args) => spine::run(&args)?,
            Self::Probe(args) => probe::run(&args)?,
            Self::Traffic => traffic::run()?,
            Self::Mesh(args) => mesh::run(&args)?,
            Self::Attack(args) => attack::run(&args)?,
            Self::Coverage(args) => coverage::run(&args)?,
            Self::Wasm => wasm::run()?,
            Self::Hack => hack::run()?,
            Self::Miri => miri::run()?,
            Self::Preload(args) => preload::run(&args)?,
            Self::Dist(args) => dist::run(&args)?,
            Self::InstallCheck(args) => install_check::run(&args)?,
            Self::Site(args) => site::run(&args)?,
            Self::Package => package::run()?,
            Self::UnsafeInventory(args) => unsafe_inventory::run(&args)?,
            Self::Overhead(args) => overhead::run(&args)?,
            Self::WireCheck => wire_check::run()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{Cli, GROUPS};

    #[test]
    fn command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_is_in_one_group() {
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        listed.sort_unstable();
        let cli = Cli::command();
        let mut commands: Vec<&str> = cli.get_subcommands().map(clap::Command::get_name).collect();
        commands.sort_unstable();
        assert_eq!(listed, commands);
    }
}
