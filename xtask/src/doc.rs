//! `cargo xtask doc`: the documentation as docs.rs would show it.

use anyhow::Result;

use crate::process;

/// Builds the documentation of every crate; a broken link or a missing sentence is an error.
pub(crate) fn run() -> Result<()> {
    let mut cargo = process::cargo("doc --workspace --no-deps --all-features");
    process::run(cargo.env("RUSTDOCFLAGS", "-D warnings"))
}
