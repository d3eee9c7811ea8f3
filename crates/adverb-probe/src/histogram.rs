//! Results of probes, which can be merged: histograms and counts per source, destination, path, class and window.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::session::{ProbeCounts, ProbeResult};

/// The precision of histograms, in decimal digits: a value differs from the recorded one by at most 1 %.
const DIGITS: u8 = 2;

/// The longest duration that histograms record. Longer ones count as this one.
pub const MAX_DURATION: Duration = Duration::from_secs(60);

/// A histogram of durations, with a relative error of at most 1 %.
///
/// ```
/// use adverb::probe::histogram::DurationHistogram;
/// use std::time::Duration;
///
/// let mut histogram = DurationHistogram::new();
/// for micros in 1..=100 {
///     histogram.record(Duration::from_micros(micros));
/// }
/// let median = histogram.percentile(50.0).unwrap();
/// assert!(median.abs_diff(Duration::from_micros(50)) <= Duration::from_nanos(500));
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct DurationHistogram(Histogram<u32>);

impl DurationHistogram {
    /// Creates an empty histogram.
    pub fn new() -> DurationHistogram {
        // It grows with the longest recorded duration.
        DurationHistogram(Histogram::new(DIGITS).expect("a valid precision"))
    }

    /// Records a duration.
    pub fn record(&mut self, duration: Duration) {
        self.record_many(duration, 1);
    }

    /// Records a duration several times. With [`buckets`](DurationHistogram::buckets), it rebuilds a histogram that was
    /// sent elsewhere.
    pub fn record_many(&mut self, duration: Duration, count: u32) {
        let nanos = duration.min(MAX_DURATION).as_nanos() as u64;
        self.0.record_n(nanos, count).expect("the histogram grows");
    }

    /// Adds the durations of another histogram.
    pub fn merge(&mut self, other: &DurationHistogram) {
        self.0.add(&other.0).expect("the histogram grows");
    }

    /// Returns the number of recorded durations.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the duration that `percentile` percent of the recorded durations don't exceed, or `None` if the histogram
    /// is empty.
    pub fn percentile(&self, percentile: f64) -> Option<Duration> {
        (!self.is_empty()).then(|| Duration::from_nanos(self.0.value_at_percentile(percentile)))
    }

    /// Returns the shortest recorded duration.
    pub fn min(&self) -> Option<Duration> {
        (!self.is_empty()).then(|| Duration::from_nanos(self.0.min()))
    }

    /// Returns the longest recorded duration.
    pub fn max(&self) -> Option<Duration> {
        (!self.is_empty()).then(|| Duration::from_nanos(self.0.max()))
    }

    /// Returns the mean of the recorded durations.
    pub fn mean(&self) -> Option<Duration> {
        (!self.is_empty()).then(|| Duration::from_nanos(self.0.mean() as u64))
    }

    /// Returns the number of recorded durations that are not longer than `limit`, to within the histogram's precision.
    pub fn count_up_to(&self, limit: Duration) -> u64 {
        let nanos = limit.min(MAX_DURATION).as_nanos() as u64;
        self.0.count_between(0, nanos)
    }

    /// Returns the buckets that are not empty: the longest duration of each, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u32)> {
        self.0
            .iter_recorded()
            .map(|bucket| (Duration::from_nanos(bucket.value_iterated_to()), bucket.count_at_value()))
    }
}

impl Default for DurationHistogram {
    fn default() -> DurationHistogram {
        DurationHistogram::new()
    }
}

