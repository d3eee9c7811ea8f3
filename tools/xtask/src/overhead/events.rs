//! The cost of trace events without a sink: the engine's benchmark with event code, and compiled without it.

use std::path::Path;

use anyhow::{Result, bail};
use support::{paths, process};

/// The number of rounds in the shorter run; each sends a batch of requests in both directions.
const ROUNDS: u64 = 200;
const BATCH: u64 = 32;

/// Counts the instructions of both builds, and fails if they differ.
pub(super) fn run() -> Result<()> {
    let usual = process::build("bench -p adverb-proto --bench loopback --no-run")?;
    let mut without = process::cargo("bench -p adverb-proto --bench loopback --no-run");
    without.env("RUSTFLAGS", "--cfg adverb_no_events");
    without.env("CARGO_TARGET_DIR", paths::cache()?.join("target-no-events"));
    let without = process::build_with(without)?;
    let [usual, without] = [usual, without].map(|program| instructions(Path::new(&program)));
    let (usual, without) = (usual?, without?);
    println!(
        "engine, 8-byte WRITE: {usual:.1} instructions with event code and no sink, {without:.1} without event code"
    );
    // The tolerance allows for different code placement by the linker.
    if (usual - without).abs() > without / 1000.0 {
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
