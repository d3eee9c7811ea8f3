//! Several processes with software devices that talk over UDP sockets and a network that fails, for a long time, while some
//! are killed and started again: run by `cargo xtask soak`.
//!
//! Each pair of processes has a session (`session.rs`), in which every operation is used and every byte checked. Whoever loses
//! a peer must learn of it by an error completion, in time; what a session had must be given back. One process is never killed,
//! and must not grow.

mod coordinator;
mod message;
mod session;
mod station;

use std::net::Ipv4Addr;

use anyhow::{Result, bail};
use clap::Parser;

/// The command line.
#[derive(Debug, Parser)]
enum Command {
    /// Start the others, kill some now and then, and say how it went.
    Run {
        /// For how long, in seconds.
        #[arg(long)]
        seconds: u64,
        /// What all choices follow from.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// One of the processes.
    Station {
        /// Which.
        index: u8,
        /// How many there are.
        count: u8,
        /// The first three numbers of all addresses.
        network: Ipv4Addr,
        seed: u64,
    },
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Run { seconds, seed } => coordinator::run(seconds, seed),
        Command::Station { index, count, network, seed } => {
            if let Err(error) = station::run(index, count, network, seed) {
                println!("FAIL {error:#}");
                bail!("station {index} failed");
            }
            Ok(())
        }
    }
}
