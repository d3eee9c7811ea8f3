//! `cargo xtask sim`: simulated fabrics with injected faults (see `crates/adverb-sim`).

use anyhow::Result;
use support::process;

/// The options of `cargo xtask sim`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of seeds to run, or to try on each mutant.
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run only this seed, and print every event.
    #[arg(long, conflicts_with = "mutants")]
    seed: Option<u64>,
    /// Inject each mutation of the engine in turn, and print the seed that detects it.
    #[arg(long)]
    mutants: bool,
    /// With --seed: inject this mutation.
    #[arg(long, requires = "seed", value_name = "NAME")]
    mutant: Option<String>,
    /// Run only the brokers of clusters.
    #[arg(long)]
    cluster: bool,
    /// With --cluster: send messages between each pair of this many members, and print time and memory.
    #[arg(long, requires = "cluster", value_name = "N", conflicts_with_all = ["mutants", "seed"])]
    members: Option<u64>,
    /// With --members: the number of messages from each member to each other member.
    #[arg(long, requires = "members", default_value_t = 20)]
    rounds: u64,
    /// Run only the connections of adverb-net-proto.
    #[arg(long, conflicts_with = "cluster")]
    net: bool,
    /// With --net: visit all states of small connections.
    #[arg(long, requires = "net", conflicts_with_all = ["mutants", "seed"])]
    exhaustive: bool,
    /// Number of threads.
    #[arg(long, default_value_t = 2)]
    threads: u64,
}

/// Builds the simulator in release mode and runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut command = process::cargo("run --quiet --release -p adverb-sim");
    if args.mutants || args.mutant.is_some() {
        command.args(["--features", "mutants"]);
    }
    command.arg("--").arg("--threads").arg(args.threads.to_string());
    if args.cluster {
        command.arg("--cluster");
    }
    if args.net {
        command.arg("--net");
    }
    if args.exhaustive {
        command.arg("--exhaustive");
    }
    if let Some(members) = args.members {
        command.args(["--members", &members.to_string(), "--rounds", &args.rounds.to_string()]);
    }
    match args.seed {
        Some(seed) => {
            command.arg("--seed").arg(seed.to_string());
            if let Some(mutant) = &args.mutant {
                command.arg("--mutant").arg(mutant);
            }
        }
        None => {
            command.args(["--seeds", &args.seeds.to_string(), "--first", &args.first.to_string()]);
            if args.mutants {
                command.arg("--mutants");
            }
        }
    }
    process::run(&mut command)
}
