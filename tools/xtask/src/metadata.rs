//! The packages of the workspace, from `cargo metadata`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;
use support::process;

/// A package of the workspace.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The directory of its manifest.
    pub(crate) directory: PathBuf,
    /// Its features, including those that optional dependencies define implicitly.
    pub(crate) features: Vec<String>,
    /// Whether its manifest allows publishing.
    pub(crate) published: bool,
}

/// Returns the packages of the workspace, sorted by name.
pub(crate) fn packages() -> Result<Vec<Package>> {
    let text = process::text(&mut process::cargo("metadata --format-version 1 --no-deps"))?;
    let metadata: Value =
        serde_json::from_str(&text).context("the output of `cargo metadata` is not JSON")?;
    let packages =
        metadata["packages"].as_array().context("the output of `cargo metadata` lists no packages")?;
    let mut packages = packages.iter().map(package).collect::<Option<Vec<_>>>();
    packages.iter_mut().for_each(|packages| packages.sort_by(|a, b| a.name.cmp(&b.name)));
    packages.context("the output of `cargo metadata` has an unknown format")
}

fn package(value: &Value) -> Option<Package> {
    Some(Package {
        name: value["name"].as_str()?.to_owned(),
        version: value["version"].as_str()?.to_owned(),
        directory: PathBuf::from(value["manifest_path"].as_str()?).parent()?.to_owned(),
        features: value["features"].as_object()?.keys().cloned().collect(),
        // `null`, or a list of registries, which is empty for `publish = false`.
        published: value["publish"].as_array().is_none_or(|registries| !registries.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_read_from_metadata() {
        let text = r#"{"name": "a", "version": "0.1.0", "manifest_path": "/x/a/Cargo.toml", "features": {"default": ["b"], "b": []},
                       "publish": null}"#;
        let mut value: Value = serde_json::from_str(text).unwrap();
        let a = package(&value).unwrap();
        assert_eq!((a.name.as_str(), a.version.as_str(), a.published), ("a", "0.1.0", true));
        assert_eq!(a.directory, PathBuf::from("/x/a"));
        assert_eq!(a.features, ["b", "default"]);
        value["publish"] = Value::Array(Vec::new());
        assert!(!package(&value).unwrap().published);
    }
}
