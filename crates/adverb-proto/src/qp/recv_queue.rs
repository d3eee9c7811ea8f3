//! The receive queue: requests that wait for messages.

use std::collections::VecDeque;

use super::segments::{SegmentRange, Segments};
use crate::vocabulary::RecvRequest;

/// The receive queue of a queue pair. It grows as it fills.
#[derive(Debug, Default)]
pub(crate) struct RecvQueue {
    entries: VecDeque<RecvEntry>,
    pub(crate) segments: Segments,
}

/// A receive request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvEntry {
    pub(crate) wr_id: u64,
    pub(crate) segments: SegmentRange,
    /// Room for this many bytes.
    pub(crate) length: u64,
}

impl RecvQueue {
    pub(crate) fn push(&mut self, request: &RecvRequest<'_>) {
        let length = request.length();
        let segments = self.segments.push(request.segments);
        self.entries.push_back(RecvEntry { wr_id: request.wr_id, segments, length });
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
