//! `cargo xtask fuzz`: the targets in `fuzz/`, each for an equal share of the time.
//!
//! The targets link libFuzzer, so running them needs no tool but cargo.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use support::{paths, process};

use crate::sanitizer::Sanitizer;

/// The options of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Total duration for all targets, without the time to build.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    seconds: u64,
    /// Run the target once with this input, instead of fuzzing it.
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
    /// Target to fuzz; all targets if omitted.
    target: Option<String>,
}

/// Memory limit of a fuzz target. A target needs far less, even with the sanitizer's quarantine, so reaching the
/// limit is a finding.
const MEMORY_LIMIT_MB: u32 = 2048;

/// AddressSanitizer, and the coverage that guides libFuzzer: edges with counters, comparisons, and the stack's depth.
const FUZZING: Sanitizer = Sanitizer {
    directory: "fuzz/target",
    flags: "--cfg fuzzing -Zsanitizer=address -Cdebug-assertions -Ccodegen-units=1 \
            -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
            -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
            -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-sanitizer-coverage-stack-depth",
    symbol: "__asan_init",
};

/// Builds the targets, then runs each.
pub(crate) fn run(args: &Args) -> Result<()> {
    let directory = paths::root().join("fuzz");
    let known = targets(&directory)?;
    let targets = choose(&known, args.target.as_deref())?;
    let share = share(Duration::from_secs(args.seconds), targets.len());

    let chosen = args.target.as_ref().map_or("--bins".to_owned(), |target| format!("--bin {target}"));
    let programs = FUZZING.build(&[&format!("build --manifest-path fuzz/Cargo.toml --release {chosen}")])?;
    for target in targets {
        let program = programs.find(target, false)?;
        if let Some(input) = &args.input {
            return process::run(Command::new(program).arg(input));
        }
        println!("--> {target}: {} s", share.as_secs());
        fuzz_one(program, target, share).with_context(|| {
            format!(
                "fuzzing {target} failed; a failing input is saved in fuzz/artifacts/{target}: reproduce it with \
                 `cargo xtask fuzz {target} --input FILE`, and add it to a test"
            )
        })?;
    }
    Ok(())
}

/// Runs one target. New corpus entries are stored in the cache, so the next run starts from them; the repository's
/// seeds are only read.
fn fuzz_one(program: &Path, target: &str, share: Duration) -> Result<()> {
    let corpus = paths::cache()?.join("fuzz/corpus").join(target);
    let artifacts = paths::root().join("fuzz/artifacts").join(target);
    for directory in [&corpus, &artifacts] {
        fs::create_dir_all(directory).with_context(|| format!("could not create {}", directory.display()))?;
    }
    let seeds = paths::root().join("fuzz/seeds").join(target);
    let mut command = Command::new(program);
    command.arg(format!("-artifact_prefix={}/", artifacts.display())).arg(corpus);
    if seeds.is_dir() {
        command.arg(seeds);
    }
    command.arg(format!("-max_total_time={}", share.as_secs()));
    command.arg(format!("-rss_limit_mb={MEMORY_LIMIT_MB}"));
    // Statistics at the end, instead of a line per new corpus entry.
    command.args(["-verbosity=0", "-print_final_stats=1"]);
    process::run(&mut command)
}

/// Returns the names of all targets.
fn targets(directory: &Path) -> Result<Vec<String>> {
    let directory = directory.join("fuzz_targets");
    let entries = fs::read_dir(&directory);
    let entries = entries.with_context(|| format!("could not read {}", directory.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the targets to run.
fn choose<'a>(known: &'a [String], wanted: Option<&str>) -> Result<Vec<&'a str>> {
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let chosen: Vec<&str> = known.iter().copied().filter(|name| wanted.is_none_or(|w| w == *name)).collect();
    ensure!(!chosen.is_empty(), "unknown fuzz target; the targets are: {}", known.join(" "));
    Ok(chosen)
}

/// Returns each target's share of the time in whole seconds, at least one: zero means "no limit" to libFuzzer.
fn share(total: Duration, targets: usize) -> Duration {
    Duration::from_secs((total.as_secs() / targets.max(1) as u64).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_targets_or_the_requested_one_are_chosen() {
        let known = ["a", "b"].map(str::to_owned);
        assert_eq!(choose(&known, None).unwrap(), ["a", "b"]);
        assert_eq!(choose(&known, Some("b")).unwrap(), ["b"]);
        let error = choose(&known, Some("c")).unwrap_err();
        assert!(error.to_string().contains("a b"));
    }

    #[test]
    fn the_share_of_the_time_is_at_least_a_second() {
        assert_eq!(share(Duration::from_secs(60), 4), Duration::from_secs(15));
        assert_eq!(share(Duration::from_secs(2), 4), Duration::from_secs(1));
    }
}
