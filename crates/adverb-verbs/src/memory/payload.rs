//! The memory that a request owns and its completion returns.

use std::mem::ManuallyDrop;

use adverb_proto::types::Segment;

use super::window::MemoryWindow;
use super::{Buffer, PoolBuf, RegionSlice};
use crate::device::ProtectionDomain;

/// The payload of a request: no memory, one segment, or a list of segments; or the memory window that the request binds or
/// invalidates.
#[derive(Debug, Default)]
pub enum Payload {
    /// No bytes.
    #[default]
    Empty,
    /// One segment.
    One(PayloadSegment),
    /// Several segments, transferred in this order.
    Many(Vec<PayloadSegment>),
    /// A memory window and no bytes: the payload of a request that [binds](crate::SendRequest::bind) or
    /// [invalidates](crate::SendRequest::local_invalidate) a window.
    Window(MemoryWindow),
}

/// A scatter/gather element of a request's payload.
#[derive(Debug)]
pub enum PayloadSegment {
    /// A buffer, which the request owns until it completes.
    Buffer(Buffer),
    /// A part of a shared region.
    Region(RegionSlice),
    /// A buffer of a [`Pool`](super::Pool), which the request owns until it completes.
    PoolBuf(PoolBuf),
}

impl Payload {
    /// Returns the segments, in order.
    #[inline]
    pub fn segments(&self) -> &[PayloadSegment] {
        match self {
            Payload::Empty | Payload::Window(_) => &[],
            Payload::One(segment) => std::slice::from_ref(segment),
            Payload::Many(segments) => segments,
        }
    }

    /// Returns the buffer, if the payload is exactly one [`Buffer`].
    #[inline]
    pub fn into_buffer(self) -> Option<Buffer> {
        // A value with a destructor would have to be stored in memory, which the most common payload avoids.
        let payload = ManuallyDrop::new(self);
        if !matches!(*payload, Payload::One(PayloadSegment::Buffer(_))) {
            discard(ManuallyDrop::into_inner(payload));
            return None;
        }
        match ManuallyDrop::into_inner(payload) {
            Payload::One(PayloadSegment::Buffer(buffer)) => Some(buffer),
            _ => None,
        }
    }

    /// Returns the buffer, if the payload is exactly one [`PoolBuf`].
    #[inline]
    pub fn into_pool_buf(self) -> Option<PoolBuf> {
        match self {
            Payload::One(PayloadSegment::PoolBuf(buffer)) => Some(buffer),
            _ => None,
        }
    }

    /// Converts the payload into its segments, in order.
    pub fn into_segments(self) -> Vec<PayloadSegment> {
        match self {
            Payload::Empty | Payload::Window(_) => Vec::new(),
            Payload::One(segment) => vec![segment],
            Payload::Many(segments) => segments,
        }
    }

    /// Returns the length of all segments together, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Payload::Empty | Payload::Window(_) => 0,
            Payload::One(segment) => segment.len(),
            Payload::Many(segments) => segments.iter().map(PayloadSegment::len).sum(),
        }
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Drops a payload, off the hot path.
#[cold]
fn discard(_payload: Payload) {}

impl PayloadSegment {
    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            PayloadSegment::Buffer(buffer) => buffer.range().len(),
            PayloadSegment::Region(slice) => slice.len(),
            PayloadSegment::PoolBuf(buffer) => buffer.len(),
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the segment in plain form.
    #[inline]
    pub(crate) fn segment(&self) -> Segment {
        match self {
            PayloadSegment::Buffer(buffer) => buffer.segment(),
            PayloadSegment::Region(slice) => slice.segment(),
            PayloadSegment::PoolBuf(buffer) => buffer.segment(),
        }
    }

    /// Returns the protection domain of the segment's memory.
    #[inline]
    pub(crate) fn domain(&self) -> &ProtectionDomain {
        match self {
            PayloadSegment::Buffer(buffer) => buffer.domain(),
            PayloadSegment::Region(slice) => slice.domain(),
            PayloadSegment::PoolBuf(buffer) => buffer.protection_domain(),
        }
    }

    /// Whether the device may write to the segment.
    pub(crate) fn is_locally_writable(&self) -> bool {
        match self {
            PayloadSegment::Buffer(buffer) => buffer.is_locally_writable(),
            PayloadSegment::Region(slice) => slice.is_locally_writable(),
            PayloadSegment::PoolBuf(_) => true,
        }
    }

    /// Whether the registered address is also the address in this process, from which inline data is read.
    pub(crate) fn is_identity_mapped(&self) -> bool {
        match self {
            PayloadSegment::Buffer(buffer) => buffer.is_identity_mapped(),
            PayloadSegment::Region(slice) => slice.is_identity_mapped(),
            PayloadSegment::PoolBuf(_) => true,
        }
    }
}

impl From<()> for Payload {
    fn from((): ()) -> Payload {
        Payload::Empty
    }
}

impl From<Buffer> for Payload {
    #[inline]
    fn from(buffer: Buffer) -> Payload {
        Payload::One(PayloadSegment::Buffer(buffer))
    }
}

impl From<PoolBuf> for Payload {
    #[inline]
    fn from(buffer: PoolBuf) -> Payload {
        Payload::One(PayloadSegment::PoolBuf(buffer))
    }
}

impl From<RegionSlice> for Payload {
    fn from(slice: RegionSlice) -> Payload {
        Payload::One(PayloadSegment::Region(slice))
    }
}

impl From<PayloadSegment> for Payload {
    fn from(segment: PayloadSegment) -> Payload {
        Payload::One(segment)
    }
}

impl From<Vec<PayloadSegment>> for Payload {
    fn from(segments: Vec<PayloadSegment>) -> Payload {
        Payload::Many(segments)
    }
}

impl From<Vec<Buffer>> for Payload {
    fn from(buffers: Vec<Buffer>) -> Payload {
        Payload::Many(buffers.into_iter().map(PayloadSegment::Buffer).collect())
    }
}

// Requests are copied several times, so a payload must not become larger.
const _: () = assert!(size_of::<Payload>() == 32);
