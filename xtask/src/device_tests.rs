//! `cargo xtask device-tests`: the tests of `adverb` that need a device, where there is one.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::{Cli, process};

/// The test programs. Elsewhere their tests say that there is no device, and pass.
const PROGRAMS: &[&str] = &["cm", "poller", "windows", "misuse", "tiers"];

/// Builds the programs, and runs them one after the other in one guest with soft-RoCE.
pub(crate) fn run() -> Result<ExitCode> {
    let mut words: Vec<String> = ["xtask", "vm", "--timeout", "300"].map(str::to_owned).into();
    for program in PROGRAMS {
        let path = process::build(&format!("test -p adverb --release --no-run --test {program}"))?;
        words.extend(["--run".to_owned(), process::quote(&path)]);
    }
    // Through the command line's own parser, so that this is something a person can type.
    Cli::try_parse_from(words)?.command.run()
}
