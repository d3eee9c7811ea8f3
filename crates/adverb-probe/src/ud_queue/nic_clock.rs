//! The clock of an RDMA NIC.

use adverb_verbs::TimestampClock;

use crate::stamp::{Stamp, StampKind};

/// A converter of a NIC's ticks, which wrap, to nanoseconds, which don't.
#[derive(Debug)]
pub(super) struct NicClock {
    clock: TimestampClock,
    /// The last timestamp, and the ticks since the first one, offset by [`NicClock::START`].
    last: Option<(u64, u64)>,
}

impl NicClock {
    /// The ticks of the first timestamp. Later completions may have slightly earlier timestamps.
    const START: u64 = 1 << 40;

    /// Creates a converter. Returns `None` if the frequency of the clock isn't known.
    pub(super) fn new(clock: TimestampClock) -> Option<NicClock> {
        clock.period().map(|_| NicClock { clock, last: None })
    }

    /// Converts a timestamp that is less than half a period before or after the previous one.
    pub(super) fn stamp(&mut self, timestamp: u64) -> Option<Stamp> {
        let total = match self.last {
            None => NicClock::START,
            Some((last, total)) => {
                let later = self.clock.ticks_between(last, timestamp);
                if later <= self.clock.mask / 2 {
                    total.saturating_add(later)
                } else {
                    total.saturating_sub(self.clock.ticks_between(timestamp, last))
                }
            }
        };
        self.last = Some((timestamp, total));
        let nanos = u64::try_from(self.clock.duration_of(total)?.as_nanos()).ok()?;
        Some(Stamp { nanos, kind: StampKind::Nic })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_a_clock_that_wraps_become_nanoseconds_that_do_not() {
        // 32 bits at 156.25 MHz: a tick is 6.4 ns, and the clock wraps after 27 s.
        let mask = u64::from(u32::MAX);
        let mut clock = NicClock::new(TimestampClock::new(mask).with_frequency_khz(156_250)).unwrap();
        let first = clock.stamp(mask - 99).unwrap();
        let wrapped = clock.stamp(900).unwrap();
        assert_eq!(wrapped.nanos_since(first), Some(6400));
        // The completion of an earlier packet is polled later.
        let earlier = clock.stamp(mask - 599).unwrap();
        assert_eq!(earlier.nanos_since(first), Some(-3200));
        assert_eq!(clock.stamp(900).unwrap(), wrapped);
    }

    #[test]
    fn a_clock_of_unknown_frequency_gives_no_stamps() {
        assert!(NicClock::new(TimestampClock::new(u64::MAX)).is_none());
    }
}
