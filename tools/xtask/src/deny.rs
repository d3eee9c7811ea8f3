//! `cargo xtask deny`: licenses, sources and versions of dependencies.

use anyhow::Result;
use support::process;

use crate::tools;

/// The options of `cargo xtask deny`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Check the advisories too, which are downloaded.
    #[arg(long)]
    advisories: bool,
}

/// Checks the dependencies against `deny.toml`. Without `--advisories`, it prints that they are skipped.
pub(crate) fn run(args: &Args) -> Result<()> {
    tools::require("cargo-deny")?;
    let mut deny = process::cargo("deny --all-features check bans licenses sources");
    if args.advisories {
        deny.arg("advisories");
    }
    process::run(&mut deny)?;
    if !args.advisories {
        println!(
            "advisories: SKIPPED, because not every machine can reach the advisory database; run \
             `cargo xtask deny --advisories` on a machine that can"
        );
    }
    Ok(())
}
