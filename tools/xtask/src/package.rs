//! `cargo xtask package`: packages of all crates, as they would be published.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use support::{paths, process};

use crate::metadata::{self, Package};

/// The files that every package must contain.
const CONTENTS: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Packages every crate that can be published, and builds each from its package and the packages of the crates it
/// depends on.
pub(crate) fn run() -> Result<()> {
    let target = paths::cache()?.join("package");
    let mut packages = metadata::packages()?;
    packages.retain(|package| package.published);
    remove_old_copies(&target, &packages)?;
    let mut cargo = process::cargo("package --quiet --target-dir");
    cargo.arg(&target).args(packages.iter().flat_map(|package| ["--package", &package.name]));
    // Outside CI, uncommitted changes are packaged too.
    if env::var_os("CI").is_none() {
        cargo.arg("--allow-dirty");
    }
    process::run(&mut cargo)?;
    for package in &packages {
        let mut cargo = process::cargo("package --list --quiet --allow-dirty --package");
        let list = process::text(cargo.arg(&package.name))?;
        for file in CONTENTS {
            ensure!(
                list.lines().any(|line| line == *file),
                "the package {} does not contain {file}",
                package.name
            );
        }
        println!("{}: {} files, including licenses and README", package.name, list.lines().count());
    }
    Ok(())
}

/// Removes cargo's copies of the packages of an earlier run. Cargo resolves packages that depend on one another through
/// a temporary registry, and assumes that a version in a registry never changes: without this, it would build each
/// package against old copies of the others.
fn remove_old_copies(target: &Path, packages: &[Package]) -> Result<()> {
    for package in packages {
        // Directories of temporary registries begin with `-`; those of other registries begin with a host name.
        for registry in entries(&cargo_home()?.join("registry/src"), "-") {
            remove(&registry.join(format!("{}-{}", package.name, package.version)))?;
        }
        for fingerprint in entries(&target.join("debug/.fingerprint"), &format!("{}-", package.name)) {
            remove(&fingerprint)?;
        }
    }
    Ok(())
}

/// Returns cargo's home directory.
fn cargo_home() -> Result<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))
        .context("cannot find cargo's home directory: set CARGO_HOME")
}

/// Returns the entries of a directory whose names begin with `start`; none if the directory doesn't exist.
fn entries(directory: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(start));
    named.map(|entry| entry.path()).collect()
}

/// Removes a directory if it exists.
fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("could not remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}
