//! The other process, and what is said between the two: a line of JSON each time, over pipes.

// Of the bench `net`.
#[allow(dead_code, reason = "not all of it is used here")]
#[path = "../net/peer.rs"]
mod lines;

pub(crate) use lines::until_dismissed;

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

    /// Says that it is over, and hears what the peer has to say of it.
    pub(crate) fn dismiss<T: DeserializeOwned>(self) -> Outcome<T> {
        Ok(serde_json::from_str(&self.0.dismiss()?)?)
    }
}

/// Tells the process that started this one.
pub(crate) fn tell(what: &impl Serialize) -> Outcome {
    lines::tell(&serde_json::to_string(what)?);
    Ok(())
}

/// Hears from the process that started this one.
pub(crate) fn hear<T: DeserializeOwned>() -> Outcome<T> {
    Ok(serde_json::from_str(&lines::hear()?)?)
}
