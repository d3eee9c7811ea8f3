//! Conversion of a snapshot to metrics.

use std::collections::BTreeMap;

use super::classify::{NetdevStatistic, RdmaCounter};
use super::exposition::{self, Family, Value};
use super::metrics::{self, Metric};
use super::snapshot::{Netdev, RdmaDevice, RdmaPort, ReadErrors, Snapshot, Source};
use super::totals::Destination;

/// The maximum number of samples in a scrape. A histogram counts as one sample; the number of histograms is limited by
/// [`MAX_PAIRS`](super::probing::MAX_PAIRS). A host with 16 ports of the driver with the most statistics has about 2,000
/// samples.
const MAX_SERIES: usize = 20_000;

/// The exporter's own values.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Status {
    /// The start of the exporter, in seconds since 1970.
    pub start_time: f64,
    /// The time that reading the snapshot took, in seconds.
    pub scrape_duration: f64,
    /// The failed reads since the start.
    pub read_errors: ReadErrors,
    /// The responses since the start, by status code.
    pub requests: BTreeMap<u16, u64>,
    /// The refused connections since the start.
    pub refused_connections: u64,
}

/// Returns the metrics in Prometheus' text format.
pub(super) fn text(snapshot: &Snapshot, status: &Status) -> String {
    let mut families = families(snapshot, status);
    let dropped = limit(&mut families, MAX_SERIES);
    families.push(single(&metrics::DROPPED_SERIES, Value::Count(dropped)));
    exposition::text(&families)
}

fn families(snapshot: &Snapshot, status: &Status) -> Vec<Family> {
    // The exporter's own values come first, so that the limit doesn't drop them.
    let mut families = own(status);
    families.extend(rdma(&snapshot.devices));
    families.extend(netdevs(&snapshot.netdevs));
    families.extend(probes(&snapshot.destinations));
    families
}

fn own(status: &Status) -> Vec<Family> {
    let mut build = Family::new(&metrics::BUILD_INFO);
    build.push([env!("CARGO_PKG_VERSION")], Value::Count(1));
    let mut read_errors = Family::new(&metrics::READ_ERRORS);
    for source in Source::ALL {
        read_errors.push([source.label()], Value::Count(status.read_errors.get(source)));
    }
    let mut requests = Family::new(&metrics::HTTP_REQUESTS);
    for (code, count) in &status.requests {
        requests.push([&code.to_string()], Value::Count(*count));
    }
    vec![
        build,
        single(&metrics::START_TIME, Value::Number(status.start_time)),
        single(&metrics::SCRAPE_DURATION, Value::Number(status.scrape_duration)),
        read_errors,
        requests,
        single(&metrics::REFUSED_CONNECTIONS, Value::Count(status.refused_connections)),
    ]
}

fn rdma(devices: &[RdmaDevice]) -> Vec<Family> {
    let mut info = Family::new(&metrics::DEVICE_INFO);
    let mut port_info = Family::new(&metrics::PORT_INFO);
    let mut state = Family::new(&metrics::PORT_STATE_INFO);
    let mut active = Family::new(&metrics::PORT_ACTIVE);
    let mut rate = Family::new(&metrics::PORT_RATE);
    let mut packets = Family::new(&metrics::RDMA_PACKETS);
    let mut bytes = Family::new(&metrics::RDMA_BYTES);
    let mut errors = Family::new(&metrics::RDMA_ERRORS);
    let mut events = Family::new(&metrics::RDMA_EVENTS);
    let mut resources = Family::new(&metrics::RDMA_RESOURCES);
    for device in devices {
        let name = device.name.as_str();
        let kind = if device.is_software { "software" } else { "kernel" };
        info.push([name, kind, &device.firmware, &device.board, &device.guid], Value::Count(1));
        for port in &device.ports {
            let number = port.number.to_string();
            let number = number.as_str();
            let netdev = port.netdev.as_deref().unwrap_or_default();
            port_info.push([name, number, &port.link_layer, netdev], Value::Count(1));
            state.push([name, number, &port.state, &port.physical_state], Value::Count(1));
            active.push([name, number], Value::Count(u64::from(port.state == "active")));
            if let Some(bits) = port.bits_per_second {
                rate.push([name, number], Value::Number(bits / 8.0));
            }
            let traffic = traffic(port);
            for (direction, count) in traffic.packets {
                packets.push([name, number, direction], Value::Count(count));
            }
            for (direction, count) in traffic.bytes {
                bytes.push([name, number, direction], Value::Count(count));
            }
            for (counter, value) in &port.counters {
                let family = match RdmaCounter::of(counter) {
                    RdmaCounter::Packets(_) | RdmaCounter::Bytes(..) => continue,
                    RdmaCounter::Error => &mut errors,
                    RdmaCounter::Event => &mut events,
                    RdmaCounter::Gauge => &mut resources,
                };
                family.push([name, number, counter], Value::Count(*value));
            }
        }
    }
    let count = single(&metrics::DEVICES, Value::Count(devices.len() as u64));
    vec![count, info, port_info, state, active, rate, packets, bytes, errors, events, resources]
}

