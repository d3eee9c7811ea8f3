//! Tarballs: files in a directory with the name and version, which can be unpacked anywhere.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use support::process;

use super::stage::Stage;

/// Writes the tarball of the staged files and returns its path. The command finds the libraries beside it.
pub(super) fn build(stage: &Stage, out: &Path) -> Result<PathBuf> {
    write(stage, &stage.root, "", out)
}

/// Writes the tarball of the debug information and returns its path. Unpacked over the other tarball, its files are where
/// debuggers look for them.
pub(super) fn build_debug(stage: &Stage, out: &Path) -> Result<PathBuf> {
    write(stage, &stage.debug, "-debug", out)
}

/// Writes a tarball of a directory. Equal files make equal tarballs: owners, times, modes and the order don't depend on the
/// machine.
fn write(stage: &Stage, directory: &Path, suffix: &str, out: &Path) -> Result<PathBuf> {
    let kind = if stage.is_static { "-static" } else { "" };
    let name = format!("adverb-{}-{}-linux{kind}", stage.version, stage.architecture);
    let file = out.join(format!("{name}{suffix}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    tar.args(["--mode=u+rw,go-w,a+rX", "--use-compress-program=gzip -n -9"]);
    tar.arg(format!("--mtime=@{}", super::source_date_epoch()?));
    tar.arg(format!("--transform=s,^\\.,{name},")).arg("-C").arg(directory).arg("-cf").arg(&file).arg(".");
    process::run(&mut tar)?;
    Ok(file)
}
