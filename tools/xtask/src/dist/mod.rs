//! `cargo xtask dist`: the packages of a release.

mod check;
mod checksums;
mod deb;
mod debian_rust;
mod dependencies;
mod elf;
mod image;
mod licenses;
mod sbom;
mod stage;
mod tarball;
mod toolchain;
mod wheel;
mod zip;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result};
use support::{paths, process};

use crate::metadata;
use stage::Stage;
use toolchain::Target;

/// The arguments of `cargo xtask dist`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory of the packages; by default `target/dist` in the checkout.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Only check an image that was built before, as root.
    #[arg(long, value_name = "FILE")]
    check_image: Option<PathBuf>,
    /// Package an ordinary release build for this machine, which needs this machine's glibc, and only check the libraries
    /// for 64-bit ARM. CI uses it.
    #[arg(long)]
    quick: bool,
    /// Build only for these targets; by default for all of them.
    #[arg(long, value_delimiter = ',', value_enum, conflicts_with = "quick")]
    target: Vec<Target>,
}

/// Builds the packages.
pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(image) = &args.check_image {
        return check::image::run(image);
    }
    let out = args.out.clone().unwrap_or_else(|| paths::root().join("target/dist"));
    fs::create_dir_all(&out)?;
    let out = fs::canonicalize(out)?;
    let version = version()?;
    let dependencies = dependencies::all()?;
    let mut files = Vec::new();
    let mut compilers = vec![PathBuf::from("rustc")];
    if args.quick {
        files.extend(packages(&Stage::build(&out, &version, &dependencies)?, &out)?);
        check_aarch64()?;
    } else {
        let targets = if args.target.is_empty() { &Target::ALL[..] } else { &args.target };
        if targets.iter().any(|target| target.needs_debian_rust()) {
            compilers.push(debian_rust::install()?);
        }
        for target in targets {
            files.extend(packages(&Stage::build_release(&out, &version, &dependencies, *target)?, &out)?);
        }
    }
    let compilers: Vec<String> = compilers.iter().map(|rustc| rust_version(rustc)).collect::<Result<_>>()?;
    files.push(sbom::build(&dependencies, &version, &compilers, &out)?);
    files.push(checksums::build(&files, &out)?);
    for file in files {
        println!("{:>11} {}", fs::metadata(&file)?.len(), file.display());
    }
    Ok(())
}

/// Checks that the libraries compile for 64-bit ARM. Most of the command's other dependencies are not ours.
fn check_aarch64() -> Result<()> {
    let mut cargo = process::cargo("check -p adverb -p adverb-preload --all-features --target");
    cargo.arg(Target::Aarch64.triple());
    debian_rust::configure(&mut cargo, &debian_rust::install()?, Target::Aarch64)?;
    process::run(&mut cargo)
}

/// Makes the packages of the staged files, and returns their paths.
fn packages(stage: &Stage, out: &Path) -> Result<Vec<PathBuf>> {
    let mut files = vec![tarball::build(stage, out)?, tarball::build_debug(stage, out)?];
    if !stage.is_static {
        files.extend([wheel::build(stage, out)?, deb::build(stage, out)?, image::build(stage, out)?]);
    }
    Ok(files)
}

/// Returns the version of the packages.
pub(crate) fn version() -> Result<String> {
    let packages = metadata::packages()?;
    let cli = packages.into_iter().find(|package| package.name == "adverb-cli");
    cli.map(|package| package.version).ok_or_else(|| anyhow::anyhow!("the workspace has no adverb-cli"))
}

/// Returns the version of a compiler.
fn rust_version(rustc: &Path) -> Result<String> {
    let text = process::text(Command::new(rustc).arg("--version"))?;
    text.split_whitespace().nth(1).map(str::to_owned).context("rustc printed no version")
}

/// Returns the time of all files in packages, in seconds since 1970: `$SOURCE_DATE_EPOCH`, or the time of the commit.
fn source_date_epoch() -> Result<String> {
    if let Ok(epoch) = env::var("SOURCE_DATE_EPOCH") {
        return Ok(epoch);
    }
    let mut git = Command::new("git");
    let time = process::text(git.args(["log", "-1", "--format=%ct"]).current_dir(paths::root()));
    Ok(time.context("the time of the commit is unknown: set SOURCE_DATE_EPOCH")?.trim().to_owned())
}
