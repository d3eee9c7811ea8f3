//! Buffers of a pool.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use adverb_proto::types::{Access, Segment};
use bytes::Bytes;

use super::pool::{Chunk, Slot};
use super::{Memory, MemoryRegion};
use crate::device::ProtectionDomain;
use crate::error::{Error, Result};

/// A buffer of registered memory that was allocated from a [`Pool`](super::Pool), with one owner. No peer can access
/// the buffer.
///
/// The owner uses the buffer as a `[u8]`. Posting a request moves it into the request, and the completion returns it,
/// as with a [`Buffer`](super::Buffer). Dropping it returns the memory to the pool.
///
/// A buffer may be shorter than its [capacity](PoolBuf::capacity), and it can be
/// [split](PoolBuf::split_off) without copying. The memory returns to the pool when the last part has been
/// dropped.
///
/// ```
/// # #[cfg(feature = "soft")] {
/// # use adverb::memory::Pool;
/// # let domain = adverb::verbs::Device::open("soft")?.create_protection_domain()?;
/// # let pool = Pool::new(&domain);
/// let mut header = pool.allocate_copy(b"GET /index")?;
/// let path = header.split_off(4)?;
/// std::thread::spawn(move || assert_eq!(path.freeze(), "/index"));
/// header[..3].copy_from_slice(b"PUT");
/// # }
/// # Ok::<(), adverb::Error>(())
/// ```
pub struct PoolBuf {
    // The first two fields are those of a `Slot`: this buffer's share in it. Separate fields keep requests smaller.
    chunk: ManuallyDrop<Arc<Chunk>>,
    index: u32,
    /// The offset of its bytes in the chunk.
    start: u32,
    len: u32,
    /// The number of bytes from `start` on that belong to this buffer and to no other share.
    capacity: u32,
}

impl PoolBuf {
    /// Creates a buffer of the first `len` bytes of a slot, which must have that many.
    #[inline]
    pub(super) fn new(slot: Slot, len: u32) -> PoolBuf {
        let (start, capacity) = (slot.start(), slot.len());
        debug_assert!(len <= capacity);
        let Slot { chunk, index } = slot;
        PoolBuf { chunk: ManuallyDrop::new(chunk), index, start, len, capacity }
    }

    /// Returns the maximum length in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Sets the length, up to the capacity.
    ///
    /// Bytes that are added have arbitrary values, left from an earlier use.
    ///
    /// # Errors
    ///
    /// Returns [`Error::OutOfBounds`] if the capacity is less than `len`. The buffer is unchanged after an error.
    pub fn resize(&mut self, len: usize) -> Result<()> {
        match u32::try_from(len) {
            Ok(len) if len <= self.capacity => self.len = len,
            _ => return Err(Error::OutOfBounds { offset: 0, len, size: self.capacity() }),
        }
        Ok(())
    }

    /// Splits the buffer in two without copying: this buffer keeps the first `at` bytes, and the rest is returned.
    ///
    /// The returned buffer has the unused capacity.
    ///
    /// # Errors
    ///
    /// Returns [`Error::OutOfBounds`] if the length is less than `at`. The buffer is unchanged after an error.
    pub fn split_off(&mut self, at: usize) -> Result<PoolBuf> {
        let at = self.check(at)?;
        let mut rest = self.share();
        rest.drop_first(at);
        (self.len, self.capacity) = (at, at);
        Ok(rest)
    }

    /// Splits the buffer in two without copying: the first `at` bytes are returned, and this buffer keeps the rest.
    ///
    /// # Errors
    ///
    /// Returns [`Error::OutOfBounds`] if the length is less than `at`. The buffer is unchanged after an error.
    pub fn split_to(&mut self, at: usize) -> Result<PoolBuf> {
        let at = self.check(at)?;
        let mut first = self.share();
        (first.len, first.capacity) = (at, at);
        self.drop_first(at);
        Ok(first)
    }

    /// Appends `rest` without copying. `rest` must have been split from this buffer and must directly follow it in
    /// memory.
    ///
    /// # Errors
    ///
    /// Returns `rest` if it doesn't directly follow this buffer, or if this buffer is shorter than its capacity. Both
    /// buffers are unchanged after an error.
    pub fn unsplit(&mut self, rest: PoolBuf) -> std::result::Result<(), PoolBuf> {
        let is_next = Arc::ptr_eq(&self.chunk, &rest.chunk)
            && self.index == rest.index
            && self.len == self.capacity
            && self.start + self.capacity == rest.start;
        if !is_next {
            return Err(rest);
        }
        // `rest` was the only owner of these bytes, and gives up its share without accessing them again.
        self.len += rest.len;
        self.capacity += rest.capacity;
        Ok(())
    }

