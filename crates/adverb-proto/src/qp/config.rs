//! The configuration of a queue pair and its state transitions.

use core::fmt;

use adverb_wire::cm::Timeout;
use adverb_wire::{DEFAULT_PKEY, Psn, Qpn, RnrTimer};

use crate::congestion::Congestion;
use crate::cq::Cq;
use crate::memory::Pd;
use crate::path::Path;
use crate::srq::Srq;
use crate::types::{Access, PathMtu, QpState, Transport};

/// The configuration of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QpConfig {
    /// The transport service.
    pub transport: Transport,
    /// The protection domain.
    pub pd: Pd,
    /// The completion queue of send requests.
    pub send_cq: Cq,
    /// The completion queue of receive requests.
    pub recv_cq: Cq,
    /// The shared receive queue, if the queue pair uses one.
    pub srq: Option<Srq>,
    /// The maximum number of outstanding send requests.
    pub max_send_wr: u32,
    /// The maximum number of outstanding receive requests.
    pub max_recv_wr: u32,
    /// The maximum number of segments of a send request.
    pub max_send_sge: u32,
    /// The maximum number of segments of a receive request.
    pub max_recv_sge: u32,
    /// The maximum number of inline bytes of a send request.
    pub max_inline: u32,
    /// Whether every send request is signaled.
    pub signal_all: bool,
    /// Whether acknowledgements carry end-to-end credits, and the requester respects them (vol. 1, 9.7.7). A queue pair
    /// with a shared receive queue sends no credits.
    pub credits: bool,
    /// The number of unacknowledged packets at which no further request packet is sent. The packets of a READ response
    /// count too, so a READ can exceed this number.
    pub window: u32,
    /// The maximum number of bytes of outstanding READ responses. Each packet counts 512 bytes more than its payload.
    /// The requester splits a READ that is longer than half of this window into parts, so that the responses fit in the
    /// receiving socket's buffer.
    pub read_window: u32,
    /// The maximum number of short requests that are coalesced; 0 disables coalescing.
    ///
    /// While the number of unacknowledged requests is at least half of this limit, the queue pair holds back short
    /// requests. It sends them together when their number reaches the number of unacknowledged requests or this limit,
    /// or when acknowledgements have reduced the unacknowledged requests to less than half of this limit. For example,
    /// with a limit of 16 and 10 unacknowledged requests, short requests wait until there are 10 of them, or until only
    /// 7 requests are unacknowledged. A short request is a SEND or WRITE of less than one packet. A request is held
    /// back only if it, the request before it and the last queued one are short, and an acknowledgement timeout is set.
    pub coalesce_limit: u32,
    /// The congestion control.
    pub congestion: Congestion,
}

impl QpConfig {
    /// Creates the configuration of a reliable connection with queues of 128 requests.
    pub const fn rc(pd: Pd, send_cq: Cq, recv_cq: Cq) -> QpConfig {
        QpConfig::new(Transport::Rc, pd, send_cq, recv_cq)
    }

    /// Creates the configuration of an unreliable connection with queues of 128 requests.
    pub const fn uc(pd: Pd, send_cq: Cq, recv_cq: Cq) -> QpConfig {
        QpConfig::new(Transport::Uc, pd, send_cq, recv_cq)
    }

    /// Creates the configuration of a datagram queue pair with queues of 128 requests.
    pub const fn ud(pd: Pd, send_cq: Cq, recv_cq: Cq) -> QpConfig {
        QpConfig::new(Transport::Ud, pd, send_cq, recv_cq)
    }

