//! Asynchronous events of queues.

use core::fmt;

use adverb_wire::Qpn;

use crate::cq::Cq;
use crate::srq::Srq;

/// An asynchronous event of a queue pair, completion queue or shared receive queue (vol. 1, 11.6.3: affiliated
/// asynchronous events).
///
/// Applications receive this event as a [`DeviceEvent`](crate::types::DeviceEvent), which contains no handles of the
/// engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum QueueEvent {
    /// A completion queue was full and lost a completion. The queue also loses all further completions. A queue pair
    /// moves to the error state when one of its completions is lost.
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
    /// The queue pair moved to the error state for another reason: a request failed, a completion was lost, or this
    /// side could not execute a valid request of the peer.
    Fatal(Qpn),
}

impl QueueEvent {
    /// Returns the queue pair of the event, or `None` if the event belongs to another queue.
    pub const fn qpn(&self) -> Option<Qpn> {
        match *self {
            QueueEvent::Established(qpn)
            | QueueEvent::LastReceiveReached(qpn)
            | QueueEvent::SendQueueDrained(qpn)
            | QueueEvent::RequestError(qpn)
            | QueueEvent::AccessError(qpn)
            | QueueEvent::Fatal(qpn) => Some(qpn),
            QueueEvent::CqOverflow(_) | QueueEvent::SrqLimit(_) => None,
        }
    }
}

impl fmt::Display for QueueEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueEvent::CqOverflow(Cq(cq)) => write!(f, "cq {cq} overflowed"),
            QueueEvent::Established(qpn) => write!(f, "qp {qpn} received the connection's first packet"),
            QueueEvent::SrqLimit(Srq(srq)) => write!(f, "srq {srq} below its limit"),
            QueueEvent::LastReceiveReached(qpn) => write!(f, "qp {qpn} consumed its last receive"),
            QueueEvent::SendQueueDrained(qpn) => write!(f, "qp {qpn} send queue drained"),
            QueueEvent::RequestError(qpn) => write!(f, "qp {qpn} received an invalid request"),
            QueueEvent::AccessError(qpn) => {
                write!(f, "qp {qpn} received a request that violates access rights")
            }
            QueueEvent::Fatal(qpn) => write!(f, "qp {qpn} failed"),
        }
    }
}
