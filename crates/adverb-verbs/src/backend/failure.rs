//! Errors of both engines.

use adverb_proto::types::QpState;

use crate::error::{Error, Result};

/// A failure to post requests.
pub(crate) struct PostFailure {
    pub(crate) error: std::io::Error,
    /// The number of requests that were posted before the failure. `None` means that the device doesn't report it: any
    /// number may have been posted.
    pub(crate) posted: Option<usize>,
}

impl PostFailure {
    /// Returns the number of requests, out of `count`, that certainly weren't posted.
    pub(crate) fn unposted_count(&self, count: usize) -> usize {
        count.saturating_sub(self.posted.unwrap_or(count))
    }
}

/// Returns the error of using a destroyed queue pair.
#[cold]
pub(super) fn queue_pair_destroyed() -> Error {
    Error::WrongState {
        action: "using a queue pair",
        state: QpState::Error,
        hint: "create a new queue pair: this one was destroyed because requests in a scope did not complete in time",
    }
}

/// Returns the error of waiting for an event of a queue without an event channel.
pub(super) fn no_event_channel() -> Error {
    Error::Unsupported {
        feature: "waiting for events of a completion queue without an event channel".into(),
        hint: "call `events` when creating the completion queue".into(),
    }
}

/// Returns the error of creating an object from objects of different devices.
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

/// Returns an error once, if a test of this thread injected a failure to destroy an object of this kind.
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

/// Runs `work`, during which destroying the first object of this kind on this thread fails.
#[cfg(all(test, feature = "soft", not(loom)))]
pub(crate) fn with_destroy_failure<T>(object: &'static str, work: impl FnOnce() -> T) -> T {
    FAILING_DESTROY.set(Some(object));
    let result = work();
    FAILING_DESTROY.set(None);
    result
}
