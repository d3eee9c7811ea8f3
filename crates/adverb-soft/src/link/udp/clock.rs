//! Conversion of the kernel's receive timestamps to the monotonic clock.

use std::time::{Duration, Instant, SystemTime};

/// A converter of times of the system clock (`CLOCK_REALTIME`), which the kernel stamps received packets with, to the
/// monotonic clock.
///
/// Linux adjusts the rates of both clocks together (`timekeeping_update` in `kernel/time/timekeeping.c`), so their
/// offset changes only when the system clock is set. The converter measures the offset at most [`MAX_AGE`] before it is
/// used, with an error of at most [`Sample::uncertainty`], which is below 1 µs unless the process is preempted in each
/// of [`ATTEMPTS`] measurements.
///
/// A timestamp in the future, or one from before the receive queue was last empty, shows that the system clock was set.
/// The converter then measures the offset again, and moves a timestamp that is still out of range to the nearest
/// possible time.
#[derive(Debug)]
pub(super) struct Clock {
    sample: Sample,
    /// The last time at which the receive queue was empty.
    empty_at: Instant,
}

/// The maximum age of the measured offset.
const MAX_AGE: Duration = Duration::from_millis(100);

/// The maximum time between the timestamp of a packet and its arrival in the receive queue. The kernel stamps packets
/// before it processes them, and processes them in a kernel thread under load.
const MAX_BACKLOG: Duration = Duration::from_millis(10);

/// The width of a measurement that is accurate enough.
const TARGET_WIDTH: Duration = Duration::from_micros(1);

/// The maximum number of measurements in a row.
const ATTEMPTS: u32 = 8;

/// The times of both clocks at one moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The time since 1970 on the system clock.
    system: Duration,
    monotonic: Instant,
    uncertainty: Duration,
}

impl Sample {
    /// Reads both clocks.
    fn read() -> Sample {
        let mut best = Sample::attempt();
        for _ in 1..ATTEMPTS {
            if 2 * best.uncertainty <= TARGET_WIDTH {
                break;
            }
            let next = Sample::attempt();
            if next.uncertainty < best.uncertainty {
                best = next;
            }
        }
        best
    }

    /// Reads the system clock between two reads of the monotonic clock.
    fn attempt() -> Sample {
        let before = Instant::now();
        let system = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let uncertainty = before.elapsed() / 2;
        Sample { system, monotonic: before + uncertainty, uncertainty }
    }

    /// Converts a time since 1970.
    fn convert(&self, system: Duration) -> Option<Instant> {
        match system.checked_sub(self.system) {
            Some(later) => self.monotonic.checked_add(later),
            None => self.monotonic.checked_sub(self.system - system),
        }
    }
}

impl Clock {
    pub(super) fn new() -> Clock {
        let sample = Sample::read();
        Clock { sample, empty_at: sample.monotonic }
    }

    /// Records that the receive queue was empty at this time.
    pub(super) fn record_empty_queue(&mut self, at: Instant) {
        self.empty_at = at;
    }

    /// Returns the time of a packet that the kernel received at `system`, since 1970, and that was read at `now`.
    pub(super) fn convert(&mut self, system: Duration, now: Instant) -> Instant {
        self.convert_with(system, now, Sample::read)
    }

