//! The segments of the requests in a queue, in one ring: requests leave in the order in which they came.

use std::collections::VecDeque;

use crate::memory::{Fault, Keys, Memory, Part, Pd, Span};
use crate::mutation::mutant;
use crate::types::{Access, Segment, Status};

/// A ring of segments.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    ring: VecDeque<Segment>,
    /// How many have left, wrapping: the number of the first that is there.
    removed: u32,
}

/// Which segments of a ring are a request's; or, if it was posted inline, its first inline byte.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentRange {
    first: u32,
    count: u16,
    inline: bool,
}

impl SegmentRange {
    /// No segments: the bytes are inline, and this is the number of the first.
    pub(crate) const fn of_inline(first: u32) -> SegmentRange {
        SegmentRange { first, count: 0, inline: true }
    }

    /// The number of the first inline byte, if the request was posted inline.
    pub(crate) const fn inline(self) -> Option<u32> {
        if self.inline { Some(self.first) } else { None }
    }
}

/// Why a request's bytes can't be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentError {
    /// The key, the rights or the bounds of a segment are wrong.
    Denied,
    /// The memory itself failed.
    Fault,
    /// There are more bytes than the segments have room for.
    TooLong,
}

/// What a receive request says whose bytes can't be put.
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
    /// Takes an empty ring in place of its own, which is empty too.
    #[inline]
    pub(crate) fn acquire_rings(&mut self, ring: VecDeque<Segment>) {
        debug_assert!(self.ring.is_empty());
        self.ring = ring;
    }

    /// Gives its ring away, which is empty.
    #[inline]
    pub(crate) fn release(&mut self) -> VecDeque<Segment> {
        debug_assert!(self.ring.is_empty());
        core::mem::take(&mut self.ring)
    }

    // The compiler doesn't inline this by itself, because devices that are recorded and those that aren't call it.
    #[inline(always)]
    pub(crate) fn push(&mut self, segments: &[Segment]) -> SegmentRange {
        let first = self.removed.wrapping_add(self.ring.len() as u32);
        match segments {
            [segment] => self.ring.push_back(*segment),
            _ => self.ring.extend(segments),
        }
        // Far more than a queue pair can be made for.
        let count = segments.len() as u16;
        SegmentRange { first, count, inline: false }
    }

    /// Appends a request's segments from another ring.
    pub(crate) fn copy_from(&mut self, other: &Segments, range: SegmentRange) -> SegmentRange {
        let first = self.removed.wrapping_add(self.ring.len() as u32);
        self.ring.extend(other.indices(range).map(|index| other.ring[index]));
        SegmentRange { first, ..range }
    }

    /// Puts a request's segments from another ring before all others.
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
            self.ring.clear();
        }
        self.removed = self.removed.wrapping_add(u32::from(range.count));
    }

    /// Gives the parts of segments that hold `length` bytes from `offset` on.
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

    /// Names the bytes to be sent. Local reading needs no right (vol. 1, 10.6.3), only a valid key.
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

    /// Writes what was received.
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
        // First all checks, then all writes: a bad segment leaves the good ones before it untouched.
        if range.count > 1 {
            self.parts(range, offset, length, |segment, part| {
                keys.local(pd, segment, part, Access::LOCAL_WRITE).map_err(|_| SegmentError::Denied)?;
                Ok(())
            })?;
        }
        self.parts(range, offset, length, |segment, part| {
            let span =
                keys.local(pd, segment, part, Access::LOCAL_WRITE).map_err(|_| SegmentError::Denied)?;
            let (now, later) = bytes.split_at_checked(part.length as usize).ok_or(SegmentError::TooLong)?;
            bytes = later;
            Ok(memory.write(span, now)?)
        })
    }
}
