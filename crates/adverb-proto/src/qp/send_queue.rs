//! The send queue: requests that were posted and have not completed.

use std::collections::VecDeque;

use adverb_wire::Psn;

use super::segments::{SegmentError, SegmentRange, Segments};
use crate::path::Path;
use crate::types::{Answer, CompletedOperation, Destination, Segment, SendFlags, SendOperation, Status};

/// The send queue of a queue pair. It grows as it fills.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    entries: VecDeque<SendEntry>,
    pub(crate) segments: Segments,
    /// Bytes posted inline, in the order of their requests.
    inline: VecDeque<u8>,
    /// The number of removed inline bytes, wrapping.
    inline_removed: u32,
    /// The destinations of datagrams, in the order of their requests. Connections have none.
    destinations: VecDeque<Destination<Path>>,
    /// The number of requests posted so far, wrapping.
    posted: u32,
}

/// Rings that no send queue uses.
///
/// A queue has rings only while requests are outstanding. The ring that was released last is acquired first, because it
/// is likely in the CPU cache: with many queue pairs, most of them idle, all work uses few rings instead of one cold
/// ring per queue pair.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    entries: Vec<VecDeque<SendEntry>>,
    segments: Vec<VecDeque<Segment>>,
}

/// A send request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendEntry {
    pub(crate) wr_id: u64,
    pub(crate) operation: SendOperation,
    pub(crate) segments: SegmentRange,
    /// The number of the request in its queue, for trace events.
    pub(crate) number: u32,
    /// The number of bytes to send or to receive.
    pub(crate) length: u32,
    /// The number of sequence numbers, or 0 if the request isn't started.
    pub(crate) packets: u32,
    pub(crate) first_psn: Psn,
    /// The number of received packets of a READ response.
    pub(crate) received_packets: u32,
    /// The low bits of the flags, which are needed after posting.
    flags: u8,
    /// The reason why sending failed. The request completes after the earlier ones.
    pub(crate) failed: Option<LocalFailure>,
}

/// The reason why a request can't be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LocalFailure {
    /// The key of a segment is not valid for the queue pair, or the segment is not within the key's region.
    Protection,
    /// Another error.
    Operation,
}

impl From<SegmentError> for LocalFailure {
    fn from(error: SegmentError) -> LocalFailure {
        match error {
            SegmentError::Denied => LocalFailure::Protection,
            SegmentError::Fault | SegmentError::TooLong => LocalFailure::Operation,
        }
    }
}

impl From<LocalFailure> for Status {
    fn from(failure: LocalFailure) -> Status {
        match failure {
            LocalFailure::Protection => Status::LocalProtection,
            LocalFailure::Operation => Status::LocalQpOperation,
        }
    }
}

impl SendEntry {
    pub(crate) fn new(
        wr_id: u64,
        operation: SendOperation,
        flags: SendFlags,
        segments: SegmentRange,
        length: u32,
    ) -> SendEntry {
        // Many entries are outstanding, so they are small: FENCE, SIGNALED, SOLICITED and INLINE fit in eight bits.
        let flags = flags.bits() as u8;
        let first_psn = Psn::ZERO;
        SendEntry {
            wr_id,
            operation,
            segments,
            number: 0,
            length,
            packets: 0,
            first_psn,
            received_packets: 0,
            flags,
            failed: None,
        }
    }

    pub(crate) const fn has(&self, flag: SendFlags) -> bool {
        self.flags & flag.bits() as u8 != 0
    }

    /// Whether the request has sequence numbers.
    pub(crate) const fn is_started(&self) -> bool {
        self.packets != 0
    }

    pub(crate) fn last_psn(&self) -> Psn {
        self.first_psn + (self.packets.max(1) - 1)
    }

    /// Whether the request needs a response of its own: see [`Answer::is_response`].
    #[inline]
    pub(crate) const fn needs_response(&self) -> bool {
        self.operation.answer().is_response()
    }

    /// Whether the request is executed locally, without a packet.
    #[inline]
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self.operation.answer(), Answer::None)
    }

    /// Whether the request is a READ, which is requested in parts.
    #[inline]
    pub(crate) const fn is_read(&self) -> bool {
        matches!(self.operation.answer(), Answer::Read)
    }

    /// Whether the request consumes one of the peer's receive requests.
    #[inline]
    pub(crate) const fn consumes_receive(&self) -> bool {
        self.operation.consumes_receive()
    }

    #[inline]
    pub(crate) const fn completed(&self) -> CompletedOperation {
        self.operation.completed()
    }
}

impl SendQueue {
    /// Acquires rings, if the queue has none.
    #[inline]
    pub(crate) fn acquire_rings(&mut self, rings: &mut Rings) {
        if self.entries.capacity() == 0 {
            self.entries = rings.entries.pop().unwrap_or_default();
            self.segments.set_ring(rings.segments.pop().unwrap_or_default());
        }
    }

