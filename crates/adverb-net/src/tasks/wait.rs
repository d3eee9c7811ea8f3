//! The waits of tasks.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;
use tokio::time::{Sleep, sleep_until};

use crate::driver::{Core, Driver};
use crate::error::ConnectionError;
use crate::wait::{Block, CallerKind, WaitingCaller, WakerId};

/// The wait of a task, which may never be polled again.
pub(super) struct TaskWait {
    caller: WaitingCaller<Arc<Driver>>,
    waker: WakerId,
    state: State,
}

enum State {
    /// The task doesn't wait.
    Idle,
    /// The task's condition was just checked, and doesn't hold.
    Begun,
    /// The task polls and yields to other tasks, since this time and for this long.
    Spinning(Instant, Duration),
    /// The task has registered its waker.
    Blocked,
}

impl TaskWait {
    /// Prepares waits whose spinning is independent of that of other callers.
    pub(super) fn new(driver: &Arc<Driver>) -> TaskWait {
        let mut wait = TaskWait::begin(driver);
        wait.caller.spin_independently();
        wait.state = State::Idle;
        wait
    }

    /// Makes the first wait sleep without spinning.
    pub(super) fn without_spin(mut self) -> TaskWait {
        self.caller.skip_spin();
        self
    }

    /// Begins a wait for a condition that doesn't hold.
    pub(super) fn begin(driver: &Arc<Driver>) -> TaskWait {
        let caller = WaitingCaller::new(Arc::clone(driver), CallerKind::Task);
        TaskWait { caller, waker: WakerId::new(), state: State::Begun }
    }

    /// Whether the task polls between other tasks, and is polled again at once.
    pub(super) fn is_spinning(&self) -> bool {
        matches!(self.state, State::Spinning(..))
    }

    /// Returns the value of `ready`, once there is one. Handles the connection's timeouts meanwhile.
    ///
    /// `events` is readable when an event may be pending.
    pub(super) fn poll<T, E: From<ConnectionError>>(
        &mut self,
        cx: &mut Context<'_>,
        driver: &Driver,
        events: &AsyncFd<OwnedFd>,
        mut timer: Pin<&mut Option<Sleep>>,
        ready: &mut impl FnMut(&Driver, &mut Core) -> Result<Option<T>, E>,
    ) -> Poll<Result<T, E>> {
        match self.state {
            State::Begun => {}
            State::Idle => {
                let Some(mut core) = driver.try_lock() else { return yield_now(cx) };
                if let Some(value) = driver.try_now(&mut core, ready)? {
                    return Poll::Ready(Ok(value));
                }
            }
            State::Spinning(start, time) => {
                let Some(mut locked) = driver.try_locked() else { return yield_now(cx) };
                let value = driver.try_now(&mut locked.core, ready);
                let is_success = !matches!(value, Ok(None));
                if !is_success && start.elapsed() < time {
                    return yield_now(cx);
                }
                self.caller.spun(&mut locked, is_success);
                drop(locked);
                self.state = State::Idle;
                if let Some(value) = value? {
                    return Poll::Ready(Ok(value));
                }
            }
            State::Blocked => {
                // Usually an event has woken the task.
                ready!(self.take_event(cx, driver, events))?;
            }
        }
        loop {
            self.remove_waker(driver);
            let Some(mut locked) = driver.try_locked() else { return yield_now(cx) };
            let block = match self.caller.advance(&mut locked, |locked| driver.check(&mut locked.core, ready))
            {
                Ok(ended) => return Poll::Ready(ended),
                Err(block) => block,
            };
            if let Block::Spin(time) = block {
                drop(locked);
                self.state = State::Spinning(Instant::now(), time);
                return yield_now(cx);
            }
            driver.wakers().add(self.waker, cx.waker());
            self.state = State::Blocked;
            driver.update_time(&mut locked.core);
            let timeout = locked.core.timeout();
            drop(locked);
            // An event that was raised before the waker was registered has not woken the task.
            if block == Block::Sleep && ready!(self.take_event(cx, driver, events))? {
                continue;
            }
            if !poll_timer(timer.as_mut(), cx, timeout) {
                return Poll::Pending;
            }
            let Some(mut core) = driver.try_lock() else { return yield_now(cx) };
            driver.update_time(&mut core);
            driver.handle_timeout(&mut core);
        }
    }

    /// Takes the pending events of the completion queue and of the connection manager. Returns `true` if there may have
    /// been any; the task's waker is then removed. Otherwise the next event wakes all tasks. If another thread keeps the
    /// connection locked, the result is pending, and the task is polled again.
    fn take_event(
        &mut self,
        cx: &mut Context<'_>,
        driver: &Driver,
        events: &AsyncFd<OwnedFd>,
    ) -> Poll<Result<bool, ConnectionError>> {
        // A descriptor has one waker only, and its task may never be polled again.
        let all = Waker::from(Arc::clone(driver.wakers()));
        let Poll::Ready(event) = events.poll_read_ready(&mut Context::from_waker(&all)) else {
            return Poll::Ready(Ok(false));
        };
        let failed = |error| ConnectionError::system(driver.peer(), "waiting for an event", error);
        let mut event = event.map_err(failed)?;
        self.remove_waker(driver);
        let Some(mut locked) = driver.try_locked() else { return yield_now(cx) };
        if !locked.core.has_lane() {
            // The handshake of the lane takes its events.
            return Poll::Ready(Ok(true));
        }
        match locked.core.lane().take_events() {
            Ok(true) => self.caller.event_taken(&mut locked),
            Ok(false) => {}
            Err(error) => driver.handle_lane_failure(&mut locked.core, error),
        }
        event.clear_ready();
        driver.check_manager(&mut locked.core);
        Poll::Ready(Ok(true))
    }

    fn remove_waker(&mut self, driver: &Driver) {
        if let State::Blocked = self.state {
            driver.wakers().remove(self.waker);
            self.state = State::Idle;
        }
    }
}

impl Drop for TaskWait {
    fn drop(&mut self) {
        let driver = self.caller.connection();
        if let State::Blocked = self.state
            && driver.is_owned()
        {
            driver.wakers().remove(self.waker);
        }
    }
}

/// Lets other tasks run.
pub(super) fn yield_now<T>(cx: &mut Context<'_>) -> Poll<T> {
    let _ = pin!(tokio::task::yield_now()).poll(cx);
    Poll::Pending
}

/// Sets the timer to the end of a timeout and polls it. Returns whether the timeout is due; if not, the timer wakes the
/// task.
fn poll_timer(mut timer: Pin<&mut Option<Sleep>>, cx: &mut Context<'_>, timeout: Duration) -> bool {
    if timeout.is_zero() {
        return true;
    }
    let Some(at) = tokio::time::Instant::now().checked_add(timeout) else { return false };
    match timer.as_mut().as_pin_mut() {
        None => timer.set(Some(sleep_until(at))),
        // A timer that is somewhat early wakes the task once more.
        Some(sleep) if sleep.deadline() > at || sleep.is_elapsed() => sleep.reset(at),
        Some(_) => {}
    }
    timer.as_pin_mut().is_some_and(|sleep| sleep.poll(cx).is_ready())
}
