//! The result of `adverb traceroute`, as JSON has it.

use std::net::IpAddr;
use std::time::Duration;

use adverb::probe::route::{Hop, HopState, Path, PathEnd, Route, RouteTrace};
use serde::Serialize;

use crate::json;

/// The result of a trace.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) host: String,
    pub(super) address: IpAddr,
    pub(super) from: IpAddr,
    pub(super) device: String,
    pub(super) dscp: u8,
    /// The port at which a responder was found, if there is one.
    pub(super) responder_port: Option<u16>,
    pub(super) paths: Vec<PathReport>,
    pub(super) source_port_count: usize,
    pub(super) probe_count: u64,
    pub(super) elapsed_ns: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct PathReport {
    /// The source port to use for this path.
    pub(super) source_port: u16,
    /// All traced source ports that take the path.
    pub(super) source_ports: Vec<u16>,
    /// Whether the last hop is the destination.
    pub(super) reached: bool,
    /// The reason why there are no further hops.
    pub(super) end: String,
    pub(super) hops: Vec<HopReport>,
}

/// A hop. A silent hop has no address.
#[derive(Debug, Serialize)]
pub(super) struct HopReport {
    pub(super) hop: u8,
    pub(super) address: Option<IpAddr>,
    /// The round-trip time, if the hop answered a probe from this source port.
    pub(super) rtt_ns: Option<u64>,
    pub(super) inferred: bool,
}

impl Report {
    pub(super) fn new(
        host: &str,
        trace: &RouteTrace<'_>,
        responder_port: Option<u16>,
        route: &Route,
        elapsed: Duration,
    ) -> Report {
        Report {
            host: host.to_owned(),
            address: trace.target.address,
            from: trace.local,
            device: trace.device.name().to_owned(),
            dscp: trace.dscp,
            responder_port,
            paths: route.paths.iter().map(PathReport::new).collect(),
            source_port_count: route.port_count,
            probe_count: route.probe_count,
            elapsed_ns: json::nanos(elapsed),
        }
    }
}

impl PathReport {
    fn new(path: &Path) -> PathReport {
        PathReport {
            source_port: path.source_port,
            source_ports: path.source_ports.clone(),
            reached: path.end == PathEnd::Destination,
            end: path.end.to_string(),
            hops: path.hops.iter().map(HopReport::new).collect(),
        }
    }
}

impl HopReport {
    fn new(hop: &Hop) -> HopReport {
        let rtt_ns = match hop.state {
            HopState::Answered { rtt, .. } => Some(json::nanos(rtt)),
            HopState::Inferred { .. } | HopState::Silent => None,
        };
        let inferred = matches!(hop.state, HopState::Inferred { .. });
        HopReport { hop: hop.hop_limit, address: hop.address(), rtt_ns, inferred }
    }
}
