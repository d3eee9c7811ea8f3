//! `cargo xtask soak`: processes with software devices under load over UDP sockets and a lossy network, while some are
//! killed and restarted (see `crates/adverb-conformance/examples/soak`).

use std::process::Command;

use anyhow::Result;
use support::{process, programs};

/// The options of `cargo xtask soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Duration in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Duration in minutes.
    #[arg(long, conflicts_with = "seconds")]
    minutes: Option<u64>,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Builds and runs the soak test.
pub(crate) fn run(args: &Args) -> Result<()> {
    let program = programs::example("soak")?;
    let seconds = args.minutes.map_or(args.seconds, |minutes| minutes * 60);
    let mut soak = Command::new(program);
    process::run(soak.args(["run", "--seconds", &seconds.to_string(), "--seed", &args.seed.to_string()]))
}
