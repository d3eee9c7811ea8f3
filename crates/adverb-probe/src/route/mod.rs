//! The routes between two hosts: the routers on each path, and the source ports that take it.
//!
//! Networks with several paths (ECMP) choose the path of a packet by a hash of its addresses and ports, so all packets
//! of a queue pair with one source port take one path. A [`Tracer`] finds the routers of a path like traceroute: it
//! sends packets whose hop limit is too small to reach the destination, and each router reports a packet that it drops.
//! To find several paths, it repeats this with other source ports. The [result](Route) has one source port for each
//! path, so that later probes can cover all paths with few ports.
//!
//! # Silence
//!
//! Routers limit how often they report: Linux sends six reports at once to one host, and then one per second. A trace
//! therefore retries a router that doesn't answer, and sends fewer packets per second to routers that stop answering.
//! A router that all probed ports pass is not probed from further ports; its [`Hop`] is then
//! [inferred](HopState::Inferred). A router that never answers is [silent](HopState::Silent).
//!
//! # Sans-I/O
//!
//! A [`Tracer`] has no sockets and no clock. The caller sends the probes that [`poll_transmit`](Tracer::poll_transmit)
//! returns, and passes in the answers and the time. `RouteTrace` (with the feature `soft`) does this with sockets.
//! It needs no privileges.

#[cfg(all(any(test, fuzzing), feature = "soft"))]
pub(crate) mod fuzzing;
mod pace;
#[cfg(feature = "soft")]
mod packet;
mod paths;
#[cfg(feature = "soft")]
mod responder;
#[cfg(feature = "soft")]
mod trace;
mod tracer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::error::{ProbeError, Result, check_range};

#[cfg(feature = "soft")]
pub use packet::RouteTarget;
pub use paths::{Path, Route};
#[cfg(feature = "soft")]
pub use responder::QueueResponder;
#[cfg(feature = "soft")]
pub use trace::{NoResponder, RouteResponder, RouteTrace, source_ports};
pub use tracer::{IcmpMessage, RouteProbe, TraceProgress, Tracer};

/// The options of a [`Tracer`].
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct TraceOptions {
    /// The maximum number of paths to find. The default is 1.
    pub max_paths: usize,
    /// The maximum number of hops to the destination. The default is 30.
    pub max_hops: u8,
    /// The probability with which all paths are found if the network chooses each path equally often, from 0.0001 to
    /// 0.999999. The default is 0.99.
    pub confidence: f64,
    /// The time after which a probe counts as unanswered. The default is 500 ms.
    pub timeout: Duration,
    /// The number of unanswered probes after which a router that answered no other port is silent. The default is 3.
    pub attempts: u8,
    /// The number of unanswered probes after which a router that answered another port is silent. The default is 5.
    pub limited_attempts: u8,
    /// The number of successive silent routers after which a path ends. The default is 4.
    pub max_silent_hops: u8,
    /// The minimum time between two probes. The default is 2 ms.
    pub gap: Duration,
    /// The maximum number of source ports that are traced at the same time. Each needs a socket. The default is 64.
    pub max_active_ports: usize,
}

impl TraceOptions {
    /// Creates the default options.
    pub const fn new() -> TraceOptions {
        TraceOptions {
            max_paths: 1,
            max_hops: 30,
            confidence: 0.99,
            timeout: Duration::from_millis(500),
            attempts: 3,
            limited_attempts: 5,
            max_silent_hops: 4,
            gap: Duration::from_millis(2),
            max_active_ports: 64,
        }
    }

    /// Checks that the options are in their ranges.
    fn check(&self) -> Result<()> {
        let TraceOptions { max_paths, max_hops, attempts, limited_attempts, max_silent_hops, .. } = *self;
        let counts = [
            ("TraceOptions::max_paths", max_paths as u64),
            ("TraceOptions::max_hops", max_hops.into()),
            ("TraceOptions::attempts", attempts.into()),
            ("TraceOptions::limited_attempts", limited_attempts.into()),
            ("TraceOptions::max_silent_hops", max_silent_hops.into()),
            ("TraceOptions::max_active_ports", self.max_active_ports as u64),
        ];
        counts.into_iter().try_for_each(|(option, count)| check_range(option, count, 1..=u64::MAX))?;
        if !(MIN_CONFIDENCE..=MAX_CONFIDENCE).contains(&self.confidence) {
            return Err(ProbeError::InvalidConfidence { requested: self.confidence });
        }
        Ok(())
    }
}

/// The minimum and maximum of [`TraceOptions::confidence`]. Certainty is not possible.
const MIN_CONFIDENCE: f64 = 0.000_1;
const MAX_CONFIDENCE: f64 = 0.999_999;

impl Default for TraceOptions {
    fn default() -> TraceOptions {
        TraceOptions::new()
    }
}

/// A hop of a [`Path`]: a router, or the destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// The hop limit of the packets that end at this hop: 1 for the first hop.
    pub hop_limit: u8,
    /// The answer of the hop.
    pub state: HopState,
}

/// The answer of a [`Hop`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HopState {
    /// The hop answered a probe from this path's source port.
    Answered {
        /// The address of the hop.
        address: IpAddr,
        /// The time from sending the probe to receiving the answer. Routers answer with low priority, so this time
        /// says little about the network.
        rtt: Duration,
    },
    /// The hop wasn't probed from this path's source port, because all other source ports pass this address.
    Inferred {
        /// The address of the hop.
        address: IpAddr,
    },
    /// The hop didn't answer.
    Silent,
}

impl Hop {
    /// Returns the address of the hop, or `None` if the hop is silent.
    pub const fn address(&self) -> Option<IpAddr> {
        match self.state {
            HopState::Answered { address, .. } | HopState::Inferred { address } => Some(address),
            HopState::Silent => None,
        }
    }
}

/// The reason why a [`Path`] has no further hops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PathEnd {
    /// The last hop is the destination.
    Destination,
    /// The last hop reported that it can't forward the packets.
    Unreachable(Unreachable),
    /// The last hop occurs earlier in the path: the packets never reach the destination.
    Loop,
    /// All hops behind the last hop are silent. The destination may be one of them.
    NoAnswer,
    /// The path has [`TraceOptions::max_hops`] hops without the destination.
    MaxHops,
}

impl fmt::Display for PathEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathEnd::Destination => f.write_str("reached the destination"),
            PathEnd::Unreachable(reason) => write!(f, "the last hop reported: {reason}"),
            PathEnd::Loop => f.write_str("routing loop"),
            PathEnd::NoAnswer => f.write_str("no answer from further hops or from the destination"),
            PathEnd::MaxHops => {
                f.write_str("the destination is farther away than the maximum number of hops")
            }
        }
    }
}

/// The reason in an ICMP message "destination unreachable".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Unreachable {
    /// The router has no route to the destination's network.
    Network,
    /// The router can't reach the destination on its last network.
    Host,
    /// The destination doesn't support UDP.
    Protocol,
    /// No program receives on the port, or a firewall pretends this.
    Port,
    /// The packet is too long for the next network.
    TooLong,
    /// A firewall dropped the packet.
    Prohibited,
    /// Another code.
    Other(u8),
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreachable::Network => f.write_str("network unreachable"),
            Unreachable::Host => f.write_str("host unreachable"),
            Unreachable::Protocol => f.write_str("protocol unreachable"),
            Unreachable::Port => f.write_str("port unreachable"),
            Unreachable::TooLong => f.write_str("packet too long"),
            Unreachable::Prohibited => f.write_str("administratively prohibited"),
            Unreachable::Other(code) => write!(f, "destination unreachable (code {code})"),
        }
    }
}
