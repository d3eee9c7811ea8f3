//! Registered memory with one owner.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use adverb_proto::types::{Access, Segment};

use super::Region;
use crate::ProtectionDomain;
use crate::error::{Error, Result};

/// A piece of registered memory with one owner, which no peer can touch: a `[u8]` while you have it.
///
/// A request takes the buffer and its completion gives it back; between them there is nothing to read, write or free it
/// with. [`ProtectionDomain::buffer`](crate::ProtectionDomain::buffer) makes one.
///
/// A buffer can be [narrowed](Buffer::set_range) to the part that a request is to use, and later
/// [widened](Buffer::reset_range) to all that it has.
pub struct Buffer {
    region: Arc<Region>,
    /// Where the whole buffer begins in the region, whose length fits 32 bits.
    base: u32,
    /// How long the whole buffer is.
    capacity: u32,
    /// The part that counts, within the whole buffer.
    start: u32,
    end: u32,
}

impl Buffer {
    /// The `len` bytes at `base` of the region, which must lie in it and be reachable by nobody else: no other buffer,
    /// no [`MemoryRegion`](super::MemoryRegion), no remote rights.
    pub(super) fn new(region: Arc<Region>, base: u32, len: u32) -> Buffer {
        debug_assert!(base as usize + len as usize <= region.len);
        Buffer { region, base, capacity: len, start: 0, end: len }
    }

    /// How many bytes there are in all, in use or not.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Makes only this part of the buffer count, from now on: its bytes are the buffer's bytes. Counts from the
    /// beginning of the whole buffer, whatever it was narrowed to before.
    ///
    /// # Errors
    ///
    /// If the part doesn't lie within the capacity; then nothing has changed.
    pub fn set_range(&mut self, range: Range<usize>) -> Result<()> {
        let Range { start, end } = range;
        match (u32::try_from(start), u32::try_from(end)) {
            (Ok(start), Ok(end)) if start <= end && end <= self.capacity => {
                (self.start, self.end) = (start, end);
                Ok(())
            }
            _ => {
                let len = end.saturating_sub(start);
                Err(Error::OutOfBounds { offset: start, len, room: self.capacity() })
            }
        }
    }

    /// Makes all of the buffer count again.
    pub fn reset_range(&mut self) {
        (self.start, self.end) = (0, self.capacity);
    }

    /// Which part of the whole buffer counts.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Splits the whole buffer in two: this one keeps the first `at` bytes, and the rest is returned. Both are widened.
    /// The memory is freed when both are gone.
    ///
    /// # Errors
    ///
    /// If there are fewer than `at` bytes; then nothing has changed.
    pub fn split_off(&mut self, at: usize) -> Result<Buffer> {
        let out_of_bounds = Error::OutOfBounds { offset: at, len: 0, room: self.capacity() };
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

    pub(super) fn is_at_its_own_address(&self) -> bool {
        self.region.is_at_its_own_address()
    }

    /// Where the bytes that count begin.
    fn address(&self) -> *mut u8 {
        // SAFETY: the whole buffer lies in the region, and the part that counts in the whole buffer.
        unsafe { self.region.address.add((self.base + self.start) as usize).as_ptr() }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the region, whose memory is initialised and lives as long as `self`; this
        // buffer is the only owner of these bytes, no request has them (it would own the buffer), and no peer has
        // rights to them.
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
