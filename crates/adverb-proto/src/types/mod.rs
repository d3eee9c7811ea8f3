//! Plain data that applications and devices share: requests, completions, access rights, states and attributes.
//!
//! These types refer to memory by address and key, and guarantee nothing about the memory's lifetime. The layer above
//! owns the buffers, guarantees their lifetime, and translates its requests to these types.

mod access;
mod completion;
mod device;
mod endpoint;
mod event;
mod gid;
mod gid_port;
mod operation;
mod port;
mod queue_pair;
mod request;
mod state;
mod status;

pub use access::Access;
pub use adverb_wire::cm::{PathMtu, RejectReason};
pub use adverb_wire::{Psn, Qpn};
pub use completion::{ArmFor, CompletedOperation, Completion, Failure, Success, TimestampSource};
pub use device::{
    DeviceAttributes, DeviceInfo, FlushCapabilities, ModerationLimits, OdpCapabilities, OdpOperations,
    TimestampClock,
};
pub use endpoint::Endpoint;
pub use event::DeviceEvent;
pub use gid::Gid;
pub use operation::{
    Answer, ExtendedOperation, FlushPlacement, FlushRange, LocalMemory, SendOperation, WindowBind,
};
pub use port::{GidEntry, GidType, LinkLayer, Port, PortState};
pub use queue_pair::{PeerAttributes, QueuePairAttributes};
pub use request::{Destination, RecvRequest, RemoteAddress, RemoteMemory, Segment, SendFlags, SendRequest};
pub use state::{QpState, Transport};
pub use status::Status;
