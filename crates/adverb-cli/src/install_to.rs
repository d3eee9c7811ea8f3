//! `adverb install-to`: copies the command and its libraries, for containers.
//!
//! The image of Adverb has no shell and no `cp`. An init container runs this command to put the files into a volume, from
//! which the containers of tests use them.

use std::env;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};

use anyhow::{Context, Result};

use crate::run;

/// The options of `adverb install-to`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command is copied to bin/adverb in the directory, and the libraries of
`adverb run` to lib/adverb, where it finds them. Files that exist are replaced.

  adverb install-to /opt/adverb
  /opt/adverb/bin/adverb run -- ib_send_bw -d adverb0 -x 0")]
pub(crate) struct Args {
    /// The directory, which need not exist.
    directory: PathBuf,
}

/// Copies the files and prints the path of the copied command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let command = env::current_exe().context("finding this command's file failed")?;
    let copy = install(&command, &run::libraries(None)?, &args.directory).with_context(|| {
        format!("copying the command and its libraries to {} failed", args.directory.display())
    })?;
    writeln!(io::stdout(), "{}", copy.display())?;
    Ok(ExitCode::SUCCESS)
}

/// Copies the command and the files of a directory of libraries, and returns the path of the copied command.
fn install(command: &Path, libraries: &Path, to: &Path) -> Result<PathBuf> {
    let bin = to.join("bin");
    let lib = to.join("lib/adverb");
    fs::create_dir_all(&bin)?;
    fs::create_dir_all(&lib)?;
    for entry in fs::read_dir(libraries)? {
        let entry = entry?;
        if entry.path().is_file() {
            replace(&entry.path(), &lib.join(entry.file_name()))?;
        }
    }
    let copy = bin.join("adverb");
    replace(command, &copy)?;
    Ok(copy)
}

/// Copies a file over another one, which processes may be using: they keep the old file.
fn replace(from: &Path, to: &Path) -> Result<()> {
    let mut name = to.file_name().context("the path has no file name")?.to_owned();
    name.push(format!(".{}", process::id()));
    let new = to.with_file_name(name);
    copy(from, &new)
        .and_then(|()| fs::rename(&new, to))
        .inspect_err(|_| _ = fs::remove_file(&new))
        .with_context(|| format!("writing {} failed", to.display()))
}

/// Copies a file to a new one, with its permissions. Only the owner may write the copy.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    // A container that was stopped has the same process ID when it starts again.
    _ = fs::remove_file(to);
    let mut from = File::open(from)?;
    let mode = from.metadata()?.mode() & 0o755;
    // Another user who can change the directory may have made a symbolic link to a file that only this user can change.
    let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    io::copy(&mut from, &mut new)?;
    new.set_permissions(Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_copied_again_with_their_permissions() {
        let scratch = env::temp_dir().join(format!("adverb-install-to-{}", process::id()));
        let (libraries, to) = (scratch.join("libraries"), scratch.join("a/b"));
        fs::create_dir_all(libraries.join("directory")).unwrap();
        let command = scratch.join("command");
        for version in ["1", "2"] {
            fs::write(libraries.join("libibverbs.so.1"), version).unwrap();
            fs::write(&command, version).unwrap();
            fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).unwrap();
            assert_eq!(install(&command, &libraries, &to).unwrap(), to.join("bin/adverb"));
            assert_eq!(fs::read_to_string(to.join("lib/adverb/libibverbs.so.1")).unwrap(), version);
            assert_eq!(fs::read_to_string(to.join("bin/adverb")).unwrap(), version);
        }
        let mode = fs::metadata(to.join("bin/adverb")).unwrap().permissions().mode();
        let names: Vec<_> =
            fs::read_dir(to.join("lib/adverb")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        fs::remove_dir_all(&scratch).unwrap();
        assert_eq!(mode & 0o777, 0o755);
        assert_eq!(names, ["libibverbs.so.1"]);
    }

    #[test]
    fn links_of_others_are_replaced_and_not_followed() {
        let scratch = env::temp_dir().join(format!("adverb-install-to-link-{}", process::id()));
        fs::create_dir(&scratch).unwrap();
        let [from, to, file] = ["from", "to", "file"].map(|name| scratch.join(name));
        fs::write(&from, "new").unwrap();
        fs::set_permissions(&from, Permissions::from_mode(0o4777)).unwrap();
        fs::write(&file, "other").unwrap();
        for name in ["to".to_owned(), format!("to.{}", process::id())] {
            std::os::unix::fs::symlink(&file, scratch.join(name)).unwrap();
        }
        replace(&from, &to).unwrap();
        let (text, kept) = (fs::read_to_string(&to).unwrap(), fs::read_to_string(&file).unwrap());
        let status = to.symlink_metadata().unwrap();
        fs::remove_dir_all(&scratch).unwrap();
        assert_eq!((text.as_str(), kept.as_str()), ("new", "other"));
        assert!(status.is_file() && status.mode() & 0o7777 == 0o755, "{status:?}");
    }

    #[test]
    fn an_error_names_the_file_and_leaves_no_part() {
        let scratch = env::temp_dir().join(format!("adverb-install-to-error-{}", process::id()));
        let (libraries, command) = (scratch.join("libraries"), scratch.join("command"));
        // A directory can't be replaced by a file.
        fs::create_dir_all(scratch.join("to/bin/adverb")).unwrap();
        fs::create_dir(&libraries).unwrap();
        fs::write(&command, "").unwrap();
        let error = format!("{:#}", install(&command, &libraries, &scratch.join("to")).unwrap_err());
        let entries = fs::read_dir(scratch.join("to/bin")).unwrap().count();
        fs::remove_dir_all(&scratch).unwrap();
        assert!(error.starts_with("writing ") && error.contains("/to/bin/adverb failed: "), "{error}");
        assert_eq!(entries, 1);
    }
}
