//! `cargo xtask unsafe-inventory`: unsafe code is only in the places that UNSAFE.md lists, and each use is justified.

pub(crate) mod scan;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use support::paths;

use crate::metadata;
use scan::{Kind, Use};

/// The options of `cargo xtask unsafe-inventory`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print each unsafe block, function, trait and impl with its file, line and justification.
    #[arg(long)]
    list: bool,
}

/// Scans all product code. Types of unsafe functions and test code don't count.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = paths::root();
    let page = fs::read_to_string(root.join("UNSAFE.md")).context("could not read UNSAFE.md")?;
    let places = places(&page);
    check_tests(&root, &places)?;
    let mut sources = Vec::new();
    for package in metadata::packages()? {
        if package.directory.starts_with(root.join("crates")) {
            rust_files(&package.directory.join("src"), &mut sources)?;
        }
    }
    sources.sort();
    let mut files = Vec::new();
    for path in sources {
        let source =
            fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
        let name = path.strip_prefix(&root)?.to_string_lossy().into_owned();
        let uses = scan::uses(&source);
        check(&name, &uses, &places)?;
        if !uses.is_empty() {
            files.push((name, uses));
        }
    }
    for Place { path, .. } in &places {
        ensure!(
            files.iter().any(|(name, _)| name.starts_with(path)),
            "UNSAFE.md lists {path}, which has no unsafe code"
        );
    }
    if args.list {
        for (name, uses) in &files {
            for Use { line, kind, reason } in uses {
                println!("{name}:{line}: {}: {}", kind.name(), reason.as_deref().unwrap_or_default());
            }
        }
    }
    let count =
        |kind: Kind| files.iter().flat_map(|(_, uses)| uses).filter(|found| found.kind == kind).count();
    let counts = Kind::ALL.map(|kind| format!("{} {}", count(kind), kind.name()));
    println!("unsafe code in {} files, all justified: {}", files.len(), counts.join(", "));
    Ok(())
}

/// A row of the table of places.
#[derive(Debug, PartialEq, Eq)]
struct Place<'a> {
    /// A file, or a folder with a slash at the end.
    path: &'a str,
    /// The tests of its unsafe code; their files are in backticks.
    tests: &'a str,
}

/// Returns the rows of the table of places: those that start with a path of a crate.
fn places(page: &str) -> Vec<Place<'_>> {
    let rows = page.lines().filter(|line| line.starts_with("| `crates/"));
    rows.map(|row| {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let path = cells.next().unwrap_or_default().trim_matches('`');
        Place { path, tests: cells.nth(1).unwrap_or_default() }
    })
    .collect()
}

/// Fails if unsafe code is not allowed in a file, or lacks a justification.
fn check(name: &str, uses: &[Use], places: &[Place<'_>]) -> Result<()> {
    let Some(first) = uses.first() else { return Ok(()) };
    if !places.iter().any(|place| name.starts_with(place.path)) {
        bail!("{name}:{}: unsafe code is not allowed in this file; see the table in UNSAFE.md", first.line);
    }
    if let Some(found) = uses.iter().find(|found| found.reason.as_deref().unwrap_or("").is_empty()) {
        let wanted = match found.kind {
            Kind::Function | Kind::Trait => "a section `# Safety` in its doc comment",
            _ => "a comment `SAFETY: …` above it",
        };
        bail!("{name}:{}: this {} needs {wanted}", found.line, found.kind.name());
    }
    Ok(())
}

/// Collects the Rust files below a directory, except those that contain only tests.
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

/// Checks that the tests that the table names exist.
fn check_tests(root: &Path, places: &[Place<'_>]) -> Result<()> {
    for Place { path, tests } in places {
        ensure!(!tests.is_empty(), "UNSAFE.md names no test of {path}");
        for name in tests.split('`').skip(1).step_by(2).filter(|name| name.starts_with("crates/")) {
            ensure!(
                root.join(name).is_file(),
                "UNSAFE.md names {name} as a test of {path}, but the file does not exist"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
| place | contents | tests |
|---|---|---|
| `crates/a/src/b/` | `c` | a suite; `crates/a/tests/d.rs` |
";

    #[test]
    fn rows_have_a_place_and_its_tests() {
        let expected = Place { path: "crates/a/src/b/", tests: "a suite; `crates/a/tests/d.rs`" };
        assert_eq!(places(PAGE), [expected]);
    }

    #[test]
    fn unsafe_code_needs_a_place_and_a_justification() {
        let found =
            |reason: Option<&str>| [Use { line: 3, kind: Kind::Block, reason: reason.map(Into::into) }];
        let check =
            |name, reason| check(name, &found(reason), &places(PAGE)).map_err(|error| error.to_string());
        assert_eq!(check("crates/a/src/b/c.rs", Some("so")), Ok(()));
        let missing = check("crates/a/src/b/c.rs", None).unwrap_err();
        assert!(missing.starts_with("crates/a/src/b/c.rs:3: this block needs a comment"), "{missing}");
        let elsewhere = check("crates/a/src/c.rs", Some("so")).unwrap_err();
        assert!(elsewhere.contains("is not allowed in this file"), "{elsewhere}");
    }

    #[test]
    fn a_named_test_must_exist() {
        assert!(
            check_tests(&paths::root(), &places(PAGE))
                .unwrap_err()
                .to_string()
                .contains("crates/a/tests/d.rs")
        );
        let unnamed = PAGE.replace("a suite; `crates/a/tests/d.rs`", "");
        assert!(check_tests(&paths::root(), &places(&unnamed)).is_err());
    }
}
