//! One-sided access to a peer's memory: permissions and requests.

use std::ops::{BitOr, Range};

use adverb_net_proto::ExposedRegion;
use adverb_verbs::memory::PoolBuf;
use adverb_verbs::{Access, Error, RemoteAddress, Result, SendRequest};

use super::driver::{Driver, PendingOp};
use super::{SendData, SendError};

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

    pub(super) fn bits(self) -> u8 {
        self.0
    }

    /// Returns the bits for memory that is exposed at addresses.
    pub(super) fn bits_by_address(self) -> u8 {
        self.0 | BY_ADDRESS
    }

    pub(super) fn access(self) -> Access {
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
pub(super) struct PeerRegion {
    pub(super) region: ExposedRegion,
    /// The number of the lane over which the peer has exposed the memory.
    pub(super) lane: u32,
}

impl PeerRegion {
    /// Whether the memory is exposed at addresses.
    pub(super) fn is_by_address(&self) -> bool {
        self.region.rights & BY_ADDRESS != 0
    }

    /// Returns the offsets of these addresses, if the memory contains all of them.
    pub(super) fn offsets(&self, addresses: &Range<u64>) -> Option<Range<u64>> {
        let start = addresses.start.checked_sub(self.region.addr)?;
        let end = addresses
            .end
            .checked_sub(self.region.addr)
            .filter(|end| start <= *end && *end <= self.region.len)?;
        Some(start..end)
    }

    /// Returns the remote address of a range, if it is within the memory and permitted. Otherwise the peer's device
    /// would reject the request, which ends the connection.
    pub(super) fn remote_addr(&self, offset: u64, len: usize, right: RemoteAccess) -> Result<RemoteAddress> {
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
    pub(super) fn word_addr(&self, offset: u64) -> Result<RemoteAddress> {
        if !offset.is_multiple_of(8) {
            return Err(Error::Unaligned { offset: usize::try_from(offset).unwrap_or(usize::MAX) });
        }
        self.remote_addr(offset, 8, RemoteAccess::ATOMIC)
    }

    /// Returns the [remote address](PeerRegion::remote_addr) of a range of offsets, and the range's length.
    pub(super) fn range_addr(
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

/// Requests to memory that is exposed by name or at addresses.
impl PeerRegion {
    pub(super) fn read<'a>(&self, driver: &'a Driver, range: &Range<u64>) -> Result<PendingOp<'a>> {
        let (remote_addr, len) = self.range_addr(range, RemoteAccess::READ)?;
        driver.check_len(len)?;
        Ok(driver.operation(SendRequest::read(driver.pool().alloc(len)?, remote_addr), self.lane))
    }

    pub(super) fn write<'a>(
        &self,
        driver: &'a Driver,
        offset: u64,
        bytes: SendData<'_>,
    ) -> Result<PendingOp<'a>, SendError> {
        let len = bytes.bytes().len();
        let remote_addr = self
            .remote_addr(offset, len, RemoteAccess::WRITE)
            .and_then(|remote_addr| driver.check_len(len).map(|()| remote_addr));
        let remote_addr = match remote_addr {
            Ok(remote_addr) => remote_addr,
            Err(error) => return Err(bytes.into_error(error)),
        };
        Ok(driver.operation(SendRequest::write(driver.buffer_of(bytes)?, remote_addr), self.lane))
    }

    pub(super) fn fetch_add<'a>(&self, driver: &'a Driver, offset: u64, add: u64) -> Result<PendingOp<'a>> {
        let remote_addr = self.word_addr(offset)?;
        Ok(driver.operation(SendRequest::fetch_add(driver.pool().alloc(8)?, remote_addr, add), self.lane))
    }

    pub(super) fn compare_swap<'a>(
        &self,
        driver: &'a Driver,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<PendingOp<'a>> {
        let remote_addr = self.word_addr(offset)?;
        Ok(driver.operation(
            SendRequest::compare_swap(driver.pool().alloc(8)?, remote_addr, compare, swap),
            self.lane,
        ))
    }
}

/// Returns the word that an atomic operation returned.
pub(super) fn word_from_buffer(buffer: Option<PoolBuf>) -> u64 {
    let bytes = buffer.and_then(|buffer| buffer.first_chunk().copied());
    u64::from_ne_bytes(bytes.unwrap_or_default())
}
