//! What is said when something can't be done, whatever the engine.

use adverb_proto::types::QpState;

use crate::error::{Error, Result};

/// How posting failed.
pub(crate) struct PostFailure {
    pub(crate) error: std::io::Error,
    /// How many requests were posted all the same; `None` if the device doesn't say, and any may have been.
    pub(crate) posted: Option<usize>,
}

impl PostFailure {
    /// How many of `count` requests weren't posted for sure.
    pub(crate) fn unposted_count(&self, count: usize) -> usize {
        count.saturating_sub(self.posted.unwrap_or(count))
    }
}

/// The error of who uses a queue pair that is no more.
#[cold]
pub(super) fn queue_pair_destroyed() -> Error {
    Error::WrongState {
        action: "using a queue pair",
        state: QpState::Error,
        hint: "create a new queue pair: this one was destroyed because requests in a scope did not complete in time",
    }
}

/// The error of who waits for an event that can't come.
pub(super) fn no_event_channel() -> Error {
    Error::Unsupported {
        feature: "waiting for events of a completion queue without an event channel".into(),
        hint: "call `events` when creating the completion queue".into(),
    }
}

/// The error of an object that would be made of others that don't go together.
pub(super) fn device_mismatch() -> Error {
    let reason = "a queue pair, its protection domain, its completion queues and its shared receive queue must belong to \
                  the same open device";
    Error::InvalidRequest { reason: reason.into() }
}

#[cfg(not(feature = "ibv"))]
pub(super) fn no_engine() -> Error {
    Error::NotInstalled {
        reason: "adverb was built without support for rdma-core".into(),
        hint: "enable its feature `ibv`, or `soft` for software devices".into(),
    }
}

/// Fails once if the thread's test has asked that an object of this kind can't be destroyed.
#[inline]
pub(super) fn check_injected(_object: &str) -> Result<()> {
    #[cfg(test)]
    if FAILING_DESTROY.get() == Some(_object) {
        FAILING_DESTROY.set(None);
        let (action, error) = (format!("destroying a {_object}"), std::io::ErrorKind::ResourceBusy.into());
        return Err(Error::Verb { action, error, hint: "".into() });
    }
    Ok(())
}

#[cfg(test)]
thread_local! {
    static FAILING_DESTROY: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// Runs `work`, during which the first object of this kind that this thread destroys can't be.
#[cfg(all(test, feature = "soft", not(loom)))]
pub(crate) fn with_destroy_failure<T>(object: &'static str, work: impl FnOnce() -> T) -> T {
    FAILING_DESTROY.set(Some(object));
    let result = work();
    FAILING_DESTROY.set(None);
    result
}