/// The packets and bytes of a port, by the label of their direction.
struct Traffic {
    packets: BTreeMap<&'static str, u64>,
    bytes: BTreeMap<&'static str, u64>,
}

fn traffic(port: &RdmaPort) -> Traffic {
    let mut traffic = Traffic { packets: BTreeMap::new(), bytes: BTreeMap::new() };
    for (name, value) in &port.counters {
        let (sum, value) = match RdmaCounter::of(name) {
            RdmaCounter::Packets(direction) => {
                (traffic.packets.entry(direction.label()).or_default(), *value)
            }
            RdmaCounter::Bytes(direction, scale) => {
                (traffic.bytes.entry(direction.label()).or_default(), value.wrapping_mul(scale))
            }
            _ => continue,
        };
        *sum = sum.wrapping_add(value);
    }
    traffic
}

fn netdevs(netdevs: &[Netdev]) -> Vec<Family> {
    let mut up = Family::new(&metrics::NETDEV_UP);
    let mut mtu = Family::new(&metrics::NETDEV_MTU);
    let mut rate = Family::new(&metrics::NETDEV_RATE);
    let mut carrier_changes = Family::new(&metrics::NETDEV_CARRIER_CHANGES);
    let mut packets = Family::new(&metrics::NETDEV_PACKETS);
    let mut pause_frames = Family::new(&metrics::PAUSE_FRAMES);
    let mut pause_seconds = Family::new(&metrics::PAUSE_SECONDS);
    let mut discards = Family::new(&metrics::NETDEV_DISCARDS);
    let mut errors = Family::new(&metrics::NETDEV_ERRORS);
    for netdev in netdevs {
        let name = netdev.name.as_str();
        up.samples.extend(netdev.is_up.map(|is_up| sample(name, Value::Count(u64::from(is_up)))));
        mtu.samples.extend(netdev.mtu.map(|mtu| sample(name, Value::Count(mtu))));
        rate.samples.extend(netdev.bits_per_second.map(|bits| sample(name, Value::Number(bits / 8.0))));
        carrier_changes.samples.extend(netdev.carrier_changes.map(|count| sample(name, Value::Count(count))));
        for direction in ["rx", "tx"] {
            if let Some(count) = netdev.statistics.get(&format!("{direction}_packets")) {
                packets.push([name, direction], Value::Count(*count));
            }
        }
        let (mut frames, mut microseconds) = (BTreeMap::new(), BTreeMap::<_, u64>::new());
        let kernel = netdev
            .statistics
            .iter()
            .filter_map(|(counter, value)| Some((counter, value, NetdevStatistic::of_kernel(counter)?)));
        // If both have a counter of the same name, the kernel's counter is used.
        let driver =
            netdev.driver_statistics.iter().filter(|(counter, _)| !netdev.statistics.contains_key(*counter));
        let driver = driver
            .filter_map(|(counter, value)| Some((counter, value, NetdevStatistic::of_driver(counter)?)));
        for (counter, value, meaning) in kernel.chain(driver) {
            match meaning {
                NetdevStatistic::PauseFrames(direction, priority) => {
                    let sum: &mut u64 = frames.entry((direction, priority)).or_default();
                    *sum = sum.wrapping_add(*value);
                }
                NetdevStatistic::PauseMicroseconds(direction, priority) => {
                    *microseconds.entry((direction, priority)).or_default() = *value;
                }
                NetdevStatistic::Discards(direction) => {
                    discards.push([name, direction.label(), counter], Value::Count(*value));
                }
                NetdevStatistic::Errors(direction) => {
                    errors.push([name, direction.label(), counter], Value::Count(*value));
                }
            }
        }
        for ((direction, priority), count) in frames {
            pause_frames.push([name, direction.label(), priority.label()], Value::Count(count));
        }
        for ((direction, priority), count) in microseconds {
            #[expect(clippy::cast_precision_loss, reason = "2⁵³ µs are 285 years")]
            let seconds = Value::Number(count as f64 / 1e6);
            pause_seconds.push([name, direction.label(), priority.label()], seconds);
        }
    }
    vec![up, mtu, rate, carrier_changes, packets, pause_frames, pause_seconds, discards, errors]
}