/// The results of several probes.
///
/// ```
/// # #[cfg(feature = "soft")] {
/// use adverb::probe::histogram::Summary;
/// use adverb::probe::{Prober, Responder};
/// use adverb::verbs::SoftDevice;
/// use std::time::{Duration, Instant};
///
/// let addrs = ["127.93.1.1", "127.93.1.2"];
/// # // Other processes that run this test have other addresses.
/// # let pid = std::process::id();
/// # let addrs = [1, 2].map(|host| format!("127.93.{}.{}", pid >> 6 & 255, (pid & 63) << 2 | host));
/// let [here, there] = addrs.map(|addr| SoftDevice::at_addr(addr.parse().unwrap()).open().unwrap());
/// let responder = Responder::start(&there)?;
/// let mut prober = Prober::open(&here)?;
/// let peer = prober.connect(responder.local_addr())?;
///
/// let mut summary = Summary::new();
/// let end = Instant::now() + Duration::from_millis(200);
/// while Instant::now() < end {
///     summary.record(&prober.probe(&peer)?);
///     std::thread::sleep(Duration::from_millis(10));
/// }
/// for percentile in [50.0, 99.0] {
///     println!("p{percentile}: {:?}", summary.network_rtt.percentile(percentile)); // `None` if the histogram is empty
/// }
/// if let Some(loss) = summary.counts.loss() {
///     println!("{:.1} % lost", 100.0 * loss);
/// }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Summary {
    /// The number of probes by result. [`ProbeCounts::begun`] and the counts of acknowledgements stay 0.
    pub counts: ProbeCounts,
    /// The round-trip time of the network, of probes whose stamps are by the kernel or the NIC. It is empty for probes on an
    /// in-memory [`Switch`](adverb_verbs::Switch), where a process takes the stamps.
    pub network_rtt: DurationHistogram,
    /// The round-trip time of probes with stamps by a process. It includes the time until processes were scheduled, so it
    /// is no evidence about the network.
    pub process_rtt: DurationHistogram,
    /// The delay of the prober's host.
    pub prober_delay: DurationHistogram,
    /// The delay of the responder's host.
    pub responder_delay: DurationHistogram,
}

impl Summary {
    /// Creates an empty summary.
    pub fn new() -> Summary {
        Summary::default()
    }

    /// Records the result of a probe.
    pub fn record(&mut self, result: &ProbeResult) {
        self.counts.record(result);
        if let Some(figures) = result.figures() {
            match figures.network_rtt() {
                Some(rtt) => self.network_rtt.record(rtt),
                None => self.process_rtt.record(figures.round_trip),
            }
            self.prober_delay.record(figures.prober_delay);
            self.responder_delay.record(figures.responder_delay);
        }
    }

    /// Adds the results of another summary. The order of merging doesn't matter.
    pub fn merge(&mut self, other: &Summary) {
        self.counts.merge(&other.counts);
        self.network_rtt.merge(&other.network_rtt);
        self.process_rtt.merge(&other.process_rtt);
        self.prober_delay.merge(&other.prober_delay);
        self.responder_delay.merge(&other.responder_delay);
    }
}

/// The key of a [`Summary`] in [`Results`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SeriesKey {
    /// The prober's address.
    pub source: IpAddr,
    /// The responder's address.
    pub destination: IpAddr,
    /// The flow label, which selects the path; 0 if the prober chose none.
    pub flow_label: u32,
    /// The class: the differentiated services code point.
    pub dscp: u8,
    /// The number of the window: see [`Results::window_of`].
    pub window: u64,
}

/// The window and the limit of [`Results`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResultsConfig {
    /// The length of a window, at least a nanosecond.
    pub window: Duration,
    /// The maximum number of summaries.
    pub max_series: usize,
}

/// Summaries per source, destination, path, class and window. Results of several probers can be merged.
///
/// ```
/// use adverb::probe::histogram::{Results, ResultsConfig, SeriesKey};
/// use adverb::probe::session::ProbeResult;
/// use std::time::Duration;
///
/// let mut results = Results::new(ResultsConfig { window: Duration::from_secs(10), max_series: 1000 });
/// let key = SeriesKey {
///     source: "10.0.0.1".parse()?,
///     destination: "10.0.0.2".parse()?,
///     flow_label: 0x123,
///     dscp: 26,
///     window: results.window_of(Duration::from_secs(25)),
/// };
/// assert_eq!(key.window, 2);
/// assert!(results.record(key, &ProbeResult::Lost));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Results {
    window: Duration,
    max_series: usize,
    series: BTreeMap<SeriesKey, Summary>,
    dropped: u64,
}

impl Results {
    /// Creates empty results.
    ///
    /// # Panics
    ///
    /// Panics if the window is shorter than a nanosecond.
    pub fn new(config: ResultsConfig) -> Results {
        let ResultsConfig { window, max_series } = config;
        assert!(!window.is_zero(), "an empty window");
        Results { window, max_series, series: BTreeMap::new(), dropped: 0 }
    }

    /// Returns the number of the window that contains a time since an epoch, such as the Unix epoch.
    pub fn window_of(&self, time: Duration) -> u64 {
        (time.as_nanos() / self.window.as_nanos()) as u64
    }

    /// Records the result of a probe. Returns `false` if the key is new and there are too many summaries.
    pub fn record(&mut self, key: SeriesKey, result: &ProbeResult) -> bool {
        let summary = self.series_mut(key);
        let is_recorded = summary.map(|summary| summary.record(result)).is_some();
        self.dropped += u64::from(!is_recorded);
        is_recorded
    }

