//! What happens inside, for those who watch; and what an application must be told.

use core::fmt;

use adverb_wire::{Opcode, Psn, Qpn, Syndrome};

use crate::Time;
use crate::cq::Cq;
use crate::srq::Srq;
use crate::types::{QpState, Status};

/// Something that happened in a device, as traces, statistics and test oracles want it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TraceEvent {
    /// A request was posted.
    Posted {
        /// The queue pair.
        qpn: Qpn,
        /// The request.
        wr_id: u64,
        /// Which of its queues.
        queue: Queue,
    },
    /// A receive request was posted to a shared queue.
    PostedShared {
        /// The queue.
        srq: Srq,
        /// The request.
        wr_id: u64,
    },
    /// So few requests are left in a shared receive queue that somebody is told.
    SrqLimit {
        /// The queue.
        srq: Srq,
    },
    /// A queue pair that had nothing to send has something now.
    Doorbell {
        /// The queue pair.
        qpn: Qpn,
    },
    /// A packet was handed out to be sent.
    PacketOut {
        /// The queue pair that sends.
        qpn: Qpn,
        /// The packet's sequence number.
        psn: Psn,
        /// Its kind.
        opcode: Opcode,
        /// How much payload it has.
        payload_len: u32,
        /// Whether a request of this number was sent before.
        retransmission: bool,
    },
    /// A packet came that is for this queue pair.
    PacketIn {
        /// The queue pair.
        qpn: Qpn,
        /// The packet's sequence number.
        psn: Psn,
        /// Its kind.
        opcode: Opcode,
        /// How much payload it has.
        payload_len: u32,
    },
    /// A packet was dropped.
    Dropped {
        /// The queue pair that it named.
        qpn: Qpn,
        /// The packet's sequence number.
        psn: Psn,
        /// Why.
        reason: DropReason,
    },
    /// Everything before this number is acknowledged.
    Acknowledged {
        /// The queue pair that had sent it.
        qpn: Qpn,
        /// The oldest number that isn't acknowledged.
        psn: Psn,
    },
    /// A request was refused.
    NakReceived {
        /// The queue pair that had sent it.
        qpn: Qpn,
        /// The number refused.
        psn: Psn,
        /// How.
        syndrome: Syndrome,
    },
    /// A peer's request is refused, or it is to send it again.
    NakSent {
        /// The queue pair that refuses.
        qpn: Qpn,
        /// The number refused.
        psn: Psn,
        /// How.
        syndrome: Syndrome,
    },
    /// Requests from this number on will be sent again.
    Retransmit {
        /// The queue pair.
        qpn: Qpn,
        /// The number.
        psn: Psn,
        /// Why.
        cause: RetryCause,
    },
    /// A congestion notification came.
    Congested {
        /// The queue pair that is to slow down.
        qpn: Qpn,
        /// Its rate from now on, in bits per second; `None` if it heeds none.
        rate: Option<u64>,
    },
    /// A timer fired and had something to do.
    Timer {
        /// The queue pair.
        qpn: Qpn,
        /// Which.
        timer: TimerKind,
    },
    /// A request is done.
    Completed {
        /// The queue pair.
        qpn: Qpn,
        /// The request.
        wr_id: u64,
        /// Which of its queues.
        queue: Queue,
        /// How it ended.
        status: Status,
    },
    /// A queue pair changed its state.
    State {
        /// The queue pair.
        qpn: Qpn,
        /// From this state.
        from: QpState,
        /// To this one.
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

/// Why a packet was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DropReason {
    /// There is no such queue pair.
    UnknownQp,
    /// The queue pair isn't in a state to receive.
    State,
    /// The packet belongs to another transport.
    Transport,
    /// Its addresses aren't those of the connection, or it was sent to a group's address for a single queue pair.
    Address,
    /// Its partition isn't that of the queue pair.
    Partition,
    /// Its ICRC is wrong.
    Icrc,
    /// It came ahead of its turn, and that has been said already.
    OutOfSequence,
    /// It repeats a request that isn't remembered.
    ForgottenDuplicate,
    /// It acknowledges what was never sent, or was acknowledged before.
    StaleResponse,
    /// It answers another kind of request than the one with its sequence number, or it counts messages that the peer
    /// can't have completed.
    MismatchedResponse,
    /// It has a syndrome that means nothing.
    ReservedSyndrome,
    /// It comes after its turn, on an unreliable connection.
    Late,
    /// No receive is posted for it, on an unreliable transport.
    NoReceive,
    /// It is longer than its receive, or than a packet may be, on an unreliable transport.
    TooLong,
    /// It asks for what isn't allowed, on an unreliable connection.
    Refused,
    /// Its queue key isn't that of the queue pair.
    QueueKey,
    /// Nobody is attached to its group.
    NoGroup,
}

