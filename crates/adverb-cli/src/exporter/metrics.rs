//! The metrics: their names, types, labels and help texts. `docs/operate/metrics.md` lists them for operators; a test
//! compares the two.

#[derive(PartialEq, Eq, Debug)]
pub(super) struct Metric {
    /// The name, with the suffixes of Prometheus' conventions.
    pub name: &'static str,
    /// The type.
    pub kind: Kind,
    /// The names of the labels.
    pub labels: &'static [&'static str],
    /// The description.
    pub help: &'static str,
}

/// The type of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// Returns the name in the text format.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Declares the metrics, and the list of all of them.
macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(pub(super) static $constant: Metric =
            Metric { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };)*
        /// All metrics, in the order of the output.
        #[cfg(test)]
        pub(super) static ALL: &[&Metric] = &[$(&$constant),*];
    };
}

metrics! {
    DEVICES: Gauge "adverb_rdma_devices" []
        "Number of RDMA devices.";
    DEVICE_INFO: Gauge "adverb_rdma_device_info" ["device", "kind", "firmware", "board", "guid"]
        "RDMA device, with the constant value 1. The kind is kernel, or software for a software NIC of the exporter.";
    PORT_INFO: Gauge "adverb_rdma_port_info" ["device", "port", "link_layer", "netdev"]
        "Port of an RDMA device and its network interface, with the constant value 1.";
    PORT_STATE_INFO: Gauge "adverb_rdma_port_state_info" ["device", "port", "state", "physical_state"]
        "Current logical and physical state of a port, with the constant value 1.";
    PORT_ACTIVE: Gauge "adverb_rdma_port_active" ["device", "port"]
        "Whether the port's logical state is active.";
    PORT_RATE: Gauge "adverb_rdma_port_rate_bytes_per_second" ["device", "port"]
        "Rate of the port's link in each direction.";
    RDMA_PACKETS: Counter "adverb_rdma_packets_total" ["device", "port", "direction"]
        "Packets of the port.";
    RDMA_BYTES: Counter "adverb_rdma_bytes_total" ["device", "port", "direction"]
        "Bytes of the port's packets, as far as the driver counts them.";
    RDMA_ERRORS: Counter "adverb_rdma_errors_total" ["device", "port", "counter"]
        "Events that should not happen on a healthy network, by the driver's name of the counter.";
    RDMA_EVENTS: Counter "adverb_rdma_events_total" ["device", "port", "counter"]
        "Other events of the port, by the driver's name of the counter.";
    RDMA_RESOURCES: Gauge "adverb_rdma_resources" ["device", "port", "counter"]
        "Objects of the device and their maxima, by the driver's name of the number.";
    NETDEV_UP: Gauge "adverb_netdev_up" ["netdev"]
        "Whether the network interface is operational. Absent if the driver does not report it.";
    NETDEV_MTU: Gauge "adverb_netdev_mtu_bytes" ["netdev"]
        "MTU of the network interface.";
    NETDEV_RATE: Gauge "adverb_netdev_rate_bytes_per_second" ["netdev"]
        "Rate of the network interface's link in each direction.";
    NETDEV_CARRIER_CHANGES: Counter "adverb_netdev_carrier_changes_total" ["netdev"]
        "Changes of the network interface's carrier, up and down.";
    NETDEV_PACKETS: Counter "adverb_netdev_packets_total" ["netdev", "direction"]
        "Packets that the kernel sent and received. Most NICs do not include RDMA packets.";
    PAUSE_FRAMES: Counter "adverb_netdev_pause_frames_total" ["netdev", "direction", "priority"]
        "Pause frames of a priority (PFC), or of the whole link (priority all).";
    PAUSE_SECONDS: Counter "adverb_netdev_pause_seconds_total" ["netdev", "direction", "priority"]
        "Time in which pause frames stopped a priority, or the whole link (priority all).";
    NETDEV_DISCARDS: Counter "adverb_netdev_discards_total" ["netdev", "direction", "counter"]
        "Discarded packets, by the name of the kernel's or driver's counter. Counters of one interface may overlap.";
    NETDEV_ERRORS: Counter "adverb_netdev_errors_total" ["netdev", "direction", "counter"]
        "Erroneous packets, by the name of the kernel's counter. Counters of one interface may overlap.";
    RESPONDER_FOUND: Gauge "adverb_probe_responder_found" ["destination"]
        "Whether the responder has been found, so that probes are sent to it.";
    PROBE_RESULTS: Counter "adverb_probe_results_total" ["destination", "dscp", "result"]
        "Probes by their result.";
    NETWORK_RTT: Histogram "adverb_probe_network_rtt_seconds" ["destination", "dscp"]
        "Round-trip time of the network without the delays of both hosts, by stamps of the kernel or the NIC.";
    PROCESS_RTT: Histogram "adverb_probe_process_rtt_seconds" ["destination", "dscp"]
        "Round-trip time by stamps of processes, which includes the time until they were scheduled: not evidence about the network.";
    PROBER_DELAY: Histogram "adverb_probe_prober_delay_seconds" ["destination", "dscp"]
        "Delay of the prober's host.";
    RESPONDER_DELAY: Histogram "adverb_probe_responder_delay_seconds" ["destination", "dscp"]
        "Delay of the responder's host.";
    BUILD_INFO: Gauge "adverb_exporter_build_info" ["version"]
        "Version of the exporter, with the constant value 1.";
    START_TIME: Gauge "adverb_exporter_start_time_seconds" []
        "Start of the exporter, in seconds since 1970.";
    SCRAPE_DURATION: Gauge "adverb_exporter_scrape_duration_seconds" []
        "Time that reading the values of this scrape took.";
    READ_ERRORS: Counter "adverb_exporter_read_errors_total" ["source"]
        "Values that could not be read.";
    HTTP_REQUESTS: Counter "adverb_exporter_http_requests_total" ["code"]
        "HTTP requests, by the status code of the response.";
    REFUSED_CONNECTIONS: Counter "adverb_exporter_refused_connections_total" []
        "Connections closed at once, because the exporter already served its maximum number.";
    DROPPED_SERIES: Gauge "adverb_exporter_dropped_series" []
        "Series that this scrape left out, because it already had the maximum number.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let names: BTreeSet<_> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len(), "a name is used twice");
        for Metric { name, kind, labels, help } in ALL {
            let is_word = |word: &str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            assert!(name.starts_with("adverb_") && is_word(name), "{name}");
            assert_eq!(*kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(labels.iter().all(|label| is_word(label)), "{name}");
            assert!(help.ends_with('.'), "{name}");
        }
    }
}
