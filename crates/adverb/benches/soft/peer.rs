//! The other process, and what is said between the two: a line each time, over pipes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use adverb::memory::RemoteMemory;
use adverb::verbs::Endpoint;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Outcome;

/// What the other process is to do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Plan {
    /// Show so many bytes, and sleep until it is over.
    Sleep(usize),
    /// Show so many bytes, and poll until it is over.
    Poll(usize),
    /// Send back so many messages.
    Echo(u32),
    /// Take messages on so many queue pairs, until it is over.
    Rate { queue_pairs: u32 },
}

/// What each side tells the other first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) memory: RemoteMemory,
}

/// The other process, as the first sees it.
pub(crate) struct Peer {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn start(plan: &Plan, device: &str) -> Outcome<Peer> {
        let program = std::env::current_exe()?;
        // On a processor of its own, if one is named.
        let mut command = match std::env::var("PEER_CPU") {
            Ok(cpu) => {
                let mut command = Command::new("taskset");
                command.args(["-c", &cpu]).arg(program);
                command
            }
            Err(_) => Command::new(program),
        };
        let mut child = command
            .args(["serve", &serde_json::to_string(plan)?, device])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        Ok(Peer { child, to, from })
    }

    pub(crate) fn tell(&mut self, what: &impl Serialize) -> Outcome {
        tell(self.to.as_mut().ok_or("it was dismissed")?, what)
    }

    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> Outcome<T> {
        hear(&mut self.from)
    }

    /// Says that it is over, and hears what the peer has to say of it.
    pub(crate) fn dismiss<T: DeserializeOwned>(mut self) -> Outcome<T> {
        drop(self.to.take());
        let last = self.hear();
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("the other process failed: {status}").into());
        }
        last
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It is there only if something went wrong before it was dismissed; and then nobody can be told.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

pub(crate) fn tell(to: &mut impl Write, what: &impl Serialize) -> Outcome {
    let line = serde_json::to_string(what)? + "\n";
    to.write_all(line.as_bytes())?;
    Ok(to.flush()?)
}

pub(crate) fn hear<T: DeserializeOwned>(from: &mut impl BufRead) -> Outcome<T> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err("the other process said nothing".into());
    }
    Ok(serde_json::from_str(&line)?)
}
