//! Debian packages: which are needed, which are missing, and installing those.

use std::collections::HashSet;
use std::process::Command;

use anyhow::{Result, bail};

use crate::process;

/// To build and to check: a linker and C headers, a C++ compiler for the fuzzer's runtime, rdma-core's headers to compare
/// adverb-sys with, a dissector, an
/// instruction counter.
pub const BUILD: &[&str] =
    &["gcc", "g++", "libc6-dev", "libibverbs-dev", "librdmacm-dev", "tshark", "valgrind"];

/// To boot a guest with soft-RoCE, and the programs that are tried in it.
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

/// Makes sure that the packages are installed: installs the missing ones as root, names them to anybody else.
pub fn ensure(packages: &[&str]) -> Result<()> {
    let Some(missing) = missing(packages) else {
        bail!(
            "this needs Debian packages, and dpkg isn't here to ask about them; on Debian 12 they are: {}",
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
    // Package lists may be absent (a fresh image has none) or so old that they name files that are gone.
    if install(&missing).is_err() {
        update_lists()?;
        install(&missing)?;
    }
    Ok(())
}

/// Fetches the package lists anew.
pub fn update_lists() -> Result<()> {
    process::run(apt_get(&["update", "-q"]).args(["-o", "Acquire::Retries=3"]))
}

/// Whether we run as root.
pub fn is_root() -> bool {
    process::text(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

fn install(packages: &[&str]) -> Result<()> {
    process::run(apt_get(&["install", "-q", "-y", "--no-install-recommends"]).args(packages))
}

/// apt-get that asks no questions (tshark's package has one).
fn apt_get(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Those of the packages that aren't installed; `None` if this isn't a Debian system.
fn missing<'a>(packages: &[&'a str]) -> Option<Vec<&'a str>> {
    // Its status says "some package is unknown", which is an answer here, not a failure.
    let answer = Command::new("dpkg-query")
        .args(["-W", "-f", "${Package} ${db:Status-Status}\n"])
        .args(packages)
        .output()
        .ok()?;
    let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
    let installed = installed(&answer);
    Some(packages.iter().copied().filter(|package| !installed.contains(package)).collect())
}

/// The packages that dpkg-query calls installed, and not, say, removed with their configuration left behind.
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
