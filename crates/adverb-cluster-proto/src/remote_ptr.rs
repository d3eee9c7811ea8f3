//! Pointers to memory of a cluster's members.

use core::fmt;
use core::ops::Range;

use crate::PeerId;
use crate::mutation::mutant;

/// A pointer to bytes in a segment of a member's arena: plain data that members send to each other.
///
/// A pointer grants nothing. A member that uses it needs the segment's remote key, and the member that owns the memory
/// has registered the segment with the remote rights that it chose.
///
/// The bytes of a pointer may come from a peer, so [`from_bytes`](RemotePtr::from_bytes) checks them, and the owner and
/// the user of a pointer check it against the segment: [`check`](RemotePtr::check).
///
/// ```
/// # mod adverb { pub use adverb_cluster_proto as cluster; }
/// use adverb::cluster::RemotePtr;
///
/// let ptr = RemotePtr { member: 3, epoch: 7, segment: 0, offset: 4096, len: 256 };
/// assert_eq!(RemotePtr::from_bytes(&ptr.to_bytes())?, ptr);
///
/// // The first 16 bytes of the item.
/// let head = ptr.part(0..16).expect("within the item");
/// assert_eq!((head.offset, head.len), (4096, 16));
/// # Ok::<(), adverb::cluster::RemotePtrError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemotePtr {
    /// The number of the member that owns the memory.
    pub member: u32,
    /// The segment's number in the member's arena. An arena never uses a number for two segments.
    pub segment: u32,
    /// The member's epoch. A member that restarts has a new epoch, so pointers to its earlier memory are recognized.
    pub epoch: u64,
    /// The offset of the first byte in the segment.
    pub offset: u64,
    /// The length in bytes.
    pub len: u64,
}

/// The reason why a [`RemotePtr`] is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RemotePtrError {
    /// The byte representation has the wrong length.
    WrongLength {
        /// The length of the bytes.
        len: usize,
    },
    /// The end of the range exceeds 64 bits.
    Overflow {
        /// The range's start.
        offset: u64,
        /// The range's length.
        len: u64,
    },
    /// The pointer is to another member's memory.
    WrongMember {
        /// The member of the pointer.
        member: u32,
        /// The member that was expected.
        expected: u32,
    },
    /// The pointer is from another epoch: its member has restarted.
    StaleEpoch {
        /// The epoch of the pointer.
        epoch: u64,
        /// The member's current epoch.
        current: u64,
    },
    /// The peer has not announced the segment, or has withdrawn it.
    UnknownSegment {
        /// The segment of the pointer.
        segment: u32,
    },
    /// The range lies outside the segment.
    OutOfBounds {
        /// The range's start.
        offset: u64,
        /// The range's length.
        len: u64,
        /// The segment's length.
        segment_len: u64,
    },
}

impl RemotePtr {
    /// The length of the byte representation.
    pub const ENCODED_LEN: usize = 32;

    /// Returns the member as a peer of a cluster's broker: members and peers have the same numbers. The result is
    /// `None` if the number is too large for a cluster, because an arena without a cluster may have any number.
    pub fn peer(&self) -> Option<PeerId> {
        u16::try_from(self.member).ok().map(PeerId)
    }

    /// Returns the byte representation: the member, the segment, the epoch, the offset and the length, in little endian.
    pub fn to_bytes(&self) -> [u8; RemotePtr::ENCODED_LEN] {
        let mut bytes = [0; RemotePtr::ENCODED_LEN];
        bytes[0..4].copy_from_slice(&self.member.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.segment.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Parses the byte representation, which may come from a peer.
    ///
    /// # Errors
    ///
    /// Returns [`RemotePtrError::WrongLength`] unless there are exactly [`ENCODED_LEN`](RemotePtr::ENCODED_LEN) bytes, and
    /// [`RemotePtrError::Overflow`] if the end of the range exceeds 64 bits.
    pub fn from_bytes(bytes: &[u8]) -> Result<RemotePtr, RemotePtrError> {
        let Ok(bytes) = <&[u8; RemotePtr::ENCODED_LEN]>::try_from(bytes) else {
            return Err(RemotePtrError::WrongLength { len: bytes.len() });
        };
        let (words, _) = bytes.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        let ptr = RemotePtr {
            member: word(0) as u32,
            segment: (word(0) >> 32) as u32,
            epoch: word(1),
            offset: word(2),
            len: word(3),
        };
        match ptr.offset.checked_add(ptr.len) {
            Some(_) => Ok(ptr),
            None => Err(RemotePtrError::Overflow { offset: ptr.offset, len: ptr.len }),
        }
    }

    /// Checks that the pointer is to this member's memory, of its current epoch, and within a segment of this length.
    ///
    /// # Errors
    ///
    /// Returns [`RemotePtrError::WrongMember`], [`RemotePtrError::StaleEpoch`] or [`RemotePtrError::OutOfBounds`].
    pub fn check(&self, member: u32, epoch: u64, segment_len: u64) -> Result<(), RemotePtrError> {
        let RemotePtr { offset, len, .. } = *self;
        if self.member != member && !mutant!(PointerMemberUnchecked) {
            return Err(RemotePtrError::WrongMember { member: self.member, expected: member });
        }
        if self.epoch != epoch && !mutant!(PointerEpochUnchecked) {
            return Err(RemotePtrError::StaleEpoch { epoch: self.epoch, current: epoch });
        }
        match offset.checked_add(len) {
            Some(end) if end <= segment_len || mutant!(PointerBoundsUnchecked) => Ok(()),
            _ => Err(RemotePtrError::OutOfBounds { offset, len, segment_len }),
        }
    }

    /// Returns a pointer to a part of the bytes, or `None` if the range doesn't lie within them.
    pub fn part(&self, range: Range<u64>) -> Option<RemotePtr> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        let offset = self.offset.checked_add(range.start)?;
        Some(RemotePtr { offset, len: range.end - range.start, ..*self })
    }
}

impl RemotePtrError {
    /// Returns an action that may solve the problem, if one is known.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            RemotePtrError::StaleEpoch { .. } => {
                Some("request a new pointer from the member, which has restarted")
            }
            RemotePtrError::UnknownSegment { .. } => {
                Some("the member publishes its arena with `Broker::publish`")
            }
            _ => None,
        }
    }
}

