//! Trace events, which show the steps of a device, and asynchronous events of its queues.

use core::fmt;

use adverb_wire::{Opcode, Psn, Qpn, Syndrome};

use crate::Time;
use crate::cq::Cq;
use crate::srq::Srq;
use crate::types::{QpState, Status};

/// A step of a device, for traces, statistics and test oracles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TraceEvent {
    /// A request was posted.
    Posted {
        /// The queue pair.
        qpn: Qpn,
        /// The id of the request.
        wr_id: u64,
        /// The queue.
        queue: Queue,
    },
    /// A receive request was posted to a shared queue.
    PostedToSrq {
        /// The queue.
        srq: Srq,
        /// The id of the request.
        wr_id: u64,
    },
    /// The number of requests in a shared receive queue fell below the queue's limit.
    SrqLimit {
        /// The queue.
        srq: Srq,
    },
    /// An idle queue pair now has packets to send.
    Doorbell {
        /// The queue pair.
        qpn: Qpn,
    },
    /// The device returned a packet to the caller, which sends it.
    PacketOut {
        /// The sending queue pair.
        qpn: Qpn,
        /// The packet's sequence number.
        psn: Psn,
        /// The opcode.
        opcode: Opcode,
        /// The length of the payload, in bytes.
        payload_len: u32,
        /// Whether a packet with this sequence number was sent before.
        is_retransmission: bool,
    },
    /// A packet for a queue pair was received.
    PacketIn {
        /// The queue pair.
        qpn: Qpn,
        /// The packet's sequence number.
        psn: Psn,
        /// The opcode.
        opcode: Opcode,
        /// The length of the payload, in bytes.
        payload_len: u32,
    },
    /// A packet was dropped.
    Dropped {
        /// The destination of the packet.
        qpn: Qpn,
        /// The packet's sequence number.
        psn: Psn,
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
    /// A request completed.
    Completed {
        /// The queue pair.
        qpn: Qpn,
        /// The id of the request.
        wr_id: u64,
        /// The queue.
        queue: Queue,
        /// The status.
        status: Status,
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

/// One of the two queues of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
}

/// The reason why a packet was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DropReason {
    /// The destination queue pair does not exist.
    UnknownQp,
    /// The queue pair's state does not allow it to receive packets.
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
    /// The packet's sequence number is higher than the expected one, and a NAK was already sent.
    OutOfSequence,
    /// The packet duplicates a READ or atomic whose response is no longer stored.
    ForgottenDuplicate,
    /// The response acknowledges packets that were never sent, or were acknowledged before.
    StaleResponse,
    /// The request with the response's sequence number is of another kind, or the response's message sequence number
    /// (MSN) counts messages that the peer can't have completed.
    MismatchedResponse,
    /// The syndrome is reserved.
    ReservedSyndrome,
    /// The packet's sequence number is lower than the expected one, on an unreliable connection.
    Late,
    /// No receive is posted, on an unreliable transport.
    NoReceive,
    /// The message is longer than its receive buffer or the maximum, on an unreliable transport.
    TooLong,
    /// The request is invalid or violates access rights, on an unreliable connection.
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

/// A receiver of trace events.
///
/// Devices are generic over the sink. The sink `()` ignores events at no cost.
pub trait EventSink {
    /// Whether the sink uses events. If this constant is `false`, the device creates no events.
    const ACTIVE: bool = true;

    /// Handles an event.
    fn event(&mut self, now: Time, event: TraceEvent);
}

/// Passes an event to an active sink.
///
/// `cargo xtask overhead` builds this without a body, to show that an inactive sink costs nothing.
#[inline(always)]
pub(crate) fn tell<S: EventSink>(sink: &mut S, now: Time, event: impl FnOnce() -> TraceEvent) {
    #[cfg(not(adverb_no_events))]
    if S::ACTIVE {
        sink.event(now, event());
    }
    #[cfg(adverb_no_events)]
    let _ = (sink, now, event);
}

/// Ignores all events.
impl EventSink for () {
    const ACTIVE: bool = false;

    #[inline(always)]
    fn event(&mut self, _now: Time, _event: TraceEvent) {}
}

/// Stores all events, for tests.
impl EventSink for Vec<(Time, TraceEvent)> {
    fn event(&mut self, now: Time, event: TraceEvent) {
        self.push((now, event));
    }
}

/// An asynchronous event of a queue pair, completion queue or shared receive queue (vol. 1, 11.6.3: affiliated
/// asynchronous events).
///
/// Applications receive this event as a [`DeviceEvent`](crate::types::DeviceEvent), which contains no handles of the
/// engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum QueueEvent {
    /// A completion queue is full and has lost completions. Queue pairs that use it move to the error state.
    CqOverflow(Cq),
    /// The first packet of a connection arrived before the queue pair was ready to send.
    Established(Qpn),
    /// A shared receive queue holds fewer requests than its limit.
    SrqLimit(Srq),
    /// A queue pair in the error state has consumed its last request from its shared receive queue.
    LastReceiveReached(Qpn),
    /// The send queue is drained.
    SendQueueDrained(Qpn),
    /// A peer's request was invalid, and the queue pair moved to the error state.
    RequestError(Qpn),
    /// A peer's request violated access rights, and the queue pair moved to the error state.
    AccessError(Qpn),
    /// The queue pair moved to the error state for another reason, which the status of its failed completion reports.
    Fatal(Qpn),
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceEvent::Posted { qpn, wr_id, queue } => write!(f, "qp {qpn} post {queue:?} wr {wr_id:#x}"),
            TraceEvent::PostedToSrq { srq: Srq(srq), wr_id } => write!(f, "srq {srq} post wr {wr_id:#x}"),
            TraceEvent::SrqLimit { srq: Srq(srq) } => write!(f, "srq {srq} below its limit"),
            TraceEvent::Doorbell { qpn } => write!(f, "qp {qpn} doorbell"),
            TraceEvent::PacketOut { qpn, psn, opcode, payload_len, is_retransmission } => {
                let kind = if *is_retransmission { ", is_retransmission" } else { "" };
                write!(f, "qp {qpn} out {opcode} psn {psn}, {payload_len} bytes{kind}")
            }
            TraceEvent::PacketIn { qpn, psn, opcode, payload_len } => {
                write!(f, "qp {qpn} in  {opcode} psn {psn}, {payload_len} bytes")
            }
            TraceEvent::Dropped { qpn, psn, reason } => write!(f, "qp {qpn} dropped psn {psn}: {reason:?}"),
            TraceEvent::Acknowledged { qpn, psn } => write!(f, "qp {qpn} acknowledged before psn {psn}"),
            TraceEvent::NakReceived { qpn, psn, syndrome } => write!(f, "qp {qpn} psn {psn}: {syndrome}"),
            TraceEvent::NakSent { qpn, psn, syndrome } => write!(f, "qp {qpn} refuses psn {psn}: {syndrome}"),
            TraceEvent::Retransmit { qpn, psn, cause } => {
                write!(f, "qp {qpn} retransmit from psn {psn}: {cause:?}")
            }
            TraceEvent::CnpReceived { qpn, rate } => match rate {
                Some(rate) => write!(f, "qp {qpn} congested, {} Mbit/s", rate / 1_000_000),
                None => write!(f, "qp {qpn} congested"),
            },
            TraceEvent::TimerExpired { qpn, timer } => write!(f, "qp {qpn} timer {timer:?}"),
            TraceEvent::Completed { qpn, wr_id, queue, status } => {
                write!(f, "qp {qpn} complete {queue:?} wr {wr_id:#x}: {status}")
            }
            TraceEvent::StateChanged { qpn, from, to } => write!(f, "qp {qpn} {from} -> {to}"),
        }
    }
}
