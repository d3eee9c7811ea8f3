//! `cargo xtask deny`: what the dependencies bring in.

use anyhow::Result;
use support::process;

use crate::tools;

/// Checks the dependencies against `deny.toml`, all but advisories, and says that those were left out.
pub(crate) fn run() -> Result<()> {
    tools::require("cargo-deny")?;
    process::run(&mut process::cargo("deny --all-features check bans licenses sources"))?;
    println!(
        "advisories: SKIPPED, because the advisory database isn't reachable from CI; \
         run `cargo deny check advisories` where it is"
    );
    Ok(())
}
