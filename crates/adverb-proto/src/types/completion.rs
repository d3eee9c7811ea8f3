//! Completions in their plain form.

use adverb_wire::Qpn;

use super::Status;

/// The completions that an armed completion queue announces with an event (vol. 1, 10.8.3 and 11.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArmFor {
    /// The next completion.
    Any,
    /// The next failure, or the next receive of a message that its sender marked as solicited.
    Solicited,
}

/// What became of a request, in plain form.
///
/// A failure has no operation and no length: devices leave them undefined, and here they can't be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// What the request was given.
    pub wr_id: u64,
    /// The queue pair.
    pub qpn: Qpn,
    /// Success with its details, or failure with its own.
    pub outcome: Result<Success, Failure>,
}

/// What a request that succeeded says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Success {
    /// What was done.
    pub operation: CompletedOperation,
    /// How many bytes came: for receives, and for READs and atomics.
    pub length: u32,
}

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CompletedOperation {
    /// A SEND of any kind.
    Send,
    /// An RDMA WRITE of any kind.
    Write,
    /// An RDMA READ.
    Read,
    /// A compare-and-swap.
    CompareSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// An eight-byte write that is never seen in part.
    AtomicWrite,
    /// A flush of the peer's memory.
    Flush,
    /// A window was bound.
    BindWindow,
    /// A local key was invalidated.
    LocalInvalidate,
    /// A message was received.
    Recv {
        /// Immediate data, if it had any.
        immediate: Option<u32>,
        /// The key that it invalidated, if it did.
        invalidated: Option<u32>,
        /// Who sent it, for a datagram.
        source: Option<Qpn>,
        /// Whether the first 40 bytes of the buffer are a route header: always so in RoCE datagrams.
        has_grh: bool,
    },
    /// A peer's RDMA WRITE with immediate data consumed this receive request; its buffer wasn't touched.
    RecvWrite {
        /// The immediate data.
        immediate: u32,
    },
}

/// What a request that failed says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Why.
    pub status: Status,
    /// What the device's maker calls it.
    pub vendor_error: u32,
}
