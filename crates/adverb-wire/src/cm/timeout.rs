//! Timeouts as 5-bit codes.

use core::fmt;
use core::time::Duration;

/// A timeout as a 5-bit code `n`, which means 4.096 µs × 2ⁿ.
///
/// Response timeouts, service timeouts and ACK delays have this form (vol. 1, 12.7). In a *local ACK timeout*, code 0
/// means no timeout.
///
/// ```
/// use adverb_wire::cm::Timeout;
/// use core::time::Duration;
///
/// let timeout = Timeout::new(14).expect("below 32");
/// assert_eq!(timeout.duration(), Duration::from_nanos(67_108_864));
/// assert_eq!(Timeout::at_least(Duration::from_millis(60)), timeout);
/// assert_eq!(Timeout::new(32), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timeout(u8);

impl Timeout {
    /// Code 0: the minimum, 4.096 µs; in a local ACK timeout, no timeout.
    pub const ZERO: Timeout = Timeout(0);
    /// The maximum: 2 hours, 26 minutes and 36 seconds.
    pub const MAX: Timeout = Timeout(31);

    /// Creates the timeout with the code `code`. Returns `None` if `code` has more than 5 bits.
    pub const fn new(code: u8) -> Option<Timeout> {
        if code <= Self::MAX.0 { Some(Timeout(code)) } else { None }
    }

    /// Returns the smallest representable timeout that is at least `duration`, or [`MAX`](Timeout::MAX) if `duration`
    /// exceeds the maximum.
    pub fn at_least(duration: Duration) -> Timeout {
        (0..Self::MAX.0).map(Timeout).find(|timeout| timeout.duration() >= duration).unwrap_or(Self::MAX)
    }

    /// Returns the code on the wire, below 32.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the duration of the code: 4.096 µs × 2ⁿ.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }
}

/// Prints the duration, as in `67.108864ms`.
impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.duration(), f)
    }
}

impl fmt::Debug for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timeout({}: {:?})", self.0, self.duration())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_doubles_the_time() {
        assert_eq!(Timeout::ZERO.duration(), Duration::from_nanos(4096));
        for code in 1..32 {
            let (shorter, longer) = (Timeout::new(code - 1).unwrap(), Timeout::new(code).unwrap());
            assert_eq!(longer.duration(), shorter.duration() * 2);
        }
        assert_eq!(Timeout::MAX.duration().as_secs(), 2 * 3600 + 26 * 60 + 36);
    }

    #[test]
    fn at_least_returns_the_smallest_sufficient_timeout() {
        let nanosecond = Duration::from_nanos(1);
        assert_eq!(Timeout::at_least(Duration::ZERO), Timeout::ZERO);
        assert_eq!(Timeout::at_least(Duration::MAX), Timeout::MAX);
        for code in 0..31 {
            let timeout = Timeout::new(code).unwrap();
            assert_eq!(Timeout::at_least(timeout.duration()), timeout);
            assert_eq!(Timeout::at_least(timeout.duration() + nanosecond).code(), code + 1);
        }
    }
}
