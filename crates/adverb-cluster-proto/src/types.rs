//! Plain data of the broker's inputs and outputs.

use core::fmt;

use adverb_proto::types::{RemoteMemory, Segment, SendFlags, SendOperation, Status};

/// A peer of a broker: the same thread of another member, by index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u16);

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {}", self.0)
    }
}

/// A connection of a peer's session: an index into the peer's list of rails, which currently has one entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RailId(pub u8);

/// A posted transfer or batch of transfers. Each ticket ends with exactly one
/// [`Event::Completed`](crate::Event::Completed).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// Returns the ticket's number. A broker never uses a number twice.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A send slot that belongs to the caller until it is posted or discarded.
#[must_use = "a slot that is neither posted nor discarded is lost"]
#[derive(PartialEq, Eq, Debug)]
pub struct SendSlot {
    pub(crate) peer: PeerId,
    pub(crate) session: u16,
    pub(crate) index: u16,
}

impl SendSlot {
    /// Returns the peer.
    pub const fn peer(&self) -> PeerId {
        self.peer
    }

    /// Returns the slot's index in the peer's ring of send slots.
    pub const fn index(&self) -> u16 {
        self.index
    }
}

/// A receive slot that contains a message, or belongs to immediate data. The caller has it until it is released.
#[must_use = "a slot that is not released reduces the peer's credits"]
#[derive(PartialEq, Eq, Debug)]
pub struct RecvSlot {
    pub(crate) peer: PeerId,
    pub(crate) index: u16,
}

impl RecvSlot {
    /// Returns the peer.
    pub const fn peer(&self) -> PeerId {
        self.peer
    }

    /// Returns the slot's index in the peer's ring of receive slots.
    pub const fn index(&self) -> u16 {
        self.index
    }
}

/// A range of a peer's memory, and the epoch in which the peer exposed it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteRange {
    /// The epoch of the member.
    pub epoch: u64,
    /// The address, the remote key and the length.
    pub memory: RemoteMemory,
}

/// The operation of a `Transfer`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TransferOperation {
    /// A write of the local range to the remote range.
    Write,
    /// A write that also delivers 32 bits to the peer, as [`Event::Immediate`](crate::Event::Immediate). It uses a credit.
    WriteWithImm(u32),
    /// A read of the remote range into the local range.
    Read,
    /// An atomic compare-and-swap of the remote word. The local range receives the old value.
    CompareSwap {
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// An atomic fetch-and-add of the remote word. The local range receives the old value.
    FetchAdd {
        /// The addend.
        add: u64,
    },
}

/// A one-sided transfer between local memory and a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// The operation.
    pub operation: TransferOperation,
    /// The local range. Its length is that of the transfer.
    pub local: Segment,
    /// The remote range, which must be at least as long.
    pub remote: RemoteRange,
}

/// The local memory of a send request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalMemory {
    /// No memory: the request transfers zero bytes.
    None,
    /// The first bytes of a send slot.
    Slot {
        /// The slot's index in the peer's ring of send slots.
        index: u16,
        /// The length of the message in bytes.
        length: u32,
    },
    /// A range of the caller's memory.
    Segment(Segment),
}

/// A send request to post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendPost {
    /// The id, which the completion must carry.
    pub wr_id: u64,
    /// The operation.
    pub operation: SendOperation,
    /// The flags.
    pub flags: SendFlags,
    /// The local memory.
    pub local: LocalMemory,
}

/// A receive request to post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvPost {
    /// The id, which the completion must carry.
    pub wr_id: u64,
    /// The slot's index in the peer's ring of receive slots.
    pub slot: u16,
}

