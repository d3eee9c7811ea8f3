//! Partitions with their locks, and the spare slabs.

use parking_lot::Mutex;

use super::SizeClasses;
use super::partition::{ClassCounts, Freed, NotAllocated, Partition, Slab};

/// A slab allocator for several threads.
///
/// Locks are taken in this order: the spare slabs, then one partition at a time. A slab moves between partitions only
/// while the spare slabs are locked, so a thread that finds no free slot has seen every slab.
#[derive(Debug)]
pub(crate) struct Heap<T> {
    classes: SizeClasses,
    /// A power of two.
    partitions: Box<[Padded<Mutex<Partition<T>>>]>,
    spare: Mutex<Spare<T>>,
}

/// The slabs that belong to no partition.
#[derive(Debug)]
struct Spare<T> {
    slabs: Vec<Box<Slab<T>>>,
    counts: HeapCounts,
}

/// Counts of rare events since the heap was created.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct HeapCounts {
    /// The number of slabs that were given to a class of a partition.
    pub(crate) assigned_slabs: u64,
    /// The number of slabs that became spare after all their items were freed.
    pub(crate) returned_slabs: u64,
    /// The number of slots that a thread took from another partition than its own.
    pub(crate) borrowed_slots: u64,
    /// The number of allocations that failed because no slot and no slab was free.
    pub(crate) failed_allocations: u64,
}

/// A snapshot of all counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Census {
    pub(crate) counts: HeapCounts,
    pub(crate) spare_slab_count: u64,
    pub(crate) classes: Vec<ClassCounts>,
}

/// An allocated slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Slot {
    /// The slab's place in the partition.
    place: u32,
    /// The slot's number in the slab.
    number: u32,
    partition: u16,
}

/// Aligns the locks of partitions, so that no two share a cache line, or a pair of lines that the CPU prefetches together.
#[derive(Debug)]
#[repr(align(128))]
struct Padded<T>(T);

/// The maximum number of slots that are freed under one lock.
const MAX_FREE_BATCH: usize = 256;

impl Slot {
    /// Returns the offset in the slab, for slots of this size.
    #[inline]
    pub(crate) fn offset(&self, size: u32) -> u32 {
        self.number * size
    }

    /// Returns the number of the partition that the slot's slab belongs to.
    #[inline]
    pub(crate) fn partition(&self) -> usize {
        self.partition.into()
    }
}

/// The maximum number of partitions.
pub(crate) const MAX_PARTITIONS: usize = 1 << 12;

impl<T: Clone> Heap<T> {
    /// Creates a heap without slabs. The number of partitions, at most [`MAX_PARTITIONS`], is rounded up to a power of two.
    pub(crate) fn new(classes: SizeClasses, partition_count: usize) -> Heap<T> {
        let count = partition_count.next_power_of_two();
        let partitions = (0..count).map(|_| Padded(Mutex::new(Partition::new(&classes)))).collect();
        let spare = Mutex::new(Spare { slabs: Vec::new(), counts: HeapCounts::default() });
        Heap { classes, partitions, spare }
    }

    pub(crate) fn classes(&self) -> &SizeClasses {
        &self.classes
    }

    /// Returns the number of partitions.
    pub(crate) fn partition_count(&self) -> usize {
        self.partitions.len()
    }

    /// Adds spare slabs, and allocates all memory that they will ever need.
    pub(crate) fn add_slabs(&self, tags: impl IntoIterator<Item = T>) {
        let max_slot_count = self.classes.slot_count(0) as usize;
        let slabs: Vec<_> = tags.into_iter().map(|tag| Box::new(Slab::new(tag, max_slot_count))).collect();
        let mut spare = self.spare.lock();
        let in_partitions: u64 = self.census_of_partitions().iter().map(|class| class.slab_count).sum();
        let total = in_partitions as usize + spare.slabs.len() + slabs.len();
        for partition in self.partitions() {
            partition.lock().reserve(total);
        }
        let additional = total - spare.slabs.len();
        spare.slabs.reserve(additional);
        // Slabs are taken from the end of the list, so slabs with low offsets are used first.
        spare.slabs.extend(slabs.into_iter().rev());
    }

    /// Allocates a slot of a class for an item of `len` bytes, preferably in this partition, and returns the tag of its
    /// slab. Returns `None` if no slot of the class and no slab is free in any partition.
    #[inline]
    pub(crate) fn alloc(&self, partition: usize, class: u16, len: usize) -> Option<(Slot, T)> {
        let index = partition & (self.partitions.len() - 1);
        self.alloc_in(index, class, len).or_else(|| self.alloc_slow(index, class, len))
    }

    /// Allocates a slot of a partition that has a free one.
    #[inline]
    fn alloc_in(&self, index: usize, class: u16, len: usize) -> Option<(Slot, T)> {
        let mut partition = self.partitions[index].0.lock();
        let (place, number, tag) = partition.alloc(class, len)?;
        Some((Slot { place, number, partition: index as u16 }, tag.clone()))
    }

