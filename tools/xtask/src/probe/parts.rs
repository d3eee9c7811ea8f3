//! Processes and network namespaces of measurements. Both end with the measurement.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use support::process;

/// A process, which is killed on drop.
pub(super) struct Process(Child);

/// The lines of a process's output.
pub(super) type Output = Lines<BufReader<ChildStdout>>;

impl Process {
    /// Starts a process whose output is read line by line.
    pub(super) fn start(command: &mut Command) -> Result<(Process, Output)> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Process(command.spawn().with_context(|| format!("could not start {name}"))?);
        let output = process.0.stdout.take().context("the process has no output")?;
        Ok((process, BufReader::new(output).lines()))
    }

    /// Starts `adverb respond --json`, and returns it when it answers probes.
    pub(super) fn respond(command: &mut Command) -> Result<Process> {
        let (responder, mut output) = Process::start(command)?;
        let line = output.next().context("`adverb respond` ended")??;
        let line: Value = serde_json::from_str(&line)?;
        ensure!(line["event"] == "listening", "`adverb respond` printed {line}");
        Ok(responder)
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Kills the process (SIGKILL).
    pub(super) fn kill(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already if this fails.
        _ = self.kill();
    }
}

/// Starts processes that each use all of a CPU.
pub(super) fn cpu_hogs(count: usize) -> Result<Vec<Process>> {
    let start = || Process::start(Command::new("sh").args(["-c", "while :; do :; done"]));
    (0..count).map(|_| start().map(|(process, _)| process)).collect()
}

/// A network namespace, which is deleted on drop.
pub(super) struct Namespace(String);

impl Namespace {
    /// Creates a namespace with a name of this process.
    pub(super) fn new(name: &str) -> Result<Namespace> {
        let namespace = Namespace(format!("adverb-probe-{name}-{}", std::process::id()));
        ip(&["netns", "add", &namespace.0]).context("network namespaces need root")?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Runs `ip ARGUMENTS…` in the namespace.
    pub(super) fn ip(&self, arguments: &[&str]) -> Result<()> {
        ip(&[&["-n", &self.0], arguments].concat())
    }

    /// Connects this namespace with another: each end is an interface, and its address if it has one.
    pub(super) fn connect(
        &self,
        end: Interface<'_>,
        other: &Namespace,
        other_end: Interface<'_>,
    ) -> Result<()> {
        let peer = ["peer", "name", other_end.name, "netns", &other.0];
        self.ip(&[&["link", "add", end.name, "type", "veth"], peer.as_slice()].concat())?;
        for (namespace, end) in [(self, end), (other, other_end)] {
            if let Some(address) = end.address {
                namespace.ip(&["address", "add", address, "dev", end.name])?;
            }
            namespace.ip(&["link", "set", end.name, "up"])?;
        }
        Ok(())
    }

    /// Returns a command that runs a program in the namespace. The process is the program's, not that of `ip`.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, program]);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        _ = ip(&["netns", "delete", &self.0]);
    }
}

/// One end of a link between namespaces.
#[derive(Clone, Copy)]
pub(super) struct Interface<'a> {
    pub(super) name: &'a str,
    /// The address, with the length of its prefix.
    pub(super) address: Option<&'a str>,
}

fn ip(arguments: &[&str]) -> Result<()> {
    process::output(Command::new("ip").args(arguments)).map(drop)
}
