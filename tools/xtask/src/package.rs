//! `cargo xtask package`: packages of all crates, as they would be published, and the first steps of a new user with them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use support::{paths, process};

use crate::metadata::{self, Package};
use crate::newcomer;
use crate::registry::Registry;

/// The files that every package must contain.
const CONTENTS: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Packages every crate that can be published, and uses the packages as a new user would.
pub(crate) fn run() -> Result<()> {
    let home = paths::cache()?.join("package");
    fs::create_dir_all(&home)?;
    let mut packages = metadata::packages()?;
    packages.retain(|package| package.published);
    let registry = Registry::create(&home.join("registry"), &packages)?;
    for package in &packages {
        let directory = registry.directory_of(package);
        for file in CONTENTS {
            ensure!(directory.join(file).is_file(), "the package {} does not contain {file}", package.name);
        }
    }
    let target = home.join("target");
    remove_old_builds(&target, &packages)?;
    build_libraries(&home, &target, &registry, &packages)?;
    println!("{} packages contain licenses and README, and build", packages.len());
    newcomer::run(&home, &target, &registry)
}

/// Builds all libraries from their packages, as dependencies of a package outside the workspace.
fn build_libraries(home: &Path, target: &Path, registry: &Registry, packages: &[Package]) -> Result<()> {
    let user = home.join("user");
    if user.exists() {
        // Its lock file has the checksums of an earlier run's packages.
        fs::remove_dir_all(&user)?;
    }
    fs::create_dir_all(user.join("src"))?;
    fs::write(user.join("src/lib.rs"), "")?;
    let mut manifest =
        "[package]\nname = \"user\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n".to_owned();
    for package in packages.iter().filter(|package| package.directory.join("src/lib.rs").is_file()) {
        manifest += &format!("{} = \"={}\"\n", package.name, package.version);
    }
    fs::write(user.join("Cargo.toml"), manifest)?;
    let mut build = process::cargo("build --quiet");
    registry.replace_crates_io(&mut build);
    process::run(build.arg("--target-dir").arg(target).current_dir(&user))
}

/// Removes the builds of an earlier run's packages. Cargo assumes that a version in a registry never changes: without this,
/// it would use the old builds.
fn remove_old_builds(target: &Path, packages: &[Package]) -> Result<()> {
    for package in packages {
        for fingerprint in entries(&target.join("debug/.fingerprint"), &format!("{}-", package.name)) {
            fs::remove_dir_all(&fingerprint)
                .with_context(|| format!("could not remove {}", fingerprint.display()))?;
        }
    }
    Ok(())
}

/// Returns the entries of a directory whose names begin with `start`; none if the directory doesn't exist.
fn entries(directory: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(start));
    named.map(|entry| entry.path()).collect()
}
