//! The guest's kernel: a Debian package, unpacked in the cache, not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use support::{packages, paths, process};

use super::scratch::Scratch;

/// A kernel in the cache.
#[derive(Debug)]
pub(super) struct Kernel {
    /// Its release, as `uname -r` prints it: `6.1.0-54-amd64`.
    pub(super) version: String,
    /// The directory of its unpacked package.
    pub(super) root: PathBuf,
    /// The image to boot.
    pub(super) image: PathBuf,
}

/// The package that depends on the current kernel's package.
const META_PACKAGE: &str = "linux-image-amd64";

/// The prefix of a kernel package's name, before the release.
const PREFIX: &str = "linux-image-";

/// Returns the current kernel of this machine's Debian release, from the cache or downloaded. Without package lists, or
/// if the download fails, returns the newest kernel in the cache.
pub(super) fn cached() -> Result<Kernel> {
    let store = paths::cache()?.join("vm/kernels");
    let error = match current(&store) {
        Ok(kernel) => return Ok(kernel),
        Err(error) => error,
    };
    if let Some(kernel) = newest(&store) {
        eprintln!(
            "vm: using the kernel {} from the cache, because the current one is not available: {error:#}",
            kernel.version
        );
        return Ok(kernel);
    }
    // The package lists may be missing (as on a fresh image) or outdated.
    let retried = match packages::is_root() {
        true => packages::update_lists().and_then(|()| current(&store)),
        false => Err(error.context("the package lists may be outdated: run `sudo apt-get update`")),
    };
    retried.context("could not download a kernel for the guest from Debian's archive")
}

/// Returns the current kernel, from the store or downloaded.
fn current(store: &Path) -> Result<Kernel> {
    let answer = process::text(Command::new("apt-cache").args(["depends", META_PACKAGE]))?;
    let package = dependency(&answer).with_context(|| format!("apt does not know {META_PACKAGE}"))?;
    match Kernel::open(store, package) {
        Some(kernel) => Ok(kernel),
        None => download(store, package),
    }
}

impl Kernel {
    /// Opens a kernel in the store; `None` if it is not there. A kernel in the store is complete, because it is moved
    /// there in one step.
    fn open(store: &Path, package: &str) -> Option<Self> {
        let root = store.join(package);
        let version = package.strip_prefix(PREFIX)?.to_owned();
        // The uncompressed image is optional (see `decompress`).
        let images = [root.join("vmlinux"), root.join("boot").join(format!("vmlinuz-{version}"))];
        let image = images.into_iter().find(|image| image.is_file())?;
        Some(Self { version, root, image })
    }
}

/// Parses the name of the kernel's package in the output of `apt-cache depends`.
fn dependency(answer: &str) -> Option<&str> {
    let depends = answer.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    depends.map(str::trim).find(|package| package.starts_with(PREFIX))
}

/// Returns the newest kernel in the store.
fn newest(store: &Path) -> Option<Kernel> {
    let entries = fs::read_dir(store).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| Kernel::open(store, &name)).max_by_key(|kernel| numbers(&kernel.version))
}

/// Returns the numbers in a release, for comparison: 6.1.0-9 is older than 6.1.0-10.
fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// Downloads and unpacks a package in a scratch directory, and then moves it to the store, so that an interrupted
/// download leaves no incomplete kernel there.
fn download(store: &Path, package: &str) -> Result<Kernel> {
    eprintln!("vm: downloading {package} into the cache");
    let scratch = Scratch::create("kernel")?;
    let root = unpack(scratch.path(), package)?;
    fs::create_dir_all(store).with_context(|| format!("could not create {}", store.display()))?;
    // The rename fails if another run stored the same kernel first, which is fine.
    let renamed = fs::rename(root, store.join(package));
    Kernel::open(store, package).with_context(|| format!("no kernel in {}: {renamed:?}", store.display()))
}

/// Downloads and unpacks a kernel's package in `scratch`; returns the directory with its files.
fn unpack(scratch: &Path, package: &str) -> Result<PathBuf> {
    let mut apt = Command::new("apt-get");
    // As root, apt would switch to a user that can't write to this directory.
    apt.args(["download", "-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", package]);
    process::output(apt.current_dir(scratch))?;
    let archive = fs::read_dir(scratch)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("`apt-get download` wrote no package")?;
    let root = scratch.join("root");
    process::output(Command::new("dpkg-deb").arg("-x").args([&archive, &root]))?;
    let version = package.strip_prefix(PREFIX).context("the package is not a kernel")?;
    let depmod = process::find("depmod").unwrap_or_else(|| "/sbin/depmod".into());
    process::output(Command::new(depmod).arg("-b").arg(&root).arg(version))?;
    if let Err(error) = decompress(&root, version) {
        eprintln!("vm: could not decompress the kernel, so booting takes some seconds longer: {error:#}");
    }
    Ok(root)
}

/// Writes the kernel's uncompressed image to `root/vmlinux`, which QEMU can boot directly. Decompression in the guest
/// takes an emulated CPU five seconds.
fn decompress(root: &Path, version: &str) -> Result<()> {
    let image = fs::read(root.join("boot").join(format!("vmlinuz-{version}")))?;
    let payload = payload(&image).context("the image has no payload")?;
    let compressed = root.join("payload.xz");
    fs::write(&compressed, payload)?;
    let vmlinux = process::output(Command::new("xz").arg("-dc").arg(&compressed))?;
    fs::remove_file(&compressed)?;
    Ok(fs::write(root.join("vmlinux"), vmlinux)?)
}

/// Returns the compressed kernel in a bootable image (the kernel's Documentation/arch/x86/boot.rst: setup_sects,
/// payload_offset, payload_length).
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup_sectors = usize::from(*image.get(0x1f1)?);
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    // The last four bytes are the uncompressed size, which isn't part of the compressed stream.
    let length = word(0x24c)?.checked_sub(4)?;
    image.get(start..start.checked_add(length)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_found_among_dependencies() {
        let answer = "linux-image-amd64\n  Depends: linux-base\n  Depends: linux-image-6.1.0-54-amd64\n";
        assert_eq!(dependency(answer), Some("linux-image-6.1.0-54-amd64"));
        assert_eq!(dependency("linux-image-amd64\n"), None);
    }

    #[test]
    fn releases_compare_as_numbers() {
        assert!(numbers("6.1.0-9-amd64") < numbers("6.1.0-10-amd64"));
        assert!(numbers("6.1.0-54-amd64") < numbers("6.12.0-1-amd64"));
    }

    #[test]
    fn payload_is_cut_out_of_an_image() {
        let mut image = vec![0; 0x400];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&2u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&7u32.to_le_bytes());
        image.extend_from_slice(b"..xyzSIZE");
        assert_eq!(payload(&image), Some(&b"xyz"[..]));
        assert_eq!(payload(&image[..image.len() - 5]), None);
        assert_eq!(payload(b"not a kernel"), None);
    }
}
