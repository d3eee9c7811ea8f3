//! `cargo xtask deny`: licenses, sources and versions of dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use support::{paths, process};

use crate::tools;

/// The options of `cargo xtask deny`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Check the advisories too, which are downloaded, and everything else with cargo-deny again.
    #[arg(long)]
    advisories: bool,
}

/// Checks the dependencies against `deny.toml`. Without `--advisories`, it prints that they are skipped.
///
/// The checks are a few lines, and building cargo-deny takes four minutes. So only `--advisories` runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let path = paths::root().join("deny.toml");
    let rules = fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
    let (allowed, targets) = (list(&rules, "allow")?, list(&rules, "targets")?);
    let registries = list(&rules, "allow-registry")?;
    let mut problems = BTreeSet::new();
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for target in targets {
        let command =
            format!("metadata --format-version 1 --all-features --locked --filter-platform {target}");
        let metadata: Value = serde_json::from_str(&process::text(&mut process::cargo(&command))?)
            .context("the output of `cargo metadata` is not JSON")?;
        for package in used_packages(&metadata)? {
            problems.extend(check(package, &allowed, &registries)?);
            let [name, version] = ["name", "version"].map(|key| package[key].as_str().unwrap_or_default());
            versions.entry(name.to_owned()).or_default().insert(version.to_owned());
        }
    }
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let versions: Vec<&str> = versions.iter().map(String::as_str).collect();
        println!("warning: {name} has several versions: {}", versions.join(", "));
    }
    println!("{} packages", versions.len());
    let problems: Vec<String> = problems.into_iter().collect();
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    if args.advisories {
        tools::ensure_cargo_deny()?;
        return process::run(&mut process::cargo("deny --all-features check"));
    }
    println!(
        "advisories: SKIPPED, because not every machine can reach the advisory database; run \
         `cargo xtask deny --advisories` on a machine that can"
    );
    Ok(())
}

/// Returns the strings of a list in `deny.toml`.
fn list<'a>(rules: &'a str, key: &str) -> Result<Vec<&'a str>> {
    let mut lines = rules.lines();
    let first = lines.find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('=')).map(str::trim);
    let first = first.with_context(|| format!("deny.toml has no list {key}"))?;
    let mut strings = Vec::new();
    for line in std::iter::once(first).chain(lines) {
        strings.extend(line.split('"').skip(1).step_by(2));
        if line.trim_end().ends_with(']') {
            break;
        }
    }
    Ok(strings)
}

/// Returns the packages that the workspace uses on a target: the metadata also lists those of other targets.
fn used_packages(metadata: &Value) -> Result<Vec<&Value>> {
    let array = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let used: BTreeSet<String> = array(&metadata["resolve"]["nodes"])
        .iter()
        .filter_map(|node| node["id"].as_str().map(str::to_owned))
        .collect();
    let packages = metadata["packages"].as_array().context("the metadata has no packages")?;
    ensure!(!used.is_empty(), "the metadata has no resolved packages");
    Ok(packages.iter().filter(|package| package["id"].as_str().is_some_and(|id| used.contains(id))).collect())
}

/// Returns the violations of a package.
fn check(package: &Value, allowed: &[&str], registries: &[&str]) -> Result<Vec<String>> {
    let name = package["name"].as_str().context("a package has no name")?;
    let mut problems = Vec::new();
    match package["license"].as_str() {
        Some(license) if is_allowed(license, allowed) => {}
        Some(license) => problems.push(format!("{name}: license {license} is not in deny.toml")),
        None => problems.push(format!("{name} states no license")),
    }
    let registry =
        package["source"].as_str().map(|source| source.strip_prefix("registry+").unwrap_or(source));
    if let Some(registry) = registry.filter(|registry| !registries.contains(registry)) {
        problems.push(format!("{name}: source {registry} is not in deny.toml"));
    }
    let is_local = registry.is_none();
    for dependency in package["dependencies"].as_array().into_iter().flatten().filter(|_| is_local) {
        // A path needs no version unless the package is published, and then cargo demands it.
        if dependency["req"] == "*" && dependency["path"].is_null() {
            problems.push(format!("{name}: dependency {} has no version", dependency["name"]));
        }
    }
    Ok(problems)
}

