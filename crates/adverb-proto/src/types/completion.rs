//! Completions.

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

/// A completion: the outcome of a request.
///
/// A failure has no operation and no length, because devices leave these fields undefined.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Completion {
    /// The id of the request, chosen by its poster.
    pub wr_id: u64,
    /// The number of the queue pair.
    pub qpn: Qpn,
    /// The details of the success or of the failure.
    pub outcome: Result<Success, Failure>,
}

/// The details of a request that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Success {
    /// The completed operation.
    pub operation: CompletedOperation,
    /// The number of bytes received, for receives, READs and atomics.
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

/// The details of a request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Failure {
    /// The reason.
    pub status: Status,
    /// The vendor-specific code of the reason.
    pub vendor_error: u32,
}

/// The component that observed the time of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TimestampSource {
    /// The RDMA NIC, by its own clock.
    Device,
    /// The kernel, when the packet passed through its network stack. The software NIC converts the time to the monotonic
    /// clock.
    Kernel,
    /// This process, by the monotonic clock. The time includes delays of the process, such as the wait for a CPU.
    Process,
}
