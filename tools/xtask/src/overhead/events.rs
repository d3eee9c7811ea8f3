//! The cost of trace events: benchmarks with event code, and compiled without it.
//!
//! The engine's benchmark has no sink. The software NIC has one, which is off, and its benchmark counts the instructions
//! of a WRITE with immediate data between two queue pairs, both ends together. The cost of a recording is limited, too.

use std::path::Path;

use anyhow::{Result, bail};
use support::{paths, process};

use super::{MESSAGES_BENCH, min_instructions};

/// The number of rounds in the shorter run; each sends a batch of requests in both directions.
const ROUNDS: u64 = 200;
const BATCH: u64 = 32;

/// The maximum number of instructions per message, both ends together, for events that are not recorded. Today's number
/// is 49; other builds of the same code had up to 61.
const MAX_INSTRUCTIONS: u64 = 65;

/// The maximum number of instructions per message, both ends together, for a recording: about 11 events. It includes
/// the instructions that events cost when they are not recorded. Today's number is 538.
const MAX_RECORDED_INSTRUCTIONS: u64 = 550;

/// Counts the instructions of both builds, and fails if events cost more than allowed.
///
/// `messages` is the benchmark of the software NIC, with event code.
pub(super) fn run(directory: &Path, messages: &Path) -> Result<()> {
    without_sink()?;
    let without = without_events(MESSAGES_BENCH)?;
    let usual = min_instructions(directory, messages, "write")?;
    let without = min_instructions(directory, Path::new(&without), "write")?;
    let recorded = min_instructions(directory, messages, "recorded-write")?;
    println!(
        "software NIC, 64-byte WRITE: {usual} instructions with event code, {without} without, {recorded} recorded"
    );
    if usual > without + MAX_INSTRUCTIONS {
        bail!("events that are not recorded cost more than {MAX_INSTRUCTIONS} instructions per message");
    }
    if recorded > without + MAX_RECORDED_INSTRUCTIONS {
        bail!("a recording costs more than {MAX_RECORDED_INSTRUCTIONS} instructions per message");
    }
    Ok(())
}

/// Builds a benchmark without event code, and returns its path.
fn without_events(build: &str) -> Result<String> {
    let mut without = process::cargo(build);
    without.env("RUSTFLAGS", "--cfg adverb_no_events");
    without.env("CARGO_TARGET_DIR", paths::cache()?.join("target-no-events"));
    process::build_with(without)
}

/// Counts the instructions of the engine without a sink, and fails if event code costs any.
fn without_sink() -> Result<()> {
    let usual = process::build("bench -p adverb-proto --bench loopback --no-run")?;
    let without = without_events("bench -p adverb-proto --bench loopback --no-run")?;
    let [usual, without] = [usual, without].map(|program| instructions(Path::new(&program)));
    let (usual, without) = (usual?, without?);
    println!(
        "engine, 8-byte WRITE: {usual:.1} instructions with event code and no sink, {without:.1} without event code"
    );
    // The tolerance allows for different inlining. It may also make the build with event code the shorter one.
    if usual > without * 1.001 {
        bail!("event code costs instructions when there is no sink");
    }
    Ok(())
}

/// Returns the number of instructions per request, both ends together.
fn instructions(program: &Path) -> Result<f64> {
    let count = |rounds: u64| super::count(Path::new("."), program, "--rounds", rounds);
    let (short, long) = (count(ROUNDS)?, count(2 * ROUNDS)?);
    Ok((long - short) as f64 / (ROUNDS * BATCH) as f64)
}
