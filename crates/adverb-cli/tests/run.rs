//! The signals of a program under `adverb run`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn a_signal_for_the_command_ends_the_program() {
    let libraries = std::env::temp_dir().join(format!("adverb-run-signal-{}", std::process::id()));
    fs::create_dir(&libraries).unwrap();
    // The program isn't built against libibverbs.
    fs::write(libraries.join("libibverbs.so.1"), "").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.args(["run", "--quiet", "--libraries"]).arg(&libraries);
    command.args(["--", "sh", "-c", "echo started; exec sleep 60"]);
    let mut run = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    kill(Pid::from_raw(run.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    let status = run.wait().unwrap();
    fs::remove_dir_all(&libraries).unwrap();
    // The status of a program that SIGTERM ended. A program that blocks it ends later with status 0.
    assert_eq!(status.code(), Some(128 + 15), "{status:?}");
}