    #[cold]
    fn alloc_slow(&self, index: usize, class: u16, len: usize) -> Option<(Slot, T)> {
        let mut spare = self.spare.lock();
        // Another thread may have freed a slot or added a slab before the lock was acquired.
        if let Some(slot) = self.alloc_in(index, class, len) {
            return Some(slot);
        }
        let count = self.partitions.len();
        // This partition first, then the others, beginning with the next one.
        let order = || (0..count).map(|step| (index + step) & (count - 1));
        let take_empty = |index: usize| self.partitions[index].0.lock().take_empty(0);
        if let Some(slab) = spare.slabs.pop().or_else(|| order().find_map(take_empty)) {
            spare.counts.assigned_slabs += 1;
            let mut partition = self.partitions[index].0.lock();
            partition.add(slab, class, self.classes.slot_count(class));
            let (place, number, tag) = partition.alloc(class, len)?;
            return Some((Slot { place, number, partition: index as u16 }, tag.clone()));
        }
        let slot = order().find_map(|index| self.alloc_in(index, class, len));
        match slot {
            Some(_) => spare.counts.borrowed_slots += 1,
            None => spare.counts.failed_allocations += 1,
        }
        slot
    }

    /// Frees the slot of an item of `len` bytes.
    ///
    /// # Errors
    ///
    /// Returns an error, and changes nothing, if the slot isn't allocated.
    #[inline]
    pub(crate) fn free(&self, slot: Slot, len: usize) -> Result<(), NotAllocated> {
        let index = slot.partition as usize;
        let freed = self.partitions[index].0.lock().free(slot.place, slot.number, len)?;
        match freed {
            Freed::Kept => {}
            Freed::Surplus(class) => self.return_surplus(index, Some(class)),
            // The slab is dropped without a lock, because dropping the resources of its tag may take long.
            Freed::Retired(slab) => drop(slab),
        }
        Ok(())
    }

    /// Frees the first items of a list that belong to one partition, under one lock, and returns their number.
    ///
    /// # Errors
    ///
    /// Returns an error if the first slot isn't allocated. The function stops before another slot that isn't.
    pub(crate) fn free_batch<'a>(
        &self,
        slots: impl IntoIterator<Item = (&'a Slot, usize)>,
    ) -> Result<usize, NotAllocated> {
        let mut slots = slots.into_iter().take(MAX_FREE_BATCH).peekable();
        let Some(&(&Slot { partition: index, .. }, _)) = slots.peek() else { return Ok(0) };
        let mut partition = self.partitions[index as usize].0.lock();
        let (mut count, mut has_surplus, mut retired) = (0, false, Vec::new());
        while let Some((slot, len)) = slots.next_if(|(slot, _)| slot.partition == index) {
            match partition.free(slot.place, slot.number, len) {
                Ok(Freed::Kept) => {}
                Ok(Freed::Surplus(_)) => has_surplus = true,
                Ok(Freed::Retired(slab)) => retired.push(slab),
                Err(error) if count == 0 => return Err(error),
                Err(_) => break,
            }
            count += 1;
        }
        drop(partition);
        drop(retired);
        if has_surplus {
            self.return_surplus(index.into(), None);
        }
        Ok(count)
    }

    /// Makes empty slabs of a partition spare, except for one of each class.
    #[cold]
    fn return_surplus(&self, index: usize, class: Option<u16>) {
        let mut spare = self.spare.lock();
        let mut partition = self.partitions[index].0.lock();
        let mut take = || match class {
            Some(class) => partition.take_empty_of(class, 1),
            None => partition.take_empty(1),
        };
        while let Some(slab) = take() {
            spare.counts.returned_slabs += 1;
            spare.slabs.push(slab);
        }
    }

    /// Withdraws the slabs whose tags match: nothing is allocated from them anymore. Slabs without items are dropped now,
    /// the others with their last item. Returns the number of items in them.
    pub(crate) fn withdraw(&self, matches: impl Fn(&T) -> bool) -> u64 {
        // Declared first, so that the slabs are dropped after the locks are released.
        let mut removed = Vec::new();
        let mut spare = self.spare.lock();
        removed.extend(spare.slabs.extract_if(.., |slab| matches(slab.tag())));
        let mut item_count = 0;
        for partition in self.partitions() {
            item_count += partition.lock().withdraw(&matches, |slab| removed.push(slab));
        }
        drop(spare);
        item_count
    }

    /// Returns all counts. The counts of an allocation that runs at the same time may be included only in part.
    pub(crate) fn census(&self) -> Census {
        let spare = self.spare.lock();
        Census {
            counts: spare.counts,
            spare_slab_count: spare.slabs.len() as u64,
            classes: self.census_of_partitions(),
        }
    }

    fn census_of_partitions(&self) -> Vec<ClassCounts> {
        let mut classes = vec![ClassCounts::default(); self.classes.len()];
        for partition in self.partitions() {
            partition.lock().count(&mut classes);
        }
        classes
    }

    fn partitions(&self) -> impl Iterator<Item = &Mutex<Partition<T>>> {
        self.partitions.iter().map(|partition| &partition.0)
    }
}
