//! The progress thread, which serves peers while the application is idle, and the waiting caller that drives the link.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use adverb_proto::Time;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::engine::{Engine, Work};
use super::schedule::NextStep;
use super::{Nic, Shared};
use crate::channel::Channel;

/// Runs the progress thread until the NIC closes or fails.
pub(super) fn run(shared: &Shared) {
    while !catch_unwind(AssertUnwindSafe(|| step(shared))).unwrap_or_else(|_| {
        shared.engine.lock().fail();
        true
    }) {}
}

/// Runs one step of the progress thread, and sleeps until the next step. Returns whether the thread exits.
fn step(shared: &Shared) -> bool {
    // Notifications only end the sleep, so they are consumed before the step.
    while shared.wake_channel.take().unwrap_or(false) {}
    let mut engine = shared.engine.lock();
    let now = engine.now();
    let sleep = match engine.schedule.next_step(now, shared.readiness.is_some()) {
        NextStep::Exit => return true,
        NextStep::Rest => engine.schedule.rest(now),
        NextStep::Drive => match engine.drive() {
            Ok(Work::None | Work::Done) => {
                let deadline = engine.deadline();
                engine.schedule.sleep(deadline)
            }
            Ok(Work::More) => return false,
            Err(_) => {
                engine.fail();
                return true;
            }
        },
    };
    if engine.update_wake_interest().is_err() {
        engine.fail();
        return true;
    }
    let readiness = if sleep.on_link { shared.readiness.as_ref() } else { None };
    let timeout = (sleep.until != Time::MAX).then(|| sleep.until - engine.now());
    drop(engine);
    if sleep_on(&shared.wake_channel, readiness, timeout).is_err() {
        // The kernel has no memory, or the process's limit of descriptors was lowered. The link still works until
        // receiving fails.
        std::thread::sleep(timeout.unwrap_or(Duration::MAX).min(POLL_INTERVAL));
    }
    false
}

/// Wakes the progress thread if it would sleep past the time at which the engine has work again.
#[inline]
pub(super) fn wake(shared: &Shared, engine: &mut Engine, work: Work) {
    if work == Work::None {
        return;
    }
    let deadline = if work == Work::More { Time::ZERO } else { engine.deadline() };
    if engine.schedule.hand_over(deadline) {
        engine.notifications.push(&shared.wake_channel);
    }
}

impl Nic {
    /// Sends delayed acknowledgements and queued packets, before the process exits without dropping the NIC. If the link
    /// refuses packets, the call tries for about 30 ms.
    pub fn flush(&self) {
        self.flush_delayed_acks();
        let (start, mut attempts) = (Instant::now(), 0);
        // If the attempts are few, the process may have had no CPU.
        while start.elapsed() < MAX_FLUSH_TIME || attempts < MIN_FLUSH_ATTEMPTS {
            attempts += 1;
            let mut engine = self.shared.engine.lock();
            if !engine.has_queued_packets() {
                return;
            }
            self.drive(&mut engine, |engine| engine.send_posted(engine.now()));
            drop(engine);
            std::thread::yield_now();
        }
    }

    /// Waits for an event of a completion queue's channel and consumes it. Returns false if `timeout` elapses first. If
    /// `timeout` is `None`, the call waits indefinitely. The waiting caller drives the NIC unless another waiting
    /// caller already does.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system can't wait for the file descriptors.
    pub fn wait(&self, channel: &Channel, timeout: Option<Duration>) -> io::Result<bool> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let guard = WaitGuard::begin(&self.shared);
        let readiness = guard.as_ref().and(self.shared.readiness.as_ref());
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            sleep_on(channel, readiness, left)?;
            if channel.take()? {
                return Ok(true);
            }
            if guard.is_some() {
                let mut engine = self.shared.engine.lock();
                // The progress thread does the remaining work.
                let work = self.drive(&mut engine, Engine::drive);
                wake(&self.shared, &mut engine, work);
                drop(engine);
                if channel.take()? {
                    return Ok(true);
                }
            }
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
        }
    }
}

/// The guard of a waiting caller that drives the link. A packet for this caller then doesn't wake the progress thread
/// first, which would wake the caller.
struct WaitGuard<'a>(&'a Shared);

impl<'a> WaitGuard<'a> {
    /// Makes the caller the one that drives the link, if no other waiting caller does and the link has a descriptor.
    fn begin(shared: &'a Shared) -> Option<WaitGuard<'a>> {
        shared.readiness.as_ref()?;
        let mut engine = shared.engine.lock();
        if !engine.schedule.begin_wait() {
            return None;
        }
        let guard = WaitGuard(shared);
        if engine.update_wake_interest().is_err() {
            engine.fail();
        }
        drop(engine);
        Some(guard)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        let mut engine = self.0.engine.lock();
        if engine.schedule.end_wait() {
            engine.notifications.push(&self.0.wake_channel);
        }
    }
}

/// The minimum number of times that a NIC tries to send refused packets before it closes.
const MIN_FLUSH_ATTEMPTS: u32 = 32;

/// The time for which a NIC that is about to close waits for a link that refuses packets. A link to a process that
/// reads nothing refuses packets for 10 ms, and packets to other peers may be behind them.
const MAX_FLUSH_TIME: Duration = Duration::from_millis(30);

/// The time between two steps of the progress thread if the system can't wait for descriptors.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Sleeps until the channel has an event, the link has packets if its descriptor is given, or `timeout` elapses.
fn sleep_on(channel: &Channel, readiness: Option<&OwnedFd>, timeout: Option<Duration>) -> io::Result<()> {
    let channel = PollFd::new(channel.as_fd(), PollFlags::POLLIN);
    let mut descriptors = [channel.clone(), channel];
    let count = match readiness {
        Some(readiness) => {
            descriptors[1] = PollFd::new(readiness.as_fd(), PollFlags::POLLIN);
            2
        }
        None => 1,
    };
    match ppoll(&mut descriptors[..count], timeout.map(TimeSpec::from), None) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
