//! `cargo xtask bench kv`: GETs of the example cache by READ, by RPC and over TCP, and of Redis.
//!
//! The comparison itself is `kv bench`; this command installs Redis and builds the program.

use std::process::{Command, ExitCode};

use anyhow::Result;
use support::{packages, process};

/// The options of `cargo xtask bench kv`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The number of rounds. The table has the medians.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The number of GETs of each round.
    #[arg(long, default_value_t = 500_000)]
    operations: u64,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    packages::ensure(&["redis-server", "redis-tools"])?;
    let kv = process::build("build --profile bench -p adverb-kv --bin kv")?;
    let (rounds, operations) = (args.rounds.to_string(), args.operations.to_string());
    process::run(Command::new(kv).args(["bench", "--rounds", &rounds, "--operations", &operations]))?;
    Ok(ExitCode::SUCCESS)
}
