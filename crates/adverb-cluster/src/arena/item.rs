//! Items: memory in the slots of an arena.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use adverb_verbs::memory::{MemoryRegion, RegionSlice};

use super::error::ArenaError;
use super::segment::Segment;
use super::{ArenaState, Result};
use crate::RemotePtr;
use crate::slab::Slot;

pub(super) struct SlabMemory {
    pub(super) arena: Arc<ArenaState>,
    pub(super) segment: Arc<Segment>,
    /// The first of the segment's regions, for copies.
    pub(super) region: MemoryRegion,
    /// The offset of the slab in the segment.
    pub(super) base: usize,
}

/// An allocated slot. Dropping it frees the slot.
struct Allocation {
    /// `None` after the slot was freed.
    slab: Option<Arc<SlabMemory>>,
    slot: Slot,
    /// The offset of the slot in its slab.
    offset: u32,
    len: u32,
}

/// An item that is being written: no [`RemotePtr`] to it exists yet. [`Arena::allocate`](super::Arena::allocate) returns it, and
/// [`publish`](Draft::publish) makes it an [`Item`]. Dropping it frees the memory.
///
/// The bytes have arbitrary values at first, left from an earlier use.
///
/// Remote keys are for whole segments, so a peer with access to the segment can access the bytes even now, if it computes
/// their offset. Therefore a draft isn't a `[u8]` either: bytes are copied.
///
/// ```compile_fail,E0599
/// # fn example(arena: adverb::cluster::Arena) -> Result<(), adverb::cluster::ArenaError> {
/// let draft = arena.allocate(8)?;
/// let ptr = draft.remote_ptr(); // a draft has no pointer
/// # Ok(())
/// # }
/// ```
pub struct Draft(Allocation);

/// A published item, to which peers may have a [`RemotePtr`]. Dropping it frees the memory.
///
/// Peers may read the bytes at any moment, and change them if the segment was allocated with such rights. So an item is
/// never a `[u8]`: [`read`](Item::read) and [`write`](Item::write) copy bytes, and [`word`](Item::word) gives atomic access
/// to 64-bit words.
///
/// An arena doesn't know the peers that have a pointer to an item, and reuses the memory of a dropped item at once. A
/// peer that still has the pointer then reads other bytes. Programs whose peers cache pointers drop an item only after a
/// grace period, or store a generation and a checksum in it, which the peer compares.
pub struct Item(Allocation);

impl Allocation {
    /// Returns the slab, which is missing only while the allocation is dropped.
    #[inline]
    fn slab(&self) -> &SlabMemory {
        self.slab.as_ref().expect("an allocation has its slab until it is dropped")
    }

    /// Checks that the range lies in the item, and returns its offset in the segment.
    #[inline]
    fn locate(&self, offset: usize, len: usize) -> Result<usize> {
        let item_len = self.len as usize;
        match offset.checked_add(len) {
            Some(end) if end <= item_len => Ok(self.start() + offset),
            _ => Err(ArenaError::OutOfBounds { offset, len, item_len }),
        }
    }

    /// The offset in the segment.
    #[inline]
    fn start(&self) -> usize {
        self.slab().base + self.offset as usize
    }

    fn capacity(&self) -> usize {
        let classes = self.slab().arena.heap.classes();
        classes.class_of(self.len as usize).map_or(0, |class| classes.size(class) as usize)
    }

    #[inline]
    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let start = self.locate(offset, bytes.len())?;
        Ok(self.slab().region.read(start, bytes)?)
    }

    #[inline]
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let start = self.locate(offset, bytes.len())?;
        Ok(self.slab().region.write(start, bytes)?)
    }

    fn slice(&self, domain: usize, range: Range<usize>) -> Result<RegionSlice> {
        let Range { start: offset, end } = range;
        let item_len = self.len as usize;
        let len = end.checked_sub(offset).ok_or(ArenaError::OutOfBounds { offset, len: 0, item_len })?;
        let start = self.locate(offset, len)?;
        let regions = &self.slab().segment.regions;
        let region = regions.get(domain).ok_or(ArenaError::InvalidOption {
            option: "domain",
            rule: "it must be the position of a protection domain that the arena was built with",
        })?;
        Ok(region.slice(start..start + len)?)
    }
}

impl Drop for Allocation {
    #[inline]
    fn drop(&mut self) {
        if let Some(slab) = self.slab.take()
            && slab.arena.owner.is_current()
        {
            let freed = slab.arena.heap.free(self.slot, self.len as usize);
            debug_assert!(freed.is_ok(), "an item is freed once");
        }
    }
}

impl Draft {
    #[inline]
    pub(super) fn new(slab: Arc<SlabMemory>, slot: Slot, offset: u32, len: u32) -> Draft {
        Draft(Allocation { slab: Some(slab), slot, offset, len })
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Returns the size of the slot, which is at least the length.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Copies bytes into the item at `offset`.
    ///
    /// # Errors
    ///
    /// Returns [`ArenaError::OutOfBounds`] if the bytes don't all lie in the item.
    #[inline]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.0.write(offset, bytes)
    }

