//! The checksums of the packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use support::process;

/// Writes `SHA256SUMS` with the checksums of files in `out`, which `sha256sum --check` reads.
pub(super) fn build(files: &[PathBuf], out: &Path) -> Result<PathBuf> {
    let mut names = Vec::new();
    for file in files {
        names.push(
            file.strip_prefix(out)
                .with_context(|| format!("{} is not in {}", file.display(), out.display()))?,
        );
    }
    names.sort();
    let sums = process::output(Command::new("sha256sum").arg("--").args(names).current_dir(out))?;
    let file = out.join("SHA256SUMS");
    fs::write(&file, sums).with_context(|| format!("writing {} failed", file.display()))?;
    Ok(file)
}
