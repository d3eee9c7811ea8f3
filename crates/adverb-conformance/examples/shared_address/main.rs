//! Processes with software devices at one address start, connect to each other, end, and are killed at random. Then pairs
//! of processes exchange messages that no device retransmits, while others join and leave the address.
//! `cargo xtask shared-address` runs it, and `tests/shared_address.rs` runs a short form.

mod churn;
mod coordinator;
mod unreliable;
mod worker;

use std::net::Ipv4Addr;
use std::process;

use adverb::verbs::Transport;
use anyhow::{Result, ensure};
use clap::Parser;

use churn::Role;
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
        /// The number of pairs that exchange messages without retransmission.
        #[arg(long, default_value_t = 150)]
        pairs: usize,
        /// The seed of all random choices.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// The address of all devices.
        #[arg(long, default_value = "127.83.11.7")]
        address: Ipv4Addr,
    },
    /// Run one of the processes that connect.
    Worker {
        /// The address of the device.
        address: Ipv4Addr,
    },
    /// Run one of a pair of processes with UC queue pairs.
    Uc {
        /// The address of the device.
        address: Ipv4Addr,
    },
    /// Run one of a pair of processes with UD queue pairs.
    Ud {
        /// The address of the device.
        address: Ipv4Addr,
    },
    /// Run one of the processes that only join and leave.
    Visitor {
        /// The address of the device.
        address: Ipv4Addr,
    },
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Run { processes, at_once, pairs, seed, address } => {
            let program = std::env::current_exe()?;
            let start = |role: &str| {
                let mut worker = process::Command::new(&program);
                worker.args([role, &address.to_string()]);
                worker
            };
            let plan = Plan { processes, at_once, seed, address: address.into() };
            let counts = coordinator::run(&plan, &|| start("worker"))?;
            println!("{counts}");
            let plan = churn::Plan { pairs, visitors: 4, seed, address: address.into() };
            let counts = churn::run(&plan, &|role| {
                start(match role {
                    Role::Visitor => "visitor",
                    Role::Uc => "uc",
                    Role::Ud => "ud",
                })
            })?;
            println!("{counts}");
            ensure!(counts.failed == 0, "messages were lost");
            Ok(())
        }
        Command::Worker { address } => worker::run(address.into()),
        Command::Uc { address } => unreliable::run(address.into(), Transport::Uc),
        Command::Ud { address } => unreliable::run(address.into(), Transport::Ud),
        Command::Visitor { address } => unreliable::visit(address.into()),
    }
}
