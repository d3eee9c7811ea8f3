//! Clocks of the host.

use std::time::{Duration, Instant, SystemTime};

use adverb_proto::trace::ClockOrigin;

/// Returns the origin of a clock that started at `start`, on the host's clocks.
pub(crate) fn clock_origin(start: Instant) -> ClockOrigin {
    let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let elapsed = nanos(start.elapsed());
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanos);
    ClockOrigin {
        host_id: host_id(),
        monotonic_nanos: nanos(monotonic()).saturating_sub(elapsed),
        unix_nanos: unix.saturating_sub(elapsed),
    }
}

/// Returns the time of the monotonic clock. [`Instant`] has the same time, but doesn't expose it.
fn monotonic() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time may be written.
    if unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) } != 0 {
        return Duration::ZERO;
    }
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

/// Returns the identity of the host since its last boot, or 0 if the system doesn't provide it.
fn host_id() -> u128 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u128::from_str_radix(&id.trim().replace('-', ""), 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_origin_does_not_change() {
        let start = Instant::now();
        let first = clock_origin(start);
        std::thread::sleep(Duration::from_millis(20));
        let second = clock_origin(start);
        assert_eq!(first.host_id, second.host_id);
        // The two clocks of one call are read one after the other.
        assert!(first.monotonic_nanos.abs_diff(second.monotonic_nanos) < 10_000_000, "{first:?} {second:?}");
        assert!(monotonic() > Duration::ZERO);
    }
}
