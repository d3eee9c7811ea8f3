//! What an application is told.

use core::fmt;
use core::net::SocketAddr;

use adverb_wire::cm::{AdditionalInfo, Ece, Path, RejectReason, ServiceId, SidrStatus};

use super::{Depths, Ends};
use crate::types::{PathMtu, Qpn, Transport};

/// A connection, on its way to be one, or just over. The number is its local communication ID, which is random, so
/// that the id of a connection that is gone names nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub(super) u32);

/// A listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub(super) u32);

/// A question for a datagram queue pair: ours to a peer, or a peer's to us.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueryId(pub(super) u32);

/// Prints the communication ID.
impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Something that the application must be told.
///
/// Each call of [`connect`](super::Manager::connect) and [`accept`](super::Manager::accept) ends with exactly one of
/// [`Established`](Event::Established), [`Rejected`](Event::Rejected), [`Unreachable`](Event::Unreachable) and
/// [`Disconnected`](Event::Disconnected), by its deadline; unless the application itself
/// [rejects](super::Manager::reject) or [abandons](super::Manager::abandon) the connection first. After
/// `Established` there is one `Disconnected`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer asks for a connection: accept or reject it.
    Request(Box<Request>),
    /// The peer takes the connection: bring the queue pair to ready-to-send, and
    /// [establish](super::Manager::establish) the connection, or reject it.
    Accepted(Box<Acceptance>),
    /// The connection stands.
    Established(ConnectionId),
    /// The peer doesn't want the connection, or no longer.
    Rejected(Box<Rejection>),
    /// Nobody answered in time.
    Unreachable(ConnectionId),
    /// The connection is over, because the peer, or this side, said so.
    Disconnected(ConnectionId),
    /// The queue pair's number may be used for a new connection.
    TimewaitOver {
        /// The connection that was.
        id: ConnectionId,
        /// The number.
        qpn: Qpn,
    },
    /// A peer asks for a datagram queue pair: answer or refuse.
    Query(Box<Query>),
    /// A peer's datagram queue pair is known.
    Resolved(Box<Resolution>),
    /// A peer has no such datagram queue pair, or doesn't tell.
    Refused {
        /// The question.
        id: QueryId,
        /// Why.
        status: SidrStatus,
        /// What the peer's application sent along, and zeros.
        private_data: Vec<u8>,
    },
    /// A peer didn't tell its datagram queue pair in time.
    NoAnswer(QueryId),
}

/// A peer's wish for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The connection to be.
    pub id: ConnectionId,
    /// Who is asked.
    pub listener: ListenerId,
    /// Between which addresses.
    pub ends: Ends,
    /// What the peer wants to connect to.
    pub service: ServiceId,
    /// From which port the peer says it comes, in a port space of IP.
    pub source: Option<SocketAddr>,
    /// The kind of queue pair.
    pub transport: Transport,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The payload of one packet.
    pub path_mtu: PathMtu,
    /// As many as the peer would use, and offers.
    pub depths: Depths,
    /// How often this side is to try again when no acknowledgement comes.
    pub retry_count: u8,
    /// How often this side is to try again when no receive is posted; 7 is for ever.
    pub rnr_retry: u8,
    /// The peer's queue pair has a shared receive queue.
    pub shared_receives: bool,
    /// The vendor's options.
    pub ece: Ece,
    /// The peer's way to us: traffic class, hop limit, acknowledgement timeout.
    pub path: Path,
    /// What the peer's application sent along, and zeros: messages carry no length.
    pub private_data: Vec<u8>,
}

/// A peer's consent to a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Acceptance {
    /// The connection.
    pub id: ConnectionId,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// As many as both sides can have.
    pub depths: Depths,
    /// The vendor's options.
    pub ece: Ece,
    /// The peer's queue pair has a shared receive queue.
    pub shared_receives: bool,
    /// What the peer's application sent along, and zeros.
    pub private_data: Vec<u8>,
}

/// A peer's refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Rejection {
    /// The connection that will not be.
    pub id: ConnectionId,
    /// Why.
    pub reason: RejectReason,
    /// More about the reason.
    pub info: AdditionalInfo,
    /// What the peer's application sent along, and zeros.
    pub private_data: Vec<u8>,
}

/// A peer's question for a datagram queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Query {
    /// The question.
    pub id: QueryId,
    /// Who is asked.
    pub listener: ListenerId,
    /// Between which addresses.
    pub ends: Ends,
    /// The service.
    pub service: ServiceId,
    /// From which port the peer says it comes, in a port space of IP.
    pub source: Option<SocketAddr>,
    /// What the peer's application sent along, and zeros.
    pub private_data: Vec<u8>,
}

/// A peer's datagram queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Resolution {
    /// The question.
    pub id: QueryId,
    /// Between which addresses.
    pub ends: Ends,
    /// The queue pair to send to.
    pub qpn: Qpn,
    /// The Q_Key to send with.
    pub qkey: u32,
    /// The vendor's options.
    pub ece: Ece,
    /// What the peer's application sent along, and zeros.
    pub private_data: Vec<u8>,
}
