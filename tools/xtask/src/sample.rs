//! Parts of long tests: each commit runs one of them, so that together many commits run all.

use std::process::Command;

use support::{paths, process};

/// Returns which of `count` parts the current commit runs, and the commit's hash.
pub(crate) fn of_this_commit(count: u32) -> (u32, String) {
    let mut git = Command::new("git");
    let commit =
        process::text(git.args(["rev-parse", "HEAD"]).current_dir(paths::root())).unwrap_or_default();
    (part_of(&commit, count), commit.chars().take(10).collect())
}

fn part_of(commit: &str, count: u32) -> u32 {
    let number = commit.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    number.unwrap_or(0) % count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_has_a_part() {
        assert_eq!(part_of("0000000a1234", 10), 0);
        assert_eq!(part_of("ffffffff1234", 10), 5);
        assert_eq!(part_of("", 10), 0);
    }
}
