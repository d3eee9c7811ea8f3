//! One-sided access to a peer's memory: permissions, and the places in it.

use std::ops::{BitOr, Range};

use adverb_net_proto::ExposedRegion;
use adverb_verbs::{Access, Error, RemoteAddress, Result};

/// The operations that a peer may execute on exposed memory.
///
/// ```
/// use adverb::net::RemoteAccess;
///
/// let access = RemoteAccess::READ | RemoteAccess::ATOMIC;
/// assert!(access.contains(RemoteAccess::READ) && !access.contains(RemoteAccess::WRITE));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteAccess(u8);

impl RemoteAccess {
    /// Permission to read.
    pub const READ: RemoteAccess = RemoteAccess(1);
    /// Permission to write.
    pub const WRITE: RemoteAccess = RemoteAccess(2);
    /// Permission to execute atomic operations: fetch-and-add, and compare-and-swap.
    pub const ATOMIC: RemoteAccess = RemoteAccess(4);

    /// Whether this set contains all permissions in `other`.
    pub const fn contains(self, other: RemoteAccess) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    /// Returns the bits for memory that is exposed at addresses.
    pub(crate) fn bits_by_address(self) -> u8 {
        self.0 | BY_ADDRESS
    }

    pub(crate) fn access(self) -> Access {
        let mut access = Access::LOCAL_WRITE;
        access.set(Access::REMOTE_READ, self.contains(RemoteAccess::READ));
        access.set(Access::REMOTE_WRITE, self.contains(RemoteAccess::WRITE));
        access.set(Access::REMOTE_ATOMIC, self.contains(RemoteAccess::ATOMIC));
        access
    }
}

/// The flag, next to the permissions, of memory that is exposed at addresses.
const BY_ADDRESS: u8 = 8;

impl BitOr for RemoteAccess {
    type Output = RemoteAccess;

    fn bitor(self, other: RemoteAccess) -> RemoteAccess {
        RemoteAccess(self.0 | other.0)
    }
}

/// Memory that the peer exposes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PeerRegion {
    region: ExposedRegion,
    lane: u32,
}

impl PeerRegion {
    /// Returns memory that the peer has exposed over the lane of this number.
    pub(crate) fn new(region: ExposedRegion, lane: u32) -> PeerRegion {
        PeerRegion { region, lane }
    }

    /// Returns the number of the lane over which the peer has exposed the memory.
    pub(crate) fn lane(&self) -> u32 {
        self.lane
    }

    /// Returns the length of the memory in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.region.len
    }

    /// Whether the memory is exposed at addresses.
    pub(crate) fn is_by_address(&self) -> bool {
        self.region.rights & BY_ADDRESS != 0
    }

    /// Returns the offsets of these addresses, if the memory contains all of them.
    pub(crate) fn offsets(&self, addresses: &Range<u64>) -> Option<Range<u64>> {
        let start = addresses.start.checked_sub(self.region.addr)?;
        let end = addresses
            .end
            .checked_sub(self.region.addr)
            .filter(|end| start <= *end && *end <= self.region.len)?;
        Some(start..end)
    }

    /// Returns the remote address of a range, if it is within the memory and permitted. Otherwise the peer's device
    /// would reject the request, which ends the connection.
    pub(crate) fn remote_addr(&self, offset: u64, len: usize, right: RemoteAccess) -> Result<RemoteAddress> {
        if !RemoteAccess(self.region.rights).contains(right) {
            let reason = "the peer's region does not allow this access";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.region.len => {
                Ok(RemoteAddress { addr: self.region.addr.wrapping_add(offset), rkey: self.region.rkey })
            }
            _ => Err(Error::OutOfBounds {
                offset: usize::try_from(offset).unwrap_or(usize::MAX),
                len,
                size: usize::try_from(self.region.len).unwrap_or(usize::MAX),
            }),
        }
    }

    /// Returns the remote address of the word at an offset.
    pub(crate) fn word_addr(&self, offset: u64) -> Result<RemoteAddress> {
        if !offset.is_multiple_of(8) {
            return Err(Error::Unaligned { offset: usize::try_from(offset).unwrap_or(usize::MAX) });
        }
        self.remote_addr(offset, 8, RemoteAccess::ATOMIC)
    }

    /// Returns the [remote address](PeerRegion::remote_addr) of a range of offsets, and the range's length.
    pub(crate) fn range_addr(
        &self,
        range: &Range<u64>,
        right: RemoteAccess,
    ) -> Result<(RemoteAddress, usize)> {
        let len = range.end.checked_sub(range.start).and_then(|len| usize::try_from(len).ok());
        let backwards =
            || Error::InvalidRequest { reason: format!("the range {range:?} ends before it starts").into() };
        let len = len.ok_or_else(backwards)?;
        Ok((self.remote_addr(range.start, len, right)?, len))
    }
}
