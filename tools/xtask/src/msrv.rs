//! `cargo xtask msrv`: the crates, compiled by the oldest supported compiler.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use support::{paths, process};

/// Checks the published crates with all features on the toolchain of `rust-version`. A missing toolchain skips the
/// check.
pub(crate) fn run() -> Result<()> {
    let version = version()?;
    let installed = process::text(Command::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
    if !installed.lines().any(|line| line.starts_with(&version)) {
        println!(
            "msrv: SKIPPED, because Rust {version} is not installed (`rustup toolchain install {version} --profile minimal`)"
        );
        return Ok(());
    }
    // The default members are all published crates. Cargo of the current toolchain would not switch to another one.
    let mut cargo = Command::new("rustup");
    cargo.args(["run", &version, "cargo", "check", "--all-features"]).current_dir(paths::root());
    // A target directory of its own, because another compiler would invalidate the usual build.
    cargo.env_remove("RUSTUP_TOOLCHAIN").env("CARGO_TARGET_DIR", paths::cache()?.join("target-msrv"));
    process::run(&mut cargo)
}

/// Returns the oldest supported version of Rust.
pub(crate) fn version() -> Result<String> {
    let manifest = fs::read_to_string(paths::root().join("Cargo.toml"))?;
    Ok(rust_version(&manifest).context("Cargo.toml has no rust-version")?.to_owned())
}

/// Returns the value of `rust-version` in the manifest of the workspace.
fn rust_version(manifest: &str) -> Option<&str> {
    let value = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "))?;
    Some(value.trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_manifest() {
        assert_eq!(rust_version("[workspace.package]\nrust-version = \"1.88\"\n"), Some("1.88"));
        assert_eq!(rust_version("[package]\nrust-version.workspace = true\n"), None);
    }

    #[test]
    fn the_workflow_installs_the_oldest_supported_compiler() {
        let manifest = fs::read_to_string(paths::root().join("Cargo.toml")).unwrap();
        let workflow = fs::read_to_string(paths::root().join(".github/workflows/ci.yml")).unwrap();
        let version = rust_version(&manifest).unwrap();
        assert!(workflow.contains(&format!("rustup toolchain install {version} ")), "{version}");
    }
}
