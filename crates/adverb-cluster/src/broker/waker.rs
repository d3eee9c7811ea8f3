//! Waking the thread of a broker from other threads.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

/// A descriptor that becomes readable when another thread wakes the broker's thread.
#[derive(Debug)]
pub(crate) struct Waker {
    is_woken: AtomicBool,
    /// Whether the broker's thread may sleep, so that the descriptor must be written.
    is_armed: AtomicBool,
    sender: UnixStream,
    receiver: UnixStream,
}

impl Waker {
    pub(super) fn new() -> std::io::Result<Waker> {
        let (sender, receiver) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        receiver.set_nonblocking(true)?;
        Ok(Waker { is_woken: AtomicBool::new(false), is_armed: AtomicBool::new(false), sender, receiver })
    }

    /// Wakes the broker's thread if it sleeps. Otherwise, its next wait returns at once.
    pub(crate) fn wake(&self) {
        // With `SeqCst`, either this thread sees that the waker is armed, or the thread that arms it sees `is_woken`.
        self.is_woken.store(true, Ordering::SeqCst);
        if self.is_armed.swap(false, Ordering::SeqCst) {
            // If the socket is full, the thread is woken by an earlier byte.
            let _ = (&self.sender).write(&[0]);
        }
    }

    /// Prepares to sleep. The caller must call [`take`](Waker::take) afterwards, before it sleeps.
    pub(super) fn arm(&self) {
        // A byte may have been written after the wake-up that it belongs to was noticed.
        while (&self.receiver).read(&mut [0; 64]).is_ok_and(|count| count == 64) {}
        self.is_armed.store(true, Ordering::SeqCst);
    }

    /// Returns whether the thread was woken since the last call.
    pub(super) fn take(&self) -> bool {
        // The load is cheaper than the swap, and this function is called for each poll of a waiting thread.
        self.is_woken.load(Ordering::SeqCst) && self.is_woken.swap(false, Ordering::SeqCst)
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}
