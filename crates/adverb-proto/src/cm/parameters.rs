//! The configuration of a manager, and the parameters of its calls.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use adverb_wire::cm::{Bits, CmaHeader, DataTooLong, Ece, PortSpace, ServiceId, Timeout};
use adverb_wire::{DEFAULT_PKEY, RnrTimer};

use super::State;
use crate::Time;
use crate::types::{Gid, PathMtu, Qpn, Transport};

/// The default queue key of UD queue pairs in the UDP port space of `rdma_cm` (`RDMA_UDP_QKEY` in Linux's
/// `include/rdma/rdma_cm.h`).
pub const UDP_QKEY: u32 = 0x0123_4567;

/// The addresses of both sides of a connection or query.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AddrPair {
    /// The address of this side.
    pub local: IpAddr,
    /// The address of the peer.
    pub remote: IpAddr,
}

impl AddrPair {
    pub(super) fn is_one_family(&self) -> bool {
        is_ipv4(self.local) == is_ipv4(self.remote)
    }

    /// Whether the IP header of a request names these addresses. If one address encodes a UDP port, IPv4 addresses in
    /// the header are mapped to IPv6.
    pub(super) fn are_named_by(&self, header: &CmaHeader) -> bool {
        Gid::from(header.source().ip()) == Gid::from(self.remote)
            && Gid::from(header.destination()) == Gid::from(self.local)
    }

    /// Returns the peer's address with the port from the IP header of a request.
    pub(super) fn source(&self, header: &CmaHeader) -> SocketAddr {
        SocketAddr::new(self.remote, header.source().port())
    }
}

/// The configuration and the limits of a manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The GUID of this adapter. Peers distinguish connections by GUID and queue pair number, and reject a request if
    /// they still have a connection with the same GUID and number. Each manager should have a random GUID, so that
    /// peers can distinguish a restarted manager from the previous one.
    pub ca_guid: u64,
    /// The maximum path MTU that the link supports. The manager rejects a request with a larger path MTU, because both
    /// sides must use the same one.
    pub path_mtu: PathMtu,
    /// The partition key.
    pub pkey: u16,
    /// The time to wait for a response before the first retransmission of a message. The interval doubles with each
    /// retransmission, up to eight times this value. REQ messages carry this value.
    pub response_timeout: Timeout,
    /// The maximum number of retransmissions of a message, 0 to 15. REQ messages carry this value.
    pub max_retries: u8,
    /// The duration of timewait, in which the queue pair number and the communication ID of an ended connection are not
    /// reused. The duration should exceed the maximum lifetime of a packet. Responses to SIDR queries are kept for this
    /// duration, too, for duplicates of the query.
    pub timewait: Duration,
    /// The time that the application has to accept or reject a request or a peer's SIDR query. After this time, the
    /// manager rejects the request, or drops the query without a response.
    pub request_timeout: Duration,
    /// The maximum number of connections, including those in timewait. The same limit applies to SIDR queries. The
    /// manager also drops requests while this number of events has not been polled.
    pub max_connections: usize,
    /// The maximum number of half-open connections, which a peer requested and which are not established yet. The same
    /// limit applies to SIDR queries of peers. So that one source can't occupy all of these slots, an IPv4 address or
    /// IPv6 /64 network that occupies a sixteenth of them gets no further one once half of them are occupied.
    pub max_half_open: usize,
}

impl Config {
    /// Creates a configuration with this GUID and the defaults: path MTU 1024, the default partition, a response
    /// timeout of 268 ms with 15 retransmissions, 537 ms of timewait, a request timeout of 5 s, and at most 65,536
    /// connections, of which 1,024 may be half open.
    pub const fn new(ca_guid: u64) -> Config {
        Config {
            ca_guid,
            path_mtu: PathMtu::Mtu1024,
            pkey: DEFAULT_PKEY,
            response_timeout: Timeout::new(16).expect("below 32"),
            max_retries: 15,
            timewait: Timeout::new(17).expect("below 32").duration(),
            request_timeout: Duration::from_secs(5),
            max_connections: 1 << 16,
            max_half_open: 1024,
        }
    }
}

/// The local addresses that a listener is bound to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum BindAddr {
    /// One address.
    Address(IpAddr),
    /// Any IPv4 address.
    AnyV4,
    /// Any address.
    Any,
}

/// The parameters of a listener, for [`Manager::listen`](super::Manager::listen).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenParams {
    /// The service that peers connect to.
    pub service: ServiceId,
    /// The addresses to listen on.
    pub bind: BindAddr,
    /// The transport of the queue pairs. A listener for [`Transport::Ud`] receives SIDR queries instead of connection
    /// requests.
    pub transport: Transport,
    /// The maximum number of requests that the application has not accepted or rejected yet. Further requests are
    /// dropped, and peers retransmit them.
    pub backlog: usize,
}

