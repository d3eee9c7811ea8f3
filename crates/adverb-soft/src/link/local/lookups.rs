//! The limit of lookups of processes. These functions do no I/O.

use std::time::{Duration, Instant};

/// The lookups of processes by their names, each of which takes a few system calls. Packets to many destinations, or names that
/// another user holds, can't make a process exceed the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Lookups {
    /// The begin of the current period, and the number of lookups in it.
    period: Option<(Instant, u32)>,
}

/// The maximum number of lookups in a [`PERIOD`]: one for each process to which there may be a ring. A lookup of a process that
/// doesn't exist tries two names, each of which takes about 10 µs, so lookups take at most about 3% of a CPU.
const MAX_LOOKUPS: u32 = 128;

const PERIOD: Duration = Duration::from_millis(100);

impl Lookups {
    /// Counts a lookup, and returns whether it is permitted now.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        let (start, count) = match self.period {
            Some((start, count)) if now.saturating_duration_since(start) < PERIOD => (start, count),
            _ => (now, 0),
        };
        self.period = Some((start, count.min(MAX_LOOKUPS) + 1));
        count < MAX_LOOKUPS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_are_limited_in_each_period() {
        let mut lookups = Lookups::default();
        let mut now = Instant::now();
        for _ in 0..3 {
            for elapsed in [Duration::ZERO, PERIOD - Duration::from_nanos(1)] {
                let permitted = (0..MAX_LOOKUPS).filter(|_| lookups.begin(now + elapsed)).count();
                assert_eq!(permitted, if elapsed.is_zero() { MAX_LOOKUPS as usize } else { 0 });
            }
            now += PERIOD;
        }
    }
}
