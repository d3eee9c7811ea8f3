//! What a manager is made with, and what goes into its calls.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use adverb_wire::cm::{Bits, CmaHeader, DataTooLong, Ece, PortSpace, ServiceId, Timeout};
use adverb_wire::{DEFAULT_PKEY, RnrTimer};

use super::State;
use crate::Time;
use crate::types::{Gid, PathMtu, Qpn, Transport};

/// The Q_Key that `rdma_cm` gives the datagram queue pairs of the UDP port space, unless something else is asked for
/// (`RDMA_UDP_QKEY` in Linux's `include/rdma/rdma_cm.h`).
pub const UDP_QKEY: u32 = 0x0123_4567;

/// Between which addresses messages go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ends {
    /// Ours.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
}

impl Ends {
    pub(super) fn is_one_family(&self) -> bool {
        is_ipv4(self.local) == is_ipv4(self.remote)
    }

    /// Whether the IP header of a request names these ends. Beside an address that says a port, IPv4 addresses are mapped.
    pub(super) fn are_named_by(&self, header: &CmaHeader) -> bool {
        Gid::from(header.source().ip()) == Gid::from(self.remote)
            && Gid::from(header.destination()) == Gid::from(self.local)
    }

    /// The peer's end as the IP header of a request says it.
    pub(super) fn source(&self, header: &CmaHeader) -> SocketAddr {
        SocketAddr::new(self.remote, header.source().port())
    }
}

/// How a manager behaves, and how much it holds at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The name of this adapter. Peers hold connections apart by it and a queue pair number, and reject a number that
    /// they have seen before: so make it random, and anew for each manager.
    pub ca_guid: u64,
    /// The largest path MTU that the link can carry. A request for more is rejected, because both sides must use the
    /// same.
    pub path_mtu: PathMtu,
    /// The partition.
    pub pkey: u16,
    /// How long to wait for an answer before a message is repeated; peers are told.
    pub response_timeout: Timeout,
    /// How often a message is repeated, 0 to 15; peers are told.
    pub max_retries: u8,
    /// How long the numbers of a connection that is over aren't used again: longer than a packet may live.
    pub timewait: Duration,
    /// How long a request may wait for the application before it is rejected.
    pub request_timeout: Duration,
    /// How many connections there may be, those in timewait included.
    pub max_connections: usize,
    /// How many of them may be half open: asked for by a peer and not established. Anybody can ask in anybody's name.
    /// Once half of these slots are occupied, an IPv4 address or an IPv6 /64 gets at most a sixteenth.
    pub max_half_open: usize,
}

impl Config {
    /// One with this name, for links that carry 1024 bytes a packet; room for 65,536 connections, 1,024 of them half
    /// open; answers are waited for 268 ms, 15 times.
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

/// At which of its machine's addresses a listener listens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Bind {
    /// At this one.
    Address(IpAddr),
    /// At any of IPv4.
    AnyV4,
    /// At any.
    Any,
}

/// What a listener listens for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen {
    /// What peers connect to.
    pub service: ServiceId,
    /// At which addresses.
    pub bind: Bind,
    /// Which kind of queue pair: [`Transport::Ud`] listens for those who ask for a datagram queue pair.
    pub transport: Transport,
    /// How many requests may wait for an answer. More are dropped, and their peers ask again.
    pub backlog: usize,
}

/// How many READs and atomics may be outstanding, seen from this side.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Depths {
    /// Of the peer's, at this side (its responder resources).
    pub max_dest_rd_atomic: u8,
    /// Of this side's, at the peer (its initiator depth).
    pub max_rd_atomic: u8,
}

impl Depths {
    /// The smaller of both.
    pub fn min(self, other: Depths) -> Depths {
        Depths {
            max_dest_rd_atomic: self.max_dest_rd_atomic.min(other.max_dest_rd_atomic),
            max_rd_atomic: self.max_rd_atomic.min(other.max_rd_atomic),
        }
    }
}

/// What this side brings to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Offer {
    /// The queue pair.
    pub qpn: Qpn,
    /// Its kind: reliable or unreliable connection.
    pub transport: Transport,
    /// As many as this side can have.
    pub depths: Depths,
    /// How often the peer is to try again when no acknowledgement comes, 0 to 7. Only a request says so.
    pub retry_count: u8,
    /// How often the peer is to try again when no receive is posted, 0 to 7; 7 is for ever.
    pub rnr_retry: u8,
    /// How long both sides are to wait for acknowledgements. Only a request says so.
    pub ack_timeout: Timeout,
    /// How long a peer waits that finds no receive posted. Messages don't say it, packets do.
    pub min_rnr_timer: RnrTimer,
    /// The queue pair has a shared receive queue.
    pub shared_receives: bool,
    /// The vendor's options.
    pub ece: Ece,
}

