//! `cargo xtask workflows`: the files in `.github`, validated against their schemas.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use support::{paths, process};

/// The schemas of check-jsonschema, and the directories or files in `.github` that they apply to.
const SCHEMAS: &[(&str, &str)] = &[
    ("vendor.github-workflows", "workflows"),
    ("custom.github-workflows-require-timeout", "workflows"),
    ("vendor.github-actions", "actions/setup/action.yml"),
    ("vendor.github-issue-config", "ISSUE_TEMPLATE/config.yml"),
    ("vendor.github-issue-forms", "ISSUE_TEMPLATE"),
    ("vendor.dependabot", "dependabot.yml"),
];

/// Validates the files. A unit test checks that their `cargo xtask` commands exist.
pub(crate) fn run() -> Result<()> {
    let Some(check) = process::find("check-jsonschema") else {
        println!("workflows: SKIPPED, because check-jsonschema is not installed (`cargo xtask setup`)");
        return Ok(());
    };
    let github = paths::root().join(".github");
    for (schema, place) in SCHEMAS {
        let files = files(&github, place)?;
        process::run(Command::new(&check).args(["--builtin-schema", schema]).args(files))?;
    }
    Ok(())
}

/// Returns the file, or the YAML files of the directory. A directory's `config.yml` has a schema of its own.
fn files(github: &Path, place: &str) -> Result<Vec<PathBuf>> {
    let path = github.join(place);
    if path.is_file() {
        return Ok(vec![path]);
    }
    let entries = fs::read_dir(&path).with_context(|| format!("could not list {}", path.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yml"));
    files.retain(|file| !file.ends_with("config.yml"));
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::Cli;

    /// Returns the arguments of each `cargo xtask` command in a text.
    fn commands(text: &str) -> Vec<&str> {
        let commands = text.split("cargo xtask ").skip(1);
        commands.map(|rest| rest.split(['\n', '`', '"', '\'']).next().unwrap_or_default()).collect()
    }

    #[test]
    fn commands_end_with_their_line() {
        let text = "run: cargo xtask fmt\nrun: |\n  cargo xtask sim --seeds 2\n  echo `cargo xtask doc` is\n";
        assert_eq!(commands(text), ["fmt", "sim --seeds 2", "doc"]);
    }

    #[test]
    fn every_command_of_the_workflows_can_be_typed() {
        let github = paths::root().join(".github");
        let mut count = 0;
        for place in ["workflows", "actions/setup/action.yml"] {
            for file in files(&github, place).unwrap() {
                for command in commands(&fs::read_to_string(&file).unwrap()) {
                    let words = ["xtask"].into_iter().chain(command.split_whitespace());
                    if let Err(error) = Cli::try_parse_from(words) {
                        panic!("{}: `cargo xtask {command}`: {error}", file.display());
                    }
                    count += 1;
                }
            }
        }
        assert!(count >= 20, "only {count} commands were found");
    }
}
