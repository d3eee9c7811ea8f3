//! The optimized programs of the crates `adverb`, `adverb-cli` and `adverb-conformance`.

use std::process::Stdio;

use anyhow::{Context, Result};

use crate::process;

/// The selection of packages and features. Cargo compiles a library once for each set of features, and the selection
/// determines the features of all packages: with the same selection, programs share their libraries.
const SELECTION: &str = "--release -p adverb -p adverb-cli -p adverb-conformance --features adverb/cluster";

/// An example to build together with the command: without an example or a test, cargo leaves out the features of
/// dev-dependencies.
const ANY_EXAMPLE: &str = "hello";

/// Builds the command `adverb` and returns its path.
///
/// # Errors
///
/// Returns an error if the build fails.
pub fn adverb() -> Result<String> {
    let messages = build(&format!("build {SELECTION} --bin adverb --example {ANY_EXAMPLE}"))?;
    path(&messages, "bin", "adverb")
}

/// Builds an example and returns its path.
///
/// # Errors
///
/// Returns an error if the build fails.
pub fn example(name: &str) -> Result<String> {
    examples([name]).map(|[path]| path)
}

/// Builds examples and returns their paths.
///
/// # Errors
///
/// Returns an error if the build fails.
pub fn examples<const N: usize>(names: [&str; N]) -> Result<[String; N]> {
    targets("build", "example", names)
}

/// Builds test programs and returns their paths.
///
/// # Errors
///
/// Returns an error if the build fails.
pub fn tests<const N: usize>(names: [&str; N]) -> Result<[String; N]> {
    targets("test --no-run", "test", names)
}

/// Builds programs of a kind with one cargo command, which compiles them in parallel.
fn targets<const N: usize>(command: &str, kind: &str, names: [&str; N]) -> Result<[String; N]> {
    let options: String = names.iter().map(|name| format!(" --{kind} {name}")).collect();
    let messages = build(&format!("{command} {SELECTION}{options}"))?;
    let paths = names.iter().map(|name| path(&messages, kind, name)).collect::<Result<Vec<_>>>()?;
    Ok(paths.try_into().expect("there is a path for each name"))
}

/// Runs cargo and returns its messages.
fn build(arguments: &str) -> Result<String> {
    let mut cargo = process::cargo(arguments);
    process::text(cargo.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit()))
}

/// Returns the path of a program in cargo's messages.
fn path(messages: &str, kind: &str, name: &str) -> Result<String> {
    let target = [format!(r#""kind":["{kind}"]"#), format!(r#""name":"{name}""#)];
    let mut lines = messages.lines().filter(|line| target.iter().all(|part| line.contains(part)));
    let path = lines.find_map(process::executable_of);
    path.map(str::to_owned).with_context(|| format!("cargo built no {kind} {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_its_kind_and_name() {
        let message = |kind: &str, path: &str| {
            format!(r#"{{"target":{{"kind":["{kind}"],"name":"a"}},"executable":{path}}}"#)
        };
        let messages = [message("lib", "null"), message("bin", r#""/x/a""#), message("test", r#""/x/a-1""#)];
        let messages = messages.join("\n");
        assert_eq!(path(&messages, "bin", "a").unwrap(), "/x/a");
        assert_eq!(path(&messages, "test", "a").unwrap(), "/x/a-1");
        assert!(path(&messages, "lib", "a").is_err());
        assert!(path(&messages, "bin", "b").is_err());
    }
}
