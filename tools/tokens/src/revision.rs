//! Files of a revision, from git.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};
use support::{paths, process};

use crate::renames::Renames;

/// The files that differ between two revisions.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// The Rust files, in the order of their new paths.
    pub(crate) rust: Vec<Change>,
    /// The paths of all other files.
    pub(crate) others: Vec<String>,
}

/// A Rust file that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A file in both revisions, possibly with different paths.
    Both { old: String, new: String },
    /// A file that exists only in the new revision.
    Added(String),
    /// A file that exists only in the old revision.
    Removed(String),
}

impl Change {
    fn path(&self) -> &str {
        match self {
            Change::Both { new, .. } => new,
            Change::Added(path) | Change::Removed(path) => path,
        }
    }
}

/// Returns the files that differ. Without a new revision, the new version is the working tree.
pub(crate) fn changes(old: &str, new: Option<&str>, renames: &Renames) -> Result<Changes> {
    let mut diff = git();
    diff.args(["diff", "--name-status", "-z", "--find-renames=40%", old]).args(new).arg("--");
    let mut status = process::text(&mut diff)?;
    if new.is_none() {
        let untracked = process::text(git().args(["ls-files", "--others", "--exclude-standard", "-z"]))?;
        untracked.split_terminator('\0').for_each(|path| status += &format!("A\0{path}\0"));
    }
    parse(&status, renames)
}

/// Returns the text of a file in a revision, or in the working tree.
pub(crate) fn read(revision: Option<&str>, path: &str) -> Result<String> {
    match revision {
        Some(revision) => process::text(git().args(["show", &format!("{revision}:{path}")])),
        None => {
            fs::read_to_string(paths::root().join(path)).with_context(|| format!("could not read {path}"))
        }
    }
}

fn git() -> Command {
    let mut git = Command::new("git");
    git.current_dir(paths::root());
    git
}

/// Reads the output of `git diff --name-status -z`. The list of renames overrides git's guesses.
fn parse(status: &str, renames: &Renames) -> Result<Changes> {
    let mut fields = status.split_terminator('\0');
    let (mut removed, mut added) = (BTreeSet::new(), BTreeSet::new());
    let mut both = Vec::new();
    while let Some(kind) = fields.next() {
        let mut path = || fields.next().with_context(|| format!("git printed no path after `{kind}`"));
        match kind.as_bytes().first() {
            Some(b'M' | b'T') => {
                let path = path()?;
                both.push((path, path));
            }
            Some(b'A') => _ = added.insert(path()?),
            Some(b'D') => _ = removed.insert(path()?),
            Some(b'R') => both.push((path()?, path()?)),
            _ => bail!("git printed an unknown status `{kind}`"),
        }
    }
    let listed: BTreeSet<_> = removed.iter().chain(both.iter().map(|(old, _)| old)).copied().collect();
    for old in listed {
        let Some(new) = renames.file(old) else { continue };
        let guess = both.iter().position(|(from, to)| *from == old && *to != old);
        if let Some(guess) = guess.filter(|&guess| both[guess].1 != new) {
            let (old, new) = both.swap_remove(guess);
            removed.insert(old);
            added.insert(new);
        }
        let taken = both.iter().position(|(from, to)| *from != old && *to == new);
        if let Some(taken) = taken.filter(|_| removed.contains(old)) {
            let (old, new) = both.swap_remove(taken);
            removed.insert(old);
            added.insert(new);
        }
        if removed.contains(old)
            && let Some(new) = added.take(new)
        {
            removed.remove(old);
            both.push((old, new));
        }
    }
    let mut changes: Vec<_> =
        both.into_iter().map(|(old, new)| Change::Both { old: old.into(), new: new.into() }).collect();
    changes.extend(removed.into_iter().map(|path| Change::Removed(path.into())));
    changes.extend(added.into_iter().map(|path| Change::Added(path.into())));
    changes.sort_by(|a, b| a.path().cmp(b.path()));
    let (rust, others) = changes.into_iter().partition(|change: &Change| change.path().ends_with(".rs"));
    Ok(Changes { rust, others: others.iter().map(|change: &Change| change.path().to_owned()).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(old: &str, new: &str) -> Change {
        Change::Both { old: old.into(), new: new.into() }
    }

    #[test]
    fn changed_added_removed_and_renamed_files_are_listed() {
        let status = "M\0a.rs\0A\0b.rs\0D\0c.rs\0R090\0d.rs\0e.rs\0M\0f.md\0";
        let changes = parse(status, &Renames::default()).unwrap();
        let expected = [
            both("a.rs", "a.rs"),
            Change::Added("b.rs".into()),
            Change::Removed("c.rs".into()),
            both("d.rs", "e.rs"),
        ];
        assert_eq!(changes.rust, expected);
        assert_eq!(changes.others, ["f.md"]);
    }

    #[test]
    fn the_list_of_renames_overrides_gits_guess() {
        let renames = Renames::parse("file a.rs b.rs\nfile c.rs d.rs\n").unwrap();
        assert_eq!(parse("D\0a.rs\0A\0b.rs\0", &renames).unwrap().rust, [both("a.rs", "b.rs")]);
        let guess = "R050\0a.rs\0d.rs\0D\0c.rs\0A\0b.rs\0";
        assert_eq!(parse(guess, &renames).unwrap().rust, [both("a.rs", "b.rs"), both("c.rs", "d.rs")]);
        let crossed = "R050\0a.rs\0d.rs\0R050\0c.rs\0b.rs\0";
        assert_eq!(parse(crossed, &renames).unwrap().rust, [both("a.rs", "b.rs"), both("c.rs", "d.rs")]);
    }
}
