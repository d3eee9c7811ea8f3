//! Waiting for events.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use adverb_verbs::ArmFor;
use adverb_verbs::internal::{Deadline, wait_either};

use super::{Broker, BrokerError, Result};

/// The number of polls before a waiting thread yields.
const SPIN_POLLS: u32 = 200;
/// The number of polls, each followed by a yield, before a waiting thread sleeps.
const YIELD_POLLS: u32 = 20;

impl Broker {
    /// Waits until [`poll`](Broker::poll) has events to deliver, and posts the waiting requests of all peers. Returns
    /// `false` if the timeout expires first. A `timeout` of `None` means no limit.
    ///
    /// The broker also returns `true`, without events, if segments of a published arena have changed: the next poll announces
    /// them.
    ///
    /// The thread polls for a few microseconds, then yields to other threads, and then sleeps.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Verbs`] if the device failed, and [`BrokerError::System`] if the system call failed.
    pub fn wait(&mut self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        let deadline = Deadline::new(timeout);
        self.flush_all();
        for attempt in 0..SPIN_POLLS + YIELD_POLLS {
            if self.progress_and_flush()? {
                return Ok(true);
            }
            if attempt < SPIN_POLLS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        loop {
            if self.arm()? {
                return Ok(true);
            }
            let left = deadline.left();
            if left.is_zero() {
                return Ok(false);
            }
            self.sleep(left)?;
        }
    }

    /// Sleeps until the descriptor is readable, the next timer expires, or `timeout` has passed. The caller must have armed
    /// the broker.
    pub(super) fn sleep(&self, timeout: Duration) -> Result<()> {
        let pause = self.timeout().map_or(timeout, |until| until.min(timeout));
        let pause = Some(pause).filter(|pause| *pause != Duration::MAX);
        let waited = wait_either(self.watch.as_fd(), None, pause);
        waited.map_err(|source| BrokerError::System { action: "waiting for a completion", source })?;
        Ok(())
    }

    /// Prepares to wait for [`fd`](Broker::fd) in an event loop, and posts the waiting requests of all peers. Returns `true`
    /// if [`poll`](Broker::poll) has events to deliver already: the caller must poll instead of waiting.
    ///
    /// The descriptor becomes readable when a completion arrives, or when the cluster has a session to establish. The caller
    /// must also poll after the time that [`timeout`](Broker::timeout) returns.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Verbs`] if the device failed.
    pub fn arm(&mut self) -> Result<bool> {
        while self.completion_queue.try_event()? {}
        if let Some(waker) = &self.waker {
            waker.arm();
        }
        self.completion_queue.arm(ArmFor::Any)?;
        // A completion that arrived before the queue was armed causes no event.
        self.progress_and_flush()
    }

    /// Returns the descriptor for event loops: see [`arm`](Broker::arm).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Returns the time after which the caller must poll even if no completion arrives, or `None` if there is no such time.
    pub fn timeout(&self) -> Option<Duration> {
        self.core.poll_timeout().map(|at| at - self.now())
    }

    /// Whether events wait to be delivered.
    pub(crate) fn has_queued_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Processes completions, and posts the requests that they permit. Returns whether a poll has events to deliver, or the
    /// waker was used.
    fn progress_and_flush(&mut self) -> Result<bool> {
        self.progress()?;
        // Completions can cause output, for example credit messages.
        self.flush_all();
        self.close_sessions();
        let is_woken = self.waker.as_ref().is_some_and(|waker| waker.take());
        self.is_polled = !self.events.is_empty();
        Ok(is_woken || self.is_polled)
    }
}
