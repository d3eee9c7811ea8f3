//! Errors of an arena.

use std::borrow::Cow;
use std::io;

use crate::RemotePtrError;
use crate::slab::InvalidLayout;

/// An error of an [`Arena`](super::Arena).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// An option of the builder, or an argument, is out of range.
    #[error("invalid arena option {option}: {rule}")]
    InvalidOption {
        /// The option's name.
        option: &'static str,
        /// The violated rule.
        rule: &'static str,
    },
    /// An item is longer than a slab.
    #[error("an item of {len} bytes exceeds the maximum of {max} bytes")]
    ItemTooLarge {
        /// The item's length.
        len: usize,
        /// The slab size.
        max: usize,
    },
    /// No segment has a free slot or a free slab for the item.
    #[error("allocating an item of {len} bytes failed: no slot of {slot_size} bytes and no slab is free")]
    Full {
        /// The item's length.
        len: usize,
        /// The size of the slots for items of this length.
        slot_size: usize,
    },
    /// The arena has no segment with this number: it never had one, or the segment was withdrawn.
    #[error("the arena has no segment {segment}: it was withdrawn, or never existed")]
    UnknownSegment {
        /// The segment's number.
        segment: u32,
    },
    /// A lent region is registered in a protection domain that the arena doesn't have.
    #[error("lending a region failed: protection domain {domain} is not one of the arena's")]
    ForeignRegion {
        /// The number of the region's domain.
        domain: u64,
    },
    /// A range lies outside an item.
    #[error("the range of {len} bytes at offset {offset} is out of bounds: the item has {item_len} bytes")]
    OutOfBounds {
        /// The range's start.
        offset: usize,
        /// The range's length.
        len: usize,
        /// The item's length.
        item_len: usize,
    },
    /// A remote pointer is not to this arena's memory.
    #[error(transparent)]
    InvalidPointer(#[from] RemotePtrError),
    /// The system has no memory for a segment.
    #[error("allocating a segment of {len} bytes failed")]
    Allocation {
        /// The segment's length.
        len: usize,
        /// The cause.
        source: io::Error,
    },
    /// An operation on a device or on memory failed.
    #[error(transparent)]
    Verbs(#[from] adverb_verbs::Error),
}

impl ArenaError {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        let hint = match self {
            ArenaError::ItemTooLarge { .. } => {
                "build the arena with a larger `slab_size`, or lend a segment for the item"
            }
            ArenaError::Full { .. } => {
                "drop items, or allocate another segment; if the items have mixed sizes, build the arena with a smaller \
                 `slab_size`, because each slot size takes whole slabs"
            }
            ArenaError::ForeignRegion { .. } => {
                "register the region in one of the domains that the arena was built with"
            }
            ArenaError::InvalidPointer(error) => error.hint()?,
            ArenaError::Verbs(error) => return error.hint(),
            ArenaError::InvalidOption { .. }
            | ArenaError::UnknownSegment { .. }
            | ArenaError::OutOfBounds { .. }
            | ArenaError::Allocation { .. } => return None,
        };
        Some(hint.into())
    }

    /// Whether the same operation can succeed later: items may be dropped, or memory may become free.
    pub fn is_retryable(&self) -> bool {
        match self {
            ArenaError::Full { .. } | ArenaError::Allocation { .. } => true,
            ArenaError::Verbs(error) => error.is_retryable(),
            _ => false,
        }
    }
}

const _: () = assert!(size_of::<ArenaError>() <= 64);

impl From<InvalidLayout> for ArenaError {
    fn from(InvalidLayout { option, rule }: InvalidLayout) -> ArenaError {
        ArenaError::InvalidOption { option, rule }
    }
}
