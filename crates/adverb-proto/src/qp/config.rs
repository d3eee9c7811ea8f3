//! What a queue pair is made with, and what it is told on its way to work.

use core::fmt;

use adverb_wire::cm::Timeout;
use adverb_wire::{DEFAULT_PKEY, Psn, Qpn, RnrTimer};

use crate::congestion::Congestion;
use crate::cq::Cq;
use crate::memory::Pd;
use crate::path::Path;
use crate::srq::Srq;
use crate::types::{Access, PathMtu, QpState, Transport};

/// What a queue pair is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QpConfig {
    /// What it promises about delivery.
    pub transport: Transport,
    /// The domain of the memory that it may use.
    pub pd: Pd,
    /// Where send requests complete.
    pub send_cq: Cq,
    /// Where receive requests complete.
    pub recv_cq: Cq,
    /// Where receive requests come from, if they are shared with others.
    pub srq: Option<Srq>,
    /// How many send requests may be outstanding.
    pub max_send_wr: u32,
    /// How many receive requests may be outstanding.
    pub max_recv_wr: u32,
    /// How many segments a send request may have.
    pub max_send_sge: u32,
    /// How many segments a receive request may have.
    pub max_recv_sge: u32,
    /// How many bytes may be posted inline.
    pub max_inline: u32,
    /// Whether every send request makes a completion, as if it were signalled.
    pub signal_all: bool,
    /// Whether acknowledgements carry credits, and are believed (vol. 1, 9.7.7). With shared receives they carry
    /// none: those are nobody's own.
    pub credits: bool,
    /// How many packets may be unacknowledged before sending pauses.
    pub window: u32,
    /// How many bytes of answers to READs may be under way, each packet counted with 512 more than it carries. Nothing
    /// else holds them back: a longer READ is asked for in parts, so that what receives its packets can hold them all.
    pub read_window: u32,
    /// How many short requests go together at most. While half as many are unacknowledged, short ones wait for each other,
    /// until as many are there as are unacknowledged, or as this says, or the acknowledgement is: then they go. Nothing waits
    /// behind a request of more than a packet, or before one, or if it is solicited. 0 is never.
    pub coalesce_limit: u32,
    /// What to do about congestion.
    pub congestion: Congestion,
}

impl QpConfig {
    /// A reliable connection with room for 128 requests either way.
    pub const fn rc(pd: Pd, send_cq: Cq, recv_cq: Cq) -> QpConfig {
        QpConfig::new(Transport::Rc, pd, send_cq, recv_cq)
    }

    /// An unreliable connection with room for 128 requests either way.
    pub const fn uc(pd: Pd, send_cq: Cq, recv_cq: Cq) -> QpConfig {
        QpConfig::new(Transport::Uc, pd, send_cq, recv_cq)
    }

    /// Datagrams, with room for 128 requests either way.
    pub const fn ud(pd: Pd, send_cq: Cq, recv_cq: Cq) -> QpConfig {
        QpConfig::new(Transport::Ud, pd, send_cq, recv_cq)
    }

    /// Any transport, with room for 128 requests either way.
    pub const fn new(transport: Transport, pd: Pd, send_cq: Cq, recv_cq: Cq) -> QpConfig {
        QpConfig {
            transport,
            pd,
            send_cq,
            recv_cq,
            srq: None,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 16,
            max_recv_sge: 16,
            max_inline: 256,
            signal_all: false,
            credits: false,
            window: 256,
            read_window: 2 << 20,
            coalesce_limit: 0,
            congestion: Congestion::None,
        }
    }
}

/// The next state of a queue pair, with what it must be told for it (vol. 1, 10.3.1 and 11.2.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Transition {
    /// From reset: receives may be posted.
    Init(Init),
    /// From init, for connections: the peer is known, and messages are received.
    ReadyToReceive(ReadyToReceive),
    /// From init, for datagrams: they are received from anyone who knows the queue key.
    ReceiveDatagrams,
    /// From ready to receive: messages are sent too.
    ReadyToSend(ReadyToSend),
    /// From ready to receive or to send, and to the same: what a peer may do through this queue pair changes (vol. 1,
    /// 11.2.5.2). Packets that have come were checked by what it was before.
    Access(Access),
    /// From ready to send: finish what was begun, and begin nothing new.
    Drain,
    /// From drained or draining, or from an error of the send queue alone: go on.
    Resume,
    /// From any state but reset: give everything back.
    Error,
    /// From any state: forget everything.
    Reset,
}

/// What a queue pair is told in [`Transition::Init`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Init {
    /// What a peer may do through this queue pair; its regions must allow it too.
    pub access: Access,
    /// The partition.
    pub pkey: u16,
    /// The queue key that datagrams must bring; connections have none.
    pub qkey: u32,
}

impl Init {
    /// For a connection in the default partition, with these rights for the peer.
    pub const fn new(access: Access) -> Init {
        Init { access, pkey: DEFAULT_PKEY, qkey: 0 }
    }

    /// For datagrams in the default partition that bring this queue key.
    pub const fn datagrams(qkey: u32) -> Init {
        Init { access: Access::empty(), pkey: DEFAULT_PKEY, qkey }
    }
}

