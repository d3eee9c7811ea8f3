//! Cargo tools: which are needed, and installing those.

use anyhow::{Context, Result, bail};
use support::{paths, process};

/// The tools and the versions that are installed if there is none yet. Any version that is there will do.
const TOOLS: &[(&str, &str)] =
    &[("cargo-deny", "0.20.2"), ("cargo-fuzz", "0.13.2"), ("cargo-nextest", "0.9.143")];

/// Installs the tools that are neither in the cache nor on PATH.
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
        bail!("{name} isn't installed: run `cargo xtask setup` (or `cargo install --locked {name}`)");
    }
    Ok(())
}

fn install(name: &str, version: &str) -> Result<()> {
    let mut cargo = process::cargo("install --locked --root");
    cargo.arg(paths::tools()?).args(["--version", version, name]);
    // The tool's thousand object files are of no use afterwards: let cargo build it in a place that it removes.
    cargo.env_remove("CARGO_TARGET_DIR");
    process::run(&mut cargo).with_context(|| format!("could not install {name} {version}"))
}