fn probes(destinations: &[Destination]) -> Vec<Family> {
    let mut found = Family::new(&metrics::RESPONDER_FOUND);
    let mut results = Family::new(&metrics::PROBE_RESULTS);
    let mut network_rtt = Family::new(&metrics::NETWORK_RTT);
    let mut process_rtt = Family::new(&metrics::PROCESS_RTT);
    let mut prober_delay = Family::new(&metrics::PROBER_DELAY);
    let mut responder_delay = Family::new(&metrics::RESPONDER_DELAY);
    for destination in destinations {
        let name = destination.name.as_str();
        found.push([name], Value::Count(u64::from(destination.is_found)));
        for class in &destination.classes {
            let dscp = class.dscp.to_string();
            for (result, count) in &class.results {
                results.push([name, &dscp, result], Value::Count(*count));
            }
            for (family, histogram) in [
                (&mut network_rtt, &class.network_rtt),
                (&mut process_rtt, &class.process_rtt),
                (&mut prober_delay, &class.prober_delay),
                (&mut responder_delay, &class.responder_delay),
            ] {
                // A device has only one kind of stamps.
                if histogram.count() > 0 {
                    let (buckets, sum) = (histogram.cumulative(), histogram.sum());
                    let count = histogram.count();
                    family.push([name, &dscp], Value::Histogram { buckets, sum, count });
                }
            }
        }
    }
    vec![found, results, network_rtt, process_rtt, prober_delay, responder_delay]
}

/// Returns a sample whose only label has this value.
fn sample(label: &str, value: Value) -> exposition::Sample {
    exposition::Sample { labels: vec![label.to_owned()], value }
}

/// Returns a metric without labels.
fn single(metric: &'static Metric, value: Value) -> Family {
    let mut family = Family::new(metric);
    family.push([], value);
    family
}

/// Drops the last samples beyond `max`, and returns their number.
fn limit(families: &mut [Family], max: usize) -> u64 {
    let (mut free, mut dropped) = (max, 0);
    for family in families {
        let kept = family.samples.len().min(free);
        dropped += (family.samples.len() - kept) as u64;
        family.samples.truncate(kept);
        free -= kept;
    }
    dropped
}

#[cfg(test)]
mod tests {
    use adverb::probe::session::ProbeResult;
    use adverb::probe::stamp::StampKind;

    use super::super::gather::tests::{CONNECTX, Sysfs};
    use super::super::totals::tests::answered;
    use super::*;

    fn snapshot(test: &str) -> Snapshot {
        let driver = |_: &str| {
            let statistics = [
                ("rx_prio3_pause", 40),
                ("rx_prio3_pause_duration", 1500),
                ("rx_discards_phy", 9),
                ("rx12_dropped", 1),
                ("rx_dropped", 99),
            ];
            Ok(statistics.map(|(name, value)| (name.to_owned(), value)).into())
        };
        Sysfs::new(test, CONNECTX).gatherer(Vec::new(), driver).snapshot()
    }

