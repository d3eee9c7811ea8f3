//! Tests that compare documents, and files that must be equal, with the facts that they state.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory;
use serde_json::Value;
use support::{paths, process};

use crate::Cli;

/// The page with the table of dependencies.
const DEPENDENCIES: &str = "docs/design/dependencies.md";

/// Returns the text of a file of the clone.
fn read(path: &str) -> String {
    fs::read_to_string(paths::root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the rows of the table that follows a header row, as cells.
fn rows<'a>(text: &'a str, header: &str) -> Vec<Vec<&'a str>> {
    let (_, table) = text.split_once(&format!("{header}\n")).unwrap_or_else(|| panic!("no table `{header}`"));
    let rows = table.lines().map(str::trim).skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Returns the names of the commands after `cargo xtask`.
fn command_names() -> BTreeSet<String> {
    Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect()
}

/// Returns the files of a directory with an extension, also those in its subdirectories.
fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(self::files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    files
}

/// Returns the packages of both workspaces, as `cargo metadata` prints them.
fn packages() -> Vec<Value> {
    let mut packages = Vec::new();
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        let mut cargo = process::cargo("metadata --format-version 1 --no-deps --manifest-path");
        let text = process::text(cargo.arg(paths::root().join(manifest))).unwrap();
        let metadata: Value = serde_json::from_str(&text).unwrap();
        packages.extend(metadata["packages"].as_array().unwrap().iter().cloned());
    }
    packages
}

/// Returns the places that use each dependency from a registry: the crates, `tools`, `examples` and `fuzz`, or `tests` if
/// only tests use it.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap());
        let path = manifest.strip_prefix(paths::root()).unwrap();
        let place = match path.iter().next().and_then(|part| part.to_str()).unwrap() {
            "crates" => package["name"].as_str().unwrap(),
            directory => directory,
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            if !dependency["path"].is_null() {
                continue;
            }
            let is_test = dependency["kind"] == "dev"
                || dependency["target"].as_str().is_some_and(|t| t.contains("loom"));
            let places = uses.entry(dependency["name"].as_str().unwrap().to_owned()).or_default();
            places.insert(if is_test { "tests" } else { place }.to_owned());
        }
    }
    for places in uses.values_mut().filter(|places| places.len() > 1) {
        places.remove("tests");
    }
    uses
}

#[test]
fn every_command_in_a_document_exists() {
    let names = command_names();
    let mut count = 0;
    let documents =
        ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "RELEASING.md", "SECURITY.md"];
    let mut documents: Vec<PathBuf> = documents.iter().map(|name| paths::root().join(name)).collect();
    for directory in ["crates", "docs", "examples"] {
        documents.extend(files(&paths::root().join(directory), "md"));
    }
    for file in documents {
        let text = fs::read_to_string(&file).unwrap();
        for rest in text.split("cargo xtask ").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
            // A line may end after `cargo xtask`, `…` stands for any command, and `--help` isn't one.
            if !name.is_empty() && !name.starts_with('-') {
                assert!(names.contains(&name), "{}: `cargo xtask {name}`", file.display());
                count += 1;
            }
        }
    }
    assert!(count > 50, "only {count} commands were found");
}

#[test]
fn the_table_of_dependencies_matches_the_manifests() {
    let text = read(DEPENDENCIES);
    let mut uses = dependencies();
    for row in rows(&text, "| crate | where | job |") {
        let mut places = BTreeSet::new();
        for name in row[0].split(", ") {
            let used = uses.remove(name);
            places.extend(used.unwrap_or_else(|| panic!("{DEPENDENCIES} lists {name}, which no crate uses")));
        }
        let listed: BTreeSet<_> = row[1].split(", ").map(str::to_owned).collect();
        assert_eq!(listed, places, "the places of {}", row[0]);
    }
    assert!(uses.is_empty(), "{DEPENDENCIES} does not list these: {uses:?}");
}

/// RELEASING.md promises this: items that aren't public API may change in any version.
#[test]
fn crates_with_hidden_items_are_dependencies_of_an_exact_version() {
    let manifest = read("Cargo.toml");
    let mut count = 0;
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        let directory = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        let prefix = format!("{name} = {{ path = ");
        let Some(line) = manifest.lines().find(|line| line.starts_with(&prefix)) else { continue };
        let has_hidden_items = files(&directory.join("src"), "rs").iter().any(|file| {
            let text = fs::read_to_string(file).unwrap();
            // Items for fuzz targets exist only in builds of the workspace `fuzz`.
            text.replace("#[cfg(fuzzing)]\n#[doc(hidden)]", "").contains("#[doc(hidden)]")
        });
        if has_hidden_items || !package["features"]["mutants"].is_null() {
            assert!(line.contains("version = \"="), "{name} has hidden items: {line}");
            count += 1;
        }
    }
    assert!(count >= 5, "only {count} crates with hidden items were found");
}

#[test]
fn copies_of_a_file_are_equal() {
    let [one, other] =
        ["crates/adverb-verbs", "crates/adverb-soft"].map(|c| format!("{c}/src/memory/access.rs"));
    assert!(read(&one) == read(&other), "run `cp {one} {other}`, or the other way");
}

#[test]
fn one_file_names_the_home_of_the_project() {
    let manifest = read("Cargo.toml");
    let address = |key: &str| {
        let value = manifest.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        value.trim_matches('"').strip_prefix("https://").unwrap().to_owned()
    };
    let mut search = Command::new("git");
    search.args(["grep", "--files-with-matches", "--fixed-strings"]).current_dir(paths::root());
    search.args(["-e", &address("repository = "), "-e", &address("homepage = ")]);
    let found = process::text(&mut search).unwrap();
    let mut found: Vec<&str> = found.lines().collect();
    found.sort_unstable();
    assert_eq!(found, ["Cargo.toml", "RELEASING.md"]);
}
