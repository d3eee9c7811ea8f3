//! What is said when something can't be done, whatever the engine.

use crate::error::Error;
use crate::verbs::QpState;

/// How posting failed.
pub(crate) struct PostFailure {
    pub(crate) error: std::io::Error,
    /// How many requests were posted all the same; `None` if the device doesn't say, and any may have been.
    pub(crate) posted: Option<usize>,
}

impl PostFailure {
    /// How many of `count` requests weren't posted for sure.
    pub(crate) fn left_of(&self, count: usize) -> usize {
        count.saturating_sub(self.posted.unwrap_or(count))
    }
}

/// The error of who uses a queue pair that is no more.
#[cold]
pub(super) fn queue_pair_is_gone() -> Error {
    Error::WrongState {
        action: "using a queue pair",
        state: QpState::Error,
        hint: "it was destroyed, because requests in a scope didn't complete in time",
    }
}

/// The error of who waits for an event that can't come.
pub(super) fn queue_has_no_events() -> Error {
    Error::Unsupported {
        what: "waiting for an event of a completion queue that was made without".into(),
        hint: "call `events` when you make it".into(),
    }
}

/// The error of an object that would be made of others that don't go together.
pub(super) fn of_two_devices() -> Error {
    let reason = "a queue pair, its protection domain, its completion queues and its shared receive queue must be of one \
                  device, opened once";
    Error::InvalidRequest { reason: reason.into() }
}

#[cfg(not(feature = "ibv"))]
pub(super) fn no_engine() -> Error {
    let reason =
        "adverb was built without rdma-core: turn on its feature `ibv`, or `soft` for software devices";
    Error::NotInstalled { reason: reason.into() }
}
