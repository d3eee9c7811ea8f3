//! Counts of an arena, and its fragmentation.

use std::fmt;
use std::sync::Arc;

use super::item::SlabMemory;
use super::segment::{Segment, SegmentKind};
use crate::slab::{ClassCounts, Heap};

/// Counts of an [`Arena`](super::Arena), returned by [`stats`](super::Arena::stats). `Display` prints a fragmentation
/// report.
///
/// Bytes of slabs that hold no item's data are of three kinds: unused parts of slots ([`padding_bytes`]), free slots in
/// slabs with items ([`free_slot_bytes`]), and the ends of slabs that are too short for a slot ([`tail_bytes`]). Slabs
/// without items serve any slot size, so they aren't fragmented.
///
/// [`padding_bytes`]: ClassStats::padding_bytes
/// [`free_slot_bytes`]: ClassStats::free_slot_bytes
/// [`tail_bytes`]: ClassStats::tail_bytes
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ArenaStats {
    /// The number of segments, without withdrawn ones.
    pub segment_count: usize,
    /// The bytes of allocated segments.
    pub allocated_bytes: u64,
    /// The bytes of allocated segments in huge pages.
    pub huge_page_bytes: u64,
    /// The bytes of lent segments.
    pub lent_bytes: u64,
    /// The size of a slab in bytes.
    pub slab_size: usize,
    /// The number of slabs, including those of withdrawn segments that still have items.
    pub slab_count: u64,
    /// The number of slabs that belong to no partition.
    pub spare_slab_count: u64,
    /// The number of times that a slab was assigned to a slot size of a partition.
    pub assigned_slabs: u64,
    /// The number of times that a partition returned a slab without items.
    pub returned_slabs: u64,
    /// The number of items that were allocated in another partition than requested, because no slab was left.
    pub borrowed_slots: u64,
    /// The number of allocations that failed because the arena was full.
    pub failed_allocations: u64,
    /// The counts for each slot size that has slabs, in ascending order.
    pub classes: Vec<ClassStats>,
}

/// Counts of one slot size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ClassStats {
    /// The size of a slot in bytes.
    pub slot_size: usize,
    /// The number of slots in a slab.
    pub slots_per_slab: u64,
    /// The number of slabs.
    pub slab_count: u64,
    /// The number of slabs without items.
    pub empty_slab_count: u64,
    /// The number of items.
    pub item_count: u64,
    /// The lengths of all items together.
    pub item_bytes: u64,
    /// The bytes of slots with items that the items don't use.
    pub padding_bytes: u64,
    /// The bytes of free slots in slabs that have items.
    pub free_slot_bytes: u64,
    /// The bytes at the ends of slabs with items that are too short for a slot.
    pub tail_bytes: u64,
}

impl ArenaStats {
    /// Returns the number of items.
    pub fn item_count(&self) -> u64 {
        self.classes.iter().map(|class| class.item_count).sum()
    }

    /// Returns the lengths of all items together.
    pub fn item_bytes(&self) -> u64 {
        self.classes.iter().map(|class| class.item_bytes).sum()
    }

    /// Returns the number of slabs without items, which serve any slot size.
    pub fn empty_slab_count(&self) -> u64 {
        self.spare_slab_count + self.classes.iter().map(|class| class.empty_slab_count).sum::<u64>()
    }

    /// Returns the unused fraction of the slabs that have items, from 0 to 1.
    pub fn fragmentation(&self) -> f64 {
        let occupied = (self.slab_count - self.empty_slab_count()) * self.slab_size as u64;
        if occupied == 0 { 0.0 } else { 1.0 - self.item_bytes() as f64 / occupied as f64 }
    }
}

impl ClassStats {
    /// Returns the number of slabs that would have no items if the items of this size were moved together.
    pub fn excess_slab_count(&self) -> u64 {
        self.slab_count - self.empty_slab_count - self.item_count.div_ceil(self.slots_per_slab)
    }
}

