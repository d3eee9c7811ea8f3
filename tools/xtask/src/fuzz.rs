//! `cargo xtask fuzz`: the targets in `fuzz/`, each for its share of the time.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use support::{paths, process};

use crate::tools;

/// The options of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long to fuzz, all targets together; building comes on top.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    seconds: u64,
    /// The one target to fuzz; all of them if none is given.
    target: Option<String>,
}

/// Far more than a parser of packets could want, even with the memory that the sanitizer holds back from reuse:
/// reaching it is a find.
const MEMORY_LIMIT_MB: u32 = 2048;

/// Builds all targets, then runs each.
pub(crate) fn run(args: &Args) -> Result<()> {
    tools::require("cargo-fuzz")?;
    let known = process::text(&mut fuzz("list")).context("could not list the fuzz targets")?;
    let targets = choose(&known, args.target.as_deref())?;
    let share = share(Duration::from_secs(args.seconds), targets.len());

    // All at once and ahead of the clock: cargo builds what they share once.
    let mut build = fuzz("build");
    build.arg("--target-dir").arg(target_dir()?).args(&args.target);
    process::run(&mut build)?;

    for target in targets {
        println!("--> {target}: {} s", share.as_secs());
        fuzz_one(target, share).with_context(|| {
            format!(
                "fuzzing {target} failed; if it found an input, that is in fuzz/artifacts/{target}: \
                 add it to a test, and repeat it with `RUSTC_BOOTSTRAP=1 cargo fuzz run {target} FILE`"
            )
        })?;
    }
    Ok(())
}

/// Runs one target. What it learns goes to the cache, so that the next run starts there; the seeds that the
/// clone brings are only read.
fn fuzz_one(target: &str, share: Duration) -> Result<()> {
    let corpus = paths::cache()?.join("fuzz/corpus").join(target);
    fs::create_dir_all(&corpus).with_context(|| format!("could not create {}", corpus.display()))?;
    let seeds = paths::root().join("fuzz/seeds").join(target);

    let mut command = fuzz("run");
    command.arg("--target-dir").arg(target_dir()?).arg(target).arg(corpus);
    if seeds.is_dir() {
        command.arg(seeds);
    }
    command.arg("--");
    command.arg(format!("-max_total_time={}", share.as_secs()));
    command.arg(format!("-rss_limit_mb={MEMORY_LIMIT_MB}"));
    // Figures at the end, instead of a line for each input that it likes.
    command.args(["-verbosity=0", "-print_final_stats=1"]);
    process::run(&mut command)
}

/// cargo-fuzz on the stable toolchain: the sanitizer is an unstable option, which this variable admits.
fn fuzz(subcommand: &str) -> Command {
    let mut command = process::cargo("fuzz");
    command.arg(subcommand).env("RUSTC_BOOTSTRAP", "1");
    command
}

/// Instrumented builds have a directory of their own, outside the clone.
fn target_dir() -> Result<PathBuf> {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => Ok(paths::root().join(dir).join("fuzz")),
        None => Ok(paths::cache()?.join("fuzz/target")),
    }
}

/// The targets to run, of those that `cargo fuzz list` knows.
fn choose<'a>(known: &'a str, wanted: Option<&str>) -> Result<Vec<&'a str>> {
    let known: Vec<&str> = known.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let chosen: Vec<&str> = known.iter().copied().filter(|name| wanted.is_none_or(|w| w == *name)).collect();
    ensure!(!chosen.is_empty(), "no such fuzz target; there are: {}", known.join(" "));
    Ok(chosen)
}

/// Each target's part of the time: whole seconds, at least one (zero would mean "without end" to the fuzzer).
fn share(total: Duration, targets: usize) -> Duration {
    Duration::from_secs((total.as_secs() / targets.max(1) as u64).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_targets_or_the_one_asked_for() {
        assert_eq!(choose("a\nb\n", None).unwrap(), ["a", "b"]);
        assert_eq!(choose("a\nb\n", Some("b")).unwrap(), ["b"]);
        let error = choose("a\nb\n", Some("c")).unwrap_err();
        assert!(error.to_string().contains("a b"));
    }

    #[test]
    fn time_is_shared_and_never_endless() {
        assert_eq!(share(Duration::from_secs(60), 4), Duration::from_secs(15));
        assert_eq!(share(Duration::from_secs(2), 4), Duration::from_secs(1));
    }
}
