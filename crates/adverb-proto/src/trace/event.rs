//! Trace events.

use core::fmt;
use core::net::SocketAddr;

use adverb_wire::{Header, Opcode, Psn, Qpn, Syndrome};

use crate::cq::Cq;
use crate::event::QueueEvent;
use crate::srq::Srq;
use crate::types::{
    Failure, PathMtu, QpState, RecvRequest, Segment, SendFlags, SendOperation, Success, Transport,
};

/// A step of a device, for recordings, statistics and test oracles.
///
/// A queue numbers its requests in the order of their posting, from 0, and wraps after 2³² requests. With the number,
/// an event identifies its request even if the application uses the same id for several requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TraceEvent {
    /// A queue pair was connected: it is ready to receive, or also ready to send.
    Connected {
        /// The queue pair.
        qpn: Qpn,
        /// The transport.
        transport: Transport,
        /// The peer's queue pair.
        remote_qpn: Qpn,
        /// The source address and source port of this side's packets.
        local: SocketAddr,
        /// The address and UDP port that packets are sent to.
        remote: SocketAddr,
        /// The maximum payload of a packet.
        path_mtu: PathMtu,
        /// The sequence number of the next request packet from the peer.
        recv_psn: Psn,
        /// The sequence number of the next new request packet to the peer. The value is `None` if the queue pair is not
        /// yet ready to send, or is in the error state.
        send_psn: Option<Psn>,
    },
    /// A send request was posted.
    PostedSend {
        /// The queue pair.
        qpn: Qpn,
        /// The number of the request in the send queue.
        request: u32,
        /// The id of the request.
        wr_id: u64,
        /// The application's tag.
        tag: u64,
        /// The operation, with the address and key of the peer's memory.
        operation: SendOperation,
        /// The flags.
        flags: SendFlags,
        /// The number of bytes that are sent, or that are read from the peer.
        length: u32,
        /// The number of scatter/gather elements.
        sge_count: u16,
        /// The first scatter/gather element, if there is one.
        first_sge: Option<Segment>,
    },
    /// A receive request was posted.
    PostedRecv {
        /// The queue.
        queue: RecvQueueId,
        /// The number of the request in the queue.
        request: u32,
        /// The id of the request.
        wr_id: u64,
        /// The application's tag.
        tag: u64,
        /// The length of the buffer in bytes.
        length: u64,
        /// The number of scatter/gather elements.
        sge_count: u16,
        /// The first scatter/gather element, if there is one.
        first_sge: Option<Segment>,
    },
    /// The number of requests in a shared receive queue fell below the queue's limit.
    SrqLimit {
        /// The queue.
        srq: Srq,
    },
    /// A send request was posted to a queue pair that had no packets to send, and now may have some.
    Doorbell {
        /// The queue pair.
        qpn: Qpn,
    },
    /// The addresses of a datagram. The event of the packet follows.
    DatagramAddrs {
        /// The queue pair that sends or receives the datagram.
        qpn: Qpn,
        /// The sender's address and UDP port.
        source: SocketAddr,
        /// The address and UDP port that the datagram is sent to.
        destination: SocketAddr,
    },
    /// The device returned a packet to the caller, which sends it.
    PacketSent {
        /// The sending queue pair.
        qpn: Qpn,
        /// The number of the send request that the packet belongs to. The value is `None` for responses to the peer's
        /// requests, and for CNPs.
        request: Option<u32>,
        /// The headers.
        header: Header,
        /// The length of the payload, in bytes.
        payload_len: u32,
        /// Whether the packet of a request was sent before. The value is `false` for all responses, also for
        /// retransmitted ones.
        is_retransmission: bool,
    },
    /// A packet for a queue pair was received.
    PacketReceived {
        /// The queue pair.
        qpn: Qpn,
        /// The number of the outstanding send request whose sequence numbers contain the packet's, if the packet is a
        /// response. Responses that were received before, and requests of the peer, have no number.
        request: Option<u32>,
        /// The headers.
        header: Header,
        /// The length of the payload, in bytes.
        payload_len: u32,
    },
    /// A packet was dropped.
    Dropped {
        /// The destination of the packet.
        qpn: Qpn,
        /// The packet's sequence number.
        psn: Psn,
        /// The opcode.
        opcode: Opcode,
        /// The reason.
        reason: DropReason,
    },
    /// The peer acknowledged all packets before a sequence number.
    Acknowledged {
        /// The queue pair that sent the packets.
        qpn: Qpn,
        /// The oldest sequence number that is not acknowledged.
        psn: Psn,
    },
    /// A NAK was received.
    NakReceived {
        /// The queue pair that sent the request.
        qpn: Qpn,
        /// The sequence number of the NAK.
        psn: Psn,
        /// The kind of NAK.
        syndrome: Syndrome,
    },
    /// A NAK was sent.
    NakSent {
        /// The queue pair that received the request.
        qpn: Qpn,
        /// The sequence number of the NAK.
        psn: Psn,
        /// The kind of NAK.
        syndrome: Syndrome,
    },
    /// A queue pair starts a retransmission.
    Retransmit {
        /// The queue pair.
        qpn: Qpn,
        /// The sequence number of the first packet to retransmit.
        psn: Psn,
        /// The cause.
        cause: RetryCause,
    },
    /// A congestion notification packet (CNP) was received.
    CnpReceived {
        /// The queue pair whose packets a congested switch marked.
        qpn: Qpn,
        /// The new rate of the queue pair, in bits per second. The value is `None` if the queue pair has no congestion
        /// control.
        rate: Option<u64>,
    },
    /// A timer expired.
    TimerExpired {
        /// The queue pair.
        qpn: Qpn,
        /// The timer.
        timer: TimerKind,
    },
    /// A request completed, and its completion was added to a completion queue, or lost because the queue was full.
    Completed {
        /// The queue pair.
        qpn: Qpn,
        /// The queue of the request.
        queue: Queue,
        /// The number of the request in its queue. A receive from a shared receive queue has the number that the
        /// shared queue assigned.
        request: u32,
        /// The id of the request.
        wr_id: u64,
        /// The completion queue.
        cq: Cq,
        /// The details of the success or of the failure.
        outcome: Result<Success, Failure>,
    },
    /// An unsignaled send request succeeded. It has no completion.
    CompletedUnsignaled {
        /// The queue pair.
        qpn: Qpn,
        /// The number of the request in the send queue.
        request: u32,
    },
    /// The application polled a completion.
    Polled {
        /// The completion queue.
        cq: Cq,
        /// The queue pair of the completed request.
        qpn: Qpn,
        /// The id of the request.
        wr_id: u64,
    },
    /// A completion event was delivered: an armed completion queue has a new completion.
    CqEventDelivered {
        /// The completion queue.
        cq: Cq,
    },
    /// An asynchronous event was delivered.
    QueueEventDelivered {
        /// The event.
        event: QueueEvent,
    },
    /// A queue pair changed its state.
    StateChanged {
        /// The queue pair.
        qpn: Qpn,
        /// The old state.
        from: QpState,
        /// The new state.
        to: QpState,
    },
}

