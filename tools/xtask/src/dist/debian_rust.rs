//! Debian's Rust compiler, with the sources of its standard library, which it can compile for any target.
//!
//! The packages are unpacked, because their installation would replace rustup's compiler.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use support::{packages, paths, process};

use super::toolchain::Target;
use crate::{metadata, msrv};

/// The compiler, and the sources of its standard library.
const PACKAGES: [&str; 2] = ["rustc-web", "rust-web-src"];

/// The beginnings of the names of the packages that the compiler's libraries are in.
const LIBRARIES: [&str; 2] = ["libstd-rust-web", "libllvm"];

/// Unpacks the compiler in the cache, and returns the path of a script that starts it.
pub(super) fn install() -> Result<PathBuf> {
    let directory = paths::tools()?.join("rustc-web");
    let script = directory.join("rustc");
    if script.is_file() && version(&script)? >= oldest_version()? {
        return Ok(script);
    }
    let (downloads, root) = (directory.join("downloads"), directory.join("root"));
    if directory.exists() {
        // It has an older version, or an unfinished one.
        fs::remove_dir_all(&directory)?;
    }
    fs::create_dir_all(&downloads)?;
    let mut names: Vec<String> = PACKAGES.map(str::to_owned).to_vec();
    // Outdated package lists (as on a fresh image) may have a compiler that is too old.
    if packages::is_root() {
        packages::update_lists()?;
    }
    download(&downloads, &names)?;
    while !names.is_empty() {
        let mut depends = Command::new("apt-cache");
        depends.args(["depends", "--important", "--no-recommends", "--no-conflicts", "--no-breaks"]);
        names = libraries(&process::text(depends.args(&names))?);
        if !names.is_empty() {
            download(&downloads, &names)?;
        }
    }
    for entry in fs::read_dir(&downloads)? {
        process::run(Command::new("dpkg-deb").arg("-x").arg(entry?.path()).arg(&root))?;
    }
    fs::remove_dir_all(&downloads)?;
    let usr = process::quote(&root.join("usr").to_string_lossy());
    let libraries = format!("{usr}/lib/{}-linux-gnu", std::env::consts::ARCH);
    let text = format!("#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {usr}/bin/rustc \"$@\"\n");
    let unfinished = directory.join("rustc.new");
    fs::write(&unfinished, text)?;
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o755))?;
    let (version, oldest) = (version(&unfinished)?, oldest_version()?);
    ensure!(
        version >= oldest,
        "Debian's Rust compiler is 1.{}, but Adverb needs 1.{}: run `apt-get update`, and check that the sources of apt \
         include the security updates",
        version.1,
        oldest.1
    );
    fs::rename(unfinished, &script)?;
    Ok(script)
}

/// Returns the first two numbers of a compiler's version.
fn version(rustc: &Path) -> Result<(u32, u32)> {
    let printed = process::text(Command::new(rustc).arg("--version"))?;
    let version = printed.strip_prefix("rustc ").and_then(two_numbers);
    version.with_context(|| format!("Debian's Rust compiler printed {printed:?}"))
}

/// Returns the first two numbers of the oldest supported version.
fn oldest_version() -> Result<(u32, u32)> {
    let version = msrv::version()?;
    two_numbers(&version).with_context(|| format!("rust-version is {version:?}"))
}

fn two_numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|number| number.trim().parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Downloads packages to a directory.
fn download(directory: &Path, names: &[String]) -> Result<()> {
    let mut apt = Command::new("apt-get");
    // As root, apt would switch to a user that can't write to this directory.
    apt.args(["download", "-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3"]).args(names);
    process::run(apt.current_dir(directory))
}

/// Returns the packages of the compiler's libraries in the output of `apt-cache depends`.
fn libraries(text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.filter(|name| LIBRARIES.iter().any(|start| name.starts_with(start))).map(str::to_owned).collect()
}

/// Makes a cargo command use the compiler, and build the standard library too. Returns flags for the compiler.
pub(super) fn configure(cargo: &mut Command, rustc: &Path, target: Target) -> Result<Vec<String>> {
    let library = rustc.parent().context("the compiler has a directory")?;
    cargo.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1").arg("-Zbuild-std=std,panic_unwind");
    // The results of another compiler would replace the usual ones.
    cargo.arg("--target-dir").arg(metadata::target_directory()?.join("rustc-web"));
    let mut flags = vec![format!("--remap-path-prefix={}=/usr/src/rust", library.display())];
    if target.is_static() {
        // Debian's compiler has no start files and no libc.a of musl; zig has them.
        flags.extend(["-Clink-self-contained=no", "-Ctarget-feature=+crt-static"].map(str::to_owned));
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(two_numbers("1.100.0 (built from a source tarball)") > two_numbers("1.88"));
        assert_eq!(two_numbers("1"), None);
    }

    #[test]
    fn the_packages_of_the_compilers_libraries_are_chosen() {
        let text = "rustc-web\n  Depends: libc6\n  Depends: libstd-rust-web-dev\n |Depends: gcc\n    libc6-dev\n\
                    libstd-rust-web-1.96\n  Depends: libllvm22\n  Replaces: libllvm21\n";
        assert_eq!(libraries(text), ["libstd-rust-web-dev", "libllvm22"]);
    }
}
