//! Installation of the cargo tools that commands need.

use anyhow::{Context, Result, bail};
use support::{paths, process};

/// The tools, and the version to install if a tool is missing. Any version that is already installed is accepted.
const TOOLS: &[(&str, &str)] =
    &[("cargo-deny", "0.20.2"), ("cargo-fuzz", "0.13.2"), ("cargo-nextest", "0.9.143")];

/// Installs the tools that are neither in the cache nor in PATH.
pub(crate) fn ensure_all() -> Result<()> {
    for (name, version) in TOOLS {
        if process::find(name).is_none() {
            install(name, version)?;
        }
    }
    Ok(())
}

/// Fails with a hint if a tool isn't installed.
pub(crate) fn require(name: &str) -> Result<()> {
    if process::find(name).is_none() {
        bail!("{name} is not installed: run `cargo xtask setup` (or `cargo install --locked {name}`)");
    }
    Ok(())
}

fn install(name: &str, version: &str) -> Result<()> {
    let mut cargo = process::cargo("install --locked --root");
    cargo.arg(paths::tools()?).args(["--version", version, name]);
    // Without a target directory, cargo builds in a temporary one and removes it: the object files are not needed
    // again.
    cargo.env_remove("CARGO_TARGET_DIR");
    process::run(&mut cargo).with_context(|| format!("could not install {name} {version}"))
}
