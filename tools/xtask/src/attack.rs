//! `cargo xtask attack`: malformed and hostile packets, sent to the engine (see `crates/adverb-sim/src/hostile`) or,
//! over sockets, to complete software NICs (see `crates/adverb-soft/examples/attack`) or to probers and responders (see
//! `crates/adverb-probe/examples/attack`).

use anyhow::Result;
use support::process;

/// The options of `cargo xtask attack`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Attack complete software NICs over sockets on the loopback interface instead of the engine.
    #[arg(long, group = "sockets")]
    nic: bool,
    /// Attack probers and responders over sockets on the loopback interface instead of the engine.
    #[arg(long, group = "sockets")]
    probe: bool,
    /// Number of packets to send; one million if --seconds is not given either.
    #[arg(long, conflicts_with = "sockets")]
    packets: Option<u64>,
    /// Maximum duration. With --nic or --probe, a round that has started still runs to its end.
    #[arg(long)]
    seconds: Option<u64>,
    /// With --nic or --probe: seed of the first round, to repeat a failed round.
    #[arg(long, requires = "sockets")]
    seed: Option<u64>,
    /// First seed; each seed sends ten thousand packets.
    #[arg(long, default_value_t = 0, conflicts_with = "sockets")]
    first: u64,
    /// Number of threads.
    #[arg(long, default_value_t = 2, conflicts_with = "sockets")]
    threads: u64,
}

/// Builds the attacker, optimized but with debug assertions, and runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (mut command, options) = if args.nic || args.probe {
        let package = if args.nic { "adverb-soft" } else { "adverb-probe" };
        let command =
            process::cargo(&format!("run --quiet --profile checked -p {package} --example attack --"));
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
