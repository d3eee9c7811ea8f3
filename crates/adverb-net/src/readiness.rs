//! Descriptors for which tasks of tokio wait.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// Returns a duplicate of the descriptor. A task can wait until it is readable.
pub(crate) fn readable_by_tasks(fd: BorrowedFd<'_>) -> io::Result<AsyncFd<OwnedFd>> {
    let fd = fd.try_clone_to_owned()?;
    // SAFETY: the `AsyncFd` owns the descriptor, so it stays open, and the same, as long as the registration exists.
    let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    registered.map_err(|error| error.into_parts().1)
}
