//! The receive queue: requests that wait for messages.

use std::collections::VecDeque;

use super::segments::{SegmentRange, Segments};
use crate::mutation::mutant;
use crate::types::RecvRequest;

/// The receive queue of a queue pair, or the requests of a shared receive queue. It grows as it fills.
#[derive(Debug, Default)]
pub(crate) struct RecvQueue {
    entries: VecDeque<RecvEntry>,
    pub(crate) segments: Segments,
    /// The number of requests posted so far, wrapping.
    posted: u32,
}

/// A receive request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvEntry {
    pub(crate) wr_id: u64,
    /// The number of the request in the queue to which it was posted, for trace events.
    pub(crate) number: u32,
    pub(crate) segments: SegmentRange,
    /// The length of the buffer in bytes.
    pub(crate) length: u64,
}

impl RecvQueue {
    pub(crate) fn push(&mut self, request: &RecvRequest<'_>) -> u32 {
        let length = request.length();
        let segments = self.segments.push(request.segments);
        let number = self.posted;
        self.posted = number.wrapping_add(1);
        self.entries.push_back(RecvEntry { wr_id: request.wr_id, number, segments, length });
        number
    }

    /// Moves the oldest request to another queue. Returns `false` if there is none.
    pub(crate) fn move_front_to(&mut self, other: &mut RecvQueue) -> bool {
        let Some(mut entry) = self.entries.pop_front() else { return false };
        if mutant!(SrqWrongRequestId)
            && let Some(newest) = self.entries.back_mut()
        {
            core::mem::swap(&mut entry.wr_id, &mut newest.wr_id);
        }
        let segments = other.segments.copy_from(&self.segments, entry.segments);
        self.segments.pop(entry.segments);
        other.entries.push_back(RecvEntry { segments, ..entry });
        true
    }

    /// Moves the oldest request of another queue to the front of this one.
    pub(crate) fn return_front_of(&mut self, other: &mut RecvQueue) {
        if let Some(entry) = other.entries.pop_front() {
            let segments = self.segments.copy_to_front(&other.segments, entry.segments);
            other.segments.pop(entry.segments);
            self.entries.push_front(RecvEntry { segments, ..entry });
        }
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<RecvEntry> {
        self.entries.front().copied()
    }

    pub(crate) fn pop(&mut self) -> Option<RecvEntry> {
        let entry = self.entries.pop_front()?;
        self.segments.pop(entry.segments);
        Some(entry)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
