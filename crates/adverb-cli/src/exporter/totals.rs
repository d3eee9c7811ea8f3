//! Totals of probes: the number of each result, and histograms of the delays.

use std::collections::BTreeMap;
use std::time::Duration;

use adverb::probe::session::ProbeResult;

/// The upper bounds of the histograms' buckets, in nanoseconds: 1 µs to 1 s in steps of 1, 2 and 5.
const BOUNDS: [u64; 19] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
];

/// The values of the label `result`.
const RESULTS: [&str; 10] = [
    "answered",
    "late",
    "impossible",
    "unstamped",
    "return_lost",
    "lost",
    "ended",
    "unreachable",
    "not_sent",
    "other",
];

/// A responder and the totals of its probes.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Destination {
    /// The responder, as the operator named it.
    pub name: String,
    /// Whether the responder has been found.
    pub is_found: bool,
    /// The totals of each class.
    pub classes: Vec<ClassTotals>,
}

/// The totals of the probes of one class.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct ClassTotals {
    /// The differentiated services code point.
    pub dscp: u8,
    /// The number of probes by the label of their result.
    pub results: BTreeMap<&'static str, u64>,
    /// The round-trip time of the network, by stamps of the kernel or the NIC.
    pub network_rtt: DelayHistogram,
    /// The round-trip time by stamps of processes.
    pub process_rtt: DelayHistogram,
    /// The delay of the prober's host.
    pub prober_delay: DelayHistogram,
    /// The delay of the responder's host.
    pub responder_delay: DelayHistogram,
}

impl Destination {
    /// Creates a responder without results.
    pub(super) fn new(name: &str, dscps: &[u8]) -> Destination {
        let classes = dscps.iter().map(|dscp| ClassTotals::new(*dscp)).collect();
        Destination { name: name.to_owned(), is_found: false, classes }
    }

    /// Records the result of a probe of a class.
    pub(super) fn record(&mut self, dscp: u8, result: &ProbeResult) {
        if let Some(class) = self.classes.iter_mut().find(|class| class.dscp == dscp) {
            class.record(result);
        }
    }
}

impl ClassTotals {
    fn new(dscp: u8) -> ClassTotals {
        ClassTotals {
            dscp,
            // Each series starts at 0, because Prometheus ignores the first increase of a series that starts at 1.
            results: RESULTS.map(|result| (result, 0)).into(),
            network_rtt: DelayHistogram::default(),
            process_rtt: DelayHistogram::default(),
            prober_delay: DelayHistogram::default(),
            responder_delay: DelayHistogram::default(),
        }
    }

    fn record(&mut self, result: &ProbeResult) {
        *self.results.entry(result.name()).or_default() += 1;
        if let Some(figures) = result.figures() {
            match figures.network_rtt() {
                Some(rtt) => self.network_rtt.record(rtt),
                // This time is not evidence about the network.
                None => self.process_rtt.record(figures.round_trip),
            }
            self.prober_delay.record(figures.prober_delay);
            self.responder_delay.record(figures.responder_delay);
        }
    }
}

/// A histogram with fixed buckets, as Prometheus needs it: its counts and its sum never decrease.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct DelayHistogram {
    /// The number of delays in each bucket; the last is for longer ones.
    counts: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

impl DelayHistogram {
    pub(super) fn record(&mut self, delay: Duration) {
        let nanos = delay.as_nanos();
        let bucket = BOUNDS.iter().position(|bound| nanos <= u128::from(*bound)).unwrap_or(BOUNDS.len());
        self.counts[bucket] += 1;
        self.sum = self.sum.saturating_add(delay);
    }

    /// Returns the upper bound of each bucket in seconds, and the number of delays up to the bound.
    pub(super) fn cumulative(&self) -> Vec<(f64, u64)> {
        let mut total = 0;
        let up_to = self.counts.iter().map(|count| {
            total += count;
            total
        });
        BOUNDS.iter().map(|bound| Duration::from_nanos(*bound).as_secs_f64()).zip(up_to).collect()
    }

    /// Returns the number of delays.
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of the delays in seconds.
    pub(super) fn sum(&self) -> f64 {
        self.sum.as_secs_f64()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use adverb::probe::figures::{Figures, ProbeStamps, ResponderStamps};
    use adverb::probe::stamp::{Stamp, StampKind};

    use super::*;

    pub(in super::super) fn answered(rtt: u64, kind: StampKind) -> ProbeResult {
        let stamps = ProbeStamps {
            posted: Stamp { nanos: 0, kind: StampKind::Process },
            sent: Stamp { nanos: 1_000, kind },
            responder: ResponderStamps {
                received: 5_000,
                received_kind: kind,
                acked: 25_000,
                acked_kind: kind,
            },
            acked: Stamp { nanos: 21_000 + rtt, kind },
            processed: Stamp { nanos: 24_000 + rtt, kind: StampKind::Process },
        };
        ProbeResult::Answered(Figures::compute(&stamps).expect("possible stamps"))
    }

    #[test]
    fn results_are_recorded_in_their_class() {
        let mut destination = Destination::new("storage-1", &[0, 26]);
        destination.record(26, &answered(7_000, StampKind::Kernel));
        destination.record(26, &ProbeResult::Lost);
        destination.record(48, &ProbeResult::Lost);
        let [other, class] = &destination.classes[..] else { panic!("{destination:?}") };
        assert_eq!((class.results["answered"], class.results["lost"]), (1, 1));
        assert_eq!(other.results.values().sum::<u64>(), 0);
        assert_eq!((class.network_rtt.count(), class.process_rtt.count()), (1, 0));
        assert_eq!((class.responder_delay.sum(), class.prober_delay.sum()), (20e-6, 4e-6));
    }

    #[test]
    fn round_trips_by_stamps_of_processes_are_recorded_separately() {
        let mut destination = Destination::new("storage-1", &[0]);
        destination.record(0, &answered(7_000, StampKind::Process));
        let class = &destination.classes[0];
        assert_eq!((class.network_rtt.count(), class.process_rtt.count()), (0, 1));
    }

    #[test]
    fn buckets_are_cumulative_and_bounds_inclusive() {
        let mut histogram = DelayHistogram::default();
        for nanos in [0, 1_000, 1_001, 3_000_000_000] {
            histogram.record(Duration::from_nanos(nanos));
        }
        let buckets = histogram.cumulative();
        assert_eq!(buckets.len(), BOUNDS.len());
        assert_eq!(buckets[..3], [(1e-6, 2), (2e-6, 3), (5e-6, 3)]);
        assert_eq!((buckets.last(), histogram.count()), (Some(&(1.0, 3)), 4));
    }
}