/// A queue of receive requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecvQueueId {
    /// The receive queue of a queue pair.
    Qp(Qpn),
    /// A shared receive queue.
    Srq(Srq),
}

impl TraceEvent {
    /// Returns the event of a receive request that was posted.
    #[inline(always)]
    pub fn posted_recv(queue: RecvQueueId, request: u32, posted: &RecvRequest<'_>) -> TraceEvent {
        TraceEvent::PostedRecv {
            queue,
            request,
            wr_id: posted.wr_id,
            tag: posted.tag,
            length: posted.length(),
            sge_count: posted.segments.len() as u16,
            first_sge: posted.segments.first().copied(),
        }
    }

    /// Returns the queue pair of the event, or `None` if the event belongs to a completion queue or to a shared receive
    /// queue.
    pub const fn qpn(&self) -> Option<Qpn> {
        match *self {
            TraceEvent::Connected { qpn, .. }
            | TraceEvent::PostedSend { qpn, .. }
            | TraceEvent::PostedRecv { queue: RecvQueueId::Qp(qpn), .. }
            | TraceEvent::Doorbell { qpn }
            | TraceEvent::DatagramAddrs { qpn, .. }
            | TraceEvent::PacketSent { qpn, .. }
            | TraceEvent::PacketReceived { qpn, .. }
            | TraceEvent::Dropped { qpn, .. }
            | TraceEvent::Acknowledged { qpn, .. }
            | TraceEvent::NakReceived { qpn, .. }
            | TraceEvent::NakSent { qpn, .. }
            | TraceEvent::Retransmit { qpn, .. }
            | TraceEvent::CnpReceived { qpn, .. }
            | TraceEvent::TimerExpired { qpn, .. }
            | TraceEvent::Completed { qpn, .. }
            | TraceEvent::CompletedUnsignaled { qpn, .. }
            | TraceEvent::Polled { qpn, .. }
            | TraceEvent::StateChanged { qpn, .. } => Some(qpn),
            TraceEvent::QueueEventDelivered { event } => event.qpn(),
            TraceEvent::PostedRecv { queue: RecvQueueId::Srq(_), .. }
            | TraceEvent::SrqLimit { .. }
            | TraceEvent::CqEventDelivered { .. } => None,
        }
    }
}