/// Whether an SPDX expression permits the use under allowed licenses only.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &tokens[..];
    any(&mut rest, allowed).is_some_and(|is_allowed| is_allowed && rest.is_empty())
}

/// Reads alternatives, and returns whether one of them is allowed.
fn any(tokens: &mut &[&str], allowed: &[&str]) -> Option<bool> {
    let mut is_allowed = all(tokens, allowed)?;
    while take(tokens, "OR") {
        is_allowed |= all(tokens, allowed)?;
    }
    Some(is_allowed)
}

/// Reads licenses that all apply, and returns whether all of them are allowed.
fn all(tokens: &mut &[&str], allowed: &[&str]) -> Option<bool> {
    let mut is_allowed = license(tokens, allowed)?;
    while take(tokens, "AND") {
        is_allowed &= license(tokens, allowed)?;
    }
    Some(is_allowed)
}

fn license(tokens: &mut &[&str], allowed: &[&str]) -> Option<bool> {
    if take(tokens, "(") {
        let is_allowed = any(tokens, allowed)?;
        return take(tokens, ")").then_some(is_allowed);
    }
    let (name, rest) = tokens.split_first()?;
    *tokens = rest;
    if take(tokens, "WITH") {
        // An exception makes another license.
        let (exception, rest) = tokens.split_first()?;
        *tokens = rest;
        return Some(allowed.contains(&&*format!("{name} WITH {exception}")));
    }
    Some(allowed.contains(name))
}

fn take(tokens: &mut &[&str], token: &str) -> bool {
    match tokens.split_first() {
        Some((first, rest)) if *first == token => {
            *tokens = rest;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_allowed_if_one_alternative_is() {
        let allowed = ["MIT", "Apache-2.0", "Zlib"];
        for expression in [
            "MIT",
            "MIT OR GPL-3.0",
            "MIT/GPL-3.0",
            "GPL-3.0 OR (MIT AND Zlib)",
            "(MIT OR GPL-3.0) AND Apache-2.0",
            "Apache-2.0 WITH LLVM-exception OR MIT",
        ] {
            assert!(is_allowed(expression, &allowed), "{expression}");
        }
        for expression in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR GPL-3.0) AND GPL-2.0",
            "Apache-2.0 WITH LLVM-exception",
            "",
            "MIT OR",
            "(MIT",
            "MIT Zlib",
        ] {
            assert!(!is_allowed(expression, &allowed), "{expression}");
        }
    }

    #[test]
    fn lists_have_one_or_several_lines() {
        let rules =
            "targets = [\"a\", \"b\"]\n[licenses]\nallow = [\n    \"MIT\",\n    \"Zlib\",\n]\nx = [\"c\"]\n";
        assert_eq!(list(rules, "targets").unwrap(), ["a", "b"]);
        assert_eq!(list(rules, "allow").unwrap(), ["MIT", "Zlib"]);
        assert!(list(rules, "missing").is_err());
    }

    #[test]
    fn a_package_needs_an_allowed_license_and_registry_and_versions() {
        let registries = ["https://github.com/rust-lang/crates.io-index"];
        let problems = |package: Value| check(&package, &["MIT"], &registries).unwrap();
        let good = serde_json::json!({
            "name": "a", "license": "MIT", "source": "registry+https://github.com/rust-lang/crates.io-index",
            "dependencies": [{"name": "b", "req": "*"}],
        });
        assert!(problems(good).is_empty());
        let other =
            serde_json::json!({"name": "a", "license": "GPL-3.0", "source": "git+https://example.org/a"});
        assert_eq!(problems(other).len(), 2);
        let dependencies =
            serde_json::json!([{"name": "b", "req": "*"}, {"name": "c", "req": "*", "path": "/c"}]);
        let local =
            serde_json::json!({"name": "a", "license": null, "source": null, "dependencies": dependencies});
        assert_eq!(problems(local), ["a states no license", "a: dependency \"b\" has no version"]);
    }
}
