//! Time limits.

use std::time::{Duration, Instant};

/// Until when something has to be done.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// How long it may take, altogether.
    pub timeout: Duration,
    /// `None` is never: a time that the clock can't tell doesn't come.
    at: Option<Instant>,
}

impl Deadline {
    /// Returns the time that lies `timeout` ahead.
    pub fn new(timeout: Duration) -> Deadline {
        // Who waits for ever needs no clock.
        let at = if timeout == Duration::MAX { None } else { Instant::now().checked_add(timeout) };
        Deadline { timeout, at }
    }

    /// When it is, for event loops: one that never comes is far away.
    pub fn at(&self) -> Instant {
        self.at.unwrap_or_else(|| Instant::now() + Duration::from_secs(u32::MAX.into()))
    }

    /// How much time there is: zero if none, `Duration::MAX` if it never comes.
    pub fn left(&self) -> Duration {
        self.at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_beyond_the_clock_never_comes() {
        for timeout in [Duration::MAX, Duration::MAX - Duration::from_nanos(1)] {
            let never = Deadline::new(timeout);
            assert_eq!(never.left(), Duration::MAX);
            assert!(never.at() > Instant::now() + Duration::from_secs(1 << 30));
        }
    }

    #[test]
    fn a_deadline_comes_nearer_until_nothing_is_left() {
        assert_eq!(Deadline::new(Duration::ZERO).left(), Duration::ZERO);
        let left = Deadline::new(Duration::from_secs(60)).left();
        assert!(left <= Duration::from_secs(60) && left > Duration::from_secs(50), "{left:?}");
    }
}