/// Why requests are sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryCause {
    /// No acknowledgement came in time.
    Timeout,
    /// The peer missed a packet.
    SequenceNak,
    /// An answer was lost: a later one came.
    ImpliedNak,
    /// The peer had no receive posted.
    Rnr,
}

/// Which timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerKind {
    /// The one that waits for acknowledgements.
    Acknowledge,
    /// The one that spaces packets.
    Pace,
    /// The one that waits until the peer has a receive posted.
    Rnr,
}

/// Somebody who watches a device.
///
/// Devices are generic over this, so that nobody watching, which is `()`, costs nothing.
pub trait EventSink {
    /// Whether anybody listens at all. Where this is `false`, events aren't even made.
    const ACTIVE: bool = true;

    /// Something happened.
    fn event(&mut self, now: Time, event: TraceEvent);
}

/// Tells somebody who watches, if there is one.
///
/// There is a build without anything in here, so that `cargo xtask overhead` can show that nobody watching is free.
#[inline(always)]
pub(crate) fn tell<S: EventSink>(sink: &mut S, now: Time, event: impl FnOnce() -> TraceEvent) {
    #[cfg(not(adverb_no_events))]
    if S::ACTIVE {
        sink.event(now, event());
    }
    #[cfg(adverb_no_events)]
    let _ = (sink, now, event);
}

/// Nobody.
impl EventSink for () {
    const ACTIVE: bool = false;

    #[inline(always)]
    fn event(&mut self, _now: Time, _event: TraceEvent) {}
}

/// Remembers everything: for tests.
impl EventSink for Vec<(Time, TraceEvent)> {
    fn event(&mut self, now: Time, event: TraceEvent) {
        self.push((now, event));
    }
}

/// An asynchronous event of a queue pair, completion queue or shared receive queue (vol. 1, 11.6.3: affiliated
/// asynchronous events).
///
/// Applications see it as a [`DeviceEvent`](crate::types::DeviceEvent), which names no object of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum QueueEvent {
    /// A completion queue is full and has lost completions; queue pairs that complete there move to the error state.
    CqOverflow(Cq),
    /// The first packet of a connection arrived before the queue pair was ready to send.
    Established(Qpn),
    /// A shared receive queue holds fewer requests than its limit.
    SrqLimit(Srq),
    /// A queue pair in the error state has taken its last request from its shared receive queue.
    LastReceiveReached(Qpn),
    /// The send queue is drained.
    SendQueueDrained(Qpn),
    /// A peer's request was invalid, and the queue pair moved to the error state.
    RequestError(Qpn),
    /// A peer's request violated access rights, and the queue pair moved to the error state.
    AccessError(Qpn),
    /// The queue pair moved to the error state for another reason, which its completions say.
    Fatal(Qpn),
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceEvent::Posted { qpn, wr_id, queue } => write!(f, "qp {qpn} post {queue:?} wr {wr_id:#x}"),
            TraceEvent::PostedShared { srq: Srq(srq), wr_id } => write!(f, "srq {srq} post wr {wr_id:#x}"),
            TraceEvent::SrqLimit { srq: Srq(srq) } => write!(f, "srq {srq} below its limit"),
            TraceEvent::Doorbell { qpn } => write!(f, "qp {qpn} doorbell"),
            TraceEvent::PacketOut { qpn, psn, opcode, payload_len, retransmission } => {
                let kind = if *retransmission { ", retransmission" } else { "" };
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
            TraceEvent::Congested { qpn, rate } => match rate {
                Some(rate) => write!(f, "qp {qpn} congested, {} Mbit/s", rate / 1_000_000),
                None => write!(f, "qp {qpn} congested"),
            },
            TraceEvent::Timer { qpn, timer } => write!(f, "qp {qpn} timer {timer:?}"),
            TraceEvent::Completed { qpn, wr_id, queue, status } => {
                write!(f, "qp {qpn} complete {queue:?} wr {wr_id:#x}: {status}")
            }
            TraceEvent::State { qpn, from, to } => write!(f, "qp {qpn} {from} -> {to}"),
        }
    }
}
