//! Debian packages that commands need, and their installation.

use std::collections::HashSet;
use std::process::Command;

use anyhow::{Result, bail};

use crate::process;

/// The packages for builds and checks: a linker and C headers, a C++ compiler for libFuzzer, rdma-core's headers
/// (adverb-sys is compared with them), a firewall for tests, tshark, and valgrind.
pub const BUILD: &[&str] =
    &["gcc", "g++", "libc6-dev", "libibverbs-dev", "librdmacm-dev", "nftables", "tshark", "valgrind"];

/// The packages for the guest with soft-RoCE, and the programs that run in it.
pub const VM: &[&str] = &[
    "busybox-static",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "kmod",
    "perftest",
    "qemu-system-x86",
    "rdma-core",
    "rdmacm-utils",
    "strace",
    "xz-utils",
];

/// The packages for clean Debian systems in which Adverb's packages are installed.
pub const ROOTS: &[&str] = &["iproute2", "mmdebstrap", "util-linux"];

/// The C programs that run on adverb-preload, and what compiles others.
pub const PRELOAD: &[&str] = &[
    "clang",
    "libclang-rt-dev",
    "fio",
    "ibverbs-utils",
    "iproute2",
    "libibverbs-dev",
    "libiscsi-dev",
    "librdmacm-dev",
    "perftest",
    "rdmacm-utils",
    "tgt",
    "ucx-utils",
    "util-linux",
    "valgrind",
];

/// Installs missing packages.
///
/// # Errors
///
/// Returns an error if the system is not Debian, if the installation fails, or if packages are missing and the user is
/// not root; the error then names them.
pub fn ensure(packages: &[&str]) -> Result<()> {
    let Some(missing) = missing(packages) else {
        bail!(
            "cannot check for Debian packages, because dpkg-query is missing; the packages on Debian 12 are: {}",
            packages.join(" ")
        );
    };
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root() {
        bail!(
            "Debian packages are missing; install them with\n  \
             sudo apt-get install --no-install-recommends {}",
            missing.join(" ")
        );
    }
    // The package lists may be missing (as on a fresh image) or outdated.
    if install(&missing).is_err() {
        update_lists()?;
        install(&missing)?;
    }
    Ok(())
}

/// Updates the package lists.
///
/// # Errors
///
/// Returns an error if `apt-get update` fails.
pub fn update_lists() -> Result<()> {
    process::run(apt_get(&["update", "-q"]).args(["-o", "Acquire::Retries=3"]))
}

/// Returns whether this process runs as root.
pub fn is_root() -> bool {
    process::text(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

fn install(packages: &[&str]) -> Result<()> {
    process::run(apt_get(&["install", "-q", "-y", "--no-install-recommends"]).args(packages))
}

/// Returns a non-interactive apt-get command (tshark's package asks a question).
fn apt_get(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Returns the packages that are not installed; `None` if dpkg-query is missing.
fn missing<'a>(packages: &[&'a str]) -> Option<Vec<&'a str>> {
    // dpkg-query also fails if it doesn't know a package, which then counts as missing.
    let answer = Command::new("dpkg-query")
        .args(["-W", "-f", "${Package} ${db:Status-Status}\n"])
        .args(packages)
        .output()
        .ok()?;
    let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
    let installed = installed(&answer);
    Some(packages.iter().copied().filter(|package| !installed.contains(package)).collect())
}

/// Returns the packages with the state "installed", in contrast to, for example, "config-files".
fn installed(answer: &str) -> HashSet<&str> {
    answer.lines().filter_map(|line| line.strip_suffix(" installed")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fully_installed_packages_count() {
        let answer = "kmod installed\nstrace config-files\nperftest half-configured\ng++ installed\n";
        assert_eq!(installed(answer), HashSet::from(["kmod", "g++"]));
    }
}