impl Offer {
    /// A reliable connection of this queue pair: up to 16 READs and atomics either way, six retries of either kind,
    /// 67 ms for an acknowledgement.
    pub const fn new(qpn: Qpn) -> Offer {
        Offer {
            qpn,
            transport: Transport::Rc,
            depths: Depths { max_dest_rd_atomic: 16, max_rd_atomic: 16 },
            retry_count: 6,
            rnr_retry: 6,
            ack_timeout: Timeout::new(14).expect("below 32"),
            min_rnr_timer: RnrTimer::new(12).expect("below 32"),
            shared_receives: false,
            ece: Ece::NONE,
        }
    }
}

/// Whom to connect to, and with what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Connect<'a> {
    /// Between which addresses.
    pub ends: Ends,
    /// What to connect to.
    pub service: ServiceId,
    /// The port that the peer is told it comes from, in a port space of IP.
    pub source_port: u16,
    /// What this side brings.
    pub offer: Offer,
    /// The payload of one packet; at most that of the [manager's link](Config::path_mtu).
    pub path_mtu: PathMtu,
    /// The traffic class of the packets, both ways.
    pub traffic_class: u8,
    /// For the peer's application: at most 56 bytes in a port space of IP, otherwise 92.
    pub private_data: &'a [u8],
    /// When it must have come to an end, one way or the other.
    pub deadline: Time,
    /// Neither side listens: each connects to the other, and the same service, at about the same time
    /// (vol. 1, 12.10.4). Linux knows nothing of it.
    pub peer_to_peer: bool,
}

impl<'a> Connect<'a> {
    /// To this service at the other end, with a path MTU of 1024 bytes.
    pub const fn new(ends: Ends, service: ServiceId, offer: Offer, deadline: Time) -> Connect<'a> {
        Connect {
            ends,
            service,
            source_port: 0,
            offer,
            path_mtu: PathMtu::Mtu1024,
            traffic_class: 0,
            private_data: &[],
            deadline,
            peer_to_peer: false,
        }
    }
}

/// Whose datagram queue pair to ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resolve<'a> {
    /// Between which addresses.
    pub ends: Ends,
    /// What takes the datagrams.
    pub service: ServiceId,
    /// The port that the peer is told it comes from, in a port space of IP.
    pub source_port: u16,
    /// For the peer's application: at most 180 bytes in a port space of IP, otherwise 216.
    pub private_data: &'a [u8],
    /// When it must have come to an end.
    pub deadline: Time,
}

/// Private data as a message carries it: behind an IP header if the service is a port of IP (Annex A11; `cma_hdr` in
/// Linux's `cma.c`).
pub(super) fn private_data<const N: usize>(
    ends: Ends,
    service: ServiceId,
    source_port: u16,
    data: &[u8],
) -> Result<adverb_wire::cm::PrivateData<N>, CallError> {
    let data = if has_ip_header(service) {
        let mapped = |address: IpAddr| IpAddr::V6(Gid::from(address).bytes().into());
        let (local, remote) = match ends {
            // One of them says a port, in the form of IPv6.
            _ if ends.local.is_ipv4() != ends.remote.is_ipv4() => (mapped(ends.local), mapped(ends.remote)),
            Ends { local, remote } => (local, remote),
        };
        CmaHeader::new((local, source_port).into(), remote)
            .ok_or(CallError::AddressFamilyMismatch)?
            .prepend_to(data)
    } else {
        adverb_wire::cm::PrivateData::new(data)
    };
    data.map_err(CallError::PrivateDataTooLong)
}

/// Whether packets to an address are IPv4's, though it may say a port.
pub(super) fn is_ipv4(address: IpAddr) -> bool {
    Gid::from(address).udp_address().is_ipv4()
}

/// Whether requests for this service begin with an IP header.
pub(super) fn has_ip_header(service: ServiceId) -> bool {
    matches!(service.port_space(), Some(PortSpace::Tcp | PortSpace::Udp))
}

pub(super) fn bits<const N: usize>(value: u8, name: &'static str) -> Result<Bits<N>, CallError> {
    Bits::new(value.into()).ok_or(CallError::OutOfRange(name))
}

/// The error of a call to the connection manager. A failed call changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The connection, request or listener does not exist, or has ended.
    Unknown,
    /// The connection's state does not allow the call.
    WrongState(State),
    /// The private data is longer than the message allows.
    PrivateDataTooLong(DataTooLong),
    /// The queue pair has a connection, or is still in timewait after its last one.
    QpInUse(Qpn),
    /// Another listener has the service ID.
    ServiceInUse(ServiceId),
    /// One address is IPv4 and the other IPv6.
    AddressFamilyMismatch,
    /// The queue pair's transport does not support the call: UD queue pairs are not connected, and RC and UC queue pairs
    /// are not resolved by service ID.
    UnsupportedTransport(Transport),
    /// The connection manager holds its maximum number of connections, requests or listeners.
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
                f.write_str("the connection manager is at its limit of connections, requests or listeners")
            }
            CallError::OutOfRange(name) => write!(f, "{name} is out of range"),
        }
    }
}

impl core::error::Error for CallError {}
