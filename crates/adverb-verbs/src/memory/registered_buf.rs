//! A piece of a pool's memory.

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use adverb_proto::types::{Access, Segment};
use bytes::Bytes;

use super::pool::{Chunk, Slot};
use super::{Memory, MemoryRegion};
use crate::ProtectionDomain;
use crate::error::{Error, Result};

/// A piece of a [pool](super::Pool)'s memory with one owner, which no peer can touch: a `[u8]` while you have it.
///
/// A request takes it and its completion gives it back, as with a [`Buffer`](super::Buffer). Dropped, it goes home to its
/// pool. It may be shorter than the piece that it has ([`capacity`](RegisteredBuf::capacity)), and may be
/// [split](RegisteredBuf::split_off) without copying; the piece goes home with its last part.
///
/// ```
/// # #[cfg(feature = "soft")] {
/// # use adverb::memory::Pool;
/// # let domain = adverb::verbs::Device::open("soft")?.protection_domain()?;
/// # let pool = Pool::new(&domain);
/// let mut header = pool.copy_from(b"GET /index")?;
/// let path = header.split_off(4)?;
/// std::thread::spawn(move || assert_eq!(path.freeze(), "/index"));
/// header[..3].copy_from_slice(b"PUT");
/// # }
/// # Ok::<(), adverb::Error>(())
/// ```
pub struct RegisteredBuf {
    // The first two are a `Slot`, this buffer's share in one; taken apart, because requests stay smaller so.
    chunk: ManuallyDrop<Arc<Chunk>>,
    index: u32,
    /// Where its bytes begin in the chunk.
    start: u32,
    len: u32,
    /// How many bytes from `start` on are this buffer's, and no other share's.
    capacity: u32,
}

impl RegisteredBuf {
    /// The first `len` bytes of a slot, which must have so many.
    #[inline]
    pub(super) fn new(slot: Slot, len: u32) -> RegisteredBuf {
        let (start, capacity) = (slot.start(), slot.len());
        debug_assert!(len <= capacity);
        let Slot { chunk, index } = slot;
        RegisteredBuf { chunk: ManuallyDrop::new(chunk), index, start, len, capacity }
    }

    /// How many bytes it may have.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Makes it shorter, or longer up to its capacity: bytes that it gains are whatever they were before.
    ///
    /// # Errors
    ///
    /// If the capacity is less than `len`; then nothing has changed.
    pub fn resize(&mut self, len: usize) -> Result<()> {
        match u32::try_from(len) {
            Ok(len) if len <= self.capacity => self.len = len,
            _ => return Err(Error::OutOfBounds { offset: 0, len, room: self.capacity() }),
        }
        Ok(())
    }

    /// Splits it in two without copying: this one keeps the first `at` bytes, and the rest is returned, with what was
    /// behind it.
    ///
    /// # Errors
    ///
    /// If there are fewer than `at` bytes; then nothing has changed.
    pub fn split_off(&mut self, at: usize) -> Result<RegisteredBuf> {
        let at = self.check(at)?;
        let mut rest = self.share();
        rest.forget_first(at);
        (self.len, self.capacity) = (at, at);
        Ok(rest)
    }

    /// Splits it in two without copying: the first `at` bytes are returned, and this one keeps the rest.
    ///
    /// # Errors
    ///
    /// If there are fewer than `at` bytes; then nothing has changed.
    pub fn split_to(&mut self, at: usize) -> Result<RegisteredBuf> {
        let at = self.check(at)?;
        let mut first = self.share();
        (first.len, first.capacity) = (at, at);
        self.forget_first(at);
        Ok(first)
    }

    /// Joins what was split: `rest` must be what came directly behind this one, of the same piece, with nothing between them.
    ///
    /// # Errors
    ///
    /// Gives `rest` back if it isn't; then nothing has changed.
    pub fn unsplit(&mut self, rest: RegisteredBuf) -> std::result::Result<(), RegisteredBuf> {
        let is_next = Arc::ptr_eq(&self.chunk, &rest.chunk)
            && self.index == rest.index
            && self.len == self.capacity
            && self.start + self.capacity == rest.start;
        if !is_next {
            return Err(rest);
        }
        // Nobody else has these bytes: `rest` had, and gives up its share without looking at them again.
        self.len += rest.len;
        self.capacity += rest.capacity;
        Ok(())
    }

