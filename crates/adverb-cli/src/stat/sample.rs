//! The data that is printed, in the structure of the JSON output.

use std::collections::BTreeMap;

use adverb::verbs::{Counters, CountersDelta};
use serde::Serialize;

use crate::json;

/// The counters of all ports in an interval.
#[derive(Debug, Serialize)]
pub(super) struct Sample {
    /// The end of the interval, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The counters of each port.
    pub ports: Vec<PortSample>,
    /// The reason why there are no counters.
    pub problem: Option<String>,
}

/// The counters of a port in an interval.
#[derive(Debug, Serialize)]
pub(super) struct PortSample {
    /// The device's name.
    pub device: String,
    /// The number of the port, from 1.
    pub port: u8,
    /// The length of the interval in nanoseconds.
    pub interval_ns: u64,
    /// The packets sent and received, if the device counts them.
    pub packets: Option<Rate>,
    /// The sum of all error counters.
    pub errors: Rate,
    /// The number of errors per million packets, if there were packets.
    pub errors_per_million: Option<f64>,
    /// All counters, by the driver's names.
    pub counters: BTreeMap<String, Counter>,
}

/// The increase of a counter in an interval.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(super) struct Rate {
    /// The increase.
    pub count: u64,
    /// The increase per second.
    pub rate: f64,
}

/// A counter in an interval.
#[derive(Debug, Serialize)]
pub(super) struct Counter {
    /// The total since the device started.
    pub total: u64,
    /// The increase in the interval.
    #[serde(flatten)]
    pub grown: Rate,
    /// Whether this is an error counter.
    pub error: bool,
}

/// The counters of sent and received packets, by the names that drivers give them.
const PACKETS: &[[&str; 2]] = &[
    ["sent_pkts", "rcvd_pkts"],
    ["port_xmit_packets", "port_rcv_packets"],
    ["tx_pkts", "rx_pkts"],
    ["ip4OutPkts", "ip4InPkts"],
];

impl PortSample {
    pub(super) fn new(device: &str, port: u8, before: &Counters, now: &Counters) -> PortSample {
        let difference = now.since(before);
        let rate = |count: u64| Rate { count, rate: per_second(count, &difference) };
        let counters: BTreeMap<String, Counter> = now
            .iter()
            .filter_map(|(name, total)| {
                let grown = rate(difference.get(name)?);
                Some((name.to_owned(), Counter { total, grown, error: Counters::is_error(name) }))
            })
            .collect();
        let packets = PACKETS.iter().find_map(|names| {
            let [sent, received] = names.map(|name| difference.get(name));
            Some(rate(sent?.saturating_add(received?)))
        });
        let errors = counters.values().filter(|counter| counter.error);
        let errors = rate(errors.fold(0, |sum, counter| sum.saturating_add(counter.grown.count)));
        PortSample {
            device: device.to_owned(),
            port,
            interval_ns: json::nanos(difference.elapsed()),
            packets,
            errors,
            errors_per_million: packets.and_then(|packets| per_million(errors.count, packets.count)),
            counters,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate of more than 2⁵³ is exact enough")]
fn per_second(count: u64, difference: &CountersDelta) -> f64 {
    let seconds = difference.elapsed().as_secs_f64();
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// Returns `count` per million packets, or `None` if there were no packets.
#[expect(clippy::cast_precision_loss, reason = "as above")]
pub(super) fn per_million(count: u64, packets: u64) -> Option<f64> {
    (packets > 0).then(|| count as f64 * 1e6 / packets as f64)
}

/// Sample data for tests.
#[cfg(test)]
pub(super) mod samples {
    use super::*;

    pub(in super::super) fn port() -> PortSample {
        let counter =
            |total, count, error| Counter { total, grown: Rate { count, rate: count as f64 / 2.0 }, error };
        let counters = [
            ("rcvd_pkts", counter(5000, 1000, false)),
            ("rcvd_seq_err", counter(7, 2, true)),
            ("rdma_sends", counter(80, 0, false)),
            ("sent_pkts", counter(6000, 1000, false)),
        ];
        PortSample {
            device: "rxe0".to_owned(),
            port: 1,
            interval_ns: 2_000_000_000,
            packets: Some(Rate { count: 2000, rate: 1000.0 }),
            errors: Rate { count: 2, rate: 1.0 },
            errors_per_million: Some(1000.0),
            counters: counters.map(|(name, counter)| (name.to_owned(), counter)).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_has_all_fields() {
        let mut port = samples::port();
        port.counters.retain(|name, _| name == "rcvd_seq_err");
        let sample = Sample { time_ns: 1_500_000_000, ports: vec![port], problem: None };
        assert_eq!(
            serde_json::to_value(sample).unwrap(),
            json!({
                "time_ns": 1_500_000_000_u64,
                "ports": [{
                    "device": "rxe0",
                    "port": 1,
                    "interval_ns": 2_000_000_000_u64,
                    "packets": { "count": 2000, "rate": 1000.0 },
                    "errors": { "count": 2, "rate": 1.0 },
                    "errors_per_million": 1000.0,
                    "counters": { "rcvd_seq_err": { "total": 7, "count": 2, "rate": 1.0, "error": true } },
                }],
                "problem": null,
            })
        );
    }

    #[test]
    fn errors_without_packets_have_no_rate_per_packet() {
        assert_eq!(per_million(3, 0), None);
        assert_eq!(per_million(3, 1_000_000), Some(3.0));
    }
}