    /// Creates a configuration with queues of 128 requests.
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

/// A state transition of a queue pair, with its attributes (vol. 1, 10.3.1 and 11.2.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Transition {
    /// Reset to init: receives may be posted. In init, the transition changes the attributes.
    Init(Init),
    /// Init to ready to receive, for connections: the queue pair receives messages from the peer.
    ReadyToReceive(ReadyToReceive),
    /// Init to ready to receive, for datagrams: the queue pair receives datagrams from any sender that uses its queue
    /// key.
    ReadyToReceiveUd,
    /// Ready to receive to ready to send: the queue pair also sends messages.
    ReadyToSend(ReadyToSend),
    /// A change of the peer's access rights through this queue pair, which stays ready to receive or ready to send
    /// (vol. 1, 11.2.5). Packets received earlier were checked against the old rights.
    ModifyAccess(Access),
    /// Ready to send to send queue drained: started requests are completed, and no further request is started.
    Drain,
    /// Send queue drained (or still draining), or send queue error, to ready to send: the queue pair sends again.
    Resume,
    /// Any state but reset to error: the queue pair flushes all requests.
    Error,
    /// Any state to reset: the queue pair discards all requests without completions.
    Reset,
}

/// The attributes of [`Transition::Init`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Init {
    /// The peer's access rights through this queue pair. The memory region or window must also grant these rights.
    pub access: Access,
    /// The partition key.
    pub pkey: u16,
    /// The queue key of a datagram queue pair. Connections do not use this field.
    pub qkey: u32,
}

impl Init {
    /// Creates the attributes of a connection in the default partition, with these access rights of the peer.
    pub const fn new(access: Access) -> Init {
        Init { access, pkey: DEFAULT_PKEY, qkey: 0 }
    }

    /// Creates the attributes of a datagram queue pair in the default partition.
    pub const fn datagrams(qkey: u32) -> Init {
        Init { access: Access::empty(), pkey: DEFAULT_PKEY, qkey }
    }
}

/// The attributes of [`Transition::ReadyToReceive`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadyToReceive {
    /// The number of the peer's queue pair.
    pub remote_qpn: Qpn,
    /// The addresses of both queue pairs.
    pub path: Path,
    /// The path MTU.
    pub path_mtu: PathMtu,
    /// The PSN of the first packet that the peer sends.
    pub psn: Psn,
    /// The maximum number of outstanding READs and atomics of the peer. Only reliable connections use this limit.
    pub max_dest_rd_atomic: u8,
    /// The RNR backoff demanded of the peer while no receive is posted. Only reliable connections use this value.
    pub min_rnr_timer: RnrTimer,
}

impl ReadyToReceive {
    /// Creates the attributes of an unreliable connection.
    pub const fn unreliable(remote_qpn: Qpn, path: Path, path_mtu: PathMtu, psn: Psn) -> ReadyToReceive {
        let min_rnr_timer = RnrTimer::MAX;
        ReadyToReceive { remote_qpn, path, path_mtu, psn, max_dest_rd_atomic: 0, min_rnr_timer }
    }
}

/// The attributes of [`Transition::ReadyToSend`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadyToSend {
    /// The PSN of the first packet that this side sends.
    pub psn: Psn,
    /// The acknowledgement timeout; [`Timeout::ZERO`] means no timeout.
    pub timeout: Timeout,
    /// The maximum number of retransmissions without progress, 0 to 7. Unlike in `rxe_comp.c`, 7 is also a limit.
    pub retry_count: u8,
    /// The maximum number of retransmissions after RNR NAKs, 0 to 7; 7 means no limit (vol. 1, 9.7.5).
    pub rnr_retry: u8,
    /// The maximum number of outstanding READs and atomics, which must not exceed the peer's `max_dest_rd_atomic`.
    pub max_rd_atomic: u8,
}

impl ReadyToSend {
    /// Creates the attributes of an unreliable connection or a datagram queue pair.
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
    /// The maximum number of queue pairs, 2^23, is reached.
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
    /// The queue pair's state or its transport does not allow the transition.
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
    /// The request has more segments than the queue pair was created for, or its operation allows no segments.
    TooManySegments,
    /// The length is not valid for the operation, or a receive for datagrams is shorter than a GRH.
    InvalidLength,
    /// The request has more inline bytes than the queue pair was created for, its operation sends no local bytes, or
    /// it has the inline flag without inline bytes or inline bytes without the flag.
    InvalidInline,
    /// The transport does not support the operation.
    Unsupported,
    /// A UD request has no destination or an address handle without a path, or a request of a connected queue pair has
    /// a destination.
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
