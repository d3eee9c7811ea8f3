//! The send queue of a session's connection: requests in flight, and selective signaling.

use std::collections::VecDeque;

use adverb_proto::types::SendFlags;

use crate::mutation::mutant;
use crate::wr_id::INDEX_MASK;
use crate::{SendPost, Ticket};

/// The part of a request that the broker needs when the request completes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    pub(crate) kind: RequestKind,
    /// The ticket that ends with this request.
    pub(crate) ticket: Option<Ticket>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestKind {
    /// A message in this send slot.
    Message(u16),
    Transfer,
    Credit,
    Probe,
    Leave,
}

/// A connection with the peer.
#[derive(Debug)]
pub(crate) struct Rail {
    pub(crate) in_flight: VecDeque<InFlight>,
    /// The sequence number of the first request in flight.
    first: u32,
    /// The number of requests since the last signaled one.
    unsignaled: u16,
    depth: usize,
    /// Whether a send request has failed. All later completions are failures.
    has_failed: bool,
}

impl Rail {
    pub(crate) fn new(depth: u16) -> Rail {
        let depth = usize::from(depth);
        Rail { in_flight: VecDeque::with_capacity(depth), first: 0, unsignaled: 0, depth, has_failed: false }
    }

    /// Returns the number of requests that fit the send queue.
    ///
    /// A request occupies the send queue until the broker has seen a completion of it or of a later request.
    pub(crate) fn room(&self) -> usize {
        if mutant!(SendQueueOverflow) {
            return usize::MAX;
        }
        self.depth.saturating_sub(self.in_flight.len())
    }

    /// Adds a request, and returns its sequence number.
    pub(crate) fn push(&mut self, request: InFlight) -> u32 {
        let sequence = self.first.wrapping_add(self.in_flight.len() as u32) & INDEX_MASK;
        self.in_flight.push_back(request);
        sequence
    }

    /// Returns the number of requests in flight before the one with this sequence number, or `None` if that request is
    /// not in flight.
    pub(crate) fn position(&self, sequence: u32) -> Option<usize> {
        let position = sequence.wrapping_sub(self.first) & INDEX_MASK;
        ((position as usize) < self.in_flight.len()).then_some(position as usize)
    }

    /// Removes the first request.
    pub(crate) fn pop(&mut self) -> Option<InFlight> {
        let request = self.in_flight.pop_front()?;
        self.first = self.first.wrapping_add(1) & INDEX_MASK;
        Some(request)
    }

    /// Records a failure, and returns whether it is the first one.
    pub(crate) fn fail(&mut self) -> bool {
        !core::mem::replace(&mut self.has_failed, true)
    }

    /// Marks the signaled requests of a list whose requests were just added.
    ///
    /// At least one request in `interval` is signaled. The last request of the list that ends a ticket, a probe or the session is
    /// signaled too: its completion also completes the tickets before it.
    pub(crate) fn signal(&mut self, list: &mut [SendPost], interval: u16) {
        let added = self.in_flight.len() - list.len();
        let requests = self.in_flight.range(added..);
        let ends_ticket = |request: &InFlight| {
            request.ticket.is_some() || matches!(request.kind, RequestKind::Probe | RequestKind::Leave)
        };
        let last_end = requests.enumerate().rfind(|(_, request)| ends_ticket(request));
        let last_end = last_end.map(|(index, _)| index).filter(|_| !mutant!(TicketsUnsignaled));
        for (index, post) in list.iter_mut().enumerate() {
            self.unsignaled += 1;
            let is_due = self.unsignaled >= interval && !mutant!(SignalOnlyTickets);
            if is_due || Some(index) == last_end || mutant!(SignalAll) {
                post.flags |= SendFlags::SIGNALED;
                self.unsignaled = 0;
            }
        }
    }
}
