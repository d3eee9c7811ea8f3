//! A local registry with the packages as they would be published, and their dependencies.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result};
use support::process;

use crate::metadata::Package;

/// A directory that cargo uses instead of crates.io.
pub(crate) struct Registry {
    directory: PathBuf,
}

impl Registry {
    /// Packages the crates, and puts them into a directory with the dependencies in `Cargo.lock`.
    pub(crate) fn create(directory: &Path, packages: &[Package]) -> Result<Self> {
        if directory.exists() {
            fs::remove_dir_all(directory)
                .with_context(|| format!("could not remove {}", directory.display()))?;
        }
        let registry = Self { directory: directory.join("crates") };
        process::output(process::cargo("vendor --quiet --locked --versioned-dirs").arg(&registry.directory))?;
        let archives = directory.join("archives");
        let mut cargo = process::cargo("package --quiet --no-verify --target-dir");
        cargo.arg(&archives).args(packages.iter().flat_map(|package| ["--package", &package.name]));
        // Outside CI, uncommitted changes are packaged too.
        if env::var_os("CI").is_none() {
            cargo.arg("--allow-dirty");
        }
        process::run(&mut cargo)?;
        for package in packages {
            let archive = archives.join(format!("package/{}-{}.crate", package.name, package.version));
            registry.add(package, &archive)?;
        }
        fs::remove_dir_all(&archives)?;
        Ok(registry)
    }

    /// Returns the directory of a package's files.
    pub(crate) fn directory_of(&self, package: &Package) -> PathBuf {
        self.directory.join(format!("{}-{}", package.name, package.version))
    }

    /// Lets a cargo command use this registry instead of crates.io.
    pub(crate) fn replace_crates_io(&self, cargo: &mut Command) {
        let directory = format!("source.packages.directory={:?}", self.directory.display().to_string());
        cargo.args(["--config", "source.crates-io.replace-with=\"packages\"", "--config", &directory]);
    }

    /// Unpacks the archive of a package, and writes the file of checksums that cargo expects.
    fn add(&self, package: &Package, archive: &Path) -> Result<()> {
        process::output(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&self.directory))?;
        let checksum = process::text(Command::new("sha256sum").arg(archive))?;
        let checksum = checksum.split_whitespace().next().context("sha256sum printed nothing")?;
        let checksums = format!(r#"{{"files":{{}},"package":"{checksum}"}}"#);
        Ok(fs::write(self.directory_of(package).join(".cargo-checksum.json"), checksums)?)
    }
}
