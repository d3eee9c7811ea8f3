//! Segments: the registered memory of an arena.

use std::sync::Weak;

use adverb_verbs::Access;
use adverb_verbs::memory::{MemoryRegion, RemoteMemory};

/// A description of a segment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SegmentInfo {
    /// The segment's number. An arena never uses a number for two segments.
    pub id: u32,
    /// The length in bytes.
    pub len: usize,
    /// The access rights that the segment is registered with.
    pub access: Access,
    /// The kind of memory.
    pub kind: SegmentKind,
    /// The addresses and remote keys with which peers access the segment, one for each protection domain of the arena, in
    /// the order of [`ArenaBuilder::create`](super::ArenaBuilder::create).
    pub remotes: Vec<RemoteMemory>,
}

/// The kind of a segment's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SegmentKind {
    /// Allocated in huge pages of 2 MiB that the system had reserved. Items are allocated in it.
    HugePages,
    /// Allocated in ordinary pages, because the system had too few huge pages reserved. The pages are aligned to 2 MiB and
    /// marked with `MADV_HUGEPAGE`, so the system may merge them into huge pages. Items are allocated in it.
    OrdinaryPages,
    /// Lent by the caller. The arena allocates no items in it.
    Lent,
}

/// The registered memory of a segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) id: u32,
    pub(super) kind: SegmentKind,
    /// The same memory, registered in each protection domain of the arena.
    pub(crate) regions: Box<[MemoryRegion]>,
}

/// A withdrawn segment.
///
/// The memory stays registered, and peers can access it, until the items in it have been dropped and all requests that
/// use it have completed.
#[derive(Clone, Debug)]
pub struct Withdrawal {
    pub(super) item_count: u64,
    pub(super) segment: Weak<Segment>,
}

impl Segment {
    pub(super) fn info(&self) -> SegmentInfo {
        SegmentInfo {
            id: self.id,
            len: self.len(),
            access: self.regions[0].access(),
            kind: self.kind,
            remotes: self.regions.iter().map(MemoryRegion::remote).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.regions[0].len()
    }
}

impl Withdrawal {
    /// Returns the number of items that were in the segment when it was withdrawn.
    pub fn item_count(&self) -> u64 {
        self.item_count
    }

    /// Whether the arena has released the memory: no item is left in it, and no peer of a broker that announced it may
    /// use it. The memory is deregistered then, unless requests that use it are outstanding or, for a lent segment, the
    /// caller has handles to it.
    pub fn is_released(&self) -> bool {
        self.segment.strong_count() == 0
    }
}
