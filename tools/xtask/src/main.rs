//! What Adverb's developers type: `cargo xtask …`.
//!
//! Every check that a change must pass is a command here, so that what runs in CI and what a person runs at
//! their desk are the same thing. `cargo xtask ci` is those commands in a row (see `ci::STEPS`).

mod asan;
mod attack;
mod ci;
mod clippy;
mod conformance;
mod coverage;
mod deny;
mod device_tests;
mod doc;
mod examples;
mod fmt;
mod fuzz;
mod hack;
mod interop;
mod metadata;
mod miri;
mod net;
mod newcomer;
mod overhead;
mod package;
mod sanitizer;
mod setup;
mod sim;
mod soak;
mod test;
mod tools;
mod traffic;
mod tsan;
mod unsafe_inventory;
mod wasm;
mod wire_check;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The command line.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", about = "What Adverb's developers type.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What can be typed after `cargo xtask`.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run every check that a change must pass, in order, and print the time of each.
    Ci,
    /// Install the Debian packages and cargo tools that the other commands need, where they are missing.
    Setup,
    /// Check the formatting of both workspaces, or repair it.
    Fmt(fmt::Args),
    /// Lint all code; a warning is an error.
    Clippy,
    /// Build the documentation; a warning is an error.
    Doc,
    /// Run the tests and doctests, all but the long ones (see `exhaustive`).
    Test,
    /// Run the examples of connections, each as a server and as a client.
    Examples,
    /// Run the exhaustive and property tests of adverb-wire, optimised.
    Exhaustive,
    /// Build and run the README's first example in a new package, as a new user would.
    Newcomer,
    /// Try every order of events in what is shared between threads without locks.
    Loom,
    /// Check the dependencies' licences, sources and versions.
    Deny,
    /// Fuzz for a while, the time shared among the targets.
    Fuzz(fuzz::Args),
    /// Run the tests of adverb that need a device, on soft-RoCE.
    DeviceTests,
    /// Run the conformance suite on a device.
    Conformance(conformance::Args),
    /// Have the software NIC and soft-RoCE, or C programs on it, do everything with each other.
    Interop(interop::Args),
    /// Have connections do everything between every pair of devices: the software NIC and soft-RoCE.
    Net(net::Args),
    /// Run the engine in a simulated fabric that fails on purpose, and check that it keeps every promise.
    Sim(sim::Args),
    /// Have processes work with each other for a while over a network that fails, and kill some.
    Soak(soak::Args),
    /// Check that the kernel sees the DSCP and ECN marks of the software NIC's packets, and notifications of them.
    Traffic,
    /// Send packets that keep no rule at the engine, in every state, and check that it comes to no harm.
    Attack(attack::Args),
    /// Print which lines of a crate its tests reach, and fail if they are too few.
    Coverage(coverage::Args),
    /// Build the crates that need no operating system for WebAssembly, where that is installed.
    Wasm,
    /// Check what adverb-wire emits against tshark, and by vectors where tshark doesn't know it.
    WireCheck,
    /// Count the instructions of the safe API beside C's, on a device that does nothing.
    Overhead,
    /// Pack every crate as it would be published, and build each from its package.
    Package,
    /// Build every crate with each of its features alone.
    Hack,
    /// Run the tests of unsafe code under miri, where it is installed.
    Miri,
    /// Check that unsafe code stands only where it may, each with its reason, and that UNSAFE.md lists it.
    UnsafeInventory(unsafe_inventory::Args),
    /// Run what works on memory in flight under AddressSanitizer, here and on soft-RoCE.
    Asan,
    /// Run what threads share, of the software NIC and above it, under ThreadSanitizer.
    Tsan,
    /// Measure the software NIC beside what else there is.
    Bench(bench::Args),
    /// Compare the speed and the system calls of adverb with perftest's, on soft-RoCE.
    Perf(bench::perf::Args),
    /// Run commands under a kernel with soft-RoCE (rdma_rxe), in a virtual machine.
    Vm(vm::Args),
}

impl Command {
    /// Does it. An error and a failing exit code both mean failure; only commands that pass on somebody else's
    /// exit status (`vm`) choose a code.
    fn run(self) -> Result<ExitCode> {
        match self {
            Self::Ci => return ci::run(),
            Self::Vm(args) => return vm::run(args),
            Self::Perf(args) => return bench::perf::run(&args),
            Self::Asan => return asan::run(),
            Self::Bench(args) => return bench::run(&args),
            Self::Tsan => tsan::run()?,
            Self::Setup => setup::run()?,
            Self::Fmt(args) => fmt::run(&args)?,
            Self::Clippy => clippy::run()?,
            Self::Doc => doc::run()?,
            Self::Test => test::run()?,
            Self::Examples => examples::run()?,
            Self::Newcomer => newcomer::run()?,
            Self::Exhaustive => test::run_exhaustive()?,
            Self::Loom => test::run_loom()?,
            Self::Deny => deny::run()?,
            Self::Fuzz(args) => fuzz::run(&args)?,
            Self::DeviceTests => return device_tests::run(),
            Self::Conformance(args) => return conformance::run(args),
            Self::Interop(args) => return interop::run(&args),
            Self::Net(args) => return net::run(&args),
            Self::Sim(args) => sim::run(&args)?,
            Self::Soak(args) => soak::run(&args)?,
            Self::Traffic => traffic::run()?,
            Self::Attack(args) => attack::run(&args)?,
            Self::Coverage(args) => coverage::run(&args)?,
            Self::Wasm => wasm::run()?,
            Self::Hack => hack::run()?,
            Self::Miri => miri::run()?,
            Self::Package => package::run()?,
            Self::UnsafeInventory(args) => unsafe_inventory::run(&args)?,
            Self::Overhead => overhead::run()?,
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

    use super::Cli;

    #[test]
    fn command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
