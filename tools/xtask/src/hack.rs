//! `cargo xtask hack`: does every crate build with each of its features alone?
//!
//! This is what `cargo hack check --each-feature --no-dev-deps` does, and with warnings as errors. (cargo-hack edits the
//! manifests to leave dev-dependencies out. That isn't needed: this workspace's resolver keeps their features apart unless
//! tests are built, and they aren't.)

use anyhow::{Context, Result};
use support::process;

use crate::metadata::{self, Package};

/// Lints every package with none of its features, with each alone, and with all.
pub(crate) fn run() -> Result<()> {
    let mut count = 0;
    for package in metadata::packages()? {
        for features in choices(&package) {
            let mut cargo = process::cargo("clippy --quiet --no-default-features --package");
            cargo.args([&package.name, "--features", &features, "--", "-D", "warnings"]);
            process::output(&mut cargo)
                .with_context(|| format!("{} with the features [{features}]", package.name))?;
            println!("{} [{features}]", package.name);
            count += 1;
        }
    }
    println!("{count} combinations build without a warning");
    Ok(())
}

/// The sets of features to try, each as cargo wants it.
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
        })
    }

    #[test]
    fn features_are_tried_alone_and_together() {
        assert_eq!(choices_of(&[]), [""]);
        assert_eq!(choices_of(&["a"]), ["", "a"]);
        assert_eq!(choices_of(&["a", "b"]), ["", "a", "b", "a,b"]);
    }
}