/// The maximum numbers of outstanding READs and atomics, from this side's point of view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RdAtomicLimits {
    /// The maximum number of the peer's READs and atomics that this side serves concurrently (this side's responder
    /// resources).
    pub max_dest_rd_atomic: u8,
    /// The maximum number of this side's READs and atomics that the peer serves concurrently (this side's initiator
    /// depth).
    pub max_rd_atomic: u8,
}

impl RdAtomicLimits {
    /// Returns the smaller limit of each kind.
    pub fn min(self, other: RdAtomicLimits) -> RdAtomicLimits {
        RdAtomicLimits {
            max_dest_rd_atomic: self.max_dest_rd_atomic.min(other.max_dest_rd_atomic),
            max_rd_atomic: self.max_rd_atomic.min(other.max_rd_atomic),
        }
    }
}

/// The local queue pair of a connection, and the attributes that this side offers to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LocalQp {
    /// The queue pair number.
    pub qpn: Qpn,
    /// The transport of the queue pair: RC or UC.
    pub transport: Transport,
    /// The maximum numbers of outstanding READs and atomics that this side supports.
    pub rd_atomic_limits: RdAtomicLimits,
    /// The number of retries when no acknowledgement arrives, 0 to 7. The connector's value applies to both queue
    /// pairs: a REQ carries it, a REP doesn't.
    pub retry_count: u8,
    /// The number of retries of the peer's queue pair after an RNR NAK, 0 to 7; 7 means unlimited.
    pub rnr_retry: u8,
    /// The acknowledgement timeout. The connector's value applies to both queue pairs: a REQ carries it, a REP doesn't.
    /// If the REP names a longer delay of acknowledgements, the connector's queue pair uses that delay.
    pub ack_timeout: Timeout,
    /// The RNR backoff that this side's queue pair demands when no receive is posted. RNR NAKs carry this value, CM
    /// messages don't.
    pub min_rnr_timer: RnrTimer,
    /// Whether the queue pair uses a shared receive queue.
    pub has_srq: bool,
    /// The vendor options (enhanced connection establishment).
    pub ece: Ece,
}

impl LocalQp {
    /// Creates the attributes of an RC queue pair with the defaults: 16 outstanding READs and atomics in each
    /// direction, six retries and six RNR retries, an acknowledgement timeout of 67 ms, an RNR backoff of 0.64 ms.
    pub const fn new(qpn: Qpn) -> LocalQp {
        LocalQp {
            qpn,
            transport: Transport::Rc,
            rd_atomic_limits: RdAtomicLimits { max_dest_rd_atomic: 16, max_rd_atomic: 16 },
            retry_count: 6,
            rnr_retry: 6,
            ack_timeout: Timeout::new(14).expect("below 32"),
            min_rnr_timer: RnrTimer::new(12).expect("below 32"),
            has_srq: false,
            ece: Ece::NONE,
        }
    }
}

/// The parameters of a connection request, for [`Manager::connect`](super::Manager::connect).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConnectParams<'a> {
    /// The addresses of both sides.
    pub addrs: AddrPair,
    /// The service to connect to.
    pub service: ServiceId,
    /// The source port that the request carries, if the service is a TCP or UDP port.
    pub source_port: u16,
    /// The local queue pair and its attributes.
    pub local_qp: LocalQp,
    /// The path MTU, at most [`Config::path_mtu`].
    pub path_mtu: PathMtu,
    /// The traffic class that the request names for packets in both directions. The attributes of the queue pair do
    /// not include it.
    pub traffic_class: u8,
    /// The private data for the peer's application: at most 56 bytes if the service is a TCP or UDP port, otherwise 92.
    pub private_data: &'a [u8],
    /// The deadline: the manager reports an [outcome](super::Event) by this time.
    pub deadline: Time,
    /// Whether the connection is peer-to-peer: neither side listens, and both connect to each other with the same
    /// service ID at about the same time (vol. 1, 12.10.4). Linux doesn't support peer-to-peer connections.
    pub peer_to_peer: bool,
}

impl<'a> ConnectParams<'a> {
    /// Creates the parameters of a request for this service, with a path MTU of 1024 bytes, source port 0 and no
    /// private data.
    pub const fn new(
        addrs: AddrPair,
        service: ServiceId,
        local_qp: LocalQp,
        deadline: Time,
    ) -> ConnectParams<'a> {
        ConnectParams {
            addrs,
            service,
            source_port: 0,
            local_qp,
            path_mtu: PathMtu::Mtu1024,
            traffic_class: 0,
            private_data: &[],
            deadline,
            peer_to_peer: false,
        }
    }
}

