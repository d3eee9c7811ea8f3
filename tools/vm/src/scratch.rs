//! Temporary directories of runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use support::paths;

/// A temporary directory in the cache; removed on drop.
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates an empty directory. A process can have one directory per name at a time.
    pub(super) fn create(name: &str) -> Result<Self> {
        let all = paths::cache()?.join("vm/scratch");
        sweep(&all);
        let path = all.join(format!("{}.{name}", process::id()));
        // An earlier process with the same ID may have left one.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).with_context(|| format!("could not create {}", path.display()))?;
        Ok(Self { path })
    }

    /// Returns its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes directories of processes that were killed before they could remove them.
fn sweep(all: &Path) {
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.split('.').next().unwrap_or_default();
        let alive = Path::new("/proc").join(owner).exists();
        // The cache may be shared with other machines, whose processes aren't visible here; none of them runs for a
        // day.
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let age = modified.ok().and_then(|time| SystemTime::now().duration_since(time).ok());
        if !alive && age.is_some_and(|age| age > Duration::from_secs(24 * 3600)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
