//! Clocks of the host.

use std::time::{Duration, Instant, SystemTime};

use adverb_proto::trace::ClockOrigin;

/// Returns the origin of a clock that started at `start`, on the host's clocks.
pub(crate) fn clock_origin(start: Instant) -> ClockOrigin {
    read_clocks(start).origin
}

/// The maximum number of times that the clocks are read to find an origin.
const ATTEMPTS: usize = 8;

/// The error of an origin that is accepted at once. The clocks are read one after the other, and if the thread loses its
/// CPU between them, the origin is wrong by that time.
const MAX_ERROR: Duration = Duration::from_micros(20);

/// An origin, and how far it can be from the true one.
#[derive(Debug)]
struct Reading {
    origin: ClockOrigin,
    error: Duration,
}

/// Reads the clocks until the error is at most [`MAX_ERROR`], and returns the reading with the smallest error.
fn read_clocks(start: Instant) -> Reading {
    let mut best = read_clocks_once(start);
    for _ in 1..ATTEMPTS {
        if best.error <= MAX_ERROR {
            break;
        }
        let next = read_clocks_once(start);
        if next.error < best.error {
            best = next;
        }
    }
    best
}

fn read_clocks_once(start: Instant) -> Reading {
    let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let host_id = host_id();
    let before = start.elapsed();
    let monotonic = monotonic();
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let error = start.elapsed().saturating_sub(before);
    let monotonic_nanos = nanos(monotonic.saturating_sub(before));
    Reading {
        origin: ClockOrigin { host_id, monotonic_nanos, unix_nanos: nanos(unix.saturating_sub(before)) },
        error,
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
        let first = read_clocks(start);
        std::thread::sleep(Duration::from_millis(20));
        let second = read_clocks(start);
        assert_eq!(first.origin.host_id, second.origin.host_id);
        let difference = first.origin.monotonic_nanos.abs_diff(second.origin.monotonic_nanos);
        // Each origin lies between the true one and the true one plus its error.
        let error = first.error.max(second.error);
        assert!(Duration::from_nanos(difference) <= error, "{first:?} {second:?}");
        assert!(monotonic() > Duration::ZERO);
    }
}
