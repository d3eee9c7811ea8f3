//! `cargo xtask unsafe-inventory`: where there is unsafe code, why it holds, and what tests it.
//!
//! UNSAFE.md is made from the code and from [`COVERAGE`], without line numbers, so that it changes only when unsafe code
//! does. It is committed: a change to unsafe code shows in it, and is looked at.

mod scan;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use support::paths;

use crate::metadata::{self, Package};
use scan::{Kind, Use};

/// The options of `cargo xtask unsafe-inventory`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write UNSAFE.md instead of comparing it.
    #[arg(long)]
    fix: bool,
    /// Show each piece of unsafe code with its file and line.
    #[arg(long)]
    list: bool,
}

/// Where unsafe code may stand, and what tests it there: the first line that fits a file counts. What is in backticks is a
/// file, which must exist.
const COVERAGE: &[(&str, &str)] = &[
    (
        "crates/adverb-sys/src/load.rs",
        "`crates/adverb-sys/tests/load.rs`: loaded twice, missing, and asked for a function that isn't there",
    ),
    (
        "crates/adverb-sys/src/",
        "`crates/adverb-sys/tests/layout/main.rs` compares every size, offset and constant with rdma-core's headers; \
         `crates/adverb-sys/tests/provider.rs` calls every inline function's counterpart through an op table that \
         records; `crates/adverb-sys/tests/device.rs` runs on soft-RoCE",
    ),
    ("crates/adverb-soft/src/link/udp/", "`crates/adverb-soft/tests/udp.rs`, on loopback sockets"),
    (
        "crates/adverb-soft/src/memory.rs",
        "its own tests: every alignment and length, outside every bound, atomics against threads",
    ),
    (
        "crates/adverb-soft/src/memory/",
        "the tests of `crates/adverb-soft/src/memory.rs`, and of `crates/adverb-verbs/src/memory/region.rs`: every alignment and \
         length, and words against threads",
    ),
    (
        "crates/adverb-soft/src/nic/mod.rs",
        "`crates/adverb-soft/src/nic/tests.rs`: memory that was deregistered is never touched again",
    ),
    (
        "crates/adverb-net/src/readiness.rs",
        "every wait of a task in `crates/adverb/tests/net_async.rs`, under AddressSanitizer",
    ),
    (
        "crates/adverb-verbs/src/ring.rs",
        "its own tests; `cargo xtask loom` in every order of events; `cargo xtask miri` where it is installed",
    ),
    (
        "crates/adverb-verbs/src/memory/",
        "`crates/adverb/tests/misuse.rs` under AddressSanitizer on soft-RoCE, and `crates/adverb/tests/pool.rs` on the \
         software NIC; what must not compile, in \
         `crates/adverb/tests/compile_fail.rs`",
    ),
    (
        "crates/adverb-verbs/src/raw.rs",
        "functions that are unsafe for their callers; `crates/adverb/tests/tiers.rs` on soft-RoCE",
    ),
    (
        "crates/adverb-verbs/src/backend/memory.rs",
        "a trait that is unsafe to implement: what must not compile, in `crates/adverb/tests/compile_fail.rs`",
    ),
    (
        "crates/adverb-verbs/src/backend/wait.rs",
        "every wait of the conformance suite, and `crates/adverb/tests/poller.rs`, on soft-RoCE",
    ),
    (
        "crates/adverb-verbs/src/backend/request_list.rs",
        "its own tests, and every request of the conformance suite on both engines",
    ),
    (
        "crates/adverb-verbs/src/backend/soft/",
        "the conformance suite on the software NIC, and `crates/adverb/tests/misuse.rs`",
    ),
    (
        "crates/adverb-verbs/src/backend/ibv/",
        "the conformance suite on soft-RoCE; drops in every order and objects of two devices in \
         `crates/adverb/tests/misuse.rs`, under AddressSanitizer",
    ),
];

/// What stands above the list.
const PREFACE: &str = "\
# Unsafe code

Written by `cargo xtask unsafe-inventory --fix`, and compared with the code in CI: don't edit it. Where unsafe code may
stand, and what tests it, is said in `tools/xtask/src/unsafe_inventory/mod.rs`. `cargo xtask unsafe-inventory --list` shows each
piece with its file and line. Types of unsafe functions are not listed, nor is test code.
";

/// The unsafe code of one file.
struct File {
    package: String,
    path: String,
    uses: Vec<Use>,
    coverage: &'static str,
}

/// Looks at all library code, and compares or writes UNSAFE.md.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = paths::root();
    let mut files = Vec::new();
    for package in metadata::packages()? {
        if package.directory.starts_with(root.join("crates")) {
            files.extend(package_files(&root, &package)?);
        }
    }
    let unlisted: Vec<_> = COVERAGE
        .iter()
        .filter(|(place, _)| !files.iter().any(|file| file.path.starts_with(place)))
        .map(|(place, _)| *place)
        .collect();
    ensure!(unlisted.is_empty(), "no unsafe code stands where COVERAGE allows it: {}", unlisted.join(", "));
    check_tests(&root)?;
    if args.list {
        list(&files);
    }
    let inventory = document(&files);
    let path = root.join("UNSAFE.md");
    if args.fix {
        fs::write(&path, &inventory).with_context(|| format!("could not write {}", path.display()))?;
    } else {
        let written = fs::read_to_string(&path).unwrap_or_default();
        compare(&written, &inventory)?;
    }
    let count =
        |kind: Kind| files.iter().flat_map(|file| &file.uses).filter(|found| found.kind == kind).count();
    let counts = Kind::ALL.map(|kind| format!("{} {}", count(kind), kind.name()));
    println!("unsafe code in {} files, each piece with its reason: {}", files.len(), counts.join(", "));
    Ok(())
}

