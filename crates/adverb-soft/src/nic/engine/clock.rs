//! The clock of an engine.

use std::time::Instant;

use adverb_proto::Time;

/// The clock of an engine.
pub(in crate::nic) struct Clock {
    /// The time at which the clock is zero.
    origin: Instant,
    /// The time at which the engine was last served.
    served_at: Time,
}

impl Clock {
    /// Starts a clock.
    pub(super) fn start() -> Clock {
        Clock { origin: Instant::now(), served_at: Time::ZERO }
    }

    /// Returns the time at which the clock is zero.
    pub(in crate::nic) const fn origin(&self) -> Instant {
        self.origin
    }

    #[inline]
    pub(super) fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    /// Returns the time of an instant, or zero for an instant before the origin.
    #[inline]
    pub(super) fn time_of(&self, instant: Instant) -> Time {
        Time::ZERO + instant.saturating_duration_since(self.origin)
    }

    /// Returns the time at which the engine was last served.
    #[inline]
    pub(super) const fn served_at(&self) -> Time {
        self.served_at
    }

    /// Records the time at which the engine is served.
    #[inline]
    pub(super) const fn record_served(&mut self, now: Time) {
        self.served_at = now;
    }
}
