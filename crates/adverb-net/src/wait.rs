//! Waiting, for threads; and for how long to look before one sleeps.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg_attr(
    not(all(test, loom)),
    expect(
        dead_code,
        reason = "the present drivers use `AdaptiveSpin` only; those of adverb-net-proto use all"
    )
)]
mod protocol;

use std::time::{Duration, Instant};

use adverb_verbs::internal::Deadline;
use adverb_verbs::{Completion, Error, Result};

use super::link::{Lane, Link, State};

pub(super) use protocol::AdaptiveSpin;

/// Who waits for a connection.
#[derive(Default)]
pub(super) struct Waiting {
    /// Whether a thread waits for events. Only that one polls; it takes in what comes for all others.
    pub(super) leader: bool,
    /// How many threads wait for news from it.
    followers: u32,
    pub(super) spin: AdaptiveSpin,
}

impl Link {
    /// Waits until `ready` has something to return.
    pub(super) fn wait<T>(
        &self,
        timeout: Duration,
        waiting: &'static str,
        mut ready: impl FnMut(&Link, &mut State) -> Result<Option<T>>,
    ) -> Result<T> {
        let (mut deadline, mut silence) = (None, Duration::ZERO);
        let mut state = self.lock();
        let mut value = self.at_once(&mut state, &mut ready, |state| self.drive_unless_led(state));
        if let Ok(None) = value {
            // Nobody is kept waiting for what was gathered here by who waits for the answer.
            self.flush(&mut state);
            self.drive_unless_led(&mut state);
            value = ready(self, &mut state);
        }
        loop {
            match value {
                Ok(None) => {}
                result => {
                    self.tell_followers(&state);
                    return result.map(|value| value.expect("it isn't none"));
                }
            }
            let deadline = deadline.get_or_insert_with(|| Deadline::new(timeout));
            let left = deadline.left();
            if left.is_zero() {
                return Err(Error::Timeout { timeout, action: waiting });
            }
            if state.is_broken() && !state.waiting.leader {
                // It may have been found while something was posted, and then nobody has seen to it.
                self.suspend(&mut state);
            }
            if state.waiting.leader || state.is_broken() {
                state.waiting.followers += 1;
                self.news.wait_for(&mut state, left.min(FAR));
                state.waiting.followers -= 1;
                value = ready(self, &mut state);
                continue;
            }
            state.waiting.leader = true;
            let spin_time = state.waiting.spin.begin().min(left);
            let mut done = std::mem::take(&mut state.done);
            let lane = state.lane();
            drop(state);
            let begin = Instant::now();
            let mut polled = look(&lane, &mut done, spin_time, begin);
            let has_helped = !matches!(polled, Ok(0));
            // Over which lane it goes may change, if it may go on.
            let most = if self.options.reconnect.is_some() { GLANCE } else { Duration::MAX };
            let slice = left.min(self.options.keepalive).min(most);
            if !has_helped {
                polled = lane.sleep(&mut done, slice);
            }
            drop(lane);
            state = self.lock();
            state.waiting.leader = false;
            if !spin_time.is_zero() {
                state.waiting.spin.end(has_helped);
            }
            let polled = self.polled(&mut state, polled, &mut done);
            state.done = done;
            if !polled {
                self.heed_manager(&mut state);
            }
            silence = if polled { Duration::ZERO } else { silence + begin.elapsed() };
            if silence >= self.options.keepalive {
                silence = Duration::ZERO;
                self.ask(&mut state);
            }
            self.tell_followers(&state);
            // Before another look at the device, which may have the answer to this to send.
            value = ready(self, &mut state);
        }
    }

    /// Drives, unless another thread waits for events: that one would be left waiting for what it was kept from.
    pub(super) fn drive_unless_led(&self, state: &mut State) {
        if !state.waiting.leader && self.drive(state) {
            self.tell_followers(state);
        }
    }

    /// Has others look again: one of them leads if nobody does.
    fn tell_followers(&self, state: &State) {
        // It would be a system call even if nobody waits.
        if state.waiting.followers > 0 {
            self.news.notify_all();
        }
    }
}

/// Polls for as long as this from the beginning, or until something has come.
fn look(lane: &Lane, done: &mut Vec<Completion>, spin_time: Duration, begin: Instant) -> Result<usize> {
    while begin.elapsed() < spin_time {
        let count = lane.completions.poll(done)?;
        if count > 0 {
            return Ok(count);
        }
        std::hint::spin_loop();
    }
    Ok(0)
}

/// How often to look whether a connection goes another way.
const GLANCE: Duration = Duration::from_millis(100);
/// Longer than anybody waits, and not too long for a clock.
const FAR: Duration = Duration::from_secs(1 << 30);
