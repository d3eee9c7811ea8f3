//! `cargo xtask attack`: packets that keep no rule, at the engine (see `crates/adverb-sim/src/hostile`).

use anyhow::Result;

use crate::process;

/// The options of `cargo xtask attack`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many packets to send; a million if no time is given either.
    #[arg(long)]
    packets: Option<u64>,
    /// How long to go on at most.
    #[arg(long)]
    seconds: Option<u64>,
    /// The first seed, of ten thousand packets each.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// How many threads to use.
    #[arg(long, default_value_t = 2)]
    threads: u64,
}

/// Builds the attacker, optimised but with the checks of a debug build, and lets it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut command = process::cargo("run --quiet --profile checked -p adverb-sim -- --attack");
    let optional = [("--packets", args.packets), ("--seconds", args.seconds)];
    let always = [("--first", Some(args.first)), ("--threads", Some(args.threads))];
    for (name, value) in optional.into_iter().chain(always) {
        if let Some(value) = value {
            command.arg(name).arg(value.to_string());
        }
    }
    process::run(&mut command)
}
