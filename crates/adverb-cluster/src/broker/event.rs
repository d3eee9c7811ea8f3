//! Events for the application.

use std::vec;

use adverb_cluster_proto::{EndReason, PeerId, RecvSlot, Ticket, TicketError};
use adverb_verbs::memory::{Buffer, Payload};

/// An event, which [`Broker::poll`](super::Broker::poll) passes to the handler.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A message arrived.
    Message {
        /// The sender.
        from: PeerId,
        /// The message. Its slot is posted again when the handler returns.
        bytes: &'a [u8],
    },
    /// A peer's WRITE with immediate data was executed. The peer gets its credit back when the handler is called.
    Immediate {
        /// The peer that wrote.
        from: PeerId,
        /// The immediate data.
        immediate: u32,
        /// The number of bytes written.
        length: u32,
    },
    /// A ticket ended: all its transfers have completed, or its session has ended.
    Completed {
        /// The peer.
        peer: PeerId,
        /// The ticket.
        ticket: Ticket,
        /// An error if the transfers failed.
        result: Result<(), TicketError>,
        /// The local memory of the transfers, in their order.
        payloads: Payloads<'a>,
    },
    /// A request that was refused with [`PostError::WouldBlock`](crate::PostError::WouldBlock) may succeed now.
    /// One event can report several changes.
    Unblocked {
        /// The peer.
        peer: PeerId,
    },
    /// A peer announced or withdrew segments of the arena that it [published](super::Broker::publish), so pointers may
    /// [resolve](super::Broker::resolve) differently. One event can report several changes.
    SegmentsChanged {
        /// The peer.
        peer: PeerId,
    },
    /// A session was established: requests to the peer can be posted.
    SessionOpened {
        /// The peer.
        peer: PeerId,
        /// The peer's epoch.
        epoch: u64,
    },
    /// A session ended. The events of all its tickets precede this event. Messages that the peer has not received are
    /// lost.
    SessionEnded {
        /// The peer.
        peer: PeerId,
        /// The peer's epoch.
        epoch: u64,
        /// The reason.
        reason: EndReason,
    },
}

impl Event<'_> {
    /// Returns the peer.
    pub fn peer(&self) -> PeerId {
        match self {
            Event::Message { from: peer, .. }
            | Event::Immediate { from: peer, .. }
            | Event::Completed { peer, .. }
            | Event::Unblocked { peer }
            | Event::SegmentsChanged { peer }
            | Event::SessionOpened { peer, .. }
            | Event::SessionEnded { peer, .. } => *peer,
        }
    }
}

/// The payloads of a ticket's transfers: one for a single transfer.
///
/// A payload is [empty](Payload::Empty) if the device failed and its memory could not be recovered.
#[derive(Debug)]
pub struct Payloads<'a>(pub(super) vec::Drain<'a, Payload>);

impl Iterator for Payloads<'_> {
    type Item = Payload;

    fn next(&mut self) -> Option<Payload> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Payloads<'_> {}

/// An event that was not delivered yet.
#[derive(Debug)]
pub(super) enum QueuedEvent {
    Message {
        from: PeerId,
        slot: RecvSlot,
        buffer: Buffer,
        length: usize,
    },
    Immediate {
        from: PeerId,
        slot: RecvSlot,
        immediate: u32,
        length: u32,
    },
    /// The payloads are the first `count` of the peer's completed transfers.
    Completed {
        peer: PeerId,
        ticket: Ticket,
        result: Result<(), TicketError>,
        count: usize,
    },
    Unblocked {
        peer: PeerId,
    },
    SegmentsChanged {
        peer: PeerId,
    },
    SessionOpened {
        peer: PeerId,
        epoch: u64,
    },
    SessionEnded {
        peer: PeerId,
        epoch: u64,
        reason: EndReason,
    },
}

/// The events that a poll delivers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Filter {
    All,
    /// Results of this side's requests.
    Sends,
    /// Messages, immediate data and keys of peers.
    Receives,
    Peer(PeerId),
}

impl QueuedEvent {
    pub(super) fn peer(&self) -> PeerId {
        match self {
            QueuedEvent::Message { from: peer, .. }
            | QueuedEvent::Immediate { from: peer, .. }
            | QueuedEvent::Completed { peer, .. }
            | QueuedEvent::Unblocked { peer }
            | QueuedEvent::SegmentsChanged { peer }
            | QueuedEvent::SessionOpened { peer, .. }
            | QueuedEvent::SessionEnded { peer, .. } => *peer,
        }
    }
}
