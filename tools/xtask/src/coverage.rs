//! `cargo xtask coverage`: line coverage of a crate by its own tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use support::{packages, paths, process};

/// The options of `cargo xtask coverage`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Crate to measure.
    #[arg(long, default_value = "adverb-proto")]
    package: String,
    /// Minimum line coverage in percent; less is a failure.
    #[arg(long, default_value_t = 90.0)]
    least: f64,
}

/// Runs a crate's tests with coverage instrumentation, and prints its line coverage.
///
/// The tools that read the profiles must match the compiler's LLVM version: Debian's `llvm-N` package, or the rustup
/// component `llvm-tools`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (profdata, cov) = llvm_tools()?;
    let directory = paths::cache()?.join("coverage");
    let profiles = directory.join("profiles");
    if profiles.is_dir() {
        fs::remove_dir_all(&profiles)?;
    }
    let test = |more: &str| {
        let mut cargo = process::cargo("test --lib --tests");
        cargo.args(["--package", &args.package]).args(more.split_whitespace());
        // A target directory of its own, because other RUSTFLAGS would invalidate the usual build.
        cargo.env("RUSTFLAGS", "-Cinstrument-coverage").env("CARGO_TARGET_DIR", directory.join("target"));
        cargo.env("LLVM_PROFILE_FILE", profiles.join("%p-%m.profraw"));
        cargo
    };
    process::run(&mut test("--quiet"))?;
    let messages = process::text(&mut test("--no-run --message-format json-render-diagnostics"))?;
    let merged = directory.join("merged.profdata");
    let mut merge = Command::new(profdata);
    merge.args(["merge", "-sparse", "-o"]).arg(&merged);
    for entry in fs::read_dir(&profiles).context("the tests wrote no profiles")? {
        merge.arg(entry?.path());
    }
    process::run(&mut merge)?;
    let mut report = Command::new(cov);
    report.arg("report").arg("--instr-profile").arg(&merged);
    report.args(["--show-region-summary=false", "--show-branch-summary=false"]);
    // llvm-cov takes the first program as a positional argument; further positional arguments are sources.
    let mut programs = process::executables(&messages);
    let first = programs.next().context("the crate has no tests")?;
    for program in programs {
        report.arg("--object").arg(program);
    }
    report.arg(first).arg(paths::root().join("crates").join(&args.package).join("src"));
    let report = process::text(&mut report)?;
    print!("{report}");
    let reached = total(&report).context("llvm-cov's report has an unknown format")?;
    println!("{}: {reached:.2} % of lines covered", args.package);
    ensure!(reached >= args.least, "line coverage is below {} %", args.least);
    Ok(())
}

/// Returns the paths of `llvm-profdata` and `llvm-cov` of the compiler's LLVM version.
fn llvm_tools() -> Result<(PathBuf, PathBuf)> {
    let version = process::text(Command::new("rustc").arg("-vV"))?;
    let major = llvm_major(&version).context("`rustc -vV` prints no LLVM version")?;
    let sysroot = process::text(Command::new("rustc").args(["--print", "target-libdir"]))?;
    let component = Path::new(sysroot.trim()).parent().map(|dir| dir.join("bin")).unwrap_or_default();
    let find = |name: &str| {
        let own = Some(component.join(name)).filter(|path| path.is_file());
        own.or_else(|| process::find(&format!("{name}-{major}")))
    };
    let both = || find("llvm-profdata").zip(find("llvm-cov"));
    if both().is_none() {
        packages::ensure(&[&format!("llvm-{major}")])?;
    }
    match both() {
        Some(tools) => Ok(tools),
        None => bail!(
            "llvm-profdata and llvm-cov are missing: run `rustup component add llvm-tools`, or install Debian's llvm-{major}"
        ),
    }
}

/// Parses the major version in rustc's `LLVM version: 22.1.2`.
fn llvm_major(version: &str) -> Option<u32> {
    version.lines().find_map(|line| line.strip_prefix("LLVM version: ")?.split('.').next()?.parse().ok())
}

/// Parses the line coverage in llvm-cov's report: the last percentage of the line `TOTAL`.
fn total(report: &str) -> Option<f64> {
    let line = report.lines().find(|line| line.starts_with("TOTAL"))?;
    line.split_whitespace().filter_map(|word| word.strip_suffix('%')?.parse().ok()).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_llvm_version_is_parsed() {
        assert_eq!(llvm_major("rustc 1.95.0\nhost: x\nLLVM version: 22.1.2\n"), Some(22));
        assert_eq!(llvm_major("rustc 1.95.0\n"), None);
    }

    #[test]
    fn line_coverage_is_the_last_percentage_of_the_total() {
        let report = "Filename  Functions  Missed  Executed  Lines  Missed  Cover\nx.rs 1 0 100.00% 9 1 88.89%\n\
                      TOTAL 606 28 95.38% 5247 283 94.61%\n";
        assert_eq!(total(report), Some(94.61));
        assert_eq!(total("nothing"), None);
    }
}
