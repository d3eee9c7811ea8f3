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

/// Implements the conversions between send operations and their codes from one list.
macro_rules! completion_codes {
    ($($name:ident = $code:literal,)*) => {
        impl CompletedOperation {
            /// Returns the number of the operation in `ibv_wc_opcode`.
            #[inline]
            pub const fn code(&self) -> u32 {
                match self {
                    $(CompletedOperation::$name => $code,)*
                    CompletedOperation::Recv { .. } => CompletedOperation::RECV_CODE,
                    CompletedOperation::RecvWrite { .. } => CompletedOperation::RECV_WRITE_CODE,
                }
            }

            /// Returns the operation of a send request with a number in `ibv_wc_opcode`; `None` if no send request has it.
            #[inline]
            pub const fn of_send(code: u32) -> Option<CompletedOperation> {
                match code {
                    $($code => Some(CompletedOperation::$name),)*
                    _ => None,
                }
            }
        }
    };
}

completion_codes! {
    Send = 0,
    Write = 1,
    Read = 2,
    CompareSwap = 3,
    FetchAdd = 4,
    BindWindow = 5,
    LocalInvalidate = 6,
    Flush = 8,
    AtomicWrite = 9,
}

impl CompletedOperation {
    /// The number of [`Recv`](CompletedOperation::Recv) in `ibv_wc_opcode`.
    pub const RECV_CODE: u32 = 128;

    /// The number of [`RecvWrite`](CompletedOperation::RecvWrite) in `ibv_wc_opcode`.
    pub const RECV_WRITE_CODE: u32 = 129;
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
