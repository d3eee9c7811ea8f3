//! The memory that a request owns and its completion returns.

use std::mem::ManuallyDrop;

use adverb_proto::types::Segment;

use super::{Buffer, PoolBuf, RegionSlice};
use crate::{MemoryWindow, ProtectionDomain};

/// The payload of a request: no memory, one piece, or a list of pieces; or the memory window that the request binds or
/// invalidates.
#[derive(Debug, Default)]
pub enum Payload {
    /// No bytes.
    #[default]
    Empty,
    /// One piece.
    One(Piece),
    /// Several pieces, transferred in this order.
    Many(Vec<Piece>),
    /// A memory window and no bytes: the payload of a request that [binds](crate::SendRequest::bind) or
    /// [invalidates](crate::SendRequest::local_invalidate) a window.
    Window(MemoryWindow),
}

/// A piece of a request's payload.
#[derive(Debug)]
pub enum Piece {
    /// A buffer, which the request owns until it completes.
    Buffer(Buffer),
    /// A part of a shared region.
    Region(RegionSlice),
    /// A buffer of a [`Pool`](super::Pool), which the request owns until it completes.
    PoolBuf(PoolBuf),
}

impl Payload {
    /// Returns the pieces, in order.
    #[inline]
    pub fn pieces(&self) -> &[Piece] {
        match self {
            Payload::Empty | Payload::Window(_) => &[],
            Payload::One(piece) => std::slice::from_ref(piece),
            Payload::Many(pieces) => pieces,
        }
    }

    /// Returns the buffer, if the payload is exactly one [`Buffer`].
    #[inline]
    pub fn into_buffer(self) -> Option<Buffer> {
        // What could be dropped would have to lie in memory for that: the usual payload needn't.
        let payload = ManuallyDrop::new(self);
        if !matches!(*payload, Payload::One(Piece::Buffer(_))) {
            discard(ManuallyDrop::into_inner(payload));
            return None;
        }
        match ManuallyDrop::into_inner(payload) {
            Payload::One(Piece::Buffer(buffer)) => Some(buffer),
            _ => None,
        }
    }

    /// Returns the buffer, if the payload is exactly one [`PoolBuf`].
    #[inline]
    pub fn into_pool_buf(self) -> Option<PoolBuf> {
        match self {
            Payload::One(Piece::PoolBuf(buffer)) => Some(buffer),
            _ => None,
        }
    }

    /// Converts the payload into its pieces, in order.
    pub fn into_pieces(self) -> Vec<Piece> {
        match self {
            Payload::Empty | Payload::Window(_) => Vec::new(),
            Payload::One(piece) => vec![piece],
            Payload::Many(pieces) => pieces,
        }
    }

    /// Returns the length of all pieces together, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Payload::Empty | Payload::Window(_) => 0,
            Payload::One(piece) => piece.len(),
            Payload::Many(pieces) => pieces.iter().map(Piece::len).sum(),
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

impl Piece {
    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Piece::Buffer(buffer) => buffer.range().len(),
            Piece::Region(slice) => slice.len(),
            Piece::PoolBuf(buffer) => buffer.len(),
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The plain form.
    #[inline]
    pub(crate) fn segment(&self) -> Segment {
        match self {
            Piece::Buffer(buffer) => buffer.segment(),
            Piece::Region(slice) => slice.segment(),
            Piece::PoolBuf(buffer) => buffer.segment(),
        }
    }

    /// The protection domain that it is registered in.
    #[inline]
    pub(crate) fn domain(&self) -> &ProtectionDomain {
        match self {
            Piece::Buffer(buffer) => buffer.domain(),
            Piece::Region(slice) => slice.domain(),
            Piece::PoolBuf(buffer) => buffer.protection_domain(),
        }
    }

    /// Whether the device may write there.
    pub(crate) fn is_locally_writable(&self) -> bool {
        match self {
            Piece::Buffer(buffer) => buffer.is_locally_writable(),
            Piece::Region(slice) => slice.is_locally_writable(),
            Piece::PoolBuf(_) => true,
        }
    }

    /// Whether its registered address is its address in this process, from which inline data is read.
    pub(crate) fn is_at_its_own_address(&self) -> bool {
        match self {
            Piece::Buffer(buffer) => buffer.is_at_its_own_address(),
            Piece::Region(slice) => slice.is_at_its_own_address(),
            Piece::PoolBuf(_) => true,
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
        Payload::One(Piece::Buffer(buffer))
    }
}

impl From<PoolBuf> for Payload {
    #[inline]
    fn from(buffer: PoolBuf) -> Payload {
        Payload::One(Piece::PoolBuf(buffer))
    }
}

impl From<RegionSlice> for Payload {
    fn from(slice: RegionSlice) -> Payload {
        Payload::One(Piece::Region(slice))
    }
}

impl From<Piece> for Payload {
    fn from(piece: Piece) -> Payload {
        Payload::One(piece)
    }
}

impl From<Vec<Piece>> for Payload {
    fn from(pieces: Vec<Piece>) -> Payload {
        Payload::Many(pieces)
    }
}

impl From<Vec<Buffer>> for Payload {
    fn from(buffers: Vec<Buffer>) -> Payload {
        Payload::Many(buffers.into_iter().map(Piece::Buffer).collect())
    }
}

// Requests are copied on their way: they stay as small as with one kind of buffer.
const _: () = assert!(size_of::<Payload>() == 32);
