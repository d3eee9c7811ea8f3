//! The connection manager's timers and retransmissions, for connections and SIDR queries.

use std::collections::BTreeSet;

use crate::Time;

/// Timers by ID, at most one per ID. The owner of an ID stores the time at which its timer is set to expire, and passes this
/// time to [`set`](Timers::set) to move the timer.
#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Time, u32)>);

impl Timers {
    /// Moves the timer of an ID from the time `current` to the time `time`, and sets `current` to `time`. `None` means
    /// that the timer is not set.
    pub(super) fn set(&mut self, id: u32, current: &mut Option<Time>, time: Option<Time>) {
        if *current == time {
            return;
        }
        if let Some(old) = *current {
            self.0.remove(&(old, id));
        }
        if let Some(new) = time {
            self.0.insert((new, id));
        }
        *current = time;
    }

    /// Returns the time at which the next timer expires.
    pub(super) fn next(&self) -> Option<Time> {
        self.0.first().map(|(time, _)| *time)
    }

    /// Returns an ID whose timer has expired, if there is one. The timer stays set until [`set`](Timers::set) moves it.
    pub(super) fn due(&self, now: Time) -> Option<u32> {
        self.0.first().filter(|(time, _)| *time <= now).map(|(_, id)| *id)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A message that is retransmitted at growing intervals, a limited number of times, until the peer responds. After the last
/// retransmission, the owner continues to wait for the response, until a deadline that the owner stores.
#[derive(Clone, Debug)]
pub(super) struct Retransmission<T> {
    pub(super) message: T,
    /// The time of the next retransmission.
    pub(super) at: Time,
    interval: core::time::Duration,
    max_interval: core::time::Duration,
    left: u8,
    done: u8,
}

/// The maximum interval, as a multiple of the first one. Each interval is twice the previous one, up to the maximum.
const MAX_INTERVAL_FACTOR: u32 = 8;

impl<T> Retransmission<T> {
    pub(super) fn new(message: T, now: Time, interval: core::time::Duration, times: u8) -> Retransmission<T> {
        Retransmission {
            message,
            at: now + interval,
            interval,
            max_interval: interval * MAX_INTERVAL_FACTOR,
            left: times,
            done: 0,
        }
    }

    /// Returns the time of the next retransmission, if there is one.
    pub(super) fn next(&self) -> Option<Time> {
        (self.left > 0).then_some(self.at)
    }

    /// Returns the message if a retransmission is due, and schedules the following retransmission.
    pub(super) fn poll(&mut self, now: Time) -> Option<&T> {
        if self.left == 0 || self.at > now {
            return None;
        }
        self.left -= 1;
        self.done = self.done.saturating_add(1);
        self.interval = (self.interval * 2).min(self.max_interval);
        self.at = now + self.interval;
        Some(&self.message)
    }

    /// Limits the total number of retransmissions to `count`.
    pub(super) fn limit(&mut self, count: u8) {
        self.left = self.left.min(count.saturating_sub(self.done));
    }

    /// Delays the next retransmission until `time`, unless it is already scheduled for later.
    pub(super) fn delay_until(&mut self, time: Time) {
        self.at = self.at.max(time);
    }
}
