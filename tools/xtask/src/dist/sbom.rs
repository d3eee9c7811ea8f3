//! The software bill of materials: a CycloneDX file with the packages that the command and the libraries contain.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::dependencies::{Dependency, Id};

/// The name of the components that `cargo` doesn't list: the compilers' standard libraries.
const STANDARD_LIBRARY: &str = "rust-std";

/// Writes the file and returns its path. `compilers` are the versions of the compilers.
pub(super) fn build(
    dependencies: &BTreeMap<Id, Dependency>,
    version: &str,
    compilers: &[String],
    out: &Path,
) -> Result<PathBuf> {
    let file = out.join(format!("adverb-{version}.cdx.json"));
    let text = serde_json::to_string_pretty(&document(dependencies, version, compilers))?;
    fs::write(&file, text + "\n").with_context(|| format!("writing {} failed", file.display()))?;
    Ok(file)
}

/// Returns the document. It has no random number and no time, so equal builds have equal documents.
fn document(dependencies: &BTreeMap<Id, Dependency>, version: &str, compilers: &[String]) -> Value {
    let used: BTreeSet<&Id> = dependencies.values().flat_map(|dependency| &dependency.uses).collect();
    // The product contains the packages that no other package uses.
    let roots = dependencies.keys().filter(|id| !used.contains(id)).map(reference);
    let standard_library = |compiler: &String| format!("pkg:generic/{STANDARD_LIBRARY}@{compiler}");
    let uses: Vec<String> = roots.chain(compilers.iter().map(standard_library)).collect();
    let product = format!("pkg:generic/adverb@{version}");
    let mut edges = vec![json!({"ref": product, "dependsOn": uses})];
    edges.extend(dependencies.iter().map(|(id, dependency)| {
        let uses: Vec<String> = dependency.uses.iter().map(reference).collect();
        json!({"ref": reference(id), "dependsOn": uses})
    }));
    let mut components: Vec<Value> =
        dependencies.iter().map(|(id, dependency)| component(id, dependency)).collect();
    components.extend(compilers.iter().map(|compiler| {
        json!({
            "type": "library",
            "bom-ref": standard_library(compiler),
            "name": STANDARD_LIBRARY,
            "version": compiler,
            "licenses": [{"expression": "MIT OR Apache-2.0"}],
            "purl": standard_library(compiler),
        })
    }));
    json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {
            "type": "application",
            "bom-ref": product,
            "name": "adverb",
            "version": version,
            "licenses": [{"expression": "MIT OR Apache-2.0"}],
            "purl": product,
        }},
        "components": components,
        "dependencies": edges,
    })
}

/// Returns the description of a package.
fn component(id: &Id, dependency: &Dependency) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(id),
        "name": id.name,
        "version": id.version,
        "licenses": [{"expression": dependency.license}],
        "purl": reference(id),
    });
    if let Some(checksum) = &dependency.checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    if let Some(repository) = &dependency.repository {
        component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
    }
    component
}

/// Returns a package's URL in the notation for packages.
fn reference(id: &Id) -> String {
    format!("pkg:cargo/{}@{}", id.name, id.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_is_a_component() {
        let id = |name: &str| Id { name: name.to_owned(), version: "1.0.0".to_owned() };
        let dependency = |uses: &[&str], checksum: Option<&str>| Dependency {
            license: "MIT".to_owned(),
            directory: PathBuf::new(),
            repository: None,
            checksum: checksum.map(str::to_owned),
            uses: uses.iter().map(|name| id(name)).collect(),
        };
        let dependencies = BTreeMap::from([
            (id("cli"), dependency(&["a", "b"], None)),
            (id("a"), dependency(&["b"], Some("12ab"))),
            (id("b"), dependency(&[], Some("34cd"))),
        ]);
        let document = document(&dependencies, "0.1.0", &["1.95.0".to_owned()]);
        let components = document["components"].as_array().unwrap();
        let mut known: BTreeSet<&str> = components.iter().map(|c| c["bom-ref"].as_str().unwrap()).collect();
        assert_eq!(known.len(), 4);
        known.insert(document["metadata"]["component"]["bom-ref"].as_str().unwrap());
        let edges = document["dependencies"].as_array().unwrap();
        let uses = |edge: &Value| edge["dependsOn"].as_array().unwrap().clone();
        for edge in edges {
            for reference in uses(edge).iter().chain([&edge["ref"]]) {
                assert!(known.contains(reference.as_str().unwrap()), "{reference}");
            }
        }
        assert_eq!(uses(&edges[0]), ["pkg:cargo/cli@1.0.0", "pkg:generic/rust-std@1.95.0"]);
        assert_eq!(components[0]["hashes"][0]["content"], "12ab");
        assert!(components[2]["hashes"].is_null());
    }
}
