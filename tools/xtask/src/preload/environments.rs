//! Tests of `adverb run` with sanitizers and valgrind, in a directory with a space, and beside programs that have the
//! device's port.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use support::{packages, paths, process};

use super::check::KillOnDrop;
use super::programs::command;

/// Runs the program `loopback.c`, with the command `adverb` and the libraries in this directory.
pub(super) fn run(directory: &Path) -> Result<()> {
    let program = compile(directory, "cc", &[])?;
    for (compiler, sanitizer) in
        [("gcc", "address"), ("gcc", "thread"), ("clang", "address"), ("clang", "thread")]
    {
        let program = compile(directory, compiler, &["-g", &format!("-fsanitize={sanitizer}")])?;
        // Packets that are delayed are delivered by the device's thread.
        for delay in ["0", "5"] {
            let mut run = command(directory, &["--quiet", "--delay", delay], &[], &program)?;
            check_run(&mut run, &["child"], 2)?;
        }
        println!("{compiler} -fsanitize={sanitizer}: no reports");
    }
    let suppressions = format!("--suppressions={}", directory.join("valgrind.supp").display());
    for options in [&[][..], &["--leak-check=full", &suppressions], &["--tool=helgrind", &suppressions]] {
        let mut run = command(directory, &["--quiet"], &[], "valgrind")?;
        check_run(run.args(["-q", "--error-exitcode=9"]).args(options).arg(&program), &[], 1)?;
    }
    println!("valgrind --error-exitcode: no reports");

    let spaced = directory.join("with a space");
    fs::create_dir(&spaced)?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::hard_link(entry.path(), spaced.join(entry.file_name()))?;
        }
    }
    check_run(&mut command(&spaced, &["--quiet"], &[], &program)?, &["child"], 2)?;
    println!("libraries in a directory with a space: the programs ran");
    if packages::is_root() {
        other_users(directory, &program)?;
    } else {
        println!("programs of two users: skipped, because only root can start them");
    }
    Ok(())
}

/// Compiles the program and returns its path.
fn compile(directory: &Path, compiler: &str, options: &[&str]) -> Result<String> {
    let program = directory.join(format!("loopback-{compiler}{}", options.concat()));
    let source = paths::root().join("tools/xtask/src/preload/loopback.c");
    let mut cc = Command::new(compiler);
    cc.args(["-Wall", "-Werror", "-pthread", "-o"]).arg(&program).args(options).arg(source).arg("-libverbs");
    process::run(&mut cc)?;
    Ok(program.to_str().context("the directory's name isn't UTF-8")?.to_owned())
}

/// Runs the program, and checks that it succeeds without a message and prints the GIDs of as many processes.
fn check_run(run: &mut Command, arguments: &[&str], processes: usize) -> Result<()> {
    let (gids, errors) = output(run.args(arguments))?;
    ensure!(gids.len() == processes && errors.is_empty(), "{run:?} wrote {gids:?} and\n{errors}");
    Ok(())
}

/// Returns the lines that a successful program writes to the standard output, and the text that it writes to the standard
/// error.
fn output(run: &mut Command) -> Result<(Vec<String>, String)> {
    let output = run.stdin(Stdio::null()).output()?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{run:?} failed with {}:\n{errors}", output.status);
    let lines = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    Ok((lines, errors))
}

/// Runs the program beside other programs that have the device's port, in a network namespace of its own, so that the
/// default address is free.
fn other_users(directory: &Path, program: &str) -> Result<()> {
    let namespace = Namespace::create()?;
    let run = |user| {
        let mut run = namespace.command(user, &directory.join("adverb"));
        run.args(["run", "--quiet", "--libraries"]).arg(directory).args(["--", program]);
        run
    };
    let (default, own) = ("::ffff:127.0.0.1", "::ffff:127.128.255.254");
    let (gids, errors) = output(run(USER).arg("child"))?;
    ensure!(gids == [default; 2] && errors.is_empty(), "a device alone is at {gids:?}: {errors}");

    let other = Holder::start(run(OTHER_USER).arg("hold"), default)?;
    let (gids, errors) = output(run(USER).arg("child"))?;
    ensure!(gids == [own; 2], "beside another user, the devices are at {gids:?}");
    let message =
        "adverb: UDP port 4791 of 127.0.0.1 is used by user 65533, so the device is at 127.128.255.254\n";
    ensure!(errors == message, "the processes wrote\n{errors}");

    let first = Holder::start(run(USER).arg("hold"), own)?;
    drop(other);
    let (gids, _) = output(&mut run(USER))?;
    ensure!(gids == [own], "the device moved to {gids:?} from the user's other processes");
    drop(first);

    let socket = Holder::start(namespace.command(OTHER_USER, Path::new(program)).arg("bind"), "bound")?;
    let (gids, errors) = output(&mut run(USER))?;
    ensure!(gids.len() == 1 && gids[0].starts_with("100::"), "beside a socket, the device is at {gids:?}");
    let message = "so the device is at 127.0.0.1, UDP port 4792, where only Adverb's devices reach it\n";
    ensure!(errors.ends_with(message), "the process wrote\n{errors}");
    drop(socket);
    println!("programs of two users, and a socket at the device's port: the devices say where they are");
    Ok(())
}

/// A process that runs until its standard input ends.
struct Holder(KillOnDrop);

impl Holder {
    /// Starts a process, and waits until it has written a line.
    fn start(command: &mut Command, line: &str) -> Result<Holder> {
        let mut holder = KillOnDrop(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        let mut written = String::new();
        BufReader::new(holder.0.stdout.take().context("its output")?).read_line(&mut written)?;
        ensure!(written.trim_end() == line, "{command:?} wrote {written:?}");
        Ok(Holder(holder))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // `adverb run` has a child, which a signal wouldn't reach.
        drop(self.0.0.stdin.take());
        _ = self.0.0.wait();
    }
}

/// A network namespace, which is deleted when this is dropped.
struct Namespace(String);

impl Namespace {
    fn create() -> Result<Namespace> {
        let namespace = Namespace(format!("adverb-preload-{}", std::process::id()));
        process::output(Command::new("ip").args(["netns", "add", &namespace.0]))?;
        process::output(Command::new("ip").args(["-n", &namespace.0, "link", "set", "lo", "up"]))?;
        Ok(namespace)
    }

    /// Returns a command that runs a program in the namespace, as a user and with a time limit.
    fn command(&self, user: u32, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, "setpriv", &format!("--reuid={user}"), "--clear-groups"]);
        command.args(["timeout", "100"]).arg(program).env_remove("ADVERB_DEVICE");
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

/// The user of the programs.
const USER: u32 = 65_534;

/// Another user.
const OTHER_USER: u32 = 65_533;