/// One of the two queues of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
}

impl Queue {
    /// Returns `"send"` or `"recv"`.
    pub const fn name(self) -> &'static str {
        match self {
            Queue::Send => "send",
            Queue::Recv => "recv",
        }
    }
}

/// The reason why a packet was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DropReason {
    /// The destination queue pair does not exist.
    UnknownQp,
    /// The queue pair's state does not allow it to receive the packet.
    WrongState,
    /// The packet's transport is not the queue pair's.
    WrongTransport,
    /// The packet's addresses are not the connection's, or a packet for a single queue pair was sent to a multicast
    /// address.
    WrongAddress,
    /// The partition key does not match the queue pair's.
    WrongPkey,
    /// The ICRC is wrong.
    WrongIcrc,
    /// The packet's sequence number is higher than the expected one, and a NAK was already sent. On an unreliable
    /// connection: an earlier packet of the message is missing or was dropped.
    OutOfSequence,
    /// The packet duplicates a READ, an atomic, a FLUSH or an ATOMIC WRITE whose response is no longer stored, or too
    /// many responses are queued already.
    DuplicateTooOld,
    /// The response acknowledges packets that were never sent, or were acknowledged before.
    StaleResponse,
    /// The request with the response's sequence number is of another kind, or the response's message sequence number
    /// (MSN) counts messages that the peer can't have completed.
    MismatchedResponse,
    /// The syndrome is reserved.
    ReservedSyndrome,
    /// The packet's sequence number is lower than the expected one, on an unreliable connection.
    PsnBelowExpected,
    /// No receive is posted, on an unreliable transport.
    NoReceivePosted,
    /// The datagram is longer than its receive buffer or the maximum.
    MessageTooLong,
    /// The request is invalid, is longer than its receive buffer or violates access rights, on an unreliable
    /// connection.
    InvalidRequest,
    /// The queue key differs from the queue pair's.
    WrongQkey,
    /// No queue pair is attached to the multicast group.
    NoMulticastMember,
}

/// The cause of a retransmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryCause {
    /// The acknowledgement timer expired.
    Timeout,
    /// The peer reported a gap in the sequence (PSN sequence error NAK).
    SequenceNak,
    /// A response arrived, but an earlier one is missing.
    ImpliedNak,
    /// The peer had no receive posted (RNR NAK).
    Rnr,
}

/// A timer of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerKind {
    /// The acknowledgement timeout.
    AckTimeout,
    /// The pacing of packets by congestion control.
    Pacing,
    /// The RNR backoff.
    Rnr,
}

