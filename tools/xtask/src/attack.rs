//! `cargo xtask attack`: packets that keep no rule, at the engine (see `crates/adverb-sim/src/hostile`) or, over sockets, at
//! complete software NICs (see `crates/adverb-soft/examples/attack`).

use anyhow::Result;
use support::process;

/// The options of `cargo xtask attack`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Attack complete software NICs over real sockets on the loopback interface, instead of the engine.
    #[arg(long)]
    nic: bool,
    /// How many packets to send; a million if no time is given either.
    #[arg(long, conflicts_with = "nic")]
    packets: Option<u64>,
    /// How long to go on at most. A round on a NIC that has begun is finished.
    #[arg(long)]
    seconds: Option<u64>,
    /// With `--nic`: the seed of the first round, to repeat one that failed.
    #[arg(long, requires = "nic")]
    seed: Option<u64>,
    /// The first seed, of ten thousand packets each.
    #[arg(long, default_value_t = 0, conflicts_with = "nic")]
    first: u64,
    /// How many threads to use.
    #[arg(long, default_value_t = 2, conflicts_with = "nic")]
    threads: u64,
}

/// Builds the attacker, optimised but with the checks of a debug build, and lets it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (mut command, options) = if args.nic {
        let command = process::cargo("run --quiet --profile checked -p adverb-soft --example attack --");
        (command, [("--seconds", args.seconds), ("--seed", args.seed)].to_vec())
    } else {
        let command = process::cargo("run --quiet --profile checked -p adverb-sim -- --attack");
        let optional = [("--packets", args.packets), ("--seconds", args.seconds)];
        let always = [("--first", Some(args.first)), ("--threads", Some(args.threads))];
        (command, optional.into_iter().chain(always).collect())
    };
    for (name, value) in options {
        if let Some(value) = value {
            command.arg(name).arg(value.to_string());
        }
    }
    process::run(&mut command)
}