/// Collects the counts.
pub(super) fn collect(heap: &Heap<Arc<SlabMemory>>, segments: &[Arc<Segment>]) -> ArenaStats {
    let bytes_of = |is_counted: fn(SegmentKind) -> bool| {
        segments.iter().filter(|segment| is_counted(segment.kind)).map(|segment| segment.len() as u64).sum()
    };
    let census = heap.census();
    let slab_size = heap.classes().max_size();
    let in_partitions: u64 = census.classes.iter().map(|class| class.slab_count).sum();
    let class = |(number, counts): (usize, &ClassCounts)| {
        let number = number as u16;
        let slot_size = heap.classes().size(number) as usize;
        class_stats(slot_size, u64::from(heap.classes().slot_count(number)), slab_size, counts)
    };
    let held = census.classes.iter().enumerate().filter(|(_, counts)| counts.slab_count > 0);
    ArenaStats {
        segment_count: segments.len(),
        allocated_bytes: bytes_of(|kind| kind != SegmentKind::Lent),
        huge_page_bytes: bytes_of(|kind| kind == SegmentKind::HugePages),
        lent_bytes: bytes_of(|kind| kind == SegmentKind::Lent),
        slab_size,
        slab_count: in_partitions + census.spare_slab_count,
        spare_slab_count: census.spare_slab_count,
        assigned_slabs: census.counts.assigned_slabs,
        returned_slabs: census.counts.returned_slabs,
        borrowed_slots: census.counts.borrowed_slots,
        failed_allocations: census.counts.failed_allocations,
        classes: held.map(class).collect(),
    }
}

fn class_stats(slot_size: usize, slots_per_slab: u64, slab_size: usize, counts: &ClassCounts) -> ClassStats {
    let occupied = counts.slab_count - counts.empty_slab_count;
    let slot_bytes = slot_size as u64;
    ClassStats {
        slot_size,
        slots_per_slab,
        slab_count: counts.slab_count,
        empty_slab_count: counts.empty_slab_count,
        item_count: counts.item_count,
        item_bytes: counts.item_bytes,
        padding_bytes: counts.item_count * slot_bytes - counts.item_bytes,
        free_slot_bytes: (occupied * slots_per_slab - counts.item_count) * slot_bytes,
        tail_bytes: occupied * (slab_size as u64 - slots_per_slab * slot_bytes),
    }
}

impl fmt::Display for ArenaStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} segments: {} bytes allocated ({} in huge pages), {} bytes lent",
            self.segment_count, self.allocated_bytes, self.huge_page_bytes, self.lent_bytes
        )?;
        writeln!(
            f,
            "{} slabs of {} bytes: {} empty; {} assigned and {} returned so far; {} failed allocations",
            self.slab_count,
            self.slab_size,
            self.empty_slab_count(),
            self.assigned_slabs,
            self.returned_slabs,
            self.failed_allocations
        )?;
        write!(
            f,
            "{} items of {} bytes; {:.1} % of their slabs is unused",
            self.item_count(),
            self.item_bytes(),
            100.0 * self.fragmentation()
        )?;
        if self.classes.is_empty() {
            return Ok(());
        }
        write!(
            f,
            "\n\n{:>10} {:>6} {:>6} {:>10} {:>12} {:>12} {:>12} {:>10} {:>7}",
            "slot size",
            "slabs",
            "empty",
            "items",
            "item bytes",
            "padding",
            "free slots",
            "slab ends",
            "excess"
        )?;
        for class in &self.classes {
            write!(
                f,
                "\n{:>10} {:>6} {:>6} {:>10} {:>12} {:>12} {:>12} {:>10} {:>7}",
                class.slot_size,
                class.slab_count,
                class.empty_slab_count,
                class.item_count,
                class.item_bytes,
                class.padding_bytes,
                class.free_slot_bytes,
                class.tail_bytes,
                class.excess_slab_count()
            )?;
        }
        Ok(())
    }
}
