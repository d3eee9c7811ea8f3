//! Paths: the clone, and the cache outside it.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Returns the root of the clone that this tool was started for.
pub fn root() -> PathBuf {
    // Clones that share a target directory share executables too, so the compiled-in path may be another clone's. Cargo
    // sets the variable for the programs that it runs.
    let manifest = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let root = manifest.as_deref().and_then(root_above);
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.or_else(|| root_above(compiled)).unwrap_or(compiled).to_path_buf()
}

/// Returns the root of the clone that a tool's package is in; `None` for another directory.
fn root_above(package: &Path) -> Option<&Path> {
    package.parent().filter(|tools| tools.ends_with("tools"))?.parent()
}

/// Returns the directory of the cache, which all clones share: `$ADVERB_CACHE`, else `$XDG_CACHE_HOME/adverb`, else
/// `~/.cache/adverb`. The cache holds downloads and slow builds.
///
/// # Errors
///
/// Returns an error if none of the variables is an absolute path.
pub fn cache() -> Result<PathBuf> {
    choose_cache(|name| env::var_os(name).map(PathBuf::from))
        .context("cannot choose a cache directory: set ADVERB_CACHE to an absolute path")
}

/// Chooses the directory for [`cache`], given the environment. A relative path counts as unset, because it would mean
/// another directory in every working directory.
fn choose_cache(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |name| variable(name).filter(|path| path.is_absolute());
    absolute("ADVERB_CACHE")
        .or_else(|| absolute("XDG_CACHE_HOME").map(|dir| dir.join("adverb")))
        .or_else(|| absolute("HOME").map(|dir| dir.join(".cache/adverb")))
}

/// Returns the directory in which `cargo xtask setup` installs cargo tools.
///
/// # Errors
///
/// Returns an error if there is no [`cache`].
pub fn tools() -> Result<PathBuf> {
    Ok(cache()?.join("tools"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_above_the_directory_of_tools() {
        assert_eq!(root_above(Path::new("/a/tools/xtask")), Some(Path::new("/a")));
        assert_eq!(root_above(Path::new("/a/crates/adverb")), None);
        assert!(root().join("tools/support/Cargo.toml").is_file());
    }

    fn chosen(variables: &[(&str, &str)]) -> Option<PathBuf> {
        choose_cache(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_most_specific_cache_variable_wins() {
        let all = [("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("ADVERB_CACHE", "/a")];
        assert_eq!(chosen(&all), Some("/a".into()));
        assert_eq!(chosen(&all[..2]), Some("/x/adverb".into()));
        assert_eq!(chosen(&all[..1]), Some("/h/.cache/adverb".into()));
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn a_relative_cache_counts_as_unset() {
        assert_eq!(chosen(&[("ADVERB_CACHE", "a"), ("HOME", "/h")]), Some("/h/.cache/adverb".into()));
    }
}