    /// Copies `bytes.len()` bytes at `offset` out of the item.
    ///
    /// # Errors
    ///
    /// Returns [`ArenaError::OutOfBounds`] if the bytes don't all lie in the item.
    #[inline]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.0.read(offset, bytes)
    }

    /// Returns a part of the item, for a request that fills it: a READ from a peer, or a receive. `domain` is the index of
    /// the queue's protection domain in the list that was passed to [`ArenaBuilder::create`](super::ArenaBuilder::create).
    ///
    /// The request keeps the memory registered, but not the slot allocated: keep the draft until the request completes.
    ///
    /// # Errors
    ///
    /// Returns [`ArenaError::OutOfBounds`] if the range doesn't lie in the item, and [`ArenaError::InvalidOption`] if the
    /// arena has no such domain.
    pub fn slice(&self, domain: usize, range: Range<usize>) -> Result<RegionSlice> {
        self.0.slice(domain, range)
    }

    /// Publishes the item: peers may get a [`RemotePtr`] to it. The writes to the item are ordered before those that follow,
    /// such as the store of a [word](Item::word) through which peers find the item.
    #[inline]
    pub fn publish(self) -> Item {
        fence(Ordering::Release);
        Item(self.0)
    }
}

impl Item {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Returns the size of the slot, which is at least the length.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Returns the pointer with which peers address the item.
    #[inline]
    pub fn remote_ptr(&self) -> RemotePtr {
        let slab = self.0.slab();
        RemotePtr {
            member: slab.arena.member,
            segment: slab.segment.id,
            epoch: slab.arena.epoch,
            offset: self.0.start() as u64,
            len: self.0.len.into(),
        }
    }

    /// Copies `bytes.len()` bytes at `offset` out of the item.
    ///
    /// If a peer writes at the same time, each byte has either the old or the new value, and so has each aligned word of 8
    /// bytes that is copied as a whole.
    ///
    /// # Errors
    ///
    /// Returns [`ArenaError::OutOfBounds`] if the bytes don't all lie in the item.
    #[inline]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.0.read(offset, bytes)
    }

    /// Returns a copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        let read = self.0.read(0, &mut bytes);
        debug_assert!(read.is_ok(), "an item lies in mapped memory");
        bytes
    }

    /// Copies bytes into the item at `offset`, while peers may read it.
    ///
    /// A peer that reads at the same time can get any mixture of old and new bytes. To replace a value as a whole, publish
    /// another item and swap a [word](Item::word).
    ///
    /// # Errors
    ///
    /// Returns [`ArenaError::OutOfBounds`] if the bytes don't all lie in the item.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.0.write(offset, bytes)
    }

    /// Returns the 64-bit word at `offset`, in the byte order of this machine. Peers with the right may change it with
    /// atomic operations.
    ///
    /// An atomic operation of an RDMA NIC is atomic with respect to other operations of the NIC, but with respect to the
    /// CPU only if the device's attributes say so. A word that peers change with atomics is best changed by them alone, or
    /// by requests of this member to itself.
    ///
    /// # Errors
    ///
    /// Returns [`ArenaError::OutOfBounds`] if the word doesn't lie in the item, and [`ArenaError::Verbs`] with
    /// [`Unaligned`](adverb_verbs::Error::Unaligned) if `offset` isn't a multiple of 8.
    #[inline]
    pub fn word(&self, offset: usize) -> Result<&AtomicU64> {
        let start = self.0.locate(offset, 8)?;
        Ok(self.0.slab().region.word(start)?)
    }

    /// Returns a part of the item, for a request: the source of a WRITE or SEND, or the destination of a READ. `domain` is
    /// the index of the queue's protection domain in the list that was passed to
    /// [`ArenaBuilder::create`](super::ArenaBuilder::create).
    ///
    /// The request keeps the memory registered, but not the slot allocated: keep the item until the request completes.
    ///
    /// # Errors
    ///
    /// Returns [`ArenaError::OutOfBounds`] if the range doesn't lie in the item, and [`ArenaError::InvalidOption`] if the
    /// arena has no such domain.
    pub fn slice(&self, domain: usize, range: Range<usize>) -> Result<RegionSlice> {
        self.0.slice(domain, range)
    }

    /// Frees many items. This locks a partition once for up to 256 of its items. Dropping the items one by one locks it
    /// for each.
    pub fn free_all(mut items: Vec<Item>) {
        let key = |item: &Item| {
            let arena = item.0.slab.as_ref().map(|slab| Arc::as_ptr(&slab.arena));
            (arena, item.0.slot.partition())
        };
        items.sort_unstable_by_key(key);
        let mut rest = &mut items[..];
        while let Some(first) = rest.first() {
            let slab = first.0.slab.clone();
            let Some(slab) = slab else { break };
            let is_of_arena = |item: &&Item| {
                item.0.slab.as_ref().is_some_and(|other| Arc::ptr_eq(&other.arena, &slab.arena))
            };
            let batch = rest.iter().take_while(is_of_arena);
            let slots = batch.map(|item| (&item.0.slot, item.0.len as usize));
            let Ok(count) = slab.arena.heap.free_batch(slots) else {
                debug_assert!(false, "an item is freed once");
                break;
            };
            let (freed, others) = rest.split_at_mut(count);
            for item in freed {
                // Without its slab, the item's drop frees nothing.
                item.0.slab = None;
            }
            rest = others;
        }
    }
}

impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draft").field("len", &self.len()).finish()
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Item").field(&self.remote_ptr()).finish()
    }
}
