//! Timestamps of a probe's events, and differences between two timestamps of one clock.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The origin of a [`Stamp`]: the component that read the clock. The order is by accuracy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StampKind {
    /// This process read the monotonic clock. The stamp includes the time for which the process waited for a CPU, so it
    /// says nothing about the network.
    Process,
    /// The kernel read its clock when the packet passed through its network stack.
    Kernel,
    /// The RDMA NIC read its own clock when it completed the request.
    Nic,
}

impl fmt::Display for StampKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            StampKind::Process => "process",
            StampKind::Kernel => "kernel",
            StampKind::Nic => "NIC",
        })
    }
}

/// A point in time, with the component that observed it.
///
/// Stamps of the process and of the kernel are on the process's monotonic clock. Stamps of a NIC are on the clock of
/// that NIC: only differences of stamps of one opened device have a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stamp {
    /// The time in nanoseconds, from an arbitrary origin of the clock.
    pub nanos: u64,
    /// The component that observed the time.
    pub kind: StampKind,
}

impl Stamp {
    /// Returns the current time on the process's monotonic clock.
    pub fn now() -> Stamp {
        Stamp::from_instant(Instant::now(), StampKind::Process)
    }

    /// Returns the stamp for a time of the process's monotonic clock.
    pub fn from_instant(instant: Instant, kind: StampKind) -> Stamp {
        let since_origin = instant.saturating_duration_since(origin());
        Stamp { nanos: u64::try_from(since_origin.as_nanos()).unwrap_or(u64::MAX), kind }
    }

    /// Returns the nanoseconds from `earlier` to this stamp, which are negative if this stamp is the earlier one.
    /// Returns `None` if the stamps are on different clocks.
    ///
    /// ```
    /// use adverb::probe::stamp::{Stamp, StampKind};
    ///
    /// let [sent, received] = [700, 1900].map(|nanos| Stamp { nanos, kind: StampKind::Nic });
    /// assert_eq!(received.nanos_since(sent), Some(1200));
    /// assert_eq!(received.nanos_since(Stamp::now()), None);
    /// ```
    pub fn nanos_since(self, earlier: Stamp) -> Option<i64> {
        let is_one_clock = (self.kind == StampKind::Nic) == (earlier.kind == StampKind::Nic);
        is_one_clock.then(|| self.nanos.wrapping_sub(earlier.nanos).cast_signed())
    }
}

/// Returns the origin of stamps on the process's monotonic clock. It lies before the first use, so that the times of
/// packets that arrived before are positive too.
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(|| {
        let now = Instant::now();
        now.checked_sub(Duration::from_secs(3600)).unwrap_or(now)
    })
}

#[cfg(test)]
impl Stamp {
    pub(crate) fn process(nanos: u64) -> Stamp {
        Stamp { nanos, kind: StampKind::Process }
    }

    pub(crate) fn kernel(nanos: u64) -> Stamp {
        Stamp { nanos, kind: StampKind::Kernel }
    }

    pub(crate) fn nic(nanos: u64) -> Stamp {
        Stamp { nanos, kind: StampKind::Nic }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_of_different_clocks_have_no_difference() {
        assert_eq!(Stamp::nic(5).nanos_since(Stamp::kernel(9)), None);
        assert_eq!(Stamp::process(9).nanos_since(Stamp::nic(5)), None);
        assert_eq!(Stamp::process(9).nanos_since(Stamp::kernel(5)), Some(4));
        assert_eq!(Stamp::kernel(1).nanos_since(Stamp::kernel(u64::MAX)), Some(2));
        assert_eq!(Stamp::nic(5).nanos_since(Stamp::nic(9)), Some(-4));
        assert!(Stamp::now().nanos_since(Stamp::kernel(0)).is_some_and(|nanos| nanos > 0));
    }

    #[test]
    fn kinds_are_ordered_by_accuracy() {
        assert!(StampKind::Process < StampKind::Kernel && StampKind::Kernel < StampKind::Nic);
    }
}
