//! The slabs of one partition.

use super::SizeClasses;
use super::slot_set::SlotSet;

/// A slab. It moves between the spare slabs and the partitions.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    tag: T,
    class: u16,
    state: SlabState,
    /// The neighbors in the list of its class, while it is [`SlabState::Listed`].
    previous: u32,
    next: u32,
    slot_count: u32,
    used_count: u32,
    free: SlotSet,
}

/// The relation of a slab to the list of its class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlabState {
    /// It has free slots and is in the list.
    Listed,
    /// It has no free slots, so it is not in the list.
    Full,
    /// It is withdrawn, so it is not in the list. It leaves the partition when its last slot is freed.
    Retiring,
}

/// The slabs of one partition, by class.
#[derive(Debug)]
pub(crate) struct Partition<T> {
    /// A slab stays at its place while it is in the partition.
    slabs: Vec<Option<Box<Slab<T>>>>,
    /// The places in `slabs` that have no slab.
    vacant: Vec<u32>,
    classes: Box<[Class]>,
}

/// The slabs of one class in a partition.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// The list of slabs with free slots. Empty slabs are at its end, so that they stay empty.
    head: u32,
    tail: u32,
    /// The number of empty slabs in the list.
    empty_count: u32,
    counts: ClassCounts,
}

/// The counts of a class in a partition, or in all.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct ClassCounts {
    /// The number of slabs.
    pub(crate) slab_count: u64,
    /// The number of slabs without items.
    pub(crate) empty_slab_count: u64,
    /// The number of slots in all slabs.
    pub(crate) slot_count: u64,
    /// The number of items.
    pub(crate) item_count: u64,
    /// The lengths of all items together.
    pub(crate) item_bytes: u64,
}

/// The consequence of freeing a slot.
#[derive(Debug)]
pub(crate) enum Freed<T> {
    /// The slab stays.
    Kept,
    /// The class now has more than one empty slab.
    Surplus(u16),
    /// The slab was withdrawn, and this was its last slot.
    Retired(Box<Slab<T>>),
}

/// The slot isn't allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotAllocated;

/// No slab, in a list.
const NONE: u32 = u32::MAX;

impl<T> Slab<T> {
    /// Creates a slab with at most `max_slot_count` slots.
    pub(crate) fn new(tag: T, max_slot_count: usize) -> Slab<T> {
        Slab {
            tag,
            class: 0,
            state: SlabState::Full,
            previous: NONE,
            next: NONE,
            slot_count: 0,
            used_count: 0,
            free: SlotSet::with_capacity(max_slot_count),
        }
    }

    pub(crate) fn tag(&self) -> &T {
        &self.tag
    }
}

impl<T> Partition<T> {
    /// Creates a partition without slabs.
    pub(crate) fn new(classes: &SizeClasses) -> Partition<T> {
        let class = Class { head: NONE, tail: NONE, empty_count: 0, counts: ClassCounts::default() };
        Partition { slabs: Vec::new(), vacant: Vec::new(), classes: vec![class; classes.len()].into() }
    }

    /// Allocates memory for places until there are `count`, so that [`add`](Partition::add) allocates none.
    pub(crate) fn reserve(&mut self, count: usize) {
        let added = self.slabs.len()..count.max(self.slabs.len());
        // In descending order, because places are taken from the end.
        self.vacant.reserve(count);
        self.vacant.splice(0..0, added.clone().rev().map(|place| place as u32));
        self.slabs.resize_with(added.end, || None);
    }

    /// Takes a slot of a class for an item of `len` bytes. Returns the slab's place and tag, and the slot's number.
    #[inline]
    pub(crate) fn alloc(&mut self, class: u16, len: usize) -> Option<(u32, u32, &T)> {
        let list = &mut self.classes[class as usize];
        let place = list.head;
        let slab = self.slabs.get_mut(place as usize)?.as_mut()?;
        let slot = slab.free.take()?;
        if slab.used_count == 0 {
            list.empty_count -= 1;
        }
        slab.used_count += 1;
        list.counts.item_count += 1;
        list.counts.item_bytes += len as u64;
        if slab.used_count == slab.slot_count {
            slab.state = SlabState::Full;
            self.unlink(place);
        }
        let slab = self.slabs[place as usize].as_ref()?;
        Some((place, slot, &slab.tag))
    }

    /// Frees the slot of an item of `len` bytes.
    ///
    /// # Errors
    ///
    /// Returns an error, and changes nothing, if the slot isn't allocated.
    #[inline]
    pub(crate) fn free(&mut self, place: u32, slot: u32, len: usize) -> Result<Freed<T>, NotAllocated> {
        let slab = self.slabs.get_mut(place as usize).and_then(Option::as_mut).ok_or(NotAllocated)?;
        if slot >= slab.slot_count || !slab.free.insert(slot) {
            return Err(NotAllocated);
        }
        slab.used_count -= 1;
        let (class, used_count) = (slab.class, slab.used_count);
        let list = &mut self.classes[class as usize];
        list.counts.item_count -= 1;
        list.counts.item_bytes -= len as u64;
        match slab.state {
            SlabState::Listed if used_count > 0 => Ok(Freed::Kept),
            SlabState::Listed => {
                // An empty slab moves to the end of the list. The last slab is there already.
                if list.tail != place {
                    self.unlink(place);
                    self.link(place, class, End::Back);
                }
                Ok(self.count_empty(class))
            }
            SlabState::Full => {
                slab.state = SlabState::Listed;
                if used_count == 0 {
                    return Ok(self.link_empty(place, class));
                }
                self.link(place, class, End::Front);
                Ok(Freed::Kept)
            }
            SlabState::Retiring if used_count == 0 => {
                Ok(self.remove_unlisted(place).map_or(Freed::Kept, Freed::Retired))
            }
            SlabState::Retiring => Ok(Freed::Kept),
        }
    }

