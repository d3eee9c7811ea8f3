//! The other process, with which lines of JSON are exchanged over pipes.

// Shared with the bench `net`.
#[allow(dead_code, reason = "not all of it is used here")]
#[path = "../net/peer.rs"]
mod lines;

pub(crate) use lines::until_dismissed;

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

/// The first line of each side.
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

    pub(crate) fn tell(&mut self, what: &impl Serialize) -> Outcome {
        self.0.tell(&serde_json::to_string(what)?)
    }

    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> Outcome<T> {
        Ok(serde_json::from_str(&self.0.hear()?)?)
    }

    /// Ends the measurement, and returns the result of the other process.
    pub(crate) fn dismiss<T: DeserializeOwned>(self) -> Outcome<T> {
        Ok(serde_json::from_str(&self.0.dismiss()?)?)
    }
}

/// Sends a value to the process that started this one.
pub(crate) fn tell(what: &impl Serialize) -> Outcome {
    lines::tell(&serde_json::to_string(what)?);
    Ok(())
}

/// Reads a value from the process that started this one.
pub(crate) fn hear<T: DeserializeOwned>() -> Outcome<T> {
    Ok(serde_json::from_str(&lines::hear()?)?)
}
