//! Waiting, for threads.

use std::time::Duration;

use super::link::{Link, State};
use crate::error::{Error, Result};
use crate::verbs::Deadline;

/// Who waits for a connection.
#[derive(Default)]
pub(super) struct Waiting {
    /// Whether a thread waits for events. Only that one polls; it takes in what comes for all others.
    leader: bool,
    /// How many threads wait for news from it.
    followers: u32,
}

impl Link {
    /// Waits until `ready` has something to return.
    pub(super) fn wait<T>(
        &self,
        timeout: Duration,
        waiting: &'static str,
        mut ready: impl FnMut(&Link, &mut State) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut deadline = None;
        let mut state = self.lock();
        loop {
            self.drive_unless_led(&mut state);
            match ready(self, &mut state) {
                Ok(None) => {}
                result => {
                    self.tell_followers(&state);
                    return result.map(|value| value.expect("it isn't none"));
                }
            }
            let deadline = deadline.get_or_insert_with(|| Deadline::new(timeout));
            let left = deadline.left();
            if left.is_zero() {
                return Err(Error::Timeout { timeout, waiting });
            }
            if state.waiting.leader {
                state.waiting.followers += 1;
                self.news.wait_for(&mut state, left.min(FAR));
                state.waiting.followers -= 1;
                continue;
            }
            state.waiting.leader = true;
            drop(state);
            let mut done = Vec::new();
            let slice = left.min(self.options.keepalive);
            let polled = self.completions().poll_timeout(&mut done, slice);
            state = self.lock();
            state.waiting.leader = false;
            let polled = self.polled(&mut state, polled, &mut done);
            if !polled {
                self.ask(&mut state);
            }
            self.tell_followers(&state);
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

/// Longer than anybody waits, and not too long for a clock.
const FAR: Duration = Duration::from_secs(1 << 30);
