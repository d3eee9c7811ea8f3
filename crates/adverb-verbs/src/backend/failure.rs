//! Errors of both backends.

use std::io;
use std::num::NonZeroI32;

use adverb_proto::types::QpState;

use crate::error::{Error, Result};

/// The error number of a driver that rejected a request, or [`FOREIGN_LIST`]. It isn't converted, so that posting to
/// hardware needs only one comparison. The list of requests records which request was rejected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostErrno(NonZeroI32);

/// The number for a list that was posted to a queue of another kind of device.
const FOREIGN_LIST: NonZeroI32 = NonZeroI32::MAX;

impl PostErrno {
    /// Converts the result of posting: 0, or an error number of any sign.
    #[inline(always)]
    pub(super) fn check(code: libc::c_int) -> std::result::Result<(), PostErrno> {
        NonZeroI32::new(code).map_or(Ok(()), |code| Err(PostErrno(code)))
    }

    /// Returns the error of posting a list to a queue of another device's kind.
    #[cold]
    pub(super) fn foreign_list() -> PostErrno {
        PostErrno(FOREIGN_LIST)
    }

    /// Returns the error.
    pub(super) fn error(self) -> io::Error {
        match self.0 {
            FOREIGN_LIST => io::Error::new(
                io::ErrorKind::InvalidInput,
                "the list was created by a queue of another kind of device",
            ),
            code => io::Error::from_raw_os_error(code.get().saturating_abs()),
        }
    }
}

/// A failure to post requests.
pub(crate) struct PostFailure {
    pub(crate) error: io::Error,
    /// The number of requests that were posted before the failure. `None` means that the device doesn't report it: any
    /// number may have been posted.
    pub(crate) posted_count: Option<usize>,
}

impl PostFailure {
    /// Returns the failure of posting one request or a list, which knows how many requests were posted.
    #[cold]
    pub(crate) fn new(errno: PostErrno, posted_count: Option<usize>) -> PostFailure {
        let posted_count = if errno.0 == FOREIGN_LIST { Some(0) } else { posted_count };
        PostFailure { error: errno.error(), posted_count }
    }

    /// Returns the number of requests, out of `count`, that certainly weren't posted.
    pub(crate) fn unposted_count(&self, count: usize) -> usize {
        count.saturating_sub(self.posted_count.unwrap_or(count))
    }
}

/// Returns the error of using a destroyed queue pair.
#[cold]
pub(super) fn queue_pair_destroyed() -> Error {
    let action = "using a queue pair that was destroyed because requests in a scope did not complete in time";
    Error::WrongState { action, state: QpState::Error }
}

/// Returns the error of waiting for an event of a queue without an event channel.
pub(super) fn no_event_channel() -> Error {
    let reason = "the completion queue has no event channel: call `events` when creating it";
    Error::InvalidRequest { reason: reason.into() }
}

/// Returns the error of creating an object from objects of different devices.
pub(super) fn device_mismatch() -> Error {
    let reason = "a queue pair, its protection domain, its completion queues and its shared receive queue must belong to \
                  the same open device";
    Error::InvalidRequest { reason: reason.into() }
}

#[cfg(not(feature = "ibv"))]
pub(super) fn no_backend() -> Error {
    Error::NotInstalled { source: "adverb was built without support for rdma-core".into() }
}

/// Returns an error once, if a test of this thread injected a failure to destroy an object of this kind.
#[inline]
pub(super) fn check_injected(_object: &str) -> Result<()> {
    #[cfg(test)]
    if FAILING_DESTROY.get() == Some(_object) {
        FAILING_DESTROY.set(None);
        let action = format!("destroying a {_object}");
        return Err(crate::error::call_failed(
            adverb_proto::explain::Call::Destroy,
            action,
            io::ErrorKind::ResourceBusy.into(),
        ));
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
