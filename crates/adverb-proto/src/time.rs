//! Time as the engine knows it: a number that its caller passes in.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A point in time: nanoseconds since a moment that the caller chose. The engine has no clock.
///
/// ```
/// use adverb_proto::Time;
/// use std::time::Duration;
///
/// let later = Time::ZERO + Duration::from_micros(5);
/// assert_eq!(later - Time::ZERO, Duration::from_micros(5));
/// assert_eq!(later.to_string(), "5.000us");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The moment from which the caller counts.
    pub const ZERO: Time = Time(0);
    /// The end of time.
    pub const MAX: Time = Time(u64::MAX);

    /// This many nanoseconds after [`ZERO`](Time::ZERO).
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since [`ZERO`](Time::ZERO).
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

/// Saturates at the end of time, which 64 bits of nanoseconds put 584 years away.
impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// How long after `earlier`; zero if it isn't.
impl Sub for Time {
    type Output = Duration;

    fn sub(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Prints microseconds.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}us", self.0 / 1000, self.0 % 1000)
    }
}
