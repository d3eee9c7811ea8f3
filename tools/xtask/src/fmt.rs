//! `cargo xtask fmt`: checks or fixes the formatting of the main workspace and of the workspace `fuzz`.

use anyhow::Result;
use support::process;

/// The options of `cargo xtask fmt`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Format the files instead of checking them.
    #[arg(long)]
    fix: bool,
}

/// Checks the formatting of both workspaces, or fixes it if the arguments ask for that.
pub(crate) fn run(args: &Args) -> Result<()> {
    for workspace in ["fmt --all", "fmt --all --manifest-path fuzz/Cargo.toml"] {
        let mut cargo = process::cargo(workspace);
        if !args.fix {
            cargo.arg("--check");
        }
        process::run(&mut cargo)?;
    }
    Ok(())
}
