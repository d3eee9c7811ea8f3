//! What a request takes and its completion gives back.

use std::mem::ManuallyDrop;

use adverb_proto::types::Segment;

use super::{Buffer, RegionSlice, RegisteredBuf};
use crate::{MemoryWindow, ProtectionDomain};

/// The memory of a request: nothing, one piece, or several that count as one; or the window that it works on.
#[derive(Debug, Default)]
pub enum Payload {
    /// No bytes.
    #[default]
    Empty,
    /// One piece.
    One(Piece),
    /// Several, in this order.
    Many(Vec<Piece>),
    /// No bytes, but a window: of requests that [bind](crate::SendRequest::bind) and
    /// [invalidate](crate::SendRequest::local_invalidate), and of no others.
    Window(MemoryWindow),
}

/// A piece of a request's memory.
#[derive(Debug)]
pub enum Piece {
    /// Memory that belongs to the request until it completes.
    Buffer(Buffer),
    /// Memory that is shared anyway.
    Region(RegionSlice),
    /// Memory of a pool that belongs to the request until it completes.
    Registered(RegisteredBuf),
}

impl Payload {
    /// The pieces, in order.
    #[inline]
    pub fn pieces(&self) -> &[Piece] {
        match self {
            Payload::Empty | Payload::Window(_) => &[],
            Payload::One(piece) => std::slice::from_ref(piece),
            Payload::Many(pieces) => pieces,
        }
    }

    /// The buffer, if the payload is just that.
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

    /// The buffer of a pool, if the payload is just that.
    #[inline]
    pub fn into_registered(self) -> Option<RegisteredBuf> {
        match self {
            Payload::One(Piece::Registered(buffer)) => Some(buffer),
            _ => None,
        }
    }

    /// The pieces, as a list.
    pub fn into_pieces(self) -> Vec<Piece> {
        match self {
            Payload::Empty | Payload::Window(_) => Vec::new(),
            Payload::One(piece) => vec![piece],
            Payload::Many(pieces) => pieces,
        }
    }

    /// How many bytes all pieces have.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Payload::Empty | Payload::Window(_) => 0,
            Payload::One(piece) => piece.len(),
            Payload::Many(pieces) => pieces.iter().map(Piece::len).sum(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Drops a payload, where others don't go.
#[cold]
fn discard(_payload: Payload) {}

impl Piece {
    /// How many bytes it has.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Piece::Buffer(buffer) => buffer.range().len(),
            Piece::Region(slice) => slice.len(),
            Piece::Registered(buffer) => buffer.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The plain form.
    #[inline]
    pub(crate) fn segment(&self) -> Segment {
        match self {
            Piece::Buffer(buffer) => buffer.segment(),
            Piece::Region(slice) => slice.segment(),
            Piece::Registered(buffer) => buffer.segment(),
        }
    }

    /// The protection domain that it is registered in.
    #[inline]
    pub(crate) fn domain(&self) -> &ProtectionDomain {
        match self {
            Piece::Buffer(buffer) => buffer.domain(),
            Piece::Region(slice) => slice.domain(),
            Piece::Registered(buffer) => buffer.protection_domain(),
        }
    }

    /// Whether the device may write there.
    pub(crate) fn is_locally_writable(&self) -> bool {
        match self {
            Piece::Buffer(buffer) => buffer.is_locally_writable(),
            Piece::Region(slice) => slice.is_locally_writable(),
            Piece::Registered(_) => true,
        }
    }

    /// Whether its address is where this process has it: what is inlined is read there by this process.
    pub(crate) fn is_at_its_own_address(&self) -> bool {
        match self {
            Piece::Buffer(buffer) => buffer.is_at_its_own_address(),
            Piece::Region(slice) => slice.is_at_its_own_address(),
            Piece::Registered(_) => true,
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

impl From<RegisteredBuf> for Payload {
    #[inline]
    fn from(buffer: RegisteredBuf) -> Payload {
        Payload::One(Piece::Registered(buffer))
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
