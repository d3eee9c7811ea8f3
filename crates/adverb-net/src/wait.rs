//! The waits of threads.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg_attr(
    not(all(test, loom)),
    expect(dead_code, reason = "the drivers of threads and tasks use `AdaptiveSpin` only")
)]
mod protocol;

use std::time::{Duration, Instant};

use adverb_verbs::internal::Deadline;
use adverb_verbs::{Completion, Error, Result};
use parking_lot::MutexGuard;

use super::driver::{Core, Driver, Lane};

pub(super) use protocol::AdaptiveSpin;

/// The callers that wait for a connection.
#[derive(Default)]
pub(super) struct Waiting {
    leader: Leader,
    /// The number of threads that wait to be notified.
    followers: u32,
    pub(super) spin: AdaptiveSpin,
}

/// The thread that waits for events, if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Leader {
    #[default]
    Vacant,
    /// It polls and waits without the lock, so other threads don't poll.
    Waiting,
}

impl Waiting {
    /// Whether a thread polls without the lock.
    pub(super) fn has_leader(&self) -> bool {
        self.leader == Leader::Waiting
    }
}

impl Driver {
    /// Waits until `ready` returns a value.
    pub(super) fn wait<T>(
        &self,
        timeout: Duration,
        waiting: &'static str,
        mut ready: impl FnMut(&Driver, &mut Core) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut deadline = None;
        let mut core = self.lock();
        let mut value = self.at_once(&mut core, &mut ready, |core| self.drive_unless_led(core));
        if let Ok(None) = value {
            // Messages that were fed don't wait for the call that waits for their answer.
            self.flush(&mut core);
            self.drive_unless_led(&mut core);
            value = ready(self, &mut core);
        }
        loop {
            match value {
                Ok(None) => {}
                result => {
                    self.handle_pending(&mut core);
                    self.notify_followers(&core);
                    return result.map(|value| value.expect("the value is present"));
                }
            }
            let left = deadline.get_or_insert_with(|| Deadline::new(timeout)).left();
            if left.is_zero() {
                return Err(Error::Timeout { timeout, action: waiting });
            }
            // A failure may have been found while a request was posted.
            core.has_news = false;
            self.advance(&mut core);
            if std::mem::take(&mut core.has_news) {
                // The connection may have ended, for example, and no other call reports that.
                self.notify_followers(&core);
                value = ready(self, &mut core);
                continue;
            }
            let left = left.min(self.timeout(&core));
            if core.waiting.has_leader() || !core.has_lane() {
                core.waiting.followers += 1;
                self.progress.wait_for(&mut core, left.min(MAX_WAIT));
                core.waiting.followers -= 1;
            } else {
                self.lead(&mut core, left);
            }
            self.handle_timeout(&mut core);
            // Before another poll of the device: the value may be a message, whose answer is sent with the poll.
            value = ready(self, &mut core);
        }
    }

    /// Waits for completions without the lock, for no longer than this, and handles them for all waiting threads.
    fn lead(&self, core: &mut MutexGuard<'_, Core>, left: Duration) {
        core.waiting.leader = Leader::Waiting;
        let spin_time = core.waiting.spin.begin().min(left);
        // Another thread may replace the lane, or finish draining it.
        let max = match (core.is_draining(), self.options.reconnect) {
            (true, _) => DRAIN_POLL_INTERVAL,
            (false, Some(_)) => LANE_CHECK_INTERVAL,
            (false, None) => Duration::MAX,
        };
        let mut done = std::mem::take(&mut core.done);
        let lane = core.lane();
        let (polled, has_spun) = MutexGuard::unlocked(core, || {
            let mut polled = spin(&lane, &mut done, spin_time);
            let is_success = !matches!(polled, Ok(0));
            if !is_success {
                polled = lane.sleep(&mut done, left.min(max));
            }
            drop(lane);
            (polled, is_success)
        });
        core.waiting.leader = Leader::Vacant;
        if !spin_time.is_zero() {
            core.waiting.spin.end(has_spun);
        }
        let has_completions = self.handle_polled(core, polled, &mut done);
        core.done = done;
        if !has_completions {
            self.check_manager(core);
        }
        self.notify_followers(core);
    }

    /// Drives the connection, unless another thread polls without the lock.
    pub(super) fn drive_unless_led(&self, core: &mut MutexGuard<'_, Core>) {
        if self.drive(core) {
            self.notify_followers(core);
        }
    }

    /// Makes other threads check for progress. One of them leads if no thread does.
    fn notify_followers(&self, core: &Core) {
        // Notifying is a system call even if no thread waits.
        if core.waiting.followers > 0 {
            self.progress.notify_all();
        }
    }
}

/// Polls for this time, or until there are completions.
fn spin(lane: &Lane, done: &mut Vec<Completion>, time: Duration) -> Result<usize> {
    if time.is_zero() {
        return Ok(0);
    }
    let start = Instant::now();
    while start.elapsed() < time {
        let count = lane.completions.poll(done)?;
        if count > 0 {
            return Ok(count);
        }
        std::hint::spin_loop();
    }
    Ok(0)
}

/// The interval in which a leading thread checks whether its connection has another lane.
const LANE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The interval in which a leading thread checks whether its lane is drained.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The maximum time of a wait, which the clock can represent.
const MAX_WAIT: Duration = Duration::from_secs(1 << 30);