/// An output of a broker: an action of the driver. The driver performs the actions in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Post<'a> {
    /// Post receive requests to the peer's queue pair.
    Receives {
        /// The peer.
        peer: PeerId,
        /// The rail.
        rail: RailId,
        /// The requests.
        requests: &'a [RecvPost],
    },
    /// Post send requests to the peer's queue pair, with one doorbell.
    Sends {
        /// The peer.
        peer: PeerId,
        /// The rail.
        rail: RailId,
        /// The requests.
        requests: &'a [SendPost],
    },
    /// Destroy the peer's queue pair, then call [`Broker::handle_closed`](crate::Broker::handle_closed).
    Close {
        /// The peer.
        peer: PeerId,
    },
}

/// The reason why a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EndReason {
    /// The driver or the application closed it.
    Closed,
    /// The peer left: it posted no more requests, and closed the session.
    Left,
    /// A request failed. A peer that has died, or that the network doesn't reach, has the status
    /// [`RetryExceeded`](Status::RetryExceeded) on most devices.
    RequestFailed {
        /// The status of the request.
        status: Status,
    },
    /// The peer violated the protocol.
    ProtocolViolation {
        /// The violation.
        violation: &'static str,
    },
}

impl EndReason {
    /// Returns an action that may solve the problem, if one is known.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            EndReason::RequestFailed { status } => status.hint(),
            _ => None,
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndReason::Closed => f.write_str("the session was closed"),
            EndReason::Left => f.write_str("the peer left"),
            EndReason::RequestFailed { status } => write!(f, "a request failed: {status}"),
            EndReason::ProtocolViolation { violation } => {
                write!(f, "the peer violated the protocol: {violation}")
            }
        }
    }
}

/// The failure of a ticket: its session ended. The transfers may have been executed, in part or completely.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TicketError {
    /// The peer.
    pub peer: PeerId,
    /// The reason why the session ended.
    pub reason: EndReason,
}

impl TicketError {
    /// Returns an action that may solve the problem, if one is known.
    pub const fn hint(&self) -> Option<&'static str> {
        self.reason.hint()
    }

    /// Whether the same transfer can succeed later, in another session.
    pub const fn is_retryable(&self) -> bool {
        !matches!(self.reason, EndReason::ProtocolViolation { .. })
    }
}

impl fmt::Display for TicketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the session with {} ended before the transfer completed: {}", self.peer, self.reason)
    }
}

impl std::error::Error for TicketError {}

const _: () = assert!(size_of::<TicketError>() <= 64);

/// An event for the application.
#[derive(PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A message arrived. The caller must [release](crate::Broker::release) the slot.
    Message {
        /// The sender.
        from: PeerId,
        /// The slot that contains the message.
        slot: RecvSlot,
        /// The length of the message in bytes.
        length: u32,
    },
    /// A control message of the peer's driver arrived. The caller must [release](crate::Broker::release) the slot.
    Control {
        /// The sender.
        from: PeerId,
        /// The slot that contains the message.
        slot: RecvSlot,
        /// The length of the message in bytes.
        length: u32,
    },
    /// A peer's WRITE with immediate data was executed. The caller must [release](crate::Broker::release) the slot, which
    /// contains nothing.
    Immediate {
        /// The peer that wrote.
        from: PeerId,
        /// The slot of the receive.
        slot: RecvSlot,
        /// The immediate data.
        immediate: u32,
        /// The number of bytes written.
        length: u32,
    },
    /// A ticket ended. The local memory of its transfers belongs to the caller again.
    Completed {
        /// The peer.
        peer: PeerId,
        /// The ticket.
        ticket: Ticket,
        /// Whether the transfers were executed.
        result: Result<(), TicketError>,
    },
    /// A request that the broker refused with [`PostError::WouldBlock`](crate::PostError::WouldBlock) may succeed now.
    Unblocked {
        /// The peer.
        peer: PeerId,
    },
    /// A session ended. Its queue pair is destroyed, and the events of all its tickets were delivered. Messages that the
    /// peer has not received are lost.
    SessionEnded {
        /// The peer.
        peer: PeerId,
        /// The peer's epoch, if the session was established.
        epoch: Option<u64>,
        /// The reason.
        reason: EndReason,
    },
}
