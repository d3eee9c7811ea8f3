//! A soak test of clusters: processes that exchange messages, calls and one-sided transfers with each other, while one of
//! them is killed and restarted. `cargo xtask cluster` runs it.
//!
//! Each process is a member of a cluster (`member.rs`). Threads with even numbers exchange messages (`messages.rs`),
//! threads with odd numbers make calls (`calls.rs`), and all of them access the memory of the others (`session.rs`). All
//! bytes follow from a seed (`content.rs`), so every receiver checks them.
//!
//! The coordinator runs two parts. In the first, the members exchange a number of messages, and no session may end. In the
//! second, the coordinator kills a member at random and restarts it, and members close sessions. Only sessions that were
//! closed, or whose member was killed, may end. Then the members compare their counts, and the coordinator compares the
//! reports of both ends of every session.

mod calls;
mod content;
mod coordinator;
mod lines;
mod member;
mod messages;
mod session;
mod worker;

use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

/// The command line.
#[derive(Debug, Parser)]
enum Command {
    /// Start the members, kill some of them at random, and print the results.
    Run(Options),
    /// Run one member.
    Member {
        /// The settings, in JSON.
        settings: String,
    },
}

/// The options of a run.
#[derive(Clone, Debug, clap::Args)]
struct Options {
    /// The number of members.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=64))]
    members: u16,
    /// The number of threads of each member. Odd ones make calls, so two are needed for all operations.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    threads: u16,
    /// The number of messages in the first part: messages, requests and replies of all members. 0 omits the part.
    #[arg(long, default_value_t = 200_000)]
    messages: u64,
    /// The duration of the second part, in which members are killed, in seconds. 0 omits the part.
    #[arg(long, default_value_t = 6)]
    kill_seconds: u64,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The address of all members. By default, each has a loopback address of its own.
    #[arg(long)]
    addr: Option<IpAddr>,
    /// The ACK timeout, 4.096 µs × 2^CODE. A member that doesn't respond for seven times this period loses its sessions.
    #[arg(long, default_value_t = 16)]
    ack_timeout: u8,
    /// The time without progress after which a thread, or the recovery of a member, counts as hung, in seconds.
    #[arg(long, default_value_t = 60)]
    hang_seconds: u64,
    /// The mistake that member 0 makes, which the run must report.
    #[arg(long)]
    fault: Option<lines::Fault>,
}

fn main() -> Result<ExitCode> {
    match Command::parse() {
        Command::Run(options) => coordinator::run(&options)?,
        Command::Member { settings } => {
            let settings = serde_json::from_str(&settings).context("the settings")?;
            if let Err(error) = member::run(settings) {
                // The coordinator prints the error.
                lines::Line::Failed { error: format!("{error:#}") }.print();
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
