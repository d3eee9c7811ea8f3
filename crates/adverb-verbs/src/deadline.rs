//! Deadlines.

use std::time::{Duration, Instant};

/// A point in time by which an operation must end.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// The total time that the operation may take.
    pub timeout: Duration,
    /// The point in time, or `None` if the clock can't represent it, so that the deadline never passes.
    at: Option<Instant>,
}

impl Deadline {
    /// Returns the deadline that lies `timeout` ahead.
    pub fn new(timeout: Duration) -> Deadline {
        // An unlimited deadline needs no clock.
        let at = if timeout == Duration::MAX { None } else { Instant::now().checked_add(timeout) };
        Deadline { timeout, at }
    }

    /// Returns the deadline that lies `timeout` after `now`.
    pub fn after(now: Instant, timeout: Duration) -> Deadline {
        Deadline { timeout, at: now.checked_add(timeout) }
    }

    /// Returns the point in time, for event loops. It is far in the future if the deadline never passes.
    pub fn at(&self) -> Instant {
        self.at.unwrap_or_else(|| Instant::now() + Duration::from_secs(u32::MAX.into()))
    }

    /// Returns the remaining time: zero after the deadline, `Duration::MAX` if the deadline never passes.
    pub fn left(&self) -> Duration {
        self.at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns the time that remains at `now`, as [`left`](Deadline::left) does.
    pub fn left_at(&self, now: Instant) -> Duration {
        self.at.map_or(Duration::MAX, |at| at.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_beyond_the_clock_never_passes() {
        for timeout in [Duration::MAX, Duration::MAX - Duration::from_nanos(1)] {
            let never = Deadline::new(timeout);
            assert_eq!(never.left(), Duration::MAX);
            assert!(never.at() > Instant::now() + Duration::from_secs(1 << 30));
        }
    }

    #[test]
    fn the_remaining_time_decreases_to_zero() {
        assert_eq!(Deadline::new(Duration::ZERO).left(), Duration::ZERO);
        let left = Deadline::new(Duration::from_secs(60)).left();
        assert!(left <= Duration::from_secs(60) && left > Duration::from_secs(50), "{left:?}");
    }
}
