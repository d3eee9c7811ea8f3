//! `cargo xtask asan`: what works on memory that a device has, under AddressSanitizer.
//!
//! The library's own tests run here, and those of pools, on the software NIC; what else needs a device runs on soft-RoCE in
//! the guest. The sanitizer also reports what is never freed, and any report is a failure.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::Value;

use crate::{Cli, paths, process};

/// Sanitizers need a target to be named, so that build scripts and macros aren't sanitized too.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The tests of the conformance suite in which requests are cut off, by what their groups or names contain.
const CUT_OFF: &str = "--filter flush --filter dropping";

/// A program that cargo built.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    name: String,
    /// Whether it is a test, and not just of the same name as one.
    is_test: bool,
    path: PathBuf,
}

/// Builds and runs it all.
pub(crate) fn run() -> Result<ExitCode> {
    let programs = build()?;
    let find = |name: &str, is_test: bool| {
        let program = programs.iter().find(|program| program.name == name && program.is_test == is_test);
        program.map(|program| &*program.path).with_context(|| format!("cargo built no {name}"))
    };
    // What takes a million rounds is loom's to check (`cargo xtask loom`).
    process::run(Command::new(find("adverb", true)?).args(["--quiet", "--skip", "a_million"]))?;

    process::run(Command::new(find("pool", true)?).arg("--quiet"))?;

    let selftest = find("adverb", false)?;
    let mut words = ["xtask", "vm", "--timeout", "300"].map(str::to_owned).to_vec();
    for (program, arguments) in [
        (find("misuse", true)?, "--test-threads 1"),
        // What a test forgets on purpose is never freed.
        (find("windows", true)?, "--test-threads 1 --skip forgotten"),
        (find("tiers", true)?, "--test-threads 1"),
        (find("rc_pingpong", false)?, "rxe0"),
        (find("datagrams", false)?, "rxe0"),
        (selftest, &format!("selftest --device rxe0 {CUT_OFF}")),
    ] {
        let program = process::quote(&program.to_string_lossy());
        words.extend(["--run".to_owned(), format!("ADVERB_DEVICE=rxe0 {program} {arguments}")]);
    }
    // Through the command line's own parser, so that this is something a person can type.
    Cli::try_parse_from(words)?.command.run()
}

/// Builds what there is to run.
fn build() -> Result<Vec<Program>> {
    let mut cargo = process::cargo(
        "build --package adverb --package adverb-cli --lib --bins --examples --test misuse --test windows \
         --test tiers --message-format json",
    );
    let mut tests = process::cargo("test --package adverb --lib --no-run --message-format json");
    // What needs a device but no hardware.
    let mut soft = process::cargo("build --package adverb --features soft --test pool --message-format json");
    let mut programs = Vec::new();
    for cargo in [&mut cargo, &mut tests, &mut soft] {
        cargo.args(["--target", TARGET, "--target-dir"]).arg(paths::cache()?.join("asan"));
        // The sanitizers are not part of stable Rust; this toolchain has them all the same.
        cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
        let output = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let output = output.context("cargo didn't start")?;
        ensure!(
            output.status.success(),
            "building with AddressSanitizer failed; what cargo printed is above"
        );
        programs.extend(String::from_utf8_lossy(&output.stdout).lines().filter_map(program));
    }
    for Program { name, path, .. } in &programs {
        ensure!(is_sanitized(path)?, "{name} was built without the sanitizer, and would prove nothing");
    }
    Ok(programs)
}

/// The program that one of cargo's messages announces, if it does.
fn program(message: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    Some(Program {
        name: message["target"]["name"].as_str()?.to_owned(),
        is_test: message["profile"]["test"].as_bool()?,
        path: message["executable"].as_str()?.into(),
    })
}

/// Whether a program calls the sanitizer.
fn is_sanitized(path: &Path) -> Result<bool> {
    const CALLED: &[u8] = b"__asan_init";
    let bytes = fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
    Ok(bytes.windows(CALLED.len()).any(|window| window == CALLED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_cargos_messages() {
        let message = |executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","target":{{"name":"a"}},"profile":{{"test":true}},"executable":{executable}}}"#
            )
        };
        let a = Program { name: "a".into(), is_test: true, path: "/x/a-1".into() };
        assert_eq!(program(&message(r#""/x/a-1""#)), Some(a));
        assert_eq!(program(&message("null")), None);
        assert_eq!(program("{}"), None);
    }
}
