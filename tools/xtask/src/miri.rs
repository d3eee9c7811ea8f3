//! `cargo xtask miri`: unsafe code under an interpreter that checks every access.

use anyhow::Result;
use support::process;

/// Runs the tests of adverb-verbs' ring under miri, where this toolchain has it; says so where it hasn't.
pub(crate) fn run() -> Result<()> {
    if let Err(error) = process::text(&mut process::cargo("miri --version")) {
        let reason = format!("{error:#}");
        println!(
            "miri: SKIPPED, because this toolchain hasn't it ({})",
            reason.lines().next().unwrap_or_default()
        );
        return Ok(());
    }
    // A million values would take it an hour.
    process::run(&mut process::cargo("miri test --package adverb-verbs --lib -- ring --skip a_million"))
}