/// The files of a package that have unsafe code, which must be allowed there and have reasons.
fn package_files(root: &Path, package: &Package) -> Result<Vec<File>> {
    let mut paths = Vec::new();
    rust_files(&package.directory.join("src"), &mut paths)?;
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        let source =
            fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
        let uses = scan::uses(&source);
        let Some(first) = uses.first() else { continue };
        let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
        let Some((_, coverage)) = COVERAGE.iter().find(|(place, _)| name.starts_with(place)) else {
            bail!("{name}:{}: unsafe code isn't allowed here; see COVERAGE", first.line);
        };
        if let Some(found) = uses.iter().find(|found| found.reason.as_deref().unwrap_or("").is_empty()) {
            let wanted = match found.kind {
                Kind::Function | Kind::Trait => "a section `# Safety` in its documentation",
                _ => "a comment `SAFETY: …` above it",
            };
            bail!("{name}:{}: this {} needs {wanted}", found.line, found.kind.name());
        }
        files.push(File { package: package.name.clone(), path: name, uses, coverage });
    }
    Ok(files)
}

/// Collects the Rust files below a directory, but those that hold only tests.
fn rust_files(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("could not list {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        let is_tests = path.file_stem().is_some_and(|name| name == "tests");
        if path.is_dir() && !is_tests {
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_tests {
            files.push(path);
        }
    }
    Ok(())
}

/// Whether the tests that [`COVERAGE`] names exist.
fn check_tests(root: &Path) -> Result<()> {
    for (place, coverage) in COVERAGE {
        let named = coverage.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs"));
        for name in named {
            ensure!(root.join(name).is_file(), "{place} is said to be tested by {name}, which isn't there");
        }
    }
    Ok(())
}

/// Prints each piece.
fn list(files: &[File]) {
    for file in files {
        for Use { line, kind, reason } in &file.uses {
            println!("{}:{line}: {}: {}", file.path, kind.name(), reason.as_deref().unwrap_or_default());
        }
    }
}

/// The text of UNSAFE.md.
fn document(files: &[File]) -> String {
    let mut packages = BTreeMap::<&str, Vec<&File>>::new();
    for file in files {
        packages.entry(&file.package).or_default().push(file);
    }
    let mut text = PREFACE.to_owned();
    for (package, files) in packages {
        text += &format!("\n## {package}\n");
        let mut coverage = "";
        for file in files {
            text += &format!("\n### {}\n\n", file.path);
            if file.coverage == coverage {
                text += "Tested as above.\n\n";
            } else {
                coverage = file.coverage;
                text += &format!("Tested by: {coverage}.\n\n");
            }
            for ((kind, reason), count) in reasons(&file.uses) {
                let times = if count > 1 { format!(" × {count}") } else { String::new() };
                text += &format!("- {}{times}: {reason}\n", kind.name());
            }
        }
    }
    text
}

/// The reasons, each once, and how often it is given. Their order is not that of the code, which changes more often.
fn reasons(uses: &[Use]) -> BTreeMap<(Kind, &str), usize> {
    let mut reasons = BTreeMap::new();
    for found in uses {
        *reasons.entry((found.kind, found.reason.as_deref().unwrap_or_default())).or_default() += 1;
    }
    reasons
}

/// Fails with the first line that differs.
fn compare(written: &str, inventory: &str) -> Result<()> {
    if written == inventory {
        return Ok(());
    }
    let same = written.lines().zip(inventory.lines()).take_while(|(a, b)| a == b).count();
    bail!(
        "UNSAFE.md isn't what the code says; run `cargo xtask unsafe-inventory --fix`, and look at what changed\n  \
         line {}: {}\n  should be: {}",
        same + 1,
        written.lines().nth(same).unwrap_or("(missing)"),
        inventory.lines().nth(same).unwrap_or("(nothing)")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_is_given_twice_is_listed_once() {
        let found = |line, reason: &str| Use { line, kind: Kind::Block, reason: Some(reason.into()) };
        let file = File {
            package: "p".into(),
            path: "crates/p/src/a.rs".into(),
            uses: vec![found(1, "so"), found(2, "because"), found(3, "so")],
            coverage: "a test",
        };
        let text = document(&[file]);
        let expected =
            "\n## p\n\n### crates/p/src/a.rs\n\nTested by: a test.\n\n- block: because\n- block × 2: so\n";
        assert_eq!(text.strip_prefix(PREFACE), Some(expected));
    }

    #[test]
    fn a_difference_is_shown() {
        assert!(compare("a\nb\n", "a\nb\n").is_ok());
        let error = compare("a\nb\n", "a\nc\n").unwrap_err().to_string();
        assert!(error.contains("line 2: b") && error.contains("should be: c"), "{error}");
    }
}
