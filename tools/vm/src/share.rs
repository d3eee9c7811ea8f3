//! The directory that host and guest share.
//!
//! | file                | written by | holds                                                             |
//! |---------------------|------------|-------------------------------------------------------------------|
//! | `guest.sh`          | host       | the script that sets the guest up and runs the commands           |
//! | `settings`          | host       | variables of that script                                          |
//! | `N.command`         | host       | command N, counted from 0, as a shell script                      |
//! | `ready`             | guest      | the kernel's taint flags before the first command                 |
//! | `N.out`, `N.err`    | guest      | the output of command N, while it runs                            |
//! | `N.status`          | guest      | command N's exit status and the taint flags after it              |
//!
//! The exit status is not a part of the output, so no output can be mistaken for it. The guest mounts the directory
//! without a cache, so nothing is lost when QEMU is killed.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use support::process::quote;

use super::scratch::Scratch;

/// The variables that `guest.sh` reads.
pub(super) struct Settings<'a> {
    pub(super) mtu: u32,
    pub(super) cwd: &'a Path,
    pub(super) keep_going: bool,
    pub(super) out: bool,
}

/// The shared directory, in a scratch directory.
pub(super) struct Share {
    scratch: Scratch,
}

impl Share {
    /// Creates an empty shared directory.
    pub(super) fn create() -> Result<Self> {
        let share = Self { scratch: Scratch::create("run")? };
        fs::create_dir(share.path())
            .with_context(|| format!("could not create {}", share.path().display()))?;
        Ok(share)
    }

    /// Returns the directory that the guest sees.
    pub(super) fn path(&self) -> PathBuf {
        self.scratch.path().join("share")
    }

    /// Returns the path of a file next to the shared directory, for the host's own files.
    pub(super) fn host_file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Writes the files that the guest reads.
    pub(super) fn fill(&self, settings: &Settings<'_>, commands: &[String]) -> Result<()> {
        let Settings { mtu, cwd, keep_going, out } = settings;
        let flag = |set: bool| if set { "yes" } else { "" };
        let text = format!(
            "mtu={mtu}\ncwd={}\npath={}\ncount={}\nkeep_going={}\nout={}\n",
            quote(&cwd.to_string_lossy()),
            quote(&std::env::var("PATH").unwrap_or_default()),
            commands.len(),
            flag(*keep_going),
            flag(*out),
        );
        self.write("settings", &text)?;
        self.write("guest.sh", include_str!("guest.sh"))?;
        for (index, command) in commands.iter().enumerate() {
            self.write(&format!("{index}.command"), &format!("{command}\n"))?;
            // Created before the command starts, so that the host can open them at once.
            self.write(&format!("{index}.out"), "")?;
            self.write(&format!("{index}.err"), "")?;
        }
        Ok(())
    }

    /// Returns the taint flags before the first command; `None` while the guest boots.
    pub(super) fn ready(&self) -> Result<Option<u64>> {
        let Some(text) = self.read("ready")? else {
            return Ok(None);
        };
        Ok(Some(
            text.trim()
                .parse()
                .with_context(|| format!("the guest's file `ready` is malformed: {text:?}"))?,
        ))
    }

    /// Returns the result of command `index`; `None` while it runs.
    pub(super) fn finished(&self, index: usize) -> Result<Option<Finished>> {
        let Some(text) = self.read(&format!("{index}.status"))? else {
            return Ok(None);
        };
        let finished = Finished::parse(&text);
        Ok(Some(finished.with_context(|| format!("the guest's status file is malformed: {text:?}"))?))
    }

    /// Opens a file that the guest appends to.
    pub(super) fn follow(&self, name: &str) -> Result<Follower> {
        let path = self.path().join(name);
        let file = File::open(&path).with_context(|| format!("could not open {}", path.display()))?;
        Ok(Follower { file, buffer: vec![0; 64 << 10] })
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path().join(name);
        fs::write(&path, text).with_context(|| format!("could not write {}", path.display()))
    }

    fn read(&self, name: &str) -> Result<Option<String>> {
        let path = self.path().join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("could not read {}", path.display())),
        }
    }
}

/// The result of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Finished {
    /// Its exit status.
    pub(super) status: u8,
    /// The kernel's taint flags after it.
    pub(super) taint: u64,
}

impl Finished {
    fn parse(text: &str) -> Option<Self> {
        let (status, taint) = text.trim().split_once(' ')?;
        Some(Self { status: status.parse().ok()?, taint: taint.parse().ok()? })
    }
}

/// A reader of a file that the guest appends to.
pub(super) struct Follower {
    file: File,
    buffer: Vec<u8>,
}

impl Follower {
    /// Returns the next bytes appended since the last call; empty if there are none.
    pub(super) fn next(&mut self) -> std::io::Result<&[u8]> {
        let length = self.file.read(&mut self.buffer)?;
        Ok(&self.buffer[..length])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_file_is_two_numbers() {
        assert_eq!(Finished::parse("0 0\n"), Some(Finished { status: 0, taint: 0 }));
        assert_eq!(Finished::parse("255 12800\n"), Some(Finished { status: 255, taint: 12800 }));
        for bad in ["", "7", "7 ", "256 0", "-1 0", "seven 0", "7 0 0"] {
            assert_eq!(Finished::parse(bad), None, "{bad:?}");
        }
    }
}
