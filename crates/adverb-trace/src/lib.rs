//! Shows how RDMA work requests become packets and completions.
//!
//! Programs depend on `adverb`, which re-exports this crate as `adverb::trace` with the feature `trace`.
//!
//! A [`Trace`] is built from one or more recordings of devices ([`Recording`]). It contains the steps of each [`Request`]:
//! when it was posted, which [packets](Packet) it became, why packets were retransmitted, how it completed, and when the
//! application polled the completion.
//!
//! This module also contains most types of the fields, such as [`SendOperation`] and [`TraceEvent`].
//!
//! The crate performs no I/O other than writing to a [`Write`](std::io::Write) that the caller passes.

#![forbid(unsafe_code)]

mod build;
mod clock;
mod cm;
mod comment;
mod html;
mod json;
mod json_text;
mod model;
mod names;
mod pcapng;
mod perfetto;
#[cfg(test)]
mod sample;
mod text;

pub use adverb_proto::trace::{
    ClockOrigin, DropReason, Queue, Recording, RecvQueueId, RetryCause, StopCause, TraceEvent,
};
pub use adverb_proto::types::{
    CompletedOperation, Failure, FlushRange, PathMtu, Psn, Qpn, RemoteAddress, Segment, SendFlags,
    SendOperation, Success, Transport, WindowBind,
};
pub use adverb_proto::{Cq, Time};
pub use adverb_wire::NakCode;
pub use model::{
    Connection, CqeState, Device, DeviceId, Direction, Packet, PacketId, PacketRole, PsnRange, Request,
    RequestId, RequestTimes, Retransmission, TimedEvent, Trace, WorkRequest, WqeState,
};
