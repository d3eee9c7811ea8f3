//! Processes with software devices at one address start, connect to each other, end, and are killed at random.
//! `cargo xtask shared-address` runs it, and `tests/shared_address.rs` runs a short form.

mod coordinator;
mod worker;

use std::net::Ipv4Addr;
use std::process;

use anyhow::Result;
use clap::Parser;

use coordinator::Plan;

/// The command line.
#[derive(Debug, Parser)]
enum Command {
    /// Start the processes, and print the results.
    Run {
        /// The number of processes to start.
        #[arg(long, default_value_t = 100)]
        processes: usize,
        /// The maximum number of processes at a time.
        #[arg(long, default_value_t = 8)]
        at_once: usize,
        /// The seed of all random choices.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// The address of all devices.
        #[arg(long, default_value = "127.83.11.7")]
        address: Ipv4Addr,
    },
    /// Run one of the processes.
    Worker {
        /// The address of the device.
        address: Ipv4Addr,
    },
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Run { processes, at_once, seed, address } => {
            let program = std::env::current_exe()?;
            let start = || {
                let mut worker = process::Command::new(&program);
                worker.args(["worker", &address.to_string()]);
                worker
            };
            let counts =
                coordinator::run(&Plan { processes, at_once, seed, address: address.into() }, &start)?;
            println!("{counts}");
            Ok(())
        }
        Command::Worker { address } => worker::run(address.into()),
    }
}
