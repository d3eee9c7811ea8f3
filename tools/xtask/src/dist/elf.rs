//! Executables and shared libraries (ELF files): checks of the libraries that they need, and the removal of their debug
//! information.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use support::process;

/// The newest version of glibc whose symbols the packages may need is 2.`GLIBC`. Debian 10 and RHEL 8 have this version.
pub(super) const GLIBC: u32 = 28;

/// The libraries that the packages may need: those of glibc, gcc's unwinder (`libgcc_s.so.1`), which every distribution
/// installs, and Adverb's own `libibverbs.so.1`, which Adverb's librdmacm needs.
const LIBRARIES: &[&str] = &[
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libibverbs.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// Returns the ELF files in a directory and its subdirectories, in the order of their paths.
pub(super) fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("listing {} failed", directory.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if is_elf(&path)? {
            found.push(path);
        }
    }
    Ok(found)
}

/// Whether a file starts with the four bytes with which all ELF files start.
fn is_elf(path: &Path) -> Result<bool> {
    let mut start = Vec::new();
    File::open(path)?.take(4).read_to_end(&mut start)?;
    Ok(start == b"\x7fELF")
}

/// Checks the libraries that a file needs, and returns a text about the version of glibc that the file needs, such as
/// `glibc 2.28`.
///
/// Fails if the file needs a symbol of a glibc newer than 2.[`GLIBC`], or a library that is not one of [`LIBRARIES`]. A static
/// program must not need any library.
pub(super) fn check(file: &Path, is_static: bool) -> Result<String> {
    let floor = glibc_floor([file])?;
    ensure!(floor <= GLIBC, "{} needs glibc 2.{floor}, but the packages promise 2.{GLIBC}", file.display());
    let text = process::text(Command::new("readelf").args(["-W", "-d"]).arg(file).env("LC_ALL", "C"))?;
    for library in needed(&text) {
        ensure!(!is_static && LIBRARIES.contains(&library), "{} needs the library {library}", file.display());
    }
    Ok(if floor == 0 { "no symbols of glibc".to_owned() } else { format!("glibc 2.{floor}") })
}

/// Returns N if glibc 2.N is the oldest one with all symbol versions that the files need. Returns 0 if the files need no
/// symbols of glibc.
pub(super) fn glibc_floor<'a>(files: impl IntoIterator<Item = &'a Path>) -> Result<u32> {
    let mut floor = 0;
    for file in files {
        let mut readelf = Command::new("readelf");
        let text = process::text(readelf.args(["--version-info", "--wide"]).arg(file).env("LC_ALL", "C"))?;
        let found =
            floor_of(&text).with_context(|| format!("{} needs no release of glibc", file.display()))?;
        floor = floor.max(found);
    }
    Ok(floor)
}

/// Returns N if glibc 2.N is the newest version of glibc in readelf's output, or 0 if the output contains none.
fn floor_of(text: &str) -> Result<u32> {
    let mut floor = 0;
    for rest in text.split("Name: GLIBC_").skip(1) {
        let version = rest.split_whitespace().next().unwrap_or_default();
        let minor = match version {
            // The file has compact relative relocations, which glibc 2.36 was the first to support.
            "ABI_DT_RELR" => Some("36"),
            _ => version.strip_prefix("2.").and_then(|version| version.split('.').next()),
        };
        let Some(minor) = minor.and_then(|minor| minor.parse().ok()) else {
            bail!("a symbol has the version GLIBC_{version}")
        };
        floor = floor.max(minor);
    }
    Ok(floor)
}

/// Returns the names of the libraries in the lines `(NEEDED)` of readelf's output.
fn needed(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().filter(|line| line.contains("(NEEDED)"));
    lines.filter_map(|line| line.split(['[', ']']).nth(1))
}

/// Moves the debug information of `file` to the new file `debug`, and removes all symbols that the dynamic linker doesn't need
/// from `file`. Debuggers and Rust's backtraces look for the new file in the subdirectory `.debug` next to `file`.
pub(super) fn split_debug(objcopy: &str, file: &Path, debug: &Path) -> Result<()> {
    fs::create_dir_all(debug.parent().context("the file has a directory")?)?;
    process::output(Command::new(objcopy).arg("--only-keep-debug").arg(file).arg(debug))?;
    process::output(Command::new(objcopy).arg("--strip-unneeded").arg(file))?;
    let link = format!("--add-gnu-debuglink={}", debug.display());
    process::output(Command::new(objcopy).arg(link).arg(file))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
Dynamic section at offset 0x1e1d48 contains 29 entries:
  Tag        Type                         Name/Value
 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000000e (SONAME)             Library soname: [libibverbs.so.1]

Version definition section '.gnu.version_d' contains 3 entries:
  Addr: 0x00000000000011b8  Offset: 0x0011b8  Link: 4 (.dynstr)
  0x001c: Rev: 1  Flags: none  Index: 2  Cnt: 1  Name: IBVERBS_1.0

Version needs section '.gnu.version_r' contains 2 entries:
 Addr: 0x0000000000001370  Offset: 0x001370  Link: 4 (.dynstr)
  000000: Version: 1  File: libc.so.6  Cnt: 2
  0x0010:   Name: GLIBC_2.9  Flags: none  Version: 14
  0x0020:   Name: GLIBC_2.2.5  Flags: none  Version: 13
  0x0030: Version: 1  File: libgcc_s.so.1  Cnt: 1
  0x0040:   Name: GCC_4.2.0  Flags: none  Version: 12
";

    #[test]
    fn the_newest_version_is_the_floor() {
        let text = "  0x0010: Version: 1  File: libc.so.6  Cnt: 3\n\
                    0x0020:   Name: GLIBC_2.2.5  Flags: none  Version: 7\n\
                    0x0030:   Name: GLIBC_2.28  Flags: none  Version: 5\n\
                    0x0040:   Name: GLIBC_2.9  Flags: none  Version: 4\n\
                    0x0050:   Name: GCC_4.2.0  Flags: none  Version: 6\n";
        assert_eq!(floor_of(text).unwrap(), 28);
        assert_eq!(floor_of("").unwrap(), 0);
        assert_eq!(floor_of("Name: GLIBC_ABI_DT_RELR  Flags").unwrap(), 36);
        assert!(floor_of("Name: GLIBC_PRIVATE  Flags").is_err());
    }

    #[test]
    fn this_program_needs_glibc() {
        let program = std::env::current_exe().unwrap();
        let floor = glibc_floor([program.as_path()]).unwrap();
        assert!((17..100).contains(&floor), "2.{floor}");
    }

    #[test]
    fn the_needed_libraries_are_read() {
        assert_eq!(needed(TEXT).collect::<Vec<_>>(), ["libgcc_s.so.1", "libc.so.6"]);
    }
}
