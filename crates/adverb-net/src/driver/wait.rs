//! Waits for a connection: its side of the wait protocol, and the waits of threads.

use std::time::{Duration, Instant};

use adverb_verbs::internal::Deadline;
use adverb_verbs::{ArmFor, Completion};
use parking_lot::MutexGuard;

use super::{Core, Driver, Lane};
use crate::error::{ConnectionError, WaitError};
use crate::wait::{Block, CallerKind, Events, Lock, Notify, Waiters, WaitingCaller};

/// A locked connection.
pub(crate) struct Locked<'a> {
    driver: &'a Driver,
    pub(crate) core: MutexGuard<'a, Core>,
}

impl Lock for Driver {
    type Guard<'a> = Locked<'a>;

    fn lock(&self) -> Locked<'_> {
        Locked { driver: self, core: self.lock() }
    }

    fn is_owned(&self) -> bool {
        self.is_owned()
    }
}

impl Events for Locked<'_> {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.core.waiters
    }

    fn has_lane(&self) -> bool {
        self.core.has_lane()
    }

    fn arm(&mut self) {
        if let Err(error) = self.core.lane().completions.arm(ArmFor::Any) {
            let error = ConnectionError::device(self.core.lane.peer, error);
            self.driver.handle_lane_failure(&mut self.core, error);
        }
    }

    fn poll(&mut self) {
        self.driver.poll_lane(&mut self.core);
    }

    fn notify(&mut self, notify: Notify) {
        self.driver.notify(&mut self.core, notify);
    }
}

impl Driver {
    /// Locks the connection, for the wait protocol.
    pub(crate) fn locked(&self) -> Locked<'_> {
        Lock::lock(self)
    }

    /// [Locks](Driver::try_lock) the connection for a task, for the wait protocol.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_locked(&self) -> Option<Locked<'_>> {
        Some(Locked { driver: self, core: self.try_lock()? })
    }

    /// Waits until `ready` returns a value.
    pub(crate) fn wait<T, E: WaitError>(
        &self,
        timeout: Duration,
        mut ready: impl FnMut(&Driver, &mut Core) -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        let mut core = self.lock();
        match self.try_now(&mut core, &mut ready)? {
            Some(value) => Ok(value),
            None => self.block(core, timeout, ready),
        }
    }

    /// Returns the error of a wait that has exceeded its time limit.
    pub(crate) fn timed_out<E: WaitError>(&self, core: &Core, timeout: Duration) -> E {
        E::timed_out(self.peer, timeout, core.is_reconnecting())
    }

    /// Blocks until `ready` returns a value. The caller has just called `ready`, which returned none.
    fn block<T, E: WaitError>(
        &self,
        core: MutexGuard<'_, Core>,
        timeout: Duration,
        mut ready: impl FnMut(&Driver, &mut Core) -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        if timeout.is_zero() {
            return Err(self.timed_out(&core, timeout));
        }
        let deadline = Deadline::new(timeout);
        let mut caller = WaitingCaller::new(self, CallerKind::Thread);
        let mut locked = Locked { driver: self, core };
        loop {
            let block = match caller.advance(&mut locked, |locked| self.check(&mut locked.core, &mut ready)) {
                Ok(ended) => return ended,
                Err(block) => block,
            };
            // Reading the clock takes a noticeable part of a message's time, so it isn't read again after a poll that
            // finds completions.
            let now = Instant::now();
            let left = deadline.left_at(now);
            if left.is_zero() {
                return Err(self.timed_out(&locked.core, timeout));
            }
            locked.core.now = self.time_at(now);
            let left = left.min(locked.core.timeout());
            match block {
                Block::Follow => {
                    self.progress.wait_for(&mut locked.core, left.min(MAX_WAIT));
                    self.update_time(&mut locked.core);
                }
                Block::Spin(time) => {
                    let (mut done, mut polled_at) = (std::mem::take(&mut locked.core.done), now);
                    let polled = without_lock(&mut locked.core, |lane| {
                        spin(lane, &mut done, &mut polled_at, time.min(left))
                    });
                    locked.core.note_time(self.time_at(polled_at));
                    caller.spun(&mut locked, !matches!(polled, Ok(0)));
                    self.handle_polled(&mut locked.core, polled, &mut done);
                    locked.core.done = done;
                }
                Block::Sleep => {
                    let left = left.min(self.max_sleep(&locked.core));
                    let slept = without_lock(&mut locked.core, |lane| lane.wait_event(left));
                    self.update_time(&mut locked.core);
                    match slept {
                        Ok(true) => caller.event_taken(&mut locked),
                        Ok(false) => self.check_manager(&mut locked.core),
                        Err(error) => self.handle_lane_failure(&mut locked.core, error),
                    }
                }
            }
            self.handle_timeout(&mut locked.core);
        }
    }

    /// Returns the maximum time of a leader's sleep: another caller may replace the lane, or finish draining it.
    fn max_sleep(&self, core: &Core) -> Duration {
        match (core.is_draining(), self.options.reconnect) {
            (true, _) => DRAIN_POLL_INTERVAL,
            (false, Some(_)) => LANE_CHECK_INTERVAL,
            (false, None) => Duration::MAX,
        }
    }

    /// Calls `ready` and advances the connection, without polling the device, until `ready` returns a value or nothing
    /// changes.
    pub(crate) fn check<T, E>(
        &self,
        core: &mut MutexGuard<'_, Core>,
        ready: &mut impl FnMut(&Driver, &mut Core) -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        loop {
            let change_count = core.change_count;
            let value = ready(self, core);
            // `ready` may have posted a request, and detected a failure. `advance` may release the lock for a while.
            self.advance(core);
            if !matches!(value, Ok(None)) || core.change_count == change_count {
                return value;
            }
        }
    }

    /// Notifies waiting callers. Wakers run without the lock.
    pub(super) fn notify(&self, core: &mut MutexGuard<'_, Core>, notify: Notify) {
        match notify {
            Notify::None => return,
            Notify::One => {
                self.progress.notify_one();
            }
            Notify::All => {
                self.progress.notify_all();
            }
        }
        #[cfg(feature = "tokio")]
        if !self.tasks.is_empty() {
            MutexGuard::unlocked(core, || self.tasks.wake_all());
        }
        #[cfg(not(feature = "tokio"))]
        {
            _ = core;
        }
    }
}

/// Calls a function with the lane, without the lock.
fn without_lock<T>(core: &mut MutexGuard<'_, Core>, work: impl FnOnce(&Lane) -> T) -> T {
    let lane = core.lane();
    MutexGuard::unlocked(core, || {
        let result = work(&lane);
        // Dropping a lane that was replaced takes long.
        drop(lane);
        result
    })
}

/// Polls for this time from `now` on, or until there are completions. Sets `now` to the time before the last poll.
fn spin(
    lane: &Lane,
    done: &mut Vec<Completion>,
    now: &mut Instant,
    time: Duration,
) -> adverb_verbs::Result<usize> {
    let start = *now;
    while now.saturating_duration_since(start) < time {
        let count = lane.completions.poll(done)?;
        if count > 0 {
            return Ok(count);
        }
        std::hint::spin_loop();
        *now = Instant::now();
    }
    Ok(0)
}

/// The interval in which a leading thread checks whether its connection has another lane.
const LANE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The interval in which a leading thread checks whether its lane is drained.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The maximum time of a wait: the clock can represent the end of the wait.
const MAX_WAIT: Duration = Duration::from_secs(1 << 30);
