//! Operations, as users see them. Later versions may add some, while inside this workspace a match names them all.

use adverb_proto::types as plain;
use adverb_proto::types::{Failure, Qpn, RemoteAddress};

/// The details of a request that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Success {
    /// The completed operation.
    pub operation: CompletedOperation,
    /// The number of bytes received, for receives, READs and atomics. For a receive of a datagram, it includes the 40
    /// bytes of the global route header (GRH): 48 for a message of 8 bytes.
    pub length: u32,
}

/// The operation that a completion reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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
    /// An atomic eight-byte write.
    AtomicWrite,
    /// A flush of the peer's memory.
    Flush,
    /// The binding of a memory window.
    BindWindow,
    /// The invalidation of the key of a local region or window.
    LocalInvalidate,
    /// The receipt of a message.
    Recv {
        /// The immediate data, if the message carried any.
        immediate: Option<u32>,
        /// The remote key that the message invalidated, if any.
        invalidated: Option<u32>,
        /// The number of the sending queue pair, if the message is a datagram.
        source: Option<Qpn>,
        /// Whether the first 40 bytes of the buffer are a global route header (GRH). RoCE datagrams always have one.
        has_grh: bool,
    },
    /// The receipt of a peer's RDMA WRITE with immediate data. The operation consumed the receive request, but
    /// did not write to its buffer.
    RecvWrite {
        /// The immediate data.
        immediate: u32,
    },
}

impl From<plain::CompletedOperation> for CompletedOperation {
    #[inline]
    fn from(operation: plain::CompletedOperation) -> CompletedOperation {
        use plain::CompletedOperation as Plain;
        match operation {
            Plain::Send => CompletedOperation::Send,
            Plain::Write => CompletedOperation::Write,
            Plain::Read => CompletedOperation::Read,
            Plain::CompareSwap => CompletedOperation::CompareSwap,
            Plain::FetchAdd => CompletedOperation::FetchAdd,
            Plain::AtomicWrite => CompletedOperation::AtomicWrite,
            Plain::Flush => CompletedOperation::Flush,
            Plain::BindWindow => CompletedOperation::BindWindow,
            Plain::LocalInvalidate => CompletedOperation::LocalInvalidate,
            Plain::Recv { immediate, invalidated, source, has_grh } => {
                CompletedOperation::Recv { immediate, invalidated, source, has_grh }
            }
            Plain::RecvWrite { immediate } => CompletedOperation::RecvWrite { immediate },
        }
    }
}

/// Returns an outcome as users see it.
///
/// This is inlined together with the decoding. Otherwise, each completion would wait until the decoded fields are in memory.
#[inline]
pub(crate) fn public_outcome(outcome: Result<plain::Success, Failure>) -> Result<Success, Failure> {
    outcome.map(|plain::Success { operation, length }| Success { operation: operation.into(), length })
}

/// The operation of a [raw](crate::raw) send request. Other operations are posted with
/// [`QueuePair::post_send`](crate::QueuePair::post_send).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SendOperation {
    /// A message to the peer's next receive buffer.
    Send,
    /// A message with 32 bits of immediate data.
    SendWithImm(u32),
    /// A message that invalidates a remote key of the peer's memory.
    SendInvalidate(u32),
    /// A write to the peer's memory.
    Write(RemoteAddress),
    /// A write to the peer's memory that completes a receive request of the peer with 32 bits of immediate data.
    WriteWithImm(RemoteAddress, u32),
    /// A read from the peer's memory.
    Read(RemoteAddress),
    /// An atomic compare-and-swap: the responder replaces a 64-bit word of its memory with `swap` if the word equals
    /// `compare`, and returns the old value.
    CompareSwap {
        /// The address of the word.
        remote: RemoteAddress,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// An atomic fetch-and-add: the responder adds `add` to a 64-bit word of its memory, with wraparound, and returns
    /// the old value.
    FetchAdd {
        /// The address of the word.
        remote: RemoteAddress,
        /// The addend.
        add: u64,
    },
    /// An invalidation of the key of a local region, or of the remote key of a local window.
    LocalInvalidate(u32),
}

impl From<SendOperation> for plain::SendOperation {
    #[inline(always)]
    fn from(operation: SendOperation) -> plain::SendOperation {
        use plain::SendOperation as Plain;
        match operation {
            SendOperation::Send => Plain::Send,
            SendOperation::SendWithImm(immediate) => Plain::SendWithImm(immediate),
            SendOperation::SendInvalidate(rkey) => Plain::SendInvalidate(rkey),
            SendOperation::Write(remote) => Plain::Write(remote),
            SendOperation::WriteWithImm(remote, immediate) => Plain::WriteWithImm(remote, immediate),
            SendOperation::Read(remote) => Plain::Read(remote),
            SendOperation::CompareSwap { remote, compare, swap } => {
                Plain::CompareSwap { remote, compare, swap }
            }
            SendOperation::FetchAdd { remote, add } => Plain::FetchAdd { remote, add },
            SendOperation::LocalInvalidate(rkey) => Plain::LocalInvalidate(rkey),
        }
    }
}
