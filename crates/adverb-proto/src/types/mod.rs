//! The words in which applications and devices speak of work: requests, completions, rights, states.
//!
//! These are plain values. They name memory by address and key, and promise nothing about its lifetime: that is the
//! job of the layer above, which owns buffers and lowers its requests to these.

mod access;
mod completion;
mod gid;
mod gid_port;
mod request;
mod state;
mod status;

pub use access::Access;
pub use adverb_wire::cm::{PathMtu, RejectReason};
pub use adverb_wire::{Psn, Qpn};
pub use completion::{CompletedOperation, Completion, Failure, Success};
pub use gid::Gid;
pub use request::{
    Destination, FlushRange, RecvRequest, RemoteAddress, Segment, SendFlags, SendOperation, SendRequest,
    WindowBind,
};
pub use state::{QpState, Transport};
pub use status::Status;
