//! A Debian kernel: downloaded and unpacked into the cache, never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use support::{packages, paths, process};

use super::scratch::Scratch;

/// A kernel that is ready to boot.
#[derive(Debug)]
pub(super) struct Kernel {
    /// Its release, as `uname -r` has it: `6.1.0-54-amd64`.
    pub(super) version: String,
    /// Where its package is unpacked.
    pub(super) root: PathBuf,
    /// What to boot.
    pub(super) image: PathBuf,
}

/// The package that always depends on the current kernel's package.
const META_PACKAGE: &str = "linux-image-amd64";

/// What starts the name of a kernel's package; its release follows.
const PREFIX: &str = "linux-image-";

/// The current kernel of this machine's Debian release, from the cache if it is there. When the package lists
/// can't be had, or the download fails, the newest one in the cache will do.
pub(super) fn cached() -> Result<Kernel> {
    let store = paths::cache()?.join("vm/kernels");
    let error = match current(&store) {
        Ok(kernel) => return Ok(kernel),
        Err(error) => error,
    };
    if let Some(kernel) = newest(&store) {
        eprintln!("vm: using the kernel {} from the cache, because: {error:#}", kernel.version);
        return Ok(kernel);
    }
    // The package lists may be absent (a fresh image has none), or so old that they name files that are gone.
    let retried = match packages::is_root() {
        true => packages::update_lists().and_then(|()| current(&store)),
        false => Err(error.context("try `sudo apt-get update`")),
    };
    retried.context("could not get a kernel for the guest: it comes from Debian's archive, once")
}

/// The current kernel, downloaded if it isn't in the store.
fn current(store: &Path) -> Result<Kernel> {
    let answer = process::text(Command::new("apt-cache").args(["depends", META_PACKAGE]))?;
    let package = dependency(&answer).with_context(|| format!("apt doesn't know {META_PACKAGE}"))?;
    match Kernel::open(store, package) {
        Some(kernel) => Ok(kernel),
        None => download(store, package),
    }
}

impl Kernel {
    /// A kernel in the store, if it is there. What is there is complete: it is moved there as a whole.
    fn open(store: &Path, package: &str) -> Option<Self> {
        let root = store.join(package);
        let version = package.strip_prefix(PREFIX)?.to_owned();
        // The uncompressed image is a convenience (see `decompress`), and may be absent.
        let images = [root.join("vmlinux"), root.join("boot").join(format!("vmlinuz-{version}"))];
        let image = images.into_iter().find(|image| image.is_file())?;
        Some(Self { version, root, image })
    }
}

/// The kernel's package in what `apt-cache depends` says of the package that depends on it.
fn dependency(answer: &str) -> Option<&str> {
    let depends = answer.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    depends.map(str::trim).find(|package| package.starts_with(PREFIX))
}

/// The newest kernel in the store.
fn newest(store: &Path) -> Option<Kernel> {
    let entries = fs::read_dir(store).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| Kernel::open(store, &name)).max_by_key(|kernel| numbers(&kernel.version))
}

/// The numbers in a release, for comparing: 6.1.0-9 comes before 6.1.0-10.
fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// Downloads and unpacks a package elsewhere, and then moves it to the store: what is interrupted leaves nothing
/// that looks like a kernel.
fn download(store: &Path, package: &str) -> Result<Kernel> {
    eprintln!("vm: downloading {package} (once)");
    let scratch = Scratch::create("kernel")?;
    let root = unpack(scratch.path(), package)?;
    fs::create_dir_all(store).with_context(|| format!("could not create {}", store.display()))?;
    // If it fails because another run was faster, what that one brought is as good.
    let renamed = fs::rename(root, store.join(package));
    Kernel::open(store, package).with_context(|| format!("no kernel in {}: {renamed:?}", store.display()))
}

/// Downloads and unpacks a kernel's package in `scratch`; gives the directory it is in.
fn unpack(scratch: &Path, package: &str) -> Result<PathBuf> {
    let mut apt = Command::new("apt-get");
    // As root, apt would change to a user who can't write here, and complain that it can't.
    apt.args(["download", "-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", package]);
    process::output(apt.current_dir(scratch))?;
    let archive = fs::read_dir(scratch)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("apt-get download brought no package")?;
    let root = scratch.join("root");
    process::output(Command::new("dpkg-deb").arg("-x").args([&archive, &root]))?;
    let version = package.strip_prefix(PREFIX).context("not the name of a kernel's package")?;
    let depmod = process::find("depmod").unwrap_or_else(|| "/sbin/depmod".into());
    process::output(Command::new(depmod).arg("-b").arg(&root).arg(version))?;
    if let Err(error) = decompress(&root, version) {
        eprintln!("vm: booting will take some seconds longer: could not uncompress the kernel: {error:#}");
    }
    Ok(root)
}

/// Puts the kernel's uncompressed image at `root/vmlinux`: uncompressing takes an emulated CPU five seconds, and
/// QEMU can start that image directly.
fn decompress(root: &Path, version: &str) -> Result<()> {
    let image = fs::read(root.join("boot").join(format!("vmlinuz-{version}")))?;
    let payload = payload(&image).context("there is no payload in it")?;
    let compressed = root.join("payload.xz");
    fs::write(&compressed, payload)?;
    let vmlinux = process::output(Command::new("xz").arg("-dc").arg(&compressed))?;
    fs::remove_file(&compressed)?;
    Ok(fs::write(root.join("vmlinux"), vmlinux)?)
}

/// The compressed kernel inside a bootable image (the kernel's Documentation/arch/x86/boot.rst: setup_sects,
/// payload_offset, payload_length).
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup_sectors = usize::from(*image.get(0x1f1)?);
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    // Its last four bytes are its size when uncompressed, which isn't part of the compressed stream.
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
