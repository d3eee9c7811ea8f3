//! `cargo xtask clippy`: lints.

use anyhow::Result;
use support::process;

/// Lints the workspace, and adverb-wire again without the standard library.
pub(crate) fn run() -> Result<()> {
    process::run(&mut process::cargo("clippy --workspace --all-targets --all-features -- -D warnings"))?;
    process::run(&mut process::cargo("clippy -p adverb-wire --no-default-features -- -D warnings"))
}