    fn convert_with(&mut self, system: Duration, now: Instant, read: impl FnOnce() -> Sample) -> Instant {
        let earliest = self.empty_at.checked_sub(MAX_BACKLOG).unwrap_or(self.empty_at);
        let plausible = |sample: &Sample| {
            let time = sample.convert(system).filter(|time| *time >= earliest)?;
            (time <= now + sample.uncertainty).then(|| time.min(now))
        };
        if now.saturating_duration_since(self.sample.monotonic) < MAX_AGE
            && let Some(time) = plausible(&self.sample)
        {
            return time;
        }
        self.sample = read();
        let clamp =
            |sample: &Sample| sample.convert(system).unwrap_or(now).clamp(self.empty_at.min(now), now);
        plausible(&self.sample).unwrap_or_else(|| clamp(&self.sample))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: Duration = Duration::from_secs(1_700_000_000);

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Returns a clock whose system time was `EPOCH` at `start`, and whose receive queue was empty then.
    fn clock(start: Instant) -> Clock {
        Clock { sample: sample(start, EPOCH), empty_at: start }
    }

    fn sample(monotonic: Instant, system: Duration) -> Sample {
        Sample { system, monotonic, uncertainty: Duration::from_nanos(100) }
    }

    #[test]
    fn a_timestamp_is_converted_by_the_measured_offset() {
        let start = Instant::now();
        let mut clock = clock(start);
        for (stamp, now) in [(1, 2), (50, 50), (99, 99)] {
            let time =
                clock.convert_with(EPOCH + ms(stamp), start + ms(now), || panic!("unnecessary measurement"));
            assert_eq!(time, start + ms(stamp));
        }
        // Packets wait in the kernel before they enter the receive queue.
        clock.record_empty_queue(start + ms(40));
        let time = clock.convert_with(EPOCH + ms(35), start + ms(41), || panic!("unnecessary measurement"));
        assert_eq!(time, start + ms(35));
    }

    #[test]
    fn a_timestamp_within_the_uncertainty_of_now_is_accepted() {
        let start = Instant::now();
        let stamp = EPOCH + ms(5) + Duration::from_nanos(100);
        let time = clock(start).convert_with(stamp, start + ms(5), || panic!("unnecessary measurement"));
        assert_eq!(time, start + ms(5));
    }

    #[test]
    fn an_old_offset_is_measured_again() {
        let start = Instant::now();
        let mut clock = clock(start);
        let now = start + ms(100);
        let time = clock.convert_with(EPOCH + ms(108), now, || sample(now, EPOCH + ms(110)));
        assert_eq!(time, start + ms(98), "the system clock was set 10 ms ahead");
    }

    #[test]
    fn a_set_system_clock_makes_the_converter_measure_again() {
        let start = Instant::now();
        for step in [3_600_000, 20] {
            // Ahead: the packet seems to be from the future.
            let now = start + ms(10);
            let ahead =
                clock(start).convert_with(EPOCH + ms(step + 9), now, || sample(now, EPOCH + ms(step + 10)));
            assert_eq!(ahead, start + ms(9));
            // Back: the packet seems to be from before the queue was empty.
            let back = clock(start)
                .convert_with(EPOCH + ms(9) - ms(step), now, || sample(now, EPOCH + ms(10) - ms(step)));
            assert_eq!(back, start + ms(9));
        }
    }

    #[test]
    fn a_timestamp_from_before_the_system_clock_was_set_stays_in_range() {
        let start = Instant::now();
        let now = start + ms(10);
        for (stamp, system) in [
            // The packet was stamped before the clock was set back by an hour.
            (EPOCH + ms(9), EPOCH + ms(10) - ms(3_600_000)),
            // The packet was stamped before the clock was set ahead by an hour.
            (EPOCH + ms(9), EPOCH + ms(10) + ms(3_600_000)),
            (Duration::ZERO, EPOCH),
            (Duration::MAX, EPOCH),
        ] {
            let mut clock = clock(start);
            clock.sample.monotonic = start - ms(200);
            let time = clock.convert_with(stamp, now, || sample(now, system));
            assert!((start..=now).contains(&time), "{:?} before now", now - time);
        }
    }

    #[test]
    fn the_current_time_converts_to_the_current_time() {
        let mut clock = Clock::new();
        for _ in 0..100 {
            let before = Instant::now();
            let system = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
            let now = Instant::now();
            let time = clock.convert(system, now);
            // The converted time lies between the reads, except for the error of the offset.
            assert!(time <= now && time + clock.sample.uncertainty >= before);
        }
    }
}
