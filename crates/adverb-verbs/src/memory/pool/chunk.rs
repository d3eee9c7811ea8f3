//! The chunks of a pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

use adverb_proto::types::Access;

use super::Shared;
use crate::device::ProtectionDomain;
use crate::error::{Error, Result};
use crate::memory::{Pages, Region};

/// Registered memory, divided into slots of one length.
pub(in crate::memory) struct Chunk {
    pub(in crate::memory) region: Arc<Region>,
    /// For each slot, the number of buffers that share it. The number of a free slot is 1.
    counts: Box<[AtomicU32]>,
    slot_len: u32,
    /// The pool that owns the chunk. A freed slot returns to the size class `class` of the pool's partition `partition`.
    pub(super) pool: Arc<Shared>,
    pub(super) partition: usize,
    pub(super) class: usize,
    /// The chunk's index among the chunks of its class. The index is set when the chunk is added to the class.
    pub(super) id: AtomicUsize,
}

impl Chunk {
    /// Allocates and registers a chunk with `count` slots of `slot_len` bytes, for a partition and a size class of the pool.
    pub(super) fn new(
        domain: &ProtectionDomain,
        pool: &Arc<Shared>,
        (partition, class): (usize, usize),
        slot_len: usize,
        count: usize,
    ) -> Result<Arc<Chunk>> {
        let len = slot_len * count;
        let pages = if len >= HUGE_PAGE { Pages::prefer_huge(len) } else { Pages::new(len) };
        let pages = pages.map_err(|source| Error::Allocation { len, source })?;
        let region = domain.register(pages, Access::LOCAL_WRITE)?;
        // This can't fail: no other process can access the pages, and the rights are local.
        let region = region
            .into_private()
            .map_err(|_| Error::InvalidRequest { reason: "a pool's memory must be private".into() })?;
        Ok(Arc::new(Chunk {
            region,
            counts: (0..count).map(|_| AtomicU32::new(1)).collect(),
            slot_len: slot_len as u32,
            pool: Arc::clone(pool),
            partition,
            class,
            id: AtomicUsize::new(0),
        }))
    }

    /// Returns the protection domain in which the chunk is registered.
    pub(in crate::memory) fn domain(&self) -> &ProtectionDomain {
        &self.pool.domain
    }

    pub(super) fn len(&self) -> usize {
        self.region.len
    }

    /// Returns the number of slots.
    #[inline]
    pub(super) fn slot_count(&self) -> usize {
        self.counts.len()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.pool.record_deregistered(self.len());
    }
}

const HUGE_PAGE: usize = 2 << 20;

/// A share of one slot of a chunk. A slot with two buffers, for example after a split, has two shares.
///
/// The first share of each slot is created with the chunk, and moves from the pool to a buffer and back, together with its
/// reference to the chunk. So allocating and freeing a buffer don't change the chunk's reference count.
pub(in crate::memory) struct Slot {
    pub(in crate::memory) chunk: Arc<Chunk>,
    pub(in crate::memory) index: u32,
}

impl Slot {
    /// Returns the first share of each slot of a new chunk.
    pub(super) fn all_of(chunk: &Arc<Chunk>) -> Vec<Slot> {
        // The pool takes slots from the end of the list, so the list begins with the chunk's last slot.
        let indices = (0..chunk.slot_count() as u32).rev();
        indices.map(|index| Slot { chunk: Arc::clone(chunk), index }).collect()
    }

    /// Returns the slot's offset in the chunk's region.
    #[inline]
    pub(in crate::memory) fn start(&self) -> u32 {
        self.index * self.chunk.slot_len
    }

    /// Returns the slot's length in bytes.
    #[inline]
    pub(in crate::memory) fn len(&self) -> u32 {
        self.chunk.slot_len
    }

    /// Creates another share of a slot, for a buffer that is split off another buffer.
    pub(in crate::memory) fn share(chunk: &Arc<Chunk>, index: u32) -> Slot {
        let slot = Slot { chunk: Arc::clone(chunk), index };
        let shares = slot.count().fetch_add(1, Ordering::Relaxed);
        // Only a program that leaks shares reaches this count. If it continued, the count could overflow.
        if shares > i32::MAX as u32 {
            std::process::abort();
        }
        slot
    }

    /// Ends a share. The end of a slot's last share returns the slot to the pool.
    #[inline]
    pub(in crate::memory) fn end_share(self) {
        // `Acquire` makes all accesses through shares that have ended happen before the next use of the slot.
        if self.count().load(Ordering::Acquire) != 1 {
            if self.count().fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            fence(Ordering::Acquire);
            self.count().store(1, Ordering::Relaxed);
        }
        Shared::return_slot(self);
    }

    fn count(&self) -> &AtomicU32 {
        &self.chunk.counts[self.index as usize]
    }
}