    /// Adds a slab without items, and divides it into slots of a class.
    pub(crate) fn add(&mut self, mut slab: Box<Slab<T>>, class: u16, slot_count: u32) {
        slab.class = class;
        slab.slot_count = slot_count;
        slab.used_count = 0;
        slab.state = SlabState::Listed;
        slab.free.fill(slot_count as usize);
        let counts = &mut self.classes[class as usize].counts;
        counts.slab_count += 1;
        counts.slot_count += u64::from(slot_count);
        let place = match self.vacant.pop() {
            Some(place) => {
                self.slabs[place as usize] = Some(slab);
                place
            }
            None => {
                self.slabs.push(Some(slab));
                self.slabs.len() as u32 - 1
            }
        };
        // The caller allocates from the slab at once, so a second empty slab is no surplus.
        let _ = self.link_empty(place, class);
    }

    /// Removes an empty slab of a class, if there are more than `keep`.
    pub(crate) fn take_empty_of(&mut self, class: u16, keep: u32) -> Option<Box<Slab<T>>> {
        let list = &mut self.classes[class as usize];
        if list.empty_count <= keep {
            return None;
        }
        list.empty_count -= 1;
        let place = list.tail;
        self.unlink(place);
        self.remove_unlisted(place)
    }

    /// Removes an empty slab of any class that has more than `keep`.
    pub(crate) fn take_empty(&mut self, keep: u32) -> Option<Box<Slab<T>>> {
        let class = self.classes.iter().position(|class| class.empty_count > keep)?;
        self.take_empty_of(class as u16, keep)
    }

    /// Withdraws the slabs whose tags match. Passes those without items to `removed`; the others stay until their last
    /// slot is freed, and nothing is allocated from them. Returns the number of their items.
    pub(crate) fn withdraw(
        &mut self,
        matches: impl Fn(&T) -> bool,
        mut removed: impl FnMut(Box<Slab<T>>),
    ) -> u64 {
        let mut item_count = 0;
        for place in 0..self.slabs.len() as u32 {
            let Some(slab) = self.slabs[place as usize].as_mut().filter(|slab| matches(&slab.tag)) else {
                continue;
            };
            let was_listed = slab.state == SlabState::Listed;
            slab.state = SlabState::Retiring;
            let (used_count, class) = (slab.used_count, slab.class);
            item_count += u64::from(used_count);
            if was_listed {
                self.unlink(place);
            }
            if used_count == 0 {
                self.classes[class as usize].empty_count -= 1;
                self.remove_unlisted(place).into_iter().for_each(&mut removed);
            }
        }
        item_count
    }

    /// Adds the counts of each class to those of `counts`.
    pub(crate) fn count(&self, counts: &mut [ClassCounts]) {
        for (class, sum) in self.classes.iter().zip(counts) {
            sum.slab_count += class.counts.slab_count;
            sum.empty_slab_count += u64::from(class.empty_count);
            sum.slot_count += class.counts.slot_count;
            sum.item_count += class.counts.item_count;
            sum.item_bytes += class.counts.item_bytes;
        }
    }

    /// Adds a slab without items to the end of its list.
    fn link_empty(&mut self, place: u32, class: u16) -> Freed<T> {
        self.link(place, class, End::Back);
        self.count_empty(class)
    }

    /// Counts one more empty slab.
    #[inline]
    fn count_empty(&mut self, class: u16) -> Freed<T> {
        let list = &mut self.classes[class as usize];
        list.empty_count += 1;
        if list.empty_count > 1 { Freed::Surplus(class) } else { Freed::Kept }
    }

    /// Adds a slab to the list of its class.
    fn link(&mut self, place: u32, class: u16, end: End) {
        let list = &mut self.classes[class as usize];
        let (previous, next) = match end {
            End::Front => (NONE, std::mem::replace(&mut list.head, place)),
            End::Back => (std::mem::replace(&mut list.tail, place), NONE),
        };
        if previous == NONE {
            list.head = place;
        }
        if next == NONE {
            list.tail = place;
        }
        if let Some(slab) = self.slab_mut(previous) {
            slab.next = place;
        }
        if let Some(slab) = self.slab_mut(next) {
            slab.previous = place;
        }
        if let Some(slab) = self.slab_mut(place) {
            (slab.previous, slab.next) = (previous, next);
        }
    }

    /// Removes a slab from the list of its class.
    fn unlink(&mut self, place: u32) {
        let Some(slab) = self.slab_mut(place) else { return };
        let class = slab.class as usize;
        let previous = std::mem::replace(&mut slab.previous, NONE);
        let next = std::mem::replace(&mut slab.next, NONE);
        match self.slab_mut(previous) {
            Some(slab) => slab.next = next,
            None => self.classes[class].head = next,
        }
        match self.slab_mut(next) {
            Some(slab) => slab.previous = previous,
            None => self.classes[class].tail = previous,
        }
    }

    fn slab_mut(&mut self, place: u32) -> Option<&mut Slab<T>> {
        self.slabs.get_mut(place as usize)?.as_deref_mut()
    }

    /// Removes a slab that is in no list.
    fn remove_unlisted(&mut self, place: u32) -> Option<Box<Slab<T>>> {
        let slab = self.slabs.get_mut(place as usize)?.take()?;
        // The list is never longer than the number of places, for which memory is reserved.
        self.vacant.push(place);
        let counts = &mut self.classes[slab.class as usize].counts;
        counts.slab_count -= 1;
        counts.slot_count -= u64::from(slab.slot_count);
        Some(slab)
    }
}

/// An end of a list.
enum End {
    Front,
    Back,
}
