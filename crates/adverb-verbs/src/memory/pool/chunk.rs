//! What a pool grows by.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

use super::Shared;
use crate::error::{Error, Result};
use crate::memory::{Pages, Region};
use crate::{Access, ProtectionDomain};

/// Registered memory, cut into slots of one length.
pub(in crate::memory) struct Chunk {
    pub(in crate::memory) region: Arc<Region>,
    /// How many buffers share each slot; 1 for those that are free.
    counts: Box<[AtomicU32]>,
    slot_len: u32,
    /// Where its slots go home.
    pub(super) pool: Arc<Shared>,
    pub(super) partition: usize,
    pub(super) class: usize,
    /// Its place among the class' chunks, known when it gets there.
    pub(super) id: AtomicUsize,
}

impl Chunk {
    /// A chunk of `count` slots of a class.
    pub(super) fn new(
        domain: &ProtectionDomain,
        pool: &Arc<Shared>,
        (partition, class): (usize, usize),
        slot_len: usize,
        count: usize,
    ) -> Result<Arc<Chunk>> {
        let len = slot_len * count;
        let pages = if len >= HUGE_PAGE { Pages::prefer_huge(len) } else { Pages::new(len) };
        let pages = pages.map_err(|error| Error::Allocation { len, error })?;
        let region = domain.register(pages, Access::LOCAL_WRITE)?;
        // Nothing else can be the matter: the pages are our own, and so are the rights.
        let region = region.into_private().map_err(|_| Error::InvalidRequest {
            reason: "a pool's memory must be out of anybody else's reach".into(),
        })?;
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

    /// Where its memory is registered.
    pub(in crate::memory) fn domain(&self) -> &ProtectionDomain {
        &self.pool.domain
    }

    pub(super) fn len(&self) -> usize {
        self.region.len
    }

    /// How many slots it has.
    #[inline]
    pub(super) fn slot_count(&self) -> usize {
        self.counts.len()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.pool.deregistered(self.len());
    }
}

const HUGE_PAGE: usize = 2 << 20;

/// A part of a chunk, and one share in it.
///
/// It is made with its chunk, and travels from the pool to a buffer and back; so neither counts references.
pub(in crate::memory) struct Slot {
    pub(in crate::memory) chunk: Arc<Chunk>,
    pub(in crate::memory) index: u32,
}

impl Slot {
    /// All slots of a new chunk, each once.
    pub(super) fn all_of(chunk: &Arc<Chunk>) -> Vec<Slot> {
        // The first is at the end, where slots are taken.
        let indices = (0..chunk.slot_count() as u32).rev();
        indices.map(|index| Slot { chunk: Arc::clone(chunk), index }).collect()
    }

    /// Where it begins in the chunk's region.
    #[inline]
    pub(in crate::memory) fn start(&self) -> u32 {
        self.index * self.chunk.slot_len
    }

    /// How long it is.
    #[inline]
    pub(in crate::memory) fn len(&self) -> u32 {
        self.chunk.slot_len
    }

    /// Another share in the slot: for who has a part of it.
    pub(in crate::memory) fn share(chunk: &Arc<Chunk>, index: u32) -> Slot {
        let slot = Slot { chunk: Arc::clone(chunk), index };
        let shares = slot.count().fetch_add(1, Ordering::Relaxed);
        // Only who forgets shares can get there, and then the count would go wrong.
        if shares > i32::MAX as u32 {
            std::process::abort();
        }
        slot
    }

    /// Ends a share. The last takes the slot home.
    #[inline]
    pub(in crate::memory) fn end_share(self) {
        // What others did with their parts comes before what is done with the slot from here on.
        if self.count().load(Ordering::Acquire) != 1 {
            if self.count().fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            fence(Ordering::Acquire);
            self.count().store(1, Ordering::Relaxed);
        }
        Shared::take_home(self);
    }

    fn count(&self) -> &AtomicU32 {
        &self.chunk.counts[self.index as usize]
    }
}
