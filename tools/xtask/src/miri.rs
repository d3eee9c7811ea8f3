//! `cargo xtask miri`: unsafe code under miri, which checks every memory access.

use anyhow::Result;
use support::process;

/// Runs the tests of adverb-verbs' ring under miri, or prints that the toolchain has no miri.
pub(crate) fn run() -> Result<()> {
    if let Err(error) = process::text(&mut process::cargo("miri --version")) {
        let reason = format!("{error:#}");
        println!(
            "miri: SKIPPED, because this toolchain does not include it ({})",
            reason.lines().next().unwrap_or_default()
        );
        return Ok(());
    }
    // Under miri the test with a million values takes an hour.
    process::run(&mut process::cargo("miri test --package adverb-verbs --lib -- ring --skip a_million"))
}
