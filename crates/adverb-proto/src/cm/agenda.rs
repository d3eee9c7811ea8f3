//! When connections and questions want to be looked at again.

use std::collections::BTreeSet;

use crate::Time;

/// Times by id, at most one each. Whoever has an id keeps its time, so that it can be taken out.
#[derive(Debug, Default)]
pub(super) struct Agenda(BTreeSet<(Time, u32)>);

impl Agenda {
    /// Moves the time of an id.
    pub(super) fn set(&mut self, id: u32, held: &mut Option<Time>, time: Option<Time>) {
        if *held == time {
            return;
        }
        if let Some(old) = *held {
            self.0.remove(&(old, id));
        }
        if let Some(new) = time {
            self.0.insert((new, id));
        }
        *held = time;
    }

    /// The earliest time.
    pub(super) fn next(&self) -> Option<Time> {
        self.0.first().map(|(time, _)| *time)
    }

    /// An id whose time has come. It stays in until its time is moved.
    pub(super) fn due(&self, now: Time) -> Option<u32> {
        self.0.first().filter(|(time, _)| *time <= now).map(|(_, id)| *id)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A message that is repeated until it is answered, at growing intervals. It never ends a wait: deadlines do.
#[derive(Clone, Debug)]
pub(super) struct Repetition<T> {
    pub(super) message: T,
    /// When next.
    pub(super) at: Time,
    interval: core::time::Duration,
    longest: core::time::Duration,
    left: u8,
    done: u8,
}

/// Intervals double up to this many times the first.
const SLOWEST: u32 = 8;

impl<T> Repetition<T> {
    pub(super) fn new(message: T, now: Time, interval: core::time::Duration, times: u8) -> Repetition<T> {
        Repetition {
            message,
            at: now + interval,
            interval,
            longest: interval * SLOWEST,
            left: times,
            done: 0,
        }
    }

    /// The next time, if there is one.
    pub(super) fn next(&self) -> Option<Time> {
        (self.left > 0).then_some(self.at)
    }

    /// The message, if it is to be sent again now.
    pub(super) fn take(&mut self, now: Time) -> Option<&T> {
        if self.left == 0 || self.at > now {
            return None;
        }
        self.left -= 1;
        self.done = self.done.saturating_add(1);
        self.interval = (self.interval * 2).min(self.longest);
        self.at = now + self.interval;
        Some(&self.message)
    }

    /// Ends the retransmissions once there were this many.
    pub(super) fn limit(&mut self, count: u8) {
        self.left = self.left.min(count.saturating_sub(self.done));
    }

    /// Waits until then, at least, before the next.
    pub(super) fn hold_until(&mut self, time: Time) {
        self.at = self.at.max(time);
    }
}
