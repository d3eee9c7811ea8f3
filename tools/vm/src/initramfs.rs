//! The guest's initramfs: busybox, kernel modules, and the script that mounts the host's files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use support::process;

use super::cpio::Archive;
use super::kernel::Kernel;

/// The kernel modules that the guest loads, in order.
const MODULES: &[&str] = &[
    "virtio_pci",
    "9p",
    "9pnet_virtio",
    "overlay",
    "veth",
    // rdma_rxe requests "crc32" from the kernel's crypto layer by name, so modprobe doesn't list these as dependencies;
    // without them `rdma link add` fails with ENOENT.
    "crc32_generic",
    "crc32_pclmul",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "ib_umad",
    // Loss and delay on the link between v0 and v1, also of some packets only.
    "sch_netem",
    "sch_prio",
    "cls_u32",
];

const INIT: &str = include_str!("init.sh");

/// Builds the archive, uncompressed: the emulated CPU reads it faster than it can decompress it.
pub(super) fn build(kernel: &Kernel) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for directory in ["bin", "mods", "proc", "sys", "dev", "host", "upper"] {
        archive.directory(directory);
    }
    let busybox =
        process::find("busybox").context("busybox is not in PATH (Debian package busybox-static)")?;
    archive.file("bin/busybox", &read(&busybox)?);
    archive.file("init", INIT.as_bytes());
    for (index, module) in modules(kernel)?.iter().enumerate() {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        archive.file(&format!("mods/{index:03}-{name}"), &read(module)?);
    }
    Ok(archive.finish())
}

/// Returns the files of the modules and their dependencies, in loading order.
fn modules(kernel: &Kernel) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for module in MODULES {
        let mut modprobe = Command::new(process::find("modprobe").unwrap_or_else(|| "/sbin/modprobe".into()));
        modprobe.arg("-d").arg(&kernel.root).args(["-S", &kernel.version, "--show-depends", module]);
        let answer = process::text(&mut modprobe)
            .with_context(|| format!("the kernel {} has no module {module}", kernel.version))?;
        for file in dependencies(&answer) {
            ensure!(
                file.is_file(),
                "{} is missing: remove {} and try again",
                file.display(),
                kernel.root.display()
            );
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

/// Parses the files in modprobe's output, in order. Lines are `insmod FILE [PARAMETERS]`, or `builtin NAME`, which has
/// no file.
fn dependencies(answer: &str) -> impl Iterator<Item = PathBuf> {
    answer.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("insmod")).then(|| words.next().map(PathBuf::from))?
    })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("could not read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_modprobe_is_parsed() {
        let answer = "insmod /k/net.ko \nbuiltin crc32c\ninsmod /k/veth.ko option=1\n";
        assert_eq!(
            dependencies(answer).collect::<Vec<_>>(),
            [PathBuf::from("/k/net.ko"), PathBuf::from("/k/veth.ko")]
        );
    }
}