    #[test]
    fn every_value_has_its_metric() {
        let mut status = Status { start_time: 1.5, scrape_duration: 0.25, ..Status::default() };
        status.read_errors.count(Source::Ethtool);
        status.requests.insert(200, 7);
        let text = text(&snapshot("encode"), &status);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            samples,
            [
                &format!("adverb_exporter_build_info{{version=\"{version}\"}} 1"),
                "adverb_exporter_start_time_seconds 1.5",
                "adverb_exporter_scrape_duration_seconds 0.25",
                r#"adverb_exporter_read_errors_total{source="rdma"} 0"#,
                r#"adverb_exporter_read_errors_total{source="software"} 0"#,
                r#"adverb_exporter_read_errors_total{source="netdev"} 0"#,
                r#"adverb_exporter_read_errors_total{source="ethtool"} 1"#,
                r#"adverb_exporter_http_requests_total{code="200"} 7"#,
                "adverb_exporter_refused_connections_total 0",
                "adverb_rdma_devices 1",
                r#"adverb_rdma_device_info{device="mlx5_0",kind="kernel",firmware="22.39.1002",board="MT_0000000359",guid="0c42:a103:0012:3456"} 1"#,
                r#"adverb_rdma_port_info{device="mlx5_0",port="1",link_layer="Ethernet",netdev="adverb-mlx0"} 1"#,
                r#"adverb_rdma_port_state_info{device="mlx5_0",port="1",state="active",physical_state="LinkUp"} 1"#,
                r#"adverb_rdma_port_active{device="mlx5_0",port="1"} 1"#,
                r#"adverb_rdma_port_rate_bytes_per_second{device="mlx5_0",port="1"} 12500000000"#,
                r#"adverb_rdma_packets_total{device="mlx5_0",port="1",direction="rx"} 70"#,
                r#"adverb_rdma_bytes_total{device="mlx5_0",port="1",direction="rx"} 4000"#,
                r#"adverb_rdma_errors_total{device="mlx5_0",port="1",counter="out_of_sequence"} 3"#,
                r#"adverb_rdma_events_total{device="mlx5_0",port="1",counter="np_cnp_sent"} 5"#,
                r#"adverb_netdev_up{netdev="adverb-mlx0"} 1"#,
                r#"adverb_netdev_mtu_bytes{netdev="adverb-mlx0"} 9000"#,
                r#"adverb_netdev_rate_bytes_per_second{netdev="adverb-mlx0"} 12500000000"#,
                r#"adverb_netdev_carrier_changes_total{netdev="adverb-mlx0"} 2"#,
                r#"adverb_netdev_packets_total{netdev="adverb-mlx0",direction="rx"} 500"#,
                r#"adverb_netdev_pause_frames_total{netdev="adverb-mlx0",direction="rx",priority="3"} 40"#,
                r#"adverb_netdev_pause_seconds_total{netdev="adverb-mlx0",direction="rx",priority="3"} 0.0015"#,
                r#"adverb_netdev_discards_total{netdev="adverb-mlx0",direction="rx",counter="rx_dropped"} 11"#,
                r#"adverb_netdev_discards_total{netdev="adverb-mlx0",direction="rx",counter="rx_discards_phy"} 9"#,
                r#"adverb_netdev_errors_total{netdev="adverb-mlx0",direction="rx",counter="rx_crc_errors"} 1"#,
                "adverb_exporter_dropped_series 0",
            ]
        );
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let mut snapshot = snapshot("bound");
        let port = &mut snapshot.devices[0].ports[0];
        port.counters = (0..300).map(|n| (format!("event_{n}"), n)).collect();
        let device = snapshot.devices[0].clone();
        snapshot.devices = (0..256).map(|n| RdmaDevice { name: format!("d{n}"), ..device.clone() }).collect();
        let text = text(&snapshot, &Status::default());
        let samples = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples, MAX_SERIES + 1);
        assert!(text.contains("adverb_exporter_scrape_duration_seconds"));
        let dropped = text.lines().last().unwrap().strip_prefix("adverb_exporter_dropped_series ");
        assert!(dropped.unwrap().parse::<u64>().unwrap() > 50_000, "{dropped:?}");
    }

    #[test]
    fn probes_have_their_results_and_histograms() {
        let mut destination = Destination::new("storage-1", &[26]);
        destination.record(26, &answered(7_000, StampKind::Kernel));
        destination.record(26, &ProbeResult::Lost);
        destination.is_found = true;
        let snapshot = Snapshot { destinations: vec![destination], ..Snapshot::default() };
        let text = text(&snapshot, &Status::default());
        for line in [
            r#"adverb_probe_responder_found{destination="storage-1"} 1"#,
            r#"adverb_probe_results_total{destination="storage-1",dscp="26",result="answered"} 1"#,
            r#"adverb_probe_results_total{destination="storage-1",dscp="26",result="lost"} 1"#,
            r#"adverb_probe_network_rtt_seconds_bucket{destination="storage-1",dscp="26",le="0.000005"} 0"#,
            r#"adverb_probe_network_rtt_seconds_bucket{destination="storage-1",dscp="26",le="0.00001"} 1"#,
            r#"adverb_probe_network_rtt_seconds_count{destination="storage-1",dscp="26"} 1"#,
            r#"adverb_probe_responder_delay_seconds_sum{destination="storage-1",dscp="26"} 0.00002"#,
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in {text}");
        }
        assert!(!text.contains("adverb_probe_process_rtt_seconds"), "{text}");
    }

    #[test]
    fn an_empty_machine_has_the_exporters_own_values() {
        let text = text(&Snapshot::default(), &Status::default());
        assert!(text.contains("\nadverb_rdma_devices 0\n"), "{text}");
        assert!(!text.contains("adverb_netdev"), "{text}");
    }
}
