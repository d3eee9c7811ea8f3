//! `cargo xtask hack`: every published crate, built with each of its features separately. The other crates have no features,
//! and `cargo xtask clippy` checks them.
//!
//! The command does the same as `cargo hack check --each-feature --no-dev-deps`, with warnings as errors. cargo-hack
//! edits the manifests to remove dev-dependencies. This workspace doesn't need that: its resolver does not unify the
//! features of dev-dependencies unless tests are built.

use anyhow::{Context, Result};
use support::process;

use crate::metadata::{self, Package};

/// Lints every published package with no features, with each feature separately, and with all.
pub(crate) fn run() -> Result<()> {
    let mut count = 0;
    for package in metadata::packages()?.into_iter().filter(|package| package.published) {
        for features in choices(&package) {
            let mut cargo = process::cargo("clippy --quiet --no-default-features --package");
            cargo.args([&package.name, "--features", &features, "--", "-D", "warnings"]);
            process::output(&mut cargo)
                .with_context(|| format!("{} with the features [{features}]", package.name))?;
            println!("{} [{features}]", package.name);
            count += 1;
        }
    }
    println!("{count} combinations build without warnings");
    Ok(())
}

/// Returns the sets of features to build with, each in cargo's notation.
fn choices(package: &Package) -> Vec<String> {
    let features = &package.features;
    let mut choices = vec![String::new()];
    choices.extend(features.iter().cloned());
    if features.len() > 1 {
        choices.push(features.join(","));
    }
    choices
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices_of(features: &[&str]) -> Vec<String> {
        let features = features.iter().map(ToString::to_string).collect();
        choices(&Package {
            name: "a".into(),
            version: "0.1.0".into(),
            directory: "/".into(),
            features,
            published: true,
            repository: None,
        })
    }

    #[test]
    fn features_are_tried_alone_and_together() {
        assert_eq!(choices_of(&[]), [""]);
        assert_eq!(choices_of(&["a"]), ["", "a"]);
        assert_eq!(choices_of(&["a", "b"]), ["", "a", "b", "a,b"]);
    }
}
