//! `cargo xtask spelling`: spelling of sources and texts.

use std::process::Command;

use anyhow::Result;
use support::{paths, process};

/// Checks all tracked texts against typos' list of misspellings. `typos.toml` lists exceptions.
pub(crate) fn run() -> Result<()> {
    let Some(typos) = process::find("typos") else {
        println!("spelling: SKIPPED, because typos is not installed (`cargo xtask setup`)");
        return Ok(());
    };
    process::run(Command::new(typos).args(["--format", "brief"]).current_dir(paths::root()))
}