impl fmt::Display for RecvQueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecvQueueId::Qp(qpn) => write!(f, "qp {qpn}"),
            RecvQueueId::Srq(Srq(srq)) => write!(f, "srq {srq}"),
        }
    }
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceEvent::Connected { qpn, remote_qpn, local, remote, path_mtu, .. } => {
                let mtu = path_mtu.bytes();
                write!(f, "qp {qpn} connected to qp {remote_qpn}, {local} -> {remote}, MTU {mtu}")
            }
            TraceEvent::PostedSend { qpn, request, tag, operation, length, .. } => {
                let name = operation.name();
                write!(f, "qp {qpn} post send #{request} {name}, {length} bytes, tag {tag:#x}")
            }
            TraceEvent::PostedRecv { queue, request, tag, length, .. } => {
                write!(f, "{queue} post recv #{request}, {length} bytes, tag {tag:#x}")
            }
            TraceEvent::SrqLimit { srq: Srq(srq) } => write!(f, "srq {srq} below its limit"),
            TraceEvent::Doorbell { qpn } => write!(f, "qp {qpn} doorbell"),
            TraceEvent::DatagramAddrs { qpn, source, destination } => {
                write!(f, "qp {qpn} datagram {source} -> {destination}")
            }
            TraceEvent::PacketSent { qpn, request, header, payload_len, is_retransmission } => {
                write!(f, "qp {qpn} out {header}, {payload_len} bytes")?;
                request.map_or(Ok(()), |request| write!(f, ", send #{request}"))?;
                f.write_str(if *is_retransmission { ", retransmission" } else { "" })
            }
            TraceEvent::PacketReceived { qpn, request, header, payload_len } => {
                write!(f, "qp {qpn} in  {header}, {payload_len} bytes")?;
                request.map_or(Ok(()), |request| write!(f, ", send #{request}"))
            }
            TraceEvent::Dropped { qpn, psn, opcode, reason } => {
                write!(f, "qp {qpn} dropped {opcode} psn {psn}: {reason}")
            }
            TraceEvent::Acknowledged { qpn, psn } => write!(f, "qp {qpn} acknowledged before psn {psn}"),
            TraceEvent::NakReceived { qpn, psn, syndrome } => {
                write!(f, "qp {qpn} NAK received, psn {psn}: {syndrome}")
            }
            TraceEvent::NakSent { qpn, psn, syndrome } => {
                write!(f, "qp {qpn} NAK sent, psn {psn}: {syndrome}")
            }
            TraceEvent::Retransmit { qpn, psn, cause } => {
                write!(f, "qp {qpn} retransmit from psn {psn}: {cause}")
            }
            TraceEvent::CnpReceived { qpn, rate } => match rate {
                Some(rate) => write!(f, "qp {qpn} CNP received, rate {} Mbit/s", rate / 1_000_000),
                None => write!(f, "qp {qpn} CNP received"),
            },
            TraceEvent::TimerExpired { qpn, timer } => write!(f, "qp {qpn} timer expired: {timer}"),
            TraceEvent::Completed { qpn, queue, request, wr_id, outcome, .. } => {
                let queue = queue.name();
                write!(f, "qp {qpn} complete {queue} #{request} wr {wr_id:#x}: ")?;
                match outcome {
                    Ok(success) => write!(f, "success, {} bytes", success.length),
                    Err(failure) => write!(f, "{}", failure.status),
                }
            }
            TraceEvent::CompletedUnsignaled { qpn, request } => {
                write!(f, "qp {qpn} complete send #{request}, unsignaled")
            }
            TraceEvent::Polled { cq: Cq(cq), qpn, wr_id } => {
                write!(f, "qp {qpn} poll wr {wr_id:#x} from cq {cq}")
            }
            TraceEvent::CqEventDelivered { cq: Cq(cq) } => write!(f, "cq {cq} event"),
            TraceEvent::QueueEventDelivered { event } => write!(f, "event: {event}"),
            TraceEvent::StateChanged { qpn, from, to } => write!(f, "qp {qpn} {from} -> {to}"),
        }
    }
}
