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
    /// The address of its repository, if its manifest has one.
    pub(crate) repository: Option<String>,
    /// Whether its manifest allows publishing.
    pub(crate) published: bool,
}

/// The facts about the project that packages of other systems contain.
#[derive(Debug)]
pub(crate) struct About {
    /// The name and email address of the maintainer: `workspace.metadata.dist.maintainer` in the manifest.
    pub(crate) maintainer: String,
    /// The address of the homepage, if the manifest has one.
    pub(crate) homepage: Option<String>,
}

/// Returns the facts about the project.
pub(crate) fn about() -> Result<About> {
    let metadata = metadata()?;
    let maintainer = metadata["metadata"]["dist"]["maintainer"].as_str();
    let homepage = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find_map(|package| package["homepage"].as_str());
    Ok(About {
        maintainer: maintainer.context("Cargo.toml has no workspace.metadata.dist.maintainer")?.to_owned(),
        homepage: homepage.map(str::to_owned),
    })
}

/// Returns the output of `cargo metadata` without dependencies.
fn metadata() -> Result<Value> {
    let text = process::text(&mut process::cargo("metadata --format-version 1 --no-deps"))?;
    serde_json::from_str(&text).context("the output of `cargo metadata` is not JSON")
}

/// Returns the packages of the workspace, sorted by name.
pub(crate) fn packages() -> Result<Vec<Package>> {
    let metadata = metadata()?;
    let packages =
        metadata["packages"].as_array().context("the output of `cargo metadata` lists no packages")?;
    let mut packages = packages.iter().map(package).collect::<Option<Vec<_>>>();
    packages.iter_mut().for_each(|packages| packages.sort_by(|a, b| a.name.cmp(&b.name)));
    packages.context("the output of `cargo metadata` has an unknown format")
}

/// Returns the directory of cargo's builds.
pub(crate) fn target_directory() -> Result<PathBuf> {
    let metadata = metadata()?;
    let directory = metadata["target_directory"].as_str();
    directory.map(PathBuf::from).context("the output of `cargo metadata` has no target directory")
}

fn package(value: &Value) -> Option<Package> {
    Some(Package {
        name: value["name"].as_str()?.to_owned(),
        version: value["version"].as_str()?.to_owned(),
        directory: PathBuf::from(value["manifest_path"].as_str()?).parent()?.to_owned(),
        features: value["features"].as_object()?.keys().cloned().collect(),
        repository: value["repository"].as_str().map(str::to_owned),
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
        assert_eq!(a.repository, None);
        value["publish"] = Value::Array(Vec::new());
        value["repository"] = "https://example.org/a".into();
        let a = package(&value).unwrap();
        assert_eq!((a.repository.as_deref(), a.published), (Some("https://example.org/a"), false));
    }
}
