//! `cargo xtask soak`: processes with software devices at work over UDP sockets and a network that fails, while some are
//! killed and started again (`crates/adverb-conformance/examples/soak`).

use std::process::Command;

use anyhow::Result;
use support::process;

/// The options of `cargo xtask soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// For how long.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// For how long, in minutes, instead.
    #[arg(long, conflicts_with = "seconds")]
    minutes: Option<u64>,
    /// What all choices follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Builds and runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let program = process::build("build --release -p adverb-conformance --example soak")?;
    let seconds = args.minutes.map_or(args.seconds, |minutes| minutes * 60);
    let mut soak = Command::new(program);
    process::run(soak.args(["run", "--seconds", &seconds.to_string(), "--seed", &args.seed.to_string()]))
}
