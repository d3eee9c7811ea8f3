//! That events cost nothing when nobody listens: the engine's benchmark as it is, and in a build without event code.

use std::path::Path;

use anyhow::{Result, bail};
use support::{paths, process};

/// Rounds of 32 requests, there and back, of the shorter run.
const ROUNDS: u64 = 200;
const BATCH: u64 = 32;

/// Counts both, and fails if they differ.
pub(super) fn run() -> Result<()> {
    let usual = process::build("bench -p adverb-proto --bench loopback --no-run")?;
    let mut without = process::cargo("bench -p adverb-proto --bench loopback --no-run");
    without.env("RUSTFLAGS", "--cfg adverb_no_events");
    without.env("CARGO_TARGET_DIR", paths::cache()?.join("target-no-events"));
    let without = process::build_with(without)?;
    let [usual, without] = [usual, without].map(|program| instructions(Path::new(&program)));
    let (usual, without) = (usual?, without?);
    println!(
        "engine, 8-byte WRITE: {usual:.1} instructions with nobody listening, {without:.1} without event code"
    );
    // The same code in another build: what little may differ is where the linker puts it.
    if (usual - without).abs() > without / 1000.0 {
        bail!("events cost something when nobody listens");
    }
    Ok(())
}

/// The instructions of a request, both ends of it.
fn instructions(program: &Path) -> Result<f64> {
    let count = |rounds: u64| super::count(Path::new("."), program, "--rounds", rounds);
    let (short, long) = (count(ROUNDS)?, count(2 * ROUNDS)?);
    Ok((long - short) as f64 / (ROUNDS * BATCH) as f64)
}
