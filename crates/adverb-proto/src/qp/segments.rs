//! The segments of the requests in a queue, in one ring: requests are removed in the order in which they were added.

use std::collections::VecDeque;

use crate::memory::{Fault, Keys, Memory, Part, Pd, Span};
use crate::mutation::mutant;
use crate::types::{Access, Segment, Status};

/// A ring of segments.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    ring: VecDeque<Segment>,
    /// The number of removed segments, wrapping: the number of the first segment in the ring.
    removed: u32,
}

/// The range of a request's segments in a ring or, if the request was posted inline, its first inline byte.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentRange {
    first: u32,
    count: u16,
    inline: bool,
}

impl SegmentRange {
    /// Creates the range of a request without segments, whose inline bytes start at number `first`.
    pub(crate) const fn of_inline(first: u32) -> SegmentRange {
        SegmentRange { first, count: 0, inline: true }
    }

    /// Returns the number of the first inline byte, if the request was posted inline.
    pub(crate) const fn inline(self) -> Option<u32> {
        if self.inline { Some(self.first) } else { None }
    }
}

/// The reason why the bytes of a request can't be accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentError {
    /// The key, the access rights or the bounds of a segment are wrong.
    Denied,
    /// The memory access failed.
    Fault,
    /// The bytes are more than the segments hold.
    TooLong,
}

/// The status of a receive request whose bytes can't be written.
impl From<SegmentError> for Status {
    fn from(error: SegmentError) -> Status {
        match error {
            SegmentError::Denied => Status::LocalProtection,
            SegmentError::Fault | SegmentError::TooLong => Status::LocalQpOperation,
        }
    }
}

impl From<Fault> for SegmentError {
    fn from(_: Fault) -> SegmentError {
        SegmentError::Fault
    }
}

impl Segments {
    /// Sets the ring. The old and the new one are empty.
    #[inline]
    pub(crate) fn set_ring(&mut self, ring: VecDeque<Segment>) {
        debug_assert!(self.ring.is_empty());
        self.ring = ring;
    }

    /// Takes the ring, which is empty.
    #[inline]
    pub(crate) fn take_ring(&mut self) -> VecDeque<Segment> {
        debug_assert!(self.ring.is_empty());
        core::mem::take(&mut self.ring)
    }

    // Devices with and without a recorder call this function, so the compiler doesn't inline it by itself.
    #[inline(always)]
    pub(crate) fn push(&mut self, segments: &[Segment]) -> SegmentRange {
        let first = self.removed.wrapping_add(self.ring.len() as u32);
        match segments {
            [segment] => self.ring.push_back(*segment),
            _ => self.ring.extend(segments),
        }
        // The configuration limits the count to 16 bits.
        let count = segments.len() as u16;
        SegmentRange { first, count, inline: false }
    }

    /// Appends a request's segments from another ring.
    pub(crate) fn copy_from(&mut self, other: &Segments, range: SegmentRange) -> SegmentRange {
        let first = self.removed.wrapping_add(self.ring.len() as u32);
        self.ring.extend(other.indices(range).map(|index| other.ring[index]));
        SegmentRange { first, ..range }
    }

    /// Adds a request's segments from another ring at the front.
    pub(crate) fn copy_to_front(&mut self, other: &Segments, range: SegmentRange) -> SegmentRange {
        for index in other.indices(range).rev() {
            self.ring.push_front(other.ring[index]);
        }
        self.removed = self.removed.wrapping_sub(u32::from(range.count));
        SegmentRange { first: self.removed, ..range }
    }

    fn indices(&self, range: SegmentRange) -> core::ops::Range<usize> {
        let first = range.first.wrapping_sub(self.removed) as usize;
        first..first + usize::from(range.count)
    }

    /// Removes the segments of the oldest request.
    #[inline]
    pub(crate) fn pop(&mut self, range: SegmentRange) {
        debug_assert_eq!(range.first, self.removed);
        if range.count == 1 {
            self.ring.pop_front();
        } else {
            self.ring.drain(..usize::from(range.count));
        }
        if self.ring.is_empty() {
            // Clearing restarts at the front, so that a ring that is mostly short uses few cache lines.
            self.ring.clear();
        }
        self.removed = self.removed.wrapping_add(u32::from(range.count));
    }

    /// Calls `each` with the parts of segments that contain `length` bytes from `offset` on.
    #[inline]
    fn parts(
        &self,
        range: SegmentRange,
        mut offset: u32,
        mut length: u32,
        mut each: impl FnMut(&Segment, Part) -> Result<(), SegmentError>,
    ) -> Result<(), SegmentError> {
        let first = range.first.wrapping_sub(self.removed) as usize;
        // Most requests have one segment.
        if range.count == 1 {
            let segment = &self.ring[first];
            let left = segment.length.checked_sub(offset).ok_or(SegmentError::TooLong)?;
            return match length {
                0 => Ok(()),
                _ if length <= left => each(segment, Part { offset, length }),
                _ => Err(SegmentError::TooLong),
            };
        }
        for index in self.indices(range) {
            let segment = &self.ring[index];
            if length == 0 {
                break;
            }
            if offset >= segment.length {
                offset -= segment.length;
                continue;
            }
            let part = Part { offset, length: length.min(segment.length - offset) };
            if mutant!(SecondSegmentReadFromFirst) && index > first {
                each(&self.ring[first], Part { offset: 0, length: part.length })?;
            } else {
                each(segment, part)?;
            }
            offset = 0;
            length -= part.length;
        }
        if length == 0 { Ok(()) } else { Err(SegmentError::TooLong) }
    }

    /// Adds the spans of the bytes to send. Local reads need no access right (vol. 1, 10.6.3), only a valid key.
    #[inline]
    pub(crate) fn gather(
        &self,
        range: SegmentRange,
        offset: u32,
        length: u32,
        keys: &Keys,
        pd: Pd,
        spans: &mut Vec<Span>,
    ) -> Result<(), SegmentError> {
        self.parts(range, offset, length, |segment, part| {
            spans.push(keys.local(pd, segment, part, Access::empty()).map_err(|_| SegmentError::Denied)?);
            Ok(())
        })
    }

    /// Writes received bytes.
    pub(crate) fn scatter(
        &self,
        range: SegmentRange,
        offset: u32,
        mut bytes: &[u8],
        keys: &Keys,
        pd: Pd,
        memory: &mut impl Memory,
    ) -> Result<(), SegmentError> {
        let length = bytes.len() as u32;
        // All checks precede all writes, so that an invalid segment leaves the earlier ones unchanged.
        if range.count > 1 {
            self.parts(range, offset, length, |segment, part| {
                keys.local(pd, segment, part, Access::LOCAL_WRITE).map_err(|_| SegmentError::Denied)?;
                Ok(())
            })?;
        }
        self.parts(range, offset, length, |segment, part| {
            let span =
                keys.local(pd, segment, part, Access::LOCAL_WRITE).map_err(|_| SegmentError::Denied)?;
            let (head, rest) = bytes.split_at_checked(part.length as usize).ok_or(SegmentError::TooLong)?;
            bytes = rest;
            Ok(memory.write(span, head)?)
        })
    }
}
