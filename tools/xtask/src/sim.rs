//! `cargo xtask sim`: simulated fabrics that fail on purpose (see `crates/adverb-sim`).

use anyhow::Result;
use support::process;

/// The options of `cargo xtask sim`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many seeds to run, or to try on each mutant.
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run just this seed, and print all that happens.
    #[arg(long, conflicts_with = "mutants")]
    seed: Option<u64>,
    /// Plant each mutation of the engine in turn, and say which seed finds it.
    #[arg(long)]
    mutants: bool,
    /// With `--seed`: plant this mutation.
    #[arg(long, requires = "seed", value_name = "NAME")]
    mutant: Option<String>,
    /// How many threads to use.
    #[arg(long, default_value_t = 2)]
    threads: u64,
}

/// Builds the simulator, optimised, and runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut command = process::cargo("run --quiet --release -p adverb-sim");
    if args.mutants || args.mutant.is_some() {
        command.args(["--features", "mutants"]);
    }
    command.arg("--").arg("--threads").arg(args.threads.to_string());
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
