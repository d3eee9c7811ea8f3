//! `cargo xtask spelling`: spelling of sources and texts, and the length of commit subjects.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use support::{paths, process};

/// The commit after which every subject is checked. Earlier ones are part of the history.
const BASE: &str = "09a535c0bd76d1242bc7a13e9ebf1d0177bf2630";

/// The maximum number of characters of a commit subject.
const MAX_SUBJECT_LEN: usize = 72;

/// Checks the subjects of commits, then all tracked texts against typos' list of misspellings. `typos.toml` lists
/// exceptions.
pub(crate) fn run() -> Result<()> {
    check_subjects(&paths::root(), BASE)?;
    let Some(typos) = process::find("typos") else {
        println!("spelling: SKIPPED, because typos is not installed (`cargo xtask setup`)");
        return Ok(());
    };
    process::run(Command::new(typos).args(["--format", "brief"]).current_dir(paths::root()))
}

/// Checks the subjects of the commits after `base` in a clone, if it contains that commit. Subjects of merge commits are
/// written by programs.
fn check_subjects(clone: &Path, base: &str) -> Result<()> {
    if process::text(git(clone).args(["merge-base", "--is-ancestor", base, "HEAD"])).is_err() {
        println!("subjects of commits: SKIPPED, because the clone does not contain the base commit {base}");
        return Ok(());
    }
    let range = format!("{base}..HEAD");
    let log = process::text(git(clone).args(["log", "--no-merges", "--format=%h %s", &range]))?;
    let too_long: Vec<&str> = log.lines().filter(|line| is_too_long(line)).collect();
    ensure!(
        too_long.is_empty(),
        "these commit subjects have more than {MAX_SUBJECT_LEN} characters:\n{}",
        too_long.join("\n")
    );
    println!("subjects of commits: {} checked", log.lines().count());
    Ok(())
}

/// Whether the subject in a line with a hash and a subject is too long.
fn is_too_long(line: &str) -> bool {
    line.split_once(' ').is_some_and(|(_, subject)| subject.chars().count() > MAX_SUBJECT_LEN)
}

fn git(clone: &Path) -> Command {
    let mut git = Command::new("git");
    git.current_dir(clone);
    git
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use super::*;

    #[test]
    fn subjects_after_the_base_have_at_most_72_characters() {
        let clone = env::temp_dir().join(format!("adverb-subjects-{}", process::id()));
        fs::create_dir_all(&clone).unwrap();
        let run = |arguments: &[&str]| {
            let mut git = git(&clone);
            let git = git.args(["-c", "user.name=a", "-c", "user.email=a@b"]).args(arguments);
            support::process::text(git).unwrap().trim().to_owned()
        };
        let commit = |length| _ = run(&["commit", "-q", "--allow-empty", "-m", &"ä".repeat(length)]);
        run(&["init", "-q"]);
        commit(73);
        let base = run(&["rev-parse", "HEAD"]);
        commit(72);
        check_subjects(&clone, &base).unwrap();
        commit(73);
        let error = check_subjects(&clone, &base).unwrap_err();
        assert!(error.to_string().contains(&run(&["log", "-1", "--format=%h %s"])), "{error}");
        // A shallow clone doesn't contain the base.
        check_subjects(&clone, BASE).unwrap();
        fs::remove_dir_all(&clone).unwrap();
    }
}
