//! Time, which the caller passes to the engine.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A point in time, in nanoseconds since an origin that the caller chooses. The engine has no clock.
///
/// ```
/// # mod adverb { pub mod verbs { pub use adverb_proto as recording; } }
/// use adverb::verbs::recording::Time;
/// use std::time::Duration;
///
/// let later = Time::ZERO + Duration::from_micros(5);
/// assert_eq!(later - Time::ZERO, Duration::from_micros(5));
/// assert_eq!(later.to_string(), "5.000us");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);
    /// The last point in time.
    pub const MAX: Time = Time(u64::MAX);

    /// Creates the time that is `nanos` nanoseconds after [`ZERO`](Time::ZERO).
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Returns the number of nanoseconds since [`ZERO`](Time::ZERO).
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

/// Adds a duration. The sum saturates at [`MAX`](Time::MAX), 584 years after [`ZERO`](Time::ZERO).
impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Returns the duration since `earlier`, or zero if `earlier` is later.
impl Sub for Time {
    type Output = Duration;

    fn sub(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Formats the time in microseconds.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}us", self.0 / 1000, self.0 % 1000)
    }
}
