//! `cargo xtask package`: could every crate be published as it is?

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use support::{paths, process};

use crate::metadata::{self, Package};

/// What every package must contain: whoever gets it from a registry gets nothing else.
const CONTENTS: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Packs every crate, and builds each from its package alone, the others taken from their packages too.
pub(crate) fn run() -> Result<()> {
    let target = paths::cache()?.join("package");
    let packages = metadata::packages()?;
    forget(&target, &packages)?;
    let mut cargo = process::cargo("package --workspace --quiet --target-dir");
    cargo.arg(&target);
    // CI has what was committed; at a desk one wants to know before.
    if env::var_os("CI").is_none() {
        cargo.arg("--allow-dirty");
    }
    process::run(&mut cargo)?;
    for package in packages.iter().filter(|package| package.published) {
        let mut cargo = process::cargo("package --list --quiet --allow-dirty --package");
        let list = process::text(cargo.arg(&package.name))?;
        for file in CONTENTS {
            ensure!(list.lines().any(|line| line == *file), "the package {} lacks {file}", package.name);
        }
        println!("{}: {} files, licences and README among them", package.name, list.lines().count());
    }
    Ok(())
}

/// Makes cargo forget the packages of an earlier run. It takes those that depend on one another from a registry that it makes
/// for the purpose, and believes that a version in a registry never changes: it would unpack and build none of them anew,
/// and so build each against the others as they once were.
fn forget(target: &Path, packages: &[Package]) -> Result<()> {
    for package in packages {
        // Where registries are unpacked; those of crates.io and the like begin with their host's name.
        for registry in entries(&cargo_home()?.join("registry/src"), "-") {
            remove(&registry.join(format!("{}-{}", package.name, package.version)))?;
        }
        for fingerprint in entries(&target.join("debug/.fingerprint"), &format!("{}-", package.name)) {
            remove(&fingerprint)?;
        }
    }
    Ok(())
}

/// Where cargo keeps what it downloads.
fn cargo_home() -> Result<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))
        .context("where is cargo's home? Set CARGO_HOME")
}

/// What a directory has whose names begin so; nothing, if it isn't there.
fn entries(directory: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(start));
    named.map(|entry| entry.path()).collect()
}

/// Removes a directory, if it is there.
fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("could not remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}