    /// Adds other results.
    pub fn merge(&mut self, other: &Results) {
        self.dropped += other.dropped;
        for (&key, summary) in &other.series {
            match self.series_mut(key) {
                Some(own) => own.merge(summary),
                None => self.dropped += summary.counts.conclusive(),
            }
        }
    }

    /// Returns the summaries, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&SeriesKey, &Summary)> {
        self.series.iter()
    }

    /// Returns the number of probes that were not recorded, because there were too many summaries.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Removes and returns the summaries of all windows before `window`.
    pub fn take_before(&mut self, window: u64) -> Vec<(SeriesKey, Summary)> {
        let keys: Vec<SeriesKey> = self.series.keys().filter(|key| key.window < window).copied().collect();
        keys.into_iter().filter_map(|key| self.series.remove_entry(&key)).collect()
    }

    fn series_mut(&mut self, key: SeriesKey) -> Option<&mut Summary> {
        if self.series.len() >= self.max_series && !self.series.contains_key(&key) {
            return None;
        }
        Some(self.series.entry(key).or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::figures::{Figures, ProbeStamps, ResponderStamps};
    use crate::stamp::{Stamp, StampKind};

    fn answered(rtt: u64, kind: StampKind) -> ProbeResult {
        let stamps = ProbeStamps {
            posted: Stamp::process(0),
            sent: Stamp { nanos: 10, kind },
            responder: ResponderStamps { received: 5, received_kind: kind, acked: 25, acked_kind: kind },
            acked: Stamp { nanos: 30 + rtt, kind },
            processed: Stamp::process(40 + rtt),
        };
        ProbeResult::Answered(Figures::compute(&stamps).expect("possible"))
    }

    #[test]
    fn figures_of_process_stamps_are_not_recorded_as_network_times() {
        let mut summary = Summary::new();
        summary.record(&answered(1_000, StampKind::Kernel));
        summary.record(&answered(9_000_000, StampKind::Process));
        summary.record(&ProbeResult::Lost);
        summary.record(&ProbeResult::Ended);
        assert_eq!((summary.network_rtt.count(), summary.process_rtt.count()), (1, 1));
        assert!(summary.network_rtt.max() < Some(Duration::from_micros(2)));
        assert_eq!(summary.counts.loss(), Some(1.0 / 3.0));
        assert_eq!((summary.prober_delay.count(), summary.responder_delay.count()), (2, 2));
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let mut results = Results::new(ResultsConfig { window: Duration::from_secs(1), max_series: 2 });
        let address = IpAddr::from([10, 0, 0, 1]);
        let key =
            |window| SeriesKey { source: address, destination: address, flow_label: 1, dscp: 0, window };
        assert!(results.record(key(0), &ProbeResult::Lost));
        assert!(results.record(key(1), &ProbeResult::Lost));
        assert!(!results.record(key(2), &ProbeResult::Lost));
        assert!(results.record(key(1), &ProbeResult::Lost));
        assert_eq!((results.iter().count(), results.dropped()), (2, 1));
        assert_eq!(results.take_before(1).len(), 1);
        assert!(results.record(key(2), &ProbeResult::Lost));
    }

    proptest! {
        /// Merging histograms is the same as recording everything in one, and buckets rebuild a histogram.
        #[test]
        fn merging_and_sending_lose_nothing(
            one in prop::collection::vec(0_u64..100_000_000_000, 0..50),
            other in prop::collection::vec(0_u64..100_000, 0..50),
        ) {
            let histogram_of = |values: &[u64]| {
                let mut histogram = DurationHistogram::new();
                values.iter().for_each(|&nanos| histogram.record(Duration::from_nanos(nanos)));
                histogram
            };
            let mut merged = histogram_of(&one);
            merged.merge(&histogram_of(&other));
            let together = histogram_of(&[one.clone(), other.clone()].concat());
            prop_assert_eq!(&merged, &together);
            let mut rebuilt = DurationHistogram::new();
            merged.buckets().for_each(|(duration, count)| rebuilt.record_many(duration, count));
            for percentile in [0.0, 10.0, 50.0, 99.0, 100.0] {
                prop_assert_eq!(rebuilt.percentile(percentile), merged.percentile(percentile));
            }
            prop_assert_eq!(rebuilt.count(), (one.len() + other.len()) as u64);
        }
    }
}
