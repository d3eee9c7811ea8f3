//! `cargo xtask deny`: licenses, sources and versions of dependencies.

use anyhow::Result;
use support::process;

use crate::tools;

/// Checks the dependencies against `deny.toml`, and prints that advisories are skipped.
pub(crate) fn run() -> Result<()> {
    tools::require("cargo-deny")?;
    process::run(&mut process::cargo("deny --all-features check bans licenses sources"))?;
    println!(
        "advisories: SKIPPED, because CI cannot reach the advisory database; run `cargo deny check advisories` \
         on a machine that can"
    );
    Ok(())
}
