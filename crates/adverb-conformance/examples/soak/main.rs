//! A soak test: several processes with software devices communicate over UDP sockets and a lossy network, while some
//! are killed and restarted. `cargo xtask soak` runs it.
//!
//! Each pair of processes has a session (`session.rs`), which uses every operation and checks every byte. A process
//! that loses a peer must get an error completion within a bound, and a session must release all its resources. One
//! process is never killed, and its memory must not grow.

mod coordinator;
mod message;
mod session;
mod worker;

use std::net::Ipv4Addr;

use anyhow::{Result, bail};
use clap::Parser;

/// The command line.
#[derive(Debug, Parser)]
enum Command {
    /// Start the processes, kill some of them at random, and print the results.
    Run {
        /// The duration in seconds.
        #[arg(long)]
        seconds: u64,
        /// The seed of all random choices.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Run one of the processes.
    Worker {
        /// The index of the process.
        index: u8,
        /// The number of processes.
        count: u8,
        /// The /24 network of all addresses.
        network: Ipv4Addr,
        seed: u64,
    },
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Run { seconds, seed } => coordinator::run(seconds, seed),
        Command::Worker { index, count, network, seed } => {
            if let Err(error) = worker::run(index, count, network, seed) {
                println!("FAIL {error:#}");
                bail!("process {index} failed");
            }
            Ok(())
        }
    }
}
