//! Registered memory with one owner.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use adverb_proto::types::{Access, Segment};

use super::Region;
use crate::device::ProtectionDomain;
use crate::error::{Error, Result};

/// A buffer of registered memory with one owner. No peer can access the buffer.
///
/// The owner uses the buffer as a `[u8]`. Posting a request moves the buffer into the request, and the completion
/// returns it. [`ProtectionDomain::allocate_buffer`](crate::ProtectionDomain::allocate_buffer) creates a buffer.
///
/// A buffer has an active range: the bytes that the slice contains and that a request transfers. Initially, the range
/// is the whole buffer. [`set_range`](Buffer::set_range) changes the range, and [`reset_range`](Buffer::reset_range)
/// resets it to the whole buffer.
pub struct Buffer {
    region: Arc<Region>,
    /// The offset of the whole buffer in the region, whose length fits 32 bits.
    base: u32,
    /// The length of the whole buffer.
    capacity: u32,
    /// The active range, within the whole buffer.
    start: u32,
    end: u32,
}

impl Buffer {
    /// Creates a buffer of the `len` bytes at `base` of the region. The bytes must lie in the region, and no other
    /// buffer, no [`MemoryRegion`](super::MemoryRegion) and no peer may access them.
    pub(super) fn new(region: Arc<Region>, base: u32, len: u32) -> Buffer {
        debug_assert!(base as usize + len as usize <= region.len);
        Buffer { region, base, capacity: len, start: 0, end: len }
    }

    /// Returns the length of the whole buffer in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Sets the active range: the bytes that the slice contains and that a request transfers.
    ///
    /// The range is relative to the start of the whole buffer, not to the previous active range.
    ///
    /// # Errors
    ///
    /// Returns [`Error::OutOfBounds`] if the range doesn't lie within the capacity. The active range is unchanged after
    /// an error.
    pub fn set_range(&mut self, range: Range<usize>) -> Result<()> {
        let Range { start, end } = range;
        match (u32::try_from(start), u32::try_from(end)) {
            (Ok(start), Ok(end)) if start <= end && end <= self.capacity => {
                (self.start, self.end) = (start, end);
                Ok(())
            }
            _ => {
                let len = end.saturating_sub(start);
                Err(Error::OutOfBounds { offset: start, len, size: self.capacity() })
            }
        }
    }

    /// Sets the active range to the whole buffer.
    pub fn reset_range(&mut self) {
        (self.start, self.end) = (0, self.capacity);
    }

    /// Returns the active range, relative to the start of the whole buffer.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Splits the whole buffer in two: this buffer keeps the first `at` bytes, and the rest is returned.
    ///
    /// The active range of each part is the whole part. The memory is freed when both parts have been dropped.
    ///
    /// # Errors
    ///
    /// Returns [`Error::OutOfBounds`] if the capacity is less than `at`. The buffer is unchanged after an error.
    pub fn split_off(&mut self, at: usize) -> Result<Buffer> {
        let out_of_bounds = Error::OutOfBounds { offset: at, len: 0, size: self.capacity() };
        let Some((first, rest)) =
            u32::try_from(at).ok().and_then(|at| Some((at, self.capacity.checked_sub(at)?)))
        else {
            return Err(out_of_bounds);
        };
        self.capacity = first;
        self.reset_range();
        Ok(Buffer::new(Arc::clone(&self.region), self.base + first, rest))
    }

    #[inline]
    pub(crate) fn segment(&self) -> Segment {
        self.region.segment((self.base + self.start) as usize, self.end - self.start)
    }

    #[inline]
    pub(crate) fn domain(&self) -> &ProtectionDomain {
        self.region.domain()
    }

    pub(crate) fn is_locally_writable(&self) -> bool {
        self.region.access().contains(Access::LOCAL_WRITE)
    }

    pub(super) fn is_identity_mapped(&self) -> bool {
        self.region.is_identity_mapped()
    }

    /// Returns the address of the active range.
    fn address(&self) -> *mut u8 {
        // SAFETY: the active range lies in the whole buffer, which lies in the region.
        unsafe { self.region.address.add((self.base + self.start) as usize).as_ptr() }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the region, whose memory is initialized and lives as long as `self`. This
        // buffer is the only owner of these bytes, no request uses them (it would own the buffer), and no peer has
        // access rights to them.
        unsafe { std::slice::from_raw_parts(self.address(), self.range().len()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.range().len()) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("range", &self.range()).field("capacity", &self.capacity()).finish()
    }
}