    /// Makes its first `count` bytes no longer its own.
    ///
    /// # Errors
    ///
    /// If there are fewer; then nothing has changed.
    pub fn advance(&mut self, count: usize) -> Result<()> {
        let count = self.check(count)?;
        self.forget_first(count);
        Ok(())
    }

    /// The bytes, to be shared and no more changed. They go home when the last part of them is dropped.
    ///
    /// Costs one allocation, of a few words; the bytes stay where they are.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// The same memory as a region of its own, with rights of its own: so a peer can be given just this buffer, for a while.
    /// When the region is gone, and the rights with it, the buffer goes home.
    ///
    /// # Errors
    ///
    /// If it can't be registered, or has no bytes.
    pub fn register(self, access: Access) -> Result<MemoryRegion> {
        let domain = self.chunk.domain().clone();
        domain.register(Lent(self), access)
    }

    /// Takes back what was [registered](RegisteredBuf::register), and the rights to it with that. Nothing, if somebody else has
    /// the region too, or it is no buffer's.
    pub(crate) fn reclaim(region: MemoryRegion) -> Option<RegisteredBuf> {
        let memory: Box<dyn Any> = region.into_memory()?;
        memory.downcast().ok().map(|lent: Box<Lent>| lent.0)
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

    /// Another share in the slot, with the same bytes: one of the two must give up what the other keeps, before anybody
    /// else gets to see them.
    fn share(&self) -> RegisteredBuf {
        let Slot { chunk, index } = Slot::share(&self.chunk, self.index);
        let RegisteredBuf { start, len, capacity, .. } = *self;
        RegisteredBuf { chunk: ManuallyDrop::new(chunk), index, start, len, capacity }
    }

    /// There must be so many.
    fn forget_first(&mut self, count: u32) {
        self.start += count;
        self.len -= count;
        self.capacity -= count;
    }

    /// Whether there are so many bytes.
    fn check(&self, count: usize) -> Result<u32> {
        match u32::try_from(count) {
            Ok(count) if count <= self.len => Ok(count),
            _ => Err(Error::OutOfBounds { offset: count, len: 0, room: self.len as usize }),
        }
    }

    /// Where its bytes begin.
    fn address(&self) -> *mut u8 {
        // SAFETY: the slot lies in the chunk's region, and `start` in the slot.
        unsafe { self.chunk.region.address.add(self.start as usize).as_ptr() }
    }
}

/// A buffer that is registered again.
struct Lent(RegisteredBuf);

// SAFETY: the bytes are in a chunk, which stays where it is as long as the buffer has a share in it, and are initialised; the
// buffer is the only owner, and has no methods here. No other process can reach them.
unsafe impl Memory for Lent {
    fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: the slot lies in the chunk's region, and `start` in the slot.
        unsafe { self.0.chunk.region.address.add(self.0.start as usize) }
    }

    fn len(&self) -> usize {
        self.0.len as usize
    }
}

impl Drop for RegisteredBuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: it is taken once, here, and not looked at again.
        let chunk = unsafe { ManuallyDrop::take(&mut self.chunk) };
        Slot { chunk, index: self.index }.end_share();
    }
}

impl Deref for RegisteredBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie within the chunk's region, whose memory is initialised and lives as long as `self`; a slot
        // is taken by one at a time, and of those who share it each has other bytes; no request has them (it would own the
        // buffer), and no peer has rights to them: the region is private.
        unsafe { std::slice::from_raw_parts(self.address(), self.len as usize) }
    }
}

impl DerefMut for RegisteredBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.len as usize) }
    }
}

impl AsRef<[u8]> for RegisteredBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for RegisteredBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl From<RegisteredBuf> for Bytes {
    fn from(buffer: RegisteredBuf) -> Bytes {
        buffer.freeze()
    }
}

impl fmt::Debug for RegisteredBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredBuf").field("len", &self.len).field("capacity", &self.capacity).finish()
    }
}
