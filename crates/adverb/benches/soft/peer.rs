//! The other process, with which lines of JSON are exchanged over pipes.

// Shared with the bench `net`.
#[allow(dead_code, reason = "not all of it is used here")]
#[path = "../net/peer.rs"]
mod lines;

pub(crate) use lines::wait_for_finish;

use adverb::memory::RemoteMemory;
use adverb::verbs::Endpoint;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Outcome;

/// The task of the other process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Plan {
    /// Expose this number of bytes, and sleep until the end.
    Sleep(usize),
    /// Expose this number of bytes, and poll until the end.
    Poll(usize),
    /// Send this number of messages back.
    Echo(u32),
    /// Receive messages of `len` bytes on this number of queue pairs until the end, and record events meanwhile if
    /// `is_recorded` is set.
    Rate { queue_pairs: u32, len: usize, is_recorded: bool },
}

/// The endpoints and the memory of a side, which its first line contains.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) memory: RemoteMemory,
}

/// The process that this one started.
pub(crate) struct Peer(lines::Peer);

impl Peer {
    pub(crate) fn start(plan: &Plan, device: &str) -> Outcome<Peer> {
        Ok(Peer(lines::Peer::start(&serde_json::to_string(plan)?, device, &[])?))
    }

    pub(crate) fn send_line(&mut self, value: &impl Serialize) -> Outcome {
        self.0.send_line(&serde_json::to_string(value)?)
    }

    pub(crate) fn receive_line<T: DeserializeOwned>(&mut self) -> Outcome<T> {
        Ok(serde_json::from_str(&self.0.receive_line()?)?)
    }

    /// Ends the measurement, and returns the result of the other process.
    pub(crate) fn finish<T: DeserializeOwned>(self) -> Outcome<T> {
        Ok(serde_json::from_str(&self.0.finish()?)?)
    }
}

/// Sends a value to the process that started this one.
pub(crate) fn send_line(value: &impl Serialize) -> Outcome {
    lines::send_line(&serde_json::to_string(value)?);
    Ok(())
}

/// Reads a value from the process that started this one.
pub(crate) fn receive_line<T: DeserializeOwned>() -> Outcome<T> {
    Ok(serde_json::from_str(&lines::receive_line()?)?)
}
