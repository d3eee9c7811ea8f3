//! The process of a program.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;

use anyhow::{Context, Result};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// A running program.
pub(super) struct Program(Pid);

impl Program {
    /// Starts a program, which blocks the signals in `mask`. The standard library would let it block the signals of this
    /// command.
    pub(super) fn start(
        command: &[OsString],
        variables: Vec<(&'static str, OsString)>,
        mask: &SigSet,
    ) -> Result<Program> {
        let mut attributes = PosixSpawnAttr::init()?;
        attributes.set_sigmask(mask)?;
        // Rust's runtime ignores this signal.
        let mut default = SigSet::empty();
        default.add(Signal::SIGPIPE);
        attributes.set_sigdefault(&default)?;
        let flags = PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF;
        attributes.set_flags(flags)?;
        let arguments = command.iter().cloned().map(c_string).collect::<Result<Vec<_>>>()?;
        let name = arguments.first().context("no program is given")?;
        let changes = variables.into_iter().map(|(name, value)| (OsString::from(name), value));
        let variables: BTreeMap<OsString, OsString> = env::vars_os().chain(changes).collect();
        let environment = variables.into_iter().map(|(mut variable, value)| {
            variable.push("=");
            variable.push(value);
            c_string(variable)
        });
        let environment = environment.collect::<Result<Vec<_>>>()?;
        let actions = PosixSpawnFileActions::init()?;
        let pid = posix_spawnp(name, &actions, &attributes, &arguments, &environment)
            .with_context(|| format!("starting {} failed", name.to_string_lossy()))?;
        Ok(Program(pid))
    }

    /// Returns the program's exit status if it has ended.
    pub(super) fn try_wait(&self) -> Result<Option<u8>> {
        Ok(status(waitpid(self.0, Some(WaitPidFlag::WNOHANG))?))
    }

    /// Sends SIGTERM to the program, and waits until it ends. Returns its exit status.
    pub(super) fn terminate(&self) -> Result<u8> {
        // If the program has ended, there is nothing to signal.
        _ = kill(self.0, Signal::SIGTERM);
        self.wait()
    }

    /// Waits until the program ends, and returns its exit status.
    pub(super) fn wait(&self) -> Result<u8> {
        loop {
            if let Some(status) = status(waitpid(self.0, None)?) {
                return Ok(status);
            }
        }
    }
}

/// Returns the exit status of a program that has ended. Shells add 128 to the number of a signal.
fn status(status: WaitStatus) -> Option<u8> {
    let code = match status {
        WaitStatus::Exited(_, code) => code,
        WaitStatus::Signaled(_, signal, _) => 128 + signal as i32,
        _ => return None,
    };
    Some(u8::try_from(code).unwrap_or(1))
}

fn c_string(text: OsString) -> Result<CString> {
    CString::new(text.into_vec()).context("a program's arguments can't contain zero bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(command: [&str; 3], mask: &SigSet) -> u8 {
        let command = command.map(OsString::from);
        let program = Program::start(&command, vec![("ADVERB_TEST", "a b".into())], mask).unwrap();
        status(waitpid(program.0, None).unwrap()).unwrap()
    }

    #[test]
    fn the_status_is_the_programs_or_128_and_its_signal() {
        let run = |script| run(["sh", "-c", script], &SigSet::empty());
        assert_eq!(run("exit 3"), 3);
        assert_eq!(run("kill -9 $$"), 137);
        assert_eq!(run("test \"$ADVERB_TEST\" = 'a b' && test -n \"$PATH\""), 0);
    }

    #[test]
    fn the_program_blocks_only_the_signals_of_the_mask() {
        let mut mask = SigSet::empty();
        assert_eq!(run(["grep", "SigBlk:.*0000$", "/proc/self/status"], &mask), 0);
        mask.add(Signal::SIGTERM);
        assert_eq!(run(["grep", "SigBlk:.*4000$", "/proc/self/status"], &mask), 0);
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = Program::start(&["no-such-program".into()], Vec::new(), &SigSet::empty()).err().unwrap();
        assert_eq!(
            format!("{error:#}"),
            "starting no-such-program failed: ENOENT: No such file or directory"
        );
    }
}
