//! Waking a caller that waits for events of a queue.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A handle that wakes the caller of [`UdQueue::wait`](super::UdQueue::wait) from any thread. Cloning returns another
/// handle to the same queue.
///
/// A wake-up isn't lost: if no caller waits, the next wait returns at once.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Whether a wake-up is pending. The thread that sets it writes a byte into the pipe, and the caller that clears
    /// it reads a byte, so the pipe never holds more bytes than there are waking threads.
    is_pending: AtomicBool,
    is_stopped: AtomicBool,
    reader: PipeReader,
    writer: PipeWriter,
}

impl Waker {
    pub(super) fn new() -> io::Result<Waker> {
        let (reader, writer) = io::pipe()?;
        let (is_pending, is_stopped) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Waker(Arc::new(Shared { is_pending, is_stopped, reader, writer })))
    }

    /// Makes the current wait, or the next one, return.
    pub fn wake(&self) {
        if !self.0.is_pending.swap(true, Ordering::SeqCst)
            && let Err(error) = (&self.0.writer).write_all(&[1])
        {
            tracing::error!(%error, "waking the caller of a queue failed");
        }
    }

    /// Makes the current wait, and all later ones, return at once. This call doesn't wait for the waiting caller.
    pub fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Whether [`stop`](Waker::stop) was called.
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::SeqCst)
    }

    /// Consumes the pending wake-up, if there is one, and returns whether there was one.
    pub(super) fn take(&self) -> bool {
        // A load is cheaper than a swap, and mostly there is none.
        if !self.0.is_pending.load(Ordering::SeqCst) || !self.0.is_pending.swap(false, Ordering::SeqCst) {
            return false;
        }
        // The waking thread has written the byte, or is about to.
        if let Err(error) = (&self.0.reader).read_exact(&mut [0]) {
            tracing::error!(%error, "reading the wake-up of a queue failed");
        }
        true
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.reader.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_wake_ups_before_a_wait_are_one() {
        let waker = Waker::new().unwrap();
        assert!(!waker.take());
        (0..100_000).for_each(|_| waker.wake());
        assert!(waker.take());
        assert!(!waker.take());
        waker.stop();
        assert!(waker.is_stopped() && waker.take());
    }

    #[test]
    fn wake_ups_from_many_threads_leave_nothing_in_the_pipe() {
        let waker = Waker::new().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..2000).for_each(|_| waker.wake()));
            }
            (0..2000).for_each(|_| _ = waker.take());
        });
        waker.take();
        waker.wake();
        assert!(waker.take() && !waker.take());
    }
}
