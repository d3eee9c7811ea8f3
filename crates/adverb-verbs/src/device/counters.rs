//! Counters of devices.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use adverb_proto::ResourceCounts;

use super::Device;
use crate::error::Result;

/// The counters of one port of a device at one point in time: packets, bytes, retransmissions, errors.
///
/// The driver determines the set of counters and their names; Adverb uses the kernel's names. The counters start at 0
/// when the device starts, and all programs that use the device share them. The kernel caches the values for a short
/// time (usually 10 ms), so reading them more often returns the same values. The counters of a software NIC count the
/// traffic of this process only, and no other process can read them.
///
/// ```no_run
/// # use std::time::Duration;
/// # use adverb::verbs::Device;
/// let device = Device::open_first()?;
/// let before = device.counters(1)?;
/// std::thread::sleep(Duration::from_secs(1));
/// let difference = device.counters(1)?.since(&before);
/// for (name, count) in difference.iter().filter(|(_, count)| *count > 0) {
///     println!("{name}: {count}, {:.1} a second", difference.rate(name).unwrap_or_default());
/// }
/// # Ok::<(), adverb::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counters {
    captured_at: Instant,
    values: BTreeMap<String, u64>,
}

/// The increase of counters between two points in time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CountersDelta {
    elapsed: Duration,
    values: BTreeMap<String, u64>,
}

impl Device {
    /// Reads the counters of one of the device's ports. A device without counters returns an empty set.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`](crate::Error::CallFailed) if the port doesn't exist or its counters can't be read.
    pub fn counters(&self, port: u8) -> Result<Counters> {
        Ok(Counters { captured_at: Instant::now(), values: self.backend().counters(port)? })
    }

    /// Returns the numbers of objects and of pending operations of a software device, for leak detection. Returns
    /// `None` for other devices.
    ///
    /// ```
    /// let device = adverb::verbs::Device::open("soft")?;
    /// let before = device.resource_counts();
    /// drop(device.create_protection_domain()?.allocate_buffer(4096)?);
    /// assert_eq!(device.resource_counts(), before);
    /// # Ok::<(), adverb::Error>(())
    /// ```
    pub fn resource_counts(&self) -> Option<ResourceCounts> {
        self.backend().resource_counts()
    }
}

impl Counters {
    /// Returns the value of the counter with this kernel name, for example `rcvd_pkts`.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.values.get(name).copied()
    }

    /// Returns all counters, sorted by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        self.values.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// Returns the time at which the counters were read.
    pub fn captured_at(&self) -> Instant {
        self.captured_at
    }

    /// Returns the increase since an earlier reading. A counter that is smaller than before has been reset, and its
    /// value counts as the increase. A counter that is missing from the earlier reading is omitted.
    #[must_use]
    pub fn since(&self, earlier: &Counters) -> CountersDelta {
        let grown = self.values.iter().filter_map(|(name, value)| {
            let before = earlier.get(name)?;
            Some((name.clone(), value.checked_sub(before).unwrap_or(*value)))
        });
        CountersDelta {
            elapsed: self.captured_at.saturating_duration_since(earlier.captured_at),
            values: grown.collect(),
        }
    }

    /// Whether a counter of this name counts events that should not happen on a healthy network: packets lost,
    /// rejected, late, out of order, or retransmitted. The result depends on the name only, because the kernel provides
    /// no other information.
    pub fn is_error(name: &str) -> bool {
        const ERROR_WORDS: [&str; 18] = [
            "err",
            "icrc",
            "drop",
            "discard",
            "retry",
            "retries",
            "retrans",
            "timeout",
            "nak",
            "rnr",
            "duplicate",
            "out_of",
            "overrun",
            "violation",
            "downed",
            "implied",
            "bad",
            "mismatch",
        ];
        // A deferred packet is no error, although the word contains "err".
        let name = name.replace("deferred", "");
        ERROR_WORDS.iter().any(|word| name.contains(word))
    }
}

impl CountersDelta {
    /// Returns the increase of one counter.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.values.get(name).copied()
    }

    /// Returns the increases of all counters, sorted by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        self.values.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// Returns the time between the two readings.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Returns the increase of one counter per second, or `None` if the counter doesn't exist or no time elapsed.
    #[expect(clippy::cast_precision_loss, reason = "a rate of more than 2⁵³ is exact enough")]
    pub fn rate(&self, name: &str) -> Option<f64> {
        let seconds = self.elapsed.as_secs_f64();
        Some(self.get(name)? as f64 / seconds).filter(|_| seconds > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(captured_at: Instant, values: &[(&str, u64)]) -> Counters {
        Counters {
            captured_at,
            values: values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        }
    }

    #[test]
    fn difference_counts_from_zero_after_a_reset() {
        let start = Instant::now();
        let before = counters(start, &[("sent_pkts", 100), ("rcvd_pkts", 1000), ("gone", 1)]);
        let after =
            counters(start + Duration::from_secs(2), &[("sent_pkts", 150), ("rcvd_pkts", 10), ("new", 5)]);
        let difference = after.since(&before);
        assert_eq!(difference.iter().collect::<Vec<_>>(), [("rcvd_pkts", 10), ("sent_pkts", 50)]);
        assert_eq!(difference.rate("sent_pkts"), Some(25.0));
        assert_eq!(difference.rate("new"), None);
        assert_eq!(after.since(&after).rate("sent_pkts"), None, "no time has passed");
    }

    #[test]
    fn error_counters_are_recognized_by_name() {
        let errors =
            ["rcvd_seq_err", "send_rnr_err", "duplicate_request", "out_of_sequence", "port_rcv_errors"];
        let traffic =
            ["sent_pkts", "rcvd_pkts", "port_xmit_data", "rx_write_requests", "rdma_sends", "ack_deferred"];
        assert!(errors.into_iter().all(Counters::is_error));
        assert!(!traffic.into_iter().any(Counters::is_error));
    }

    #[test]
    fn error_counters_of_the_software_nic_are_recognized_by_name() {
        let traffic = [
            "sent_pkts",
            "rcvd_pkts",
            "sent_bytes",
            "rcvd_bytes",
            "completions",
            "np_ecn_marked_roce_packets",
            "np_cnp_sent",
            "rp_cnp_handled",
        ];
        for (name, _) in adverb_proto::Statistics::default().counters() {
            assert_eq!(Counters::is_error(name), !traffic.contains(&name), "{name}");
        }
    }
}
