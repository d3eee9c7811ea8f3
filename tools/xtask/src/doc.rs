//! `cargo xtask doc`: documentation, as docs.rs builds it.

mod examples;

use std::collections::HashSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use support::{paths, process};

use crate::metadata;

/// Builds the documentation of every crate; a broken link, a missing doc comment, an example of `adverb` that names another
/// crate of the workspace, or a test that SECURITY.md names and that doesn't exist, is an error.
pub(crate) fn run() -> Result<()> {
    check_test_names()?;
    // docs.rs sets `docsrs`, which enables an unstable rustdoc feature: items are marked with the cargo features they
    // need.
    let documentation = metadata::target_directory()?.join("doc");
    let pages = documentation.join("adverb");
    if pages.exists() {
        // Otherwise pages of items that no longer exist would be checked, too.
        fs::remove_dir_all(&pages)?;
    }
    let mut cargo = process::cargo("doc --workspace --no-deps --all-features");
    cargo.env("RUSTDOC", unstable_rustdoc()?).env("RUSTDOCFLAGS", "-D warnings --cfg docsrs");
    process::run(&mut cargo)?;
    examples::check(&documentation)
}

/// Writes a script that starts rustdoc with unstable features enabled, and returns its path. If all commands had the
/// variable, then build scripts would run again and crates be compiled again.
fn unstable_rustdoc() -> Result<PathBuf> {
    let cache = paths::cache()?;
    fs::create_dir_all(&cache)?;
    let (script, unfinished) = (cache.join("unstable-rustdoc"), cache.join("unstable-rustdoc.new"));
    fs::write(&unfinished, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
    fs::set_permissions(&unfinished, Permissions::from_mode(0o755))?;
    fs::rename(&unfinished, &script)?;
    Ok(script)
}

/// Checks that every test that SECURITY.md names exists. A test may be renamed.
fn check_test_names() -> Result<()> {
    let mut git = Command::new("git");
    git.args(["grep", "-hoE", "fn [a-z0-9_]+", "--", "*.rs"]).current_dir(paths::root());
    let functions = process::text(&mut git)?;
    let functions: HashSet<&str> = functions.lines().filter_map(|line| line.strip_prefix("fn ")).collect();
    let text = fs::read_to_string(paths::root().join("SECURITY.md"))?;
    let missing: Vec<&str> = test_names(&text).filter(|name| !functions.contains(name)).collect();
    ensure!(missing.is_empty(), "SECURITY.md names tests that don't exist: {}", missing.join(", "));
    Ok(())
}

/// Returns the names of tests in a text: words in backticks with at least three underscores, unlike functions of C and
/// Rust that texts name.
fn test_names(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |word: &&str| {
        word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            && word.bytes().filter(|byte| *byte == b'_').count() >= 3
    };
    text.split('`').skip(1).step_by(2).filter(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_names_are_words_in_backticks_with_three_underscores() {
        let text =
            "See `a_flood_affects_nothing` and `ibv_post_send`; not_in_any_backticks, `Not_a_test_name`.";
        assert_eq!(test_names(text).collect::<Vec<_>>(), ["a_flood_affects_nothing"]);
    }
}