    /// Removes the first `count` bytes from the buffer.
    ///
    /// # Errors
    ///
    /// Returns [`Error::OutOfBounds`] if the length is less than `count`. The buffer is unchanged after an error.
    pub fn advance(&mut self, count: usize) -> Result<()> {
        let count = self.check(count)?;
        self.drop_first(count);
        Ok(())
    }

    /// Converts the buffer into shared, immutable bytes without copying.
    ///
    /// The conversion performs one small allocation. The memory returns to the pool when the last handle to the bytes
    /// has been dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Registers the buffer as a region with its own access rights, so that a peer can access just this buffer.
    ///
    /// When the last handle to the region has been dropped, the region is deregistered, which ends the peer's access,
    /// and the memory returns to the pool.
    ///
    /// # Errors
    ///
    /// Returns the device's error if the device can't register the memory, or if the buffer is empty.
    pub fn register(self, access: Access) -> Result<MemoryRegion> {
        let domain = self.chunk.domain().clone();
        domain.register(RegisteredPoolBuf(self), access)
    }

    /// Returns the protection domain that the memory is registered in.
    #[inline]
    pub fn protection_domain(&self) -> &ProtectionDomain {
        self.chunk.region.domain()
    }

    #[inline]
    pub(super) fn segment(&self) -> Segment {
        self.chunk.region.segment(self.start as usize, self.len)
    }

    /// Creates another share in the slot, with the same bytes. One of the two must give up each byte before either is
    /// returned to the caller.
    fn share(&self) -> PoolBuf {
        let Slot { chunk, index } = Slot::share(&self.chunk, self.index);
        let PoolBuf { start, len, capacity, .. } = *self;
        PoolBuf { chunk: ManuallyDrop::new(chunk), index, start, len, capacity }
    }

    /// Gives up the first `count` bytes. The length must be at least `count`.
    fn drop_first(&mut self, count: u32) {
        self.start += count;
        self.len -= count;
        self.capacity -= count;
    }

    /// Checks that the length is at least `count`.
    fn check(&self, count: usize) -> Result<u32> {
        match u32::try_from(count) {
            Ok(count) if count <= self.len => Ok(count),
            _ => Err(Error::OutOfBounds { offset: count, len: 0, size: self.len as usize }),
        }
    }

    /// Returns the address of the first byte.
    fn address(&self) -> *mut u8 {
        // SAFETY: the slot lies in the chunk's region, and `start` in the slot.
        unsafe { self.chunk.region.address.add(self.start as usize).as_ptr() }
    }
}

impl MemoryRegion {
    /// Takes back the buffer of a region that [`PoolBuf::register`] created. The region is deregistered first, so that no
    /// peer can access the buffer.
    ///
    /// # Errors
    ///
    /// Returns the region if
    ///
    /// - it was not created from a pool buffer;
    /// - another handle, a request, a memory window or [another region](MemoryRegion::register_in) uses it; or
    /// - the device can't deregister it. The memory is then leaked, and this process can't access it anymore.
    pub fn into_pool_buf(self) -> std::result::Result<PoolBuf, MemoryRegion> {
        self.into_memory().map(|RegisteredPoolBuf(buffer)| buffer)
    }
}

/// A buffer that is registered again, as a separate region.
struct RegisteredPoolBuf(PoolBuf);

// SAFETY: the bytes are in a chunk, which doesn't move while the buffer has a share in it, and are initialized. The
// buffer is the only owner, and is not accessed here. No other process can access the bytes.
unsafe impl Memory for RegisteredPoolBuf {
    fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: the slot lies in the chunk's region, and `start` in the slot.
        unsafe { self.0.chunk.region.address.add(self.0.start as usize) }
    }

    fn len(&self) -> usize {
        self.0.len as usize
    }
}

impl Drop for PoolBuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the chunk is taken once, here, and not used afterwards.
        let chunk = unsafe { ManuallyDrop::take(&mut self.chunk) };
        Slot { chunk, index: self.index }.end_share();
    }
}

impl Deref for PoolBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie within the chunk's region, whose memory is initialized and lives as long as `self`. A
        // slot has one user at a time, and shares in a slot have different bytes. No request uses the bytes (it would
        // own the buffer), and no peer has access rights to them, because the region is private.
        unsafe { std::slice::from_raw_parts(self.address(), self.len as usize) }
    }
}

impl DerefMut for PoolBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.len as usize) }
    }
}

impl AsRef<[u8]> for PoolBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for PoolBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl From<PoolBuf> for Bytes {
    fn from(buffer: PoolBuf) -> Bytes {
        buffer.freeze()
    }
}

impl fmt::Debug for PoolBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuf").field("len", &self.len).field("capacity", &self.capacity).finish()
    }
}
