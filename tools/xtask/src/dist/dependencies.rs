//! The packages from registries that the command and the libraries contain.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;
use support::{paths, process};

use super::toolchain::Target;

/// A package, also one of Adverb's own.
#[derive(Debug)]
pub(super) struct Dependency {
    pub(super) license: String,
    /// The directory of its sources.
    pub(super) directory: PathBuf,
    pub(super) repository: Option<String>,
    /// The SHA-256 of its archive; `None` for Adverb's own packages.
    pub(super) checksum: Option<String>,
    /// The packages that it uses itself.
    pub(super) uses: BTreeSet<Id>,
}

/// The name and version of a package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub(super) name: String,
    pub(super) version: String,
}

/// Returns the packages whose code is in the command or the libraries, on any target of the packages: with the features
/// that these use, without procedural macros, and without packages for build scripts and tests.
pub(super) fn all() -> Result<BTreeMap<Id, Dependency>> {
    let mut cargo = process::cargo("tree --locked --package adverb-cli --package adverb-preload");
    cargo.args(["--edges", "normal,no-proc-macro", "--prefix", "depth", "--format", " {p}"]);
    for target in Target::ALL {
        cargo.args(["--target", target.triple()]);
    }
    let mut uses = tree(&process::text(&mut cargo)?)?;
    let metadata = process::text(&mut process::cargo("metadata --locked --format-version 1"))?;
    let metadata: Value =
        serde_json::from_str(&metadata).context("the output of `cargo metadata` is not JSON")?;
    let packages =
        metadata["packages"].as_array().context("the output of `cargo metadata` lists no packages")?;
    let checksums = checksums(&fs::read_to_string(paths::root().join("Cargo.lock"))?);
    let mut found = BTreeMap::new();
    for package in packages {
        let text = |key: &str| package[key].as_str().map(str::to_owned);
        let (Some(name), Some(version)) = (text("name"), text("version")) else { continue };
        let id = Id { name, version };
        let Some(uses) = uses.remove(&id) else { continue };
        let manifest = text("manifest_path").context("a package has no manifest")?;
        let license = text("license").with_context(|| format!("{} states no license", id.name))?;
        let dependency = Dependency {
            // The slash is an older form.
            license: license.replace('/', " OR "),
            directory: Path::new(&manifest).parent().context("the manifest has a directory")?.to_owned(),
            repository: text("repository"),
            checksum: checksums.get(&id).cloned(),
            uses,
        };
        found.insert(id, dependency);
    }
    match uses.into_keys().next() {
        Some(id) => anyhow::bail!("`cargo metadata` doesn't list {} {}", id.name, id.version),
        None => Ok(found),
    }
}

/// Returns the packages in the output of `cargo tree`, whose lines start with the depth, and the packages that each uses.
fn tree(text: &str) -> Result<BTreeMap<Id, BTreeSet<Id>>> {
    let mut uses: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
    let mut path: Vec<Id> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split_whitespace();
        let depth = words.next().and_then(|depth| depth.parse().ok());
        let (Some(depth), Some(name), Some(version)) = (depth, words.next(), words.next()) else {
            anyhow::bail!("`cargo tree` printed the unknown line {line:?}");
        };
        let id = Id { name: name.to_owned(), version: version.trim_start_matches('v').to_owned() };
        path.truncate(depth);
        if let Some(user) = path.last() {
            uses.entry(user.clone()).or_default().insert(id.clone());
        }
        uses.entry(id.clone()).or_default();
        path.push(id);
    }
    Ok(uses)
}

/// Returns the checksums in Cargo.lock.
fn checksums(lock: &str) -> BTreeMap<Id, String> {
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))?;
        Some(line.trim_matches('"').to_owned())
    };
    let packages = lock.split("[[package]]").skip(1);
    let found = packages.filter_map(|package| {
        let id = Id { name: value(package, "name")?, version: value(package, "version")? };
        Some((id, value(package, "checksum")?))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> Id {
        Id { name: name.to_owned(), version: "1.0.0".to_owned() }
    }

    #[test]
    fn the_tree_of_packages_is_read_by_its_depths() {
        let text = "0 a v1.0.0 (/x/a)\n1 b v1.0.0\n2 c v1.0.0\n1 d v1.0.0\n2 b v1.0.0 (*)\n\n0 e v1.0.0\n1 d v1.0.0 (*)\n";
        let tree = tree(text).unwrap();
        let uses = |name| tree[&id(name)].iter().map(|id| id.name.as_str()).collect::<Vec<_>>();
        assert_eq!(tree.len(), 5);
        assert_eq!(uses("a"), ["b", "d"]);
        assert_eq!(uses("b"), ["c"]);
        assert_eq!(uses("d"), ["b"]);
        assert_eq!(uses("e"), ["d"]);
        assert!(uses("c").is_empty());
        assert!(super::tree("a v1.0.0\n").is_err());
    }

    #[test]
    fn checksums_are_read_from_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"12ab\"\n\n\
                    [[package]]\nname = \"b\"\nversion = \"1.0.0\"\n";
        assert_eq!(checksums(lock), BTreeMap::from([(id("a"), "12ab".to_owned())]));
    }
}