/// The parameters of a SIDR query, for [`Manager::resolve_service`](super::Manager::resolve_service).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResolveParams<'a> {
    /// The addresses of both sides.
    pub addrs: AddrPair,
    /// The service whose UD queue pair is resolved.
    pub service: ServiceId,
    /// The source port that the query carries, if the service is a TCP or UDP port.
    pub source_port: u16,
    /// The private data for the peer's application: at most 180 bytes if the service is a TCP or UDP port, otherwise
    /// 216.
    pub private_data: &'a [u8],
    /// The deadline: the manager reports an outcome by this time.
    pub deadline: Time,
}

/// Returns private data as a message carries it: after an IP header if the service is a TCP or UDP port (Annex A11;
/// `cma_hdr` in Linux's `cma.c`).
pub(super) fn private_data<const N: usize>(
    addrs: AddrPair,
    service: ServiceId,
    source_port: u16,
    data: &[u8],
) -> Result<adverb_wire::cm::PrivateData<N>, CallError> {
    let data = if has_ip_header(service) {
        let mapped = |address: IpAddr| IpAddr::V6(Gid::from(address).bytes().into());
        let (local, remote) = match addrs {
            // One address encodes a UDP port, in the form of an IPv6 address.
            _ if addrs.local.is_ipv4() != addrs.remote.is_ipv4() => {
                (mapped(addrs.local), mapped(addrs.remote))
            }
            AddrPair { local, remote } => (local, remote),
        };
        CmaHeader::new((local, source_port).into(), remote)
            .ok_or(CallError::AddressFamilyMismatch)?
            .prepend_to(data)
    } else {
        adverb_wire::cm::PrivateData::new(data)
    };
    data.map_err(CallError::PrivateDataTooLong)
}

/// Whether packets to an address are IPv4 packets. An IPv6 address that encodes a UDP port may stand for an IPv4
/// address.
pub(super) fn is_ipv4(address: IpAddr) -> bool {
    Gid::from(address).udp_addr().is_ipv4()
}

/// Whether requests for this service start with an IP header.
pub(super) fn has_ip_header(service: ServiceId) -> bool {
    matches!(service.port_space(), Some(PortSpace::Tcp | PortSpace::Udp))
}

pub(super) fn bits<const N: usize>(value: u8, name: &'static str) -> Result<Bits<N>, CallError> {
    Bits::new(value.into()).ok_or(CallError::OutOfRange(name))
}

/// The error of a call to the connection manager. A failed call has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The connection, request, query or listener does not exist, or has ended.
    Unknown,
    /// The connection's state does not allow the call.
    WrongState(State),
    /// The private data is longer than the message allows.
    PrivateDataTooLong(DataTooLong),
    /// The queue pair has a connection, or is in timewait after its last connection.
    QpInUse(Qpn),
    /// Another listener has the same service and the same bind address, or a peer-to-peer request for the service is
    /// pending.
    ServiceInUse(ServiceId),
    /// One address is IPv4 and the other IPv6.
    AddressFamilyMismatch,
    /// The transport is UD, whose queue pairs are not connected, or differs from the one that the peer requested.
    UnsupportedTransport(Transport),
    /// The manager holds [`Config::max_connections`] connections or queries.
    TooMany,
    /// The named value is out of range.
    OutOfRange(&'static str),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Unknown => {
                f.write_str("the connection, request or listener does not exist, or has ended")
            }
            CallError::WrongState(state) => write!(f, "not allowed while the connection is {state}"),
            CallError::PrivateDataTooLong(too_long) => write!(f, "the private data is too long: {too_long}"),
            CallError::QpInUse(qpn) => {
                write!(
                    f,
                    "queue pair {qpn} has a connection or is in timewait: use another queue pair, or wait"
                )
            }
            CallError::ServiceInUse(service) => write!(f, "another listener has {service}"),
            CallError::AddressFamilyMismatch => f.write_str("one address is IPv4 and the other is IPv6"),
            CallError::UnsupportedTransport(transport) => {
                write!(f, "{transport} queue pairs do not support this call")
            }
            CallError::TooMany => {
                f.write_str("the connection manager is at its limit of connections or queries")
            }
            CallError::OutOfRange(name) => write!(f, "{name} is out of range"),
        }
    }
}

impl core::error::Error for CallError {}
