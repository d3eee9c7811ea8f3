//! Installation of the cargo tools that commands need, and of programs from Debian packages that are not installed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use support::{packages, paths, process};

/// The tools, and the version to install if a tool is missing. Any version that is already installed is accepted.
const TOOLS: &[(&str, &str)] = &[("cargo-nextest", "0.9.143")];

/// cargo-deny, which only `cargo xtask deny --advisories` installs, because building it takes four minutes.
const DENY: (&str, &str) = ("cargo-deny", "0.20.2");

/// mdBook, which only `cargo xtask site` installs, and the only one of its features that a site needs: the others serve and
/// watch a book while it is written.
const MDBOOK: (&str, &str, &str) = ("mdbook", "0.5.4", "search");

/// Debian packages of which only these programs are needed. They are unpacked, because their installation would start a
/// service.
const UNPACKED: &[(&str, &[&str])] = &[("prometheus", &["prometheus", "promtool"])];

/// Programs from PyPI, and the version to install if a program is missing. All are checks of texts.
const PYTHON: &[(&str, &str)] =
    &[("typos", "1.51.1"), ("check-jsonschema", "0.39.0"), ("kubernetes-validate", "1.37.0")];

/// Installs the tools that are neither in the cache nor in PATH.
pub(crate) fn ensure_all() -> Result<()> {
    for (package, programs) in UNPACKED {
        if programs.iter().any(|program| process::find(program).is_none()) {
            let retried = unpack(package, programs).or_else(|error| {
                // The package lists may be missing (as on a fresh image) or outdated.
                if !packages::is_root() {
                    return Err(error);
                }
                packages::update_lists()?;
                unpack(package, programs)
            });
            retried.with_context(|| {
                format!("could not unpack {package}: run `apt-get update`, or install the package")
            })?;
        }
    }
    for (name, version) in TOOLS {
        if process::find(name).is_none() {
            install(name, version, &[])?;
        }
    }
    let missing: Vec<_> = PYTHON.iter().filter(|(name, _)| process::find(name).is_none()).collect();
    if !missing.is_empty()
        && let Err(error) = install_python(&missing)
    {
        // The checks that need these programs print that they are skipped: code is tested without PyPI too.
        println!("warning: could not install programs from PyPI: {error:#}");
    }
    Ok(())
}

/// Installs programs from PyPI in a virtual environment of Python, and links them to the directory of the tools.
fn install_python(missing: &[&(&str, &str)]) -> Result<()> {
    if process::output(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_err() {
        packages::ensure(&["python3-venv"])?;
    }
    let (environment, bin) = (paths::tools()?.join("python"), paths::tools()?.join("bin"));
    process::run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let mut pip = Command::new(environment.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]);
    process::run(pip.args(missing.iter().map(|(name, version)| format!("{name}=={version}"))))?;
    fs::create_dir_all(&bin)?;
    for (name, _) in missing {
        let link = bin.join(name);
        // A link to a program that no longer exists is not found, but must be removed.
        if link.is_symlink() {
            fs::remove_file(&link)?;
        }
        symlink(environment.join("bin").join(name), link)?;
    }
    Ok(())
}

/// Fails with a hint if a tool isn't installed.
pub(crate) fn require(name: &str) -> Result<()> {
    if process::find(name).is_none() {
        bail!("{name} is not installed: run `cargo xtask setup` (or `cargo install --locked {name}`)");
    }
    Ok(())
}

/// Downloads a Debian package, and copies its programs to the cache.
fn unpack(package: &str, programs: &[&str]) -> Result<()> {
    let scratch = paths::cache()?.join(format!("{package}-{}", std::process::id()));
    fs::create_dir_all(&scratch).with_context(|| format!("could not create {}", scratch.display()))?;
    let copied = copy_programs(&scratch, package, programs);
    fs::remove_dir_all(&scratch).with_context(|| format!("could not remove {}", scratch.display()))?;
    copied
}

fn copy_programs(scratch: &Path, package: &str, programs: &[&str]) -> Result<()> {
    let mut apt = Command::new("apt-get");
    // As root, apt would switch to a user that can't write to this directory.
    apt.args(["download", "-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", package]);
    process::run(apt.current_dir(scratch))?;
    let is_archive = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
    let archive = fs::read_dir(scratch)?.flatten().map(|entry| entry.path()).find(is_archive);
    let archive = archive.context("`apt-get download` wrote no package")?;
    process::run(Command::new("dpkg-deb").arg("-x").arg(archive).arg(scratch.join("root")))?;
    let bin = paths::tools()?.join("bin");
    fs::create_dir_all(&bin)?;
    for program in programs {
        // A program in use can't be overwritten, but it can be replaced.
        let new = scratch.join(program);
        fs::copy(scratch.join("root/usr/bin").join(program), &new)?;
        fs::rename(new, bin.join(program))?;
    }
    Ok(())
}

/// Installs cargo-deny in the cache if it is missing.
pub(crate) fn ensure_cargo_deny() -> Result<()> {
    let (name, version) = DENY;
    if process::find(name).is_none() {
        install(name, version, &[])?;
    }
    Ok(())
}

/// Returns the path of mdBook, if a version that reads the site's settings is installed.
pub(crate) fn mdbook() -> Option<PathBuf> {
    let (name, version, _) = MDBOOK;
    let path = process::find(name)?;
    let series = version.rsplit_once('.').map_or(version, |(series, _)| series);
    let printed = process::text(Command::new(&path).arg("--version")).ok()?;
    printed.starts_with(&format!("mdbook v{series}.")).then_some(path)
}

/// Returns the path of mdBook, which is installed in the cache if it is missing.
pub(crate) fn ensure_mdbook() -> Result<PathBuf> {
    if let Some(path) = mdbook() {
        return Ok(path);
    }
    let (name, version, features) = MDBOOK;
    install(name, version, &["--no-default-features", "--features", features])?;
    mdbook().with_context(|| format!("{name} {version} was installed, but is not found"))
}

fn install(name: &str, version: &str, options: &[&str]) -> Result<()> {
    let mut cargo = process::cargo("install --locked --root");
    cargo.arg(paths::tools()?).args(["--version", version, name]).args(options);
    // Without a target directory, cargo builds in a temporary one and removes it: the object files are not needed
    // again.
    cargo.env_remove("CARGO_TARGET_DIR");
    process::run(&mut cargo).with_context(|| format!("could not install {name} {version}"))
}
