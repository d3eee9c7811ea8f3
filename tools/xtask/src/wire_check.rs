//! `cargo xtask wire-check`: adverb-wire's packets, compared with tshark's dissection (see `tools/wire-check`).

use anyhow::Result;
use support::process;

/// Builds and runs wire-check. It is a program of its own because it links adverb-wire, and xtask must build without
/// that.
pub(crate) fn run() -> Result<()> {
    process::run(&mut process::cargo("run --quiet -p wire-check"))
}
