//! Events for the application.

use core::fmt;
use core::net::SocketAddr;

use adverb_wire::cm::{AdditionalInfo, Ece, Path, RejectReason, ServiceId, SidrStatus};

use super::{AddrPair, RdAtomicLimits};
use crate::types::{PathMtu, Qpn, Transport};

/// The ID of a connection, valid from the first message to the end of timewait. If the peer rejects the REQ for another
/// reason than a stale connection, there is no timewait, and the ID becomes invalid at once. The ID is the local
/// communication ID, which is random, so the ID of an ended connection is unlikely to be assigned to another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub(super) u32);

/// The ID of a listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub(super) u32);

/// The ID of a SIDR query, which this side or a peer sent for a UD queue pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueryId(pub(super) u32);

/// Formats the communication ID.
impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// An event for the application.
///
/// The manager reports exactly one outcome of each call of [`connect`](super::Manager::connect) and
/// [`accept`](super::Manager::accept), by the deadline of the call: [`Established`](Event::Established),
/// [`Rejected`](Event::Rejected), [`Unreachable`](Event::Unreachable) or [`Disconnected`](Event::Disconnected). It
/// reports no outcome if the application [rejects](super::Manager::reject) or [aborts](super::Manager::abort) the
/// connection first. After `Established`, it reports one `Disconnected`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer requests a connection. The application must accept or reject it.
    Request(Box<Request>),
    /// The peer accepted the connection, or requested the same peer-to-peer connection. The application must move the
    /// queue pair to ready-to-send and [establish](super::Manager::establish) the connection, or reject it.
    Accepted(Box<Acceptance>),
    /// The connection is established.
    Established(ConnectionId),
    /// The connection was rejected before it was established. Either the peer rejected the connection, or the manager
    /// rejected it as stale because the peer requested or accepted another connection with the same queue pair.
    Rejected(Box<Rejection>),
    /// The connection was not established by the deadline: the peer did not respond, or the application did not accept,
    /// establish or reject the connection in time.
    Unreachable(ConnectionId),
    /// The connection has ended, because the peer or this side disconnected, or because the peer no longer has the
    /// connection.
    Disconnected(ConnectionId),
    /// Timewait is over: the queue pair number may be used for a new connection.
    TimewaitExit {
        /// The connection that ended.
        id: ConnectionId,
        /// The queue pair number.
        qpn: Qpn,
    },
    /// A peer queries for a UD queue pair. The application must [reply to](super::Manager::accept_query) or
    /// [reject](super::Manager::reject_query) the query.
    Query(Box<Query>),
    /// A peer replied to a query with its UD queue pair.
    Resolved(Box<Resolution>),
    /// A peer rejected a query.
    QueryRejected {
        /// The query.
        id: QueryId,
        /// The reason.
        status: SidrStatus,
        /// The private data of the peer's application, padded with zeros.
        private_data: Vec<u8>,
    },
    /// A peer did not respond to a query by the deadline.
    QueryTimedOut(QueryId),
}

/// A peer's connection request.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The requested connection.
    pub id: ConnectionId,
    /// The listener that the request is for.
    pub listener: ListenerId,
    /// The addresses of both sides.
    pub addrs: AddrPair,
    /// The service that the peer connects to.
    pub service: ServiceId,
    /// The peer's address with the source port that the peer states, if the service is a TCP or UDP port.
    pub source: Option<SocketAddr>,
    /// The transport of the queue pair.
    pub transport: Transport,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The path MTU.
    pub path_mtu: PathMtu,
    /// The peer's limits on outstanding READs and atomics, from this side's point of view.
    pub rd_atomic_limits: RdAtomicLimits,
    /// The number of retries that this side's queue pair uses when no acknowledgement arrives.
    pub retry_count: u8,
    /// The number of retries that this side's queue pair uses after an RNR NAK; 7 means unlimited.
    pub rnr_retry: u8,
    /// Whether the peer's queue pair uses a shared receive queue.
    pub has_srq: bool,
    /// The peer's vendor options (enhanced connection establishment).
    pub ece: Ece,
    /// The path in the request, from the peer's point of view: traffic class, hop limit, acknowledgement timeout.
    pub path: Path,
    /// The private data of the peer's application, padded with zeros, because messages do not carry the length of the
    /// data.
    pub private_data: Vec<u8>,
}

/// A peer's acceptance of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Acceptance {
    /// The connection.
    pub id: ConnectionId,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The limits on outstanding READs and atomics that both sides support.
    pub rd_atomic_limits: RdAtomicLimits,
    /// The peer's vendor options (enhanced connection establishment).
    pub ece: Ece,
    /// Whether the peer's queue pair uses a shared receive queue.
    pub has_srq: bool,
    /// The private data of the peer's application, padded with zeros.
    pub private_data: Vec<u8>,
}

/// The rejection of a connection, by the peer or by the manager.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Rejection {
    /// The rejected connection.
    pub id: ConnectionId,
    /// The reason.
    pub reason: RejectReason,
    /// Additional information, whose meaning depends on the reason.
    pub info: AdditionalInfo,
    /// The private data of the peer's application, padded with zeros.
    pub private_data: Vec<u8>,
}

/// A peer's query for a UD queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Query {
    /// The query.
    pub id: QueryId,
    /// The listener that the query is for.
    pub listener: ListenerId,
    /// The addresses of both sides.
    pub addrs: AddrPair,
    /// The service.
    pub service: ServiceId,
    /// The peer's address with the source port that the peer states, if the service is a TCP or UDP port.
    pub source: Option<SocketAddr>,
    /// The private data of the peer's application, padded with zeros.
    pub private_data: Vec<u8>,
}

/// A peer's reply to a query, with the peer's UD queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Resolution {
    /// The query that the peer replied to.
    pub id: QueryId,
    /// The addresses of both sides.
    pub addrs: AddrPair,
    /// The queue pair to send to.
    pub qpn: Qpn,
    /// The queue key to send with.
    pub qkey: u32,
    /// The peer's vendor options (enhanced connection establishment).
    pub ece: Ece,
    /// The private data of the peer's application, padded with zeros.
    pub private_data: Vec<u8>,
}