impl fmt::Display for RemotePtrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemotePtrError::WrongLength { len } => {
                write!(f, "invalid remote pointer: it has {len} bytes instead of {}", RemotePtr::ENCODED_LEN)
            }
            RemotePtrError::Overflow { offset, len } => {
                write!(f, "invalid remote pointer: {len} bytes at offset {offset} exceed 64 bits")
            }
            RemotePtrError::WrongMember { member, expected } => {
                write!(f, "the remote pointer is to memory of member {member}, not of member {expected}")
            }
            RemotePtrError::StaleEpoch { epoch, current } => {
                write!(
                    f,
                    "the remote pointer is stale: its epoch is {epoch}, but the member is in epoch {current}"
                )
            }
            RemotePtrError::UnknownSegment { segment } => {
                write!(
                    f,
                    "the remote pointer is to segment {segment}, which the member has not announced or has withdrawn"
                )
            }
            RemotePtrError::OutOfBounds { offset, len, segment_len } => {
                write!(
                    f,
                    "the remote pointer to {len} bytes at offset {offset} is out of bounds: the segment has {segment_len} \
                     bytes"
                )
            }
        }
    }
}

impl std::error::Error for RemotePtrError {}

const _: () = assert!(size_of::<RemotePtrError>() <= 64);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_parse_to_the_same_pointer_or_overflow(bytes: [u8; RemotePtr::ENCODED_LEN]) {
            match RemotePtr::from_bytes(&bytes) {
                Ok(ptr) => prop_assert_eq!(ptr.to_bytes(), bytes),
                Err(RemotePtrError::Overflow { offset, len }) => prop_assert!(offset.checked_add(len).is_none()),
                Err(error) => prop_assert!(false, "{}", error),
            }
        }

        #[test]
        fn other_lengths_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assume!(bytes.len() != RemotePtr::ENCODED_LEN);
            prop_assert_eq!(RemotePtr::from_bytes(&bytes), Err(RemotePtrError::WrongLength { len: bytes.len() }));
        }

        #[test]
        fn a_checked_pointer_and_its_parts_lie_in_the_segment(
            offset: u64, len: u64, segment_len: u64, start: u64, end: u64,
        ) {
            let ptr = RemotePtr { member: 1, segment: 2, epoch: 3, offset, len };
            let is_inside = u128::from(offset) + u128::from(len) <= u128::from(segment_len);
            prop_assert_eq!(ptr.check(1, 3, segment_len).is_ok(), is_inside);
            if let Some(part) = ptr.part(start..end) {
                prop_assert!(start <= end && end <= len);
                prop_assert_eq!((part.offset - offset, part.len), (start, end - start));
                if is_inside {
                    prop_assert_eq!(part.check(1, 3, segment_len), Ok(()));
                }
            }
        }
    }

    #[test]
    fn fields_have_fixed_positions() {
        let ptr = RemotePtr { member: 1, segment: 2, epoch: 3, offset: 4, len: 5 };
        let mut bytes = [0; RemotePtr::ENCODED_LEN];
        for (at, byte) in [(0, 1), (4, 2), (8, 3), (16, 4), (24, 5)] {
            bytes[at] = byte;
        }
        assert_eq!(ptr.to_bytes(), bytes);
    }

    #[test]
    fn other_members_and_epochs_are_refused() {
        let ptr = RemotePtr { member: 1, segment: 2, epoch: 3, offset: 4, len: 5 };
        assert_eq!(ptr.check(2, 3, 9), Err(RemotePtrError::WrongMember { member: 1, expected: 2 }));
        assert_eq!(ptr.check(1, 4, 9), Err(RemotePtrError::StaleEpoch { epoch: 3, current: 4 }));
        assert_eq!(
            ptr.check(1, 3, 8),
            Err(RemotePtrError::OutOfBounds { offset: 4, len: 5, segment_len: 8 })
        );
        assert_eq!(ptr.check(1, 3, 9), Ok(()));
    }
}
