//! `cargo xtask fuzz`: the targets in `fuzz/`, each for an equal share of the time.

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
    /// Total duration for all targets, without the time to build.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    seconds: u64,
    /// Target to fuzz; all targets if omitted.
    target: Option<String>,
}

/// Memory limit of a fuzz target. A target needs far less, even with the sanitizer's quarantine, so reaching the
/// limit is a finding.
const MEMORY_LIMIT_MB: u32 = 2048;

/// Builds all targets, then runs each.
pub(crate) fn run(args: &Args) -> Result<()> {
    tools::require("cargo-fuzz")?;
    let known = process::text(&mut fuzz("list")).context("could not list the fuzz targets")?;
    let targets = choose(&known, args.target.as_deref())?;
    let share = share(Duration::from_secs(args.seconds), targets.len());

    // Build all targets before the time starts; cargo builds their common dependencies once.
    let mut build = fuzz("build");
    build.arg("--target-dir").arg(target_dir()?).args(&args.target);
    process::run(&mut build)?;

    for target in targets {
        println!("--> {target}: {} s", share.as_secs());
        fuzz_one(target, share).with_context(|| {
            format!(
                "fuzzing {target} failed; a failing input is saved in fuzz/artifacts/{target}: \
                 reproduce it with `RUSTC_BOOTSTRAP=1 cargo fuzz run {target} FILE`, and add it to a test"
            )
        })?;
    }
    Ok(())
}

/// Runs one target. New corpus entries are stored in the cache, so the next run starts from them; the repository's
/// seeds are only read.
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
    // Statistics at the end, instead of a line per new corpus entry.
    command.args(["-verbosity=0", "-print_final_stats=1"]);
    process::run(&mut command)
}

/// Returns a cargo-fuzz command for the stable toolchain. The sanitizer is an unstable option, which RUSTC_BOOTSTRAP
/// enables.
fn fuzz(subcommand: &str) -> Command {
    let mut command = process::cargo("fuzz");
    command.arg(subcommand).env("RUSTC_BOOTSTRAP", "1");
    command
}

/// Returns the target directory of instrumented builds, which is outside the clone.
fn target_dir() -> Result<PathBuf> {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => Ok(paths::root().join(dir).join("fuzz")),
        None => Ok(paths::cache()?.join("fuzz/target")),
    }
}

/// Returns the targets to run, of those that `cargo fuzz list` prints.
fn choose<'a>(known: &'a str, wanted: Option<&str>) -> Result<Vec<&'a str>> {
    let known: Vec<&str> = known.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
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
        assert_eq!(choose("a\nb\n", None).unwrap(), ["a", "b"]);
        assert_eq!(choose("a\nb\n", Some("b")).unwrap(), ["b"]);
        let error = choose("a\nb\n", Some("c")).unwrap_err();
        assert!(error.to_string().contains("a b"));
    }

    #[test]
    fn the_share_of_the_time_is_at_least_a_second() {
        assert_eq!(share(Duration::from_secs(60), 4), Duration::from_secs(15));
        assert_eq!(share(Duration::from_secs(2), 4), Duration::from_secs(1));
    }
}
