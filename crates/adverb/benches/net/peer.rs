//! The other process, with which lines are exchanged over pipes.

use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Outcome;

/// The process that this one started.
pub(crate) struct Peer {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn start(kind: &str, device: &str, work: &[String]) -> Outcome<Peer> {
        let program = std::env::current_exe()?;
        // On its own CPU, if one is named.
        let mut command = match std::env::var("PEER_CPU") {
            Ok(cpu) => {
                let mut command = Command::new("taskset");
                command.args(["-c", &cpu]).arg(program);
                command
            }
            Err(_) => Command::new(program),
        };
        let mut child = command
            .args(["serve", kind, device])
            .args(work)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        Ok(Peer { child, to, from })
    }

    pub(crate) fn send_line(&mut self, line: &str) -> Outcome {
        let to = self.to.as_mut().ok_or("the measurement has ended")?;
        Ok(to.write_all(format!("{line}\n").as_bytes())?)
    }

    pub(crate) fn receive_line(&mut self) -> Outcome<String> {
        read(&mut self.from)
    }

    /// Ends the measurement, and returns the last line of the other process.
    pub(crate) fn finish(mut self) -> Outcome<String> {
        drop(self.to.take());
        let last = self.receive_line();
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("the other process failed: {status}").into());
        }
        last
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process still runs only after a failure, so errors are ignored.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Sends a line to the process that started this one.
pub(crate) fn send_line(line: &str) {
    println!("{line}");
    _ = stdout().flush();
}

/// Reads a line of the process that started this one.
pub(crate) fn receive_line() -> Outcome<String> {
    read(&mut stdin().lock())
}

/// Waits until the process that started this one ends the measurement.
pub(crate) fn wait_for_finish() {
    _ = std::io::copy(&mut stdin().lock(), &mut std::io::sink());
}

fn read(from: &mut impl BufRead) -> Outcome<String> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err("the other process ended without a result".into());
    }
    Ok(line.trim_end().to_owned())
}