/// What a queue pair is told in [`Transition::ReadyToReceive`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadyToReceive {
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// Between which addresses.
    pub path: Path,
    /// The payload of one packet.
    pub path_mtu: PathMtu,
    /// The number of the first packet that the peer will send.
    pub psn: Psn,
    /// How many READs and atomics the peer may have outstanding. Only reliable connections look at it.
    pub max_dest_rd_atomic: u8,
    /// How long a peer waits that finds no receive posted. Only reliable connections look at it.
    pub min_rnr_timer: RnrTimer,
}

impl ReadyToReceive {
    /// For an unreliable connection.
    pub const fn unreliable(remote_qpn: Qpn, path: Path, path_mtu: PathMtu, psn: Psn) -> ReadyToReceive {
        let min_rnr_timer = RnrTimer::MAX;
        ReadyToReceive { remote_qpn, path, path_mtu, psn, max_dest_rd_atomic: 0, min_rnr_timer }
    }
}

/// What a queue pair is told in [`Transition::ReadyToSend`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadyToSend {
    /// The number of the first packet.
    pub psn: Psn,
    /// How long to wait for an acknowledgement; [`Timeout::ZERO`] is for ever.
    pub timeout: Timeout,
    /// How often to try again when none comes, 0 to 7. (7 isn't for ever, whatever `rxe_comp.c` makes of it.)
    pub retry_count: u8,
    /// How often to try again when the peer has no receive posted, 0 to 7; 7 is for ever (vol. 1, 9.7.5).
    pub rnr_retry: u8,
    /// How many READs and atomics to have outstanding: no more than the peer's `max_dest_rd_atomic`.
    pub max_rd_atomic: u8,
}

impl ReadyToSend {
    /// Without acknowledgements: for an unreliable connection, or for datagrams.
    pub const fn unreliable(psn: Psn) -> ReadyToSend {
        ReadyToSend { psn, timeout: Timeout::ZERO, retry_count: 0, rnr_retry: 0, max_rd_atomic: 0 }
    }
}

/// The error of creating a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CreateQpError {
    /// The protection domain does not exist.
    UnknownDomain,
    /// The completion queue does not exist.
    UnknownCq(Cq),
    /// The shared receive queue does not exist.
    UnknownSrq(Srq),
    /// All queue pair numbers are in use.
    TooMany,
    /// Queue pair 1 (general service interface, GSI) exists already, or was requested with a transport other than UD.
    InvalidGsi,
}

impl fmt::Display for CreateQpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CreateQpError::UnknownDomain => f.write_str("the protection domain does not exist"),
            CreateQpError::UnknownCq(Cq(cq)) => write!(f, "completion queue {cq} does not exist"),
            CreateQpError::InvalidGsi => {
                f.write_str("queue pair 1 exists already, or its transport is not UD")
            }
            CreateQpError::UnknownSrq(Srq(srq)) => write!(f, "shared receive queue {srq} does not exist"),
            CreateQpError::TooMany => {
                f.write_str("all queue pair numbers are in use: destroy some queue pairs first")
            }
        }
    }
}

impl core::error::Error for CreateQpError {}

/// The error of modifying a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ModifyError {
    /// The queue pair does not exist.
    UnknownQp,
    /// The queue pair's state does not allow the transition.
    WrongState(QpState),
    /// The named value is out of range.
    OutOfRange(&'static str),
}

impl fmt::Display for ModifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModifyError::UnknownQp => f.write_str("the queue pair does not exist"),
            ModifyError::WrongState(state) => {
                write!(
                    f,
                    "transition not allowed from state {state}: the order is reset, init, ready to receive, ready to send"
                )
            }
            ModifyError::OutOfRange(field) => write!(f, "{field} is out of range"),
        }
    }
}

impl core::error::Error for ModifyError {}

/// The error of posting a request. The request was not posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PostError {
    /// The queue pair does not exist.
    UnknownQp,
    /// The queue pair's state does not allow posting.
    WrongState(QpState),
    /// The queue is full.
    QueueFull,
    /// The request has more segments than the queue pair was created for.
    TooManySegments,
    /// The length is not valid for the operation.
    InvalidLength,
    /// The request has more inline bytes than the queue pair was created for, or its operation sends no local bytes.
    InvalidInline,
    /// The transport does not support the operation.
    Unsupported,
    /// A UD request has no destination, or a request of a connected queue pair has one.
    InvalidDestination,
    /// The queue pair uses a shared receive queue, so it has no receive queue of its own.
    HasSharedReceiveQueue,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostError::UnknownQp => f.write_str("the queue pair does not exist"),
            PostError::WrongState(state) => write!(f, "the queue pair is in state {state}"),
            PostError::QueueFull => f.write_str(
                "the queue is full: poll completions, or create the queue pair with a larger depth",
            ),
            PostError::TooManySegments => {
                f.write_str("the request has more segments than the queue pair was created for")
            }
            PostError::InvalidLength => f.write_str("the length is not valid for the operation"),
            PostError::InvalidInline => {
                f.write_str("inline data is too long, or the operation sends no local data")
            }
            PostError::Unsupported => f.write_str("the transport does not support the operation"),
            PostError::HasSharedReceiveQueue => f.write_str(
                "the queue pair has no receive queue of its own: post to its shared receive queue",
            ),
            PostError::InvalidDestination => {
                f.write_str("a UD request requires a destination, and a connected queue pair allows none")
            }
        }
    }
}

impl core::error::Error for PostError {}
