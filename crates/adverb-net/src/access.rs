//! The permissions of a peer on exposed memory.

use std::ops::BitOr;

use adverb_verbs::Access;

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

    /// Returns the permissions in the bits of an announcement, which may have other bits.
    pub(crate) fn from_bits(bits: u8) -> RemoteAccess {
        RemoteAccess(bits)
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
pub(crate) const BY_ADDRESS: u8 = 8;

impl BitOr for RemoteAccess {
    type Output = RemoteAccess;

    fn bitor(self, other: RemoteAccess) -> RemoteAccess {
        RemoteAccess(self.0 | other.0)
    }
}
