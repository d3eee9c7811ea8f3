//! `cargo xtask workflows`: the files in `.github` and `action.yml`, validated against their schemas.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use support::{paths, process};

/// The schemas of check-jsonschema, and the directories or files in `.github` that they apply to.
const SCHEMAS: &[(&str, &str)] = &[
    ("vendor.github-workflows", "workflows"),
    ("custom.github-workflows-require-timeout", "workflows"),
    ("vendor.github-actions", "actions/setup/action.yml"),
    ("vendor.github-actions", "../action.yml"),
    ("vendor.github-issue-config", "ISSUE_TEMPLATE/config.yml"),
    ("vendor.github-issue-forms", "ISSUE_TEMPLATE"),
    ("vendor.dependabot", "dependabot.yml"),
];

/// The directory of the files for Kubernetes.
const KUBERNETES: &str = "docs/operate/kubernetes";

/// Validates the files. Unit tests check that their `cargo xtask` commands exist, and, in adverb-cli, those of `adverb`.
pub(crate) fn run() -> Result<()> {
    github()?;
    kubernetes()
}

/// Validates the files for Kubernetes against the schemas of the version that kubernetes-validate contains.
fn kubernetes() -> Result<()> {
    let Some(validate) = process::find("kubernetes-validate") else {
        println!(
            "workflows: the files for Kubernetes are SKIPPED, because kubernetes-validate is not installed (`cargo xtask \
             setup`)"
        );
        return Ok(());
    };
    let mut files = fs::read_dir(paths::root().join(KUBERNETES))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    ensure!(!files.is_empty(), "{KUBERNETES} has no files");
    process::run(Command::new(validate).args(["--strict", "--quiet"]).args(files))
}

fn github() -> Result<()> {
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
    use crate::ci::JOBS;

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
    fn the_matrix_has_the_jobs_of_ci() {
        let workflow = fs::read_to_string(paths::root().join(".github/workflows/ci.yml")).unwrap();
        let rows = workflow.lines().filter_map(|line| line.trim().strip_prefix("- job: "));
        assert!(rows.eq(JOBS.iter().map(|job| job.name)), "{workflow}");
    }

    #[test]
    fn every_command_of_the_workflows_can_be_typed() {
        let github = paths::root().join(".github");
        let mut count = 0;
        for place in ["workflows", "actions/setup/action.yml"] {
            for file in files(&github, place).unwrap() {
                let text = fs::read_to_string(&file).unwrap().replace("${{ matrix.job }}", JOBS[0].name);
                for command in commands(&text) {
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

    /// The owner of a tag can move it to other code, which would run with the permissions of the job.
    #[test]
    fn actions_of_others_are_named_by_their_commits() {
        let github = paths::root().join(".github");
        let mut count = 0;
        for file in
            ["workflows", "actions/setup/action.yml"].map(|place| files(&github, place).unwrap()).concat()
        {
            let text = fs::read_to_string(&file).unwrap();
            let actions =
                text.lines().filter_map(|line| line.trim_start_matches([' ', '-']).strip_prefix("uses: "));
            for action in actions.filter(|action| !action.starts_with("./")) {
                let version = action.split_once('@').and_then(|(_, version)| version.split_once(" # v"));
                let is_commit =
                    |commit: &str| commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit());
                assert!(version.is_some_and(|(commit, _)| is_commit(commit)), "{}: {action}", file.display());
                count += 1;
            }
        }
        assert!(count >= 20, "only {count} actions were found");
    }

    /// A run on the main branch can write any cache, also one whose programs this workflow would run.
    #[test]
    fn published_builds_use_no_caches() {
        for workflow in ["release.yml", "site.yml"] {
            let text = fs::read_to_string(paths::root().join(".github/workflows").join(workflow)).unwrap();
            assert!(!text.contains("actions/cache@"), "{workflow}");
            for setup in text.split("./.github/actions/setup\n").skip(1) {
                let inputs = setup.split("\n      - ").next().unwrap_or_default();
                assert!(inputs.contains("restore: \"false\""), "{workflow}: {inputs}");
            }
        }
    }
}
