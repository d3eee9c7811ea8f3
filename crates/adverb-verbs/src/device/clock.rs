//! The clocks of completion timestamps.

use std::time::{Duration, Instant};

use adverb_proto::types::TimestampClock;

use super::Device;
#[allow(unused_imports, reason = "for links")]
use crate::error::{Error, Feature, Result};

/// A reading of a device's timestamp clock together with the process's monotonic clock, from [`Device::query_clock`].
///
/// A sample converts timestamps of completions to [`Instant`]s:
///
/// ```
/// # #[cfg(feature = "soft")] {
/// use adverb::verbs::Device;
/// use std::time::Duration;
///
/// let device = Device::open("soft")?;
/// let sample = device.query_clock()?;
/// let later = sample.instant_of(sample.ticks + 1_000_000).unwrap();
/// assert_eq!(later - sample.at, Duration::from_millis(1));
/// # }
/// # Ok::<(), adverb::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ClockSample {
    /// The clock.
    pub clock: TimestampClock,
    /// The reading of the device's clock.
    pub ticks: u64,
    /// The reading of the monotonic clock.
    pub at: Instant,
    /// The maximum difference between the times of the two readings. It is zero for a software device, whose clock is
    /// the monotonic clock.
    pub uncertainty: Duration,
}

impl ClockSample {
    /// Converts a timestamp of the sampled device's completions to an [`Instant`]. The timestamp can be earlier or later
    /// than the sample, by less than half of the clock's [period](TimestampClock::period).
    ///
    /// The result is wrong by at most the [uncertainty](ClockSample::uncertainty), and the deviation of the device's
    /// oscillator from its nominal frequency multiplied by the time between the sample and the timestamp: at 100 ppm,
    /// 100 µs per second. So take a sample shortly before or after the completion. A software device has no such
    /// deviation.
    ///
    /// Returns `None` if the device doesn't report the frequency of its clock, or if the result can't be represented.
    pub fn instant_of(&self, timestamp: u64) -> Option<Instant> {
        let later = self.clock.ticks_between(self.ticks, timestamp);
        if later <= self.clock.mask / 2 {
            self.at.checked_add(self.clock.duration_of(later)?)
        } else {
            let earlier = self.clock.ticks_between(timestamp, self.ticks);
            self.at.checked_sub(self.clock.duration_of(earlier)?)
        }
    }
}

impl Device {
    /// Reads the clock of the device's completion timestamps, together with the process's monotonic clock.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the device has no [clock](crate::DeviceAttributes::timestamp_clock), or if its
    /// driver can't read the clock, and [`Error::CallFailed`] if reading the clock fails.
    pub fn query_clock(&self) -> Result<ClockSample> {
        let Some(clock) = self.attributes().timestamp_clock else {
            return Err(self.unsupported(Feature::CompletionTimestamps));
        };
        let read = self.backend().read_clock()?;
        let (ticks, at, uncertainty) = read.ok_or_else(|| self.unsupported(Feature::Clock))?;
        Ok(ClockSample { clock, ticks: ticks & clock.mask, at, uncertainty })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(clock: TimestampClock, ticks: u64) -> ClockSample {
        // A time long after the origin of the monotonic clock.
        let at = Instant::now() + Duration::from_secs(1 << 40);
        ClockSample { clock, ticks, at, uncertainty: Duration::ZERO }
    }

    #[test]
    fn a_timestamp_on_either_side_of_a_wrap_is_converted() {
        for bits in [32, 41, 48, 63, 64] {
            let mask = u64::MAX >> (64 - bits);
            // 1 MHz.
            let clock = TimestampClock::new(mask).with_frequency_khz(1000);
            for ticks in [0, 10, mask / 2, mask - 10, mask] {
                let sample = sample(clock, ticks);
                for distance in [0, 1, 11, 1_000_000] {
                    let duration = Duration::from_micros(distance);
                    let later = ticks.wrapping_add(distance) & mask;
                    assert_eq!(sample.instant_of(later), Some(sample.at + duration), "{bits} bits, {ticks}");
                    let earlier = ticks.wrapping_sub(distance) & mask;
                    assert_eq!(
                        sample.instant_of(earlier),
                        Some(sample.at - duration),
                        "{bits} bits, {ticks}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_clock_of_unknown_frequency_gives_no_instant() {
        assert_eq!(sample(TimestampClock::new(u64::MAX), 5).instant_of(7), None);
    }
}