    /// Releases the rings, if they are empty.
    #[inline]
    pub(crate) fn release(&mut self, rings: &mut Rings) {
        if self.entries.is_empty() && self.entries.capacity() != 0 {
            rings.entries.push(core::mem::take(&mut self.entries));
            rings.segments.push(self.segments.take_ring());
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, entry: SendEntry) -> u32 {
        let number = self.posted;
        self.posted = number.wrapping_add(1);
        self.entries.push_back(SendEntry { number, ..entry });
        number
    }

    /// Returns the number of the outstanding request whose sequence numbers contain `psn`.
    #[inline]
    pub(crate) fn number_at(&self, psn: Psn) -> Option<u32> {
        let front = self.entries.front()?;
        // A request that isn't started has no packets.
        if psn.since(front.first_psn).cast_unsigned() < front.packets {
            return Some(front.number);
        }
        self.find_number_at(psn)
    }

    fn find_number_at(&self, psn: Psn) -> Option<u32> {
        let index =
            self.entries.partition_point(|entry| entry.is_started() && psn.since(entry.last_psn()) > 0);
        let entry = self.entries.get(index).filter(|entry| entry.is_started())?;
        (psn.since(entry.first_psn) >= 0).then_some(entry.number)
    }

    /// Adds the destination of a datagram.
    pub(crate) fn push_destination(&mut self, destination: Destination<Path>) {
        self.destinations.push_back(destination);
    }

    /// Returns the destination of the oldest datagram.
    pub(crate) fn destination(&self) -> Option<&Destination<Path>> {
        self.destinations.front()
    }

    /// Adds the inline bytes of a request.
    pub(crate) fn push_inline(&mut self, bytes: &[u8]) -> SegmentRange {
        let first = self.inline_removed.wrapping_add(self.inline.len() as u32);
        self.inline.extend(bytes);
        SegmentRange::of_inline(first)
    }

    /// Returns a part of a request's inline bytes, in two pieces.
    pub(crate) fn inline(&self, first: u32, offset: u32, length: u32) -> (&[u8], &[u8]) {
        let start = first.wrapping_sub(self.inline_removed) as usize + offset as usize;
        let end = start + length as usize;
        let (head, tail) = self.inline.as_slices();
        let clamp = |piece: std::ops::Range<usize>, len: usize| piece.start.min(len)..piece.end.min(len);
        let in_tail = start.saturating_sub(head.len())..end.saturating_sub(head.len());
        (&head[clamp(start..end, head.len())], &tail[clamp(in_tail, tail.len())])
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&SendEntry> {
        self.entries.get(index)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut SendEntry> {
        self.entries.get_mut(index)
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&SendEntry> {
        self.entries.front()
    }

    #[inline]
    pub(crate) fn back(&self) -> Option<&SendEntry> {
        self.entries.back()
    }

    #[inline]
    pub(crate) fn front_mut(&mut self) -> Option<&mut SendEntry> {
        self.entries.front_mut()
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<SendEntry> {
        let entry = self.entries.pop_front()?;
        self.destinations.pop_front();
        if entry.segments.inline().is_some() {
            self.inline.drain(..entry.length as usize);
            self.inline_removed = self.inline_removed.wrapping_add(entry.length);
        } else {
            self.segments.pop(entry.segments);
        }
        if self.entries.is_empty() {
            // After `clear`, the ring starts at the beginning of its memory again, so that a queue that is mostly short
            // uses few cache lines.
            self.entries.clear();
        }
        Some(entry)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(queue: &mut SendQueue, rings: &mut Rings) {
        queue.acquire_rings(rings);
        let segments = queue.segments.push(&[Segment { addr: 0, length: 8, lkey: 1 }]);
        queue.push(SendEntry::new(1, SendOperation::Send, SendFlags::empty(), segments, 8));
    }

    #[test]
    fn rings_are_reused_by_another_queue() {
        let mut rings = Rings::default();
        let (mut a, mut b) = (SendQueue::default(), SendQueue::default());
        post(&mut a, &mut rings);
        let memory = a.entries.as_slices().0.as_ptr();
        a.release(&mut rings);
        assert_ne!(a.entries.capacity(), 0, "a request is outstanding");
        a.pop();
        a.release(&mut rings);
        assert_eq!((a.entries.capacity(), rings.entries.len(), rings.segments.len()), (0, 1, 1));
        post(&mut b, &mut rings);
        assert_eq!(b.entries.as_slices().0.as_ptr(), memory, "the same memory is reused");
        assert_eq!((rings.entries.len(), rings.segments.len()), (0, 0));
        assert_eq!(b.pop().map(|entry| entry.wr_id), Some(1));
    }
}
