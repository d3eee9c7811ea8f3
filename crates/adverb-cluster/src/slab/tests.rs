//! The allocator against a model, and under contention.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;

const SLAB_SIZE: usize = 8192;

fn heap<T: Clone>(partition_count: usize) -> Heap<T> {
    let layout = Layout { slab_size: SLAB_SIZE, min_item_size: 64, growth_factor: 1.5, item_align: 64 };
    Heap::new(SizeClasses::new(&layout).unwrap(), partition_count)
}

/// A slab's tag: the segment and the slab's number in it. The model has one more reference to it than the heap.
type Tag = Arc<(u32, u32)>;

#[derive(Debug)]
struct ModelSlab {
    tag: Tag,
    is_withdrawn: bool,
    /// The class and the slots' offsets of its items.
    class: u16,
    offsets: Vec<u32>,
}

struct ModelItem {
    slot: Slot,
    tag: Tag,
    len: usize,
    offset: u32,
}

#[derive(Default)]
struct Model {
    slabs: BTreeMap<(u32, u32), ModelSlab>,
    items: Vec<ModelItem>,
    segment_count: u32,
}

#[derive(Clone, Debug)]
enum SlabStep {
    Alloc { partition: usize, len: usize },
    Free(prop::sample::Index),
    FreeMany { start: prop::sample::Index, count: usize },
    Add { slab_count: u32 },
    Withdraw(prop::sample::Index),
}

fn step() -> impl Strategy<Value = SlabStep> {
    let alloc = |lens| (0..8usize, lens).prop_map(|(partition, len)| SlabStep::Alloc { partition, len });
    prop_oneof![
        20 => alloc(0..9000usize),
        20 => alloc(0..600usize),
        20 => any::<prop::sample::Index>().prop_map(SlabStep::Free),
        3 => (any::<prop::sample::Index>(), 0..40usize).prop_map(|(start, count)| SlabStep::FreeMany { start, count }),
        1 => (0..5u32).prop_map(|slab_count| SlabStep::Add { slab_count }),
        1 => any::<prop::sample::Index>().prop_map(SlabStep::Withdraw),
    ]
}

impl Model {
    fn add(&mut self, heap: &Heap<Tag>, slab_count: u32) {
        let segment = self.segment_count;
        self.segment_count += 1;
        let tags: Vec<Tag> = (0..slab_count).map(|slab| Arc::new((segment, slab))).collect();
        heap.add_slabs(tags.iter().cloned());
        for tag in tags {
            let slab = ModelSlab { tag: tag.clone(), is_withdrawn: false, class: 0, offsets: Vec::new() };
            self.slabs.insert(*tag, slab);
        }
    }

    fn alloc(&mut self, heap: &Heap<Tag>, partition: usize, len: usize) {
        let Some(class) = heap.classes().class_of(len) else {
            assert!(len > SLAB_SIZE);
            return;
        };
        let size = heap.classes().size(class);
        let Some((slot, tag)) = heap.alloc(partition, class, len) else {
            for slab in self.slabs.values().filter(|slab| !slab.is_withdrawn) {
                assert!(!slab.offsets.is_empty(), "an empty slab is left: {slab:?}");
                let is_full = slab.offsets.len() as u32 == heap.classes().slot_count(class);
                assert!(slab.class != class || is_full, "a slot is left: {slab:?}");
            }
            return;
        };
        let offset = slot.offset(size);
        assert!(offset + size <= SLAB_SIZE as u32 && offset.is_multiple_of(64) && size as usize >= len);
        let slab = self.slabs.get_mut(&tag).unwrap();
        assert!(!slab.is_withdrawn);
        if slab.offsets.is_empty() {
            slab.class = class;
        }
        // Slots of one class are either the same or disjoint.
        assert!(slab.class == class && !slab.offsets.contains(&offset), "{slab:?}");
        slab.offsets.push(offset);
        self.items.push(ModelItem { slot, tag, len, offset });
    }

    fn forget(&mut self, item: &ModelItem) {
        let slab = self.slabs.get_mut(&item.tag).unwrap();
        slab.offsets.retain(|offset| *offset != item.offset);
    }

    fn free(&mut self, heap: &Heap<Tag>, index: usize) {
        let item = self.items.swap_remove(index);
        heap.free(item.slot, item.len).unwrap();
        self.forget(&item);
        assert!(heap.free(item.slot, item.len).is_err(), "freed twice");
    }

    fn free_many(&mut self, heap: &Heap<Tag>, start: usize, count: usize) {
        let end = (start + count).min(self.items.len());
        let mut items: Vec<ModelItem> = self.items.drain(start..end).collect();
        items.sort_by_key(|item| item.slot.partition());
        let mut rest = &items[..];
        while !rest.is_empty() {
            let freed = heap.free_batch(rest.iter().map(|item| (&item.slot, item.len))).unwrap();
            assert!(freed > 0);
            rest = &rest[freed..];
        }
        items.iter().for_each(|item| self.forget(item));
    }

    fn withdraw(&mut self, heap: &Heap<Tag>, segment: u32) {
        let mut item_count = 0;
        for slab in self.slabs.values_mut().filter(|slab| slab.tag.0 == segment) {
            slab.is_withdrawn = true;
            item_count += slab.offsets.len() as u64;
        }
        assert_eq!(heap.withdraw(|tag| tag.0 == segment), item_count);
    }

    fn check(&self, heap: &Heap<Tag>) {
        let census = heap.census();
        let sum = |count: fn(&ClassCounts) -> u64| census.classes.iter().map(count).sum::<u64>();
        assert_eq!(sum(|class| class.item_count), self.items.len() as u64);
        assert_eq!(sum(|class| class.item_bytes), self.items.iter().map(|item| item.len as u64).sum());
        let held = self.slabs.values().filter(|slab| !slab.is_withdrawn || !slab.offsets.is_empty());
        assert_eq!(sum(|class| class.slab_count) + census.spare_slab_count, held.count() as u64);
        let empty = self.slabs.values().filter(|slab| !slab.is_withdrawn && slab.offsets.is_empty());
        assert_eq!(sum(|class| class.empty_slab_count) + census.spare_slab_count, empty.count() as u64);
        for slab in self.slabs.values() {
            let is_held = !slab.is_withdrawn || !slab.offsets.is_empty();
            assert_eq!(Arc::strong_count(&slab.tag), 1 + usize::from(is_held) + slab.offsets.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_heap_agrees_with_the_model(
        partition_count in 1..4usize,
        steps in proptest::collection::vec(step(), 1..400),
    ) {
        let (heap, mut model) = (heap(partition_count), Model::default());
        model.add(&heap, 4);
        for step in steps {
            match step {
                SlabStep::Alloc { partition, len } => model.alloc(&heap, partition, len),
                SlabStep::Free(_) | SlabStep::FreeMany { .. } if model.items.is_empty() => {}
                SlabStep::Free(index) => model.free(&heap, index.index(model.items.len())),
                SlabStep::FreeMany { start, count } => model.free_many(&heap, start.index(model.items.len()), count),
                SlabStep::Add { slab_count } => model.add(&heap, slab_count),
                SlabStep::Withdraw(segment) => {
                    model.withdraw(&heap, segment.index(model.segment_count as usize) as u32);
                }
            }
            model.check(&heap);
        }
    }
}

#[test]
fn empty_slabs_serve_other_classes_and_partitions() {
    let heap = heap::<u32>(4);
    heap.add_slabs(0..8);
    let (small, whole) = (0, heap.classes().len() as u16 - 1);
    // Each partition keeps an empty slab of the small class.
    let mut slots = Vec::new();
    for partition in 0..4 {
        slots.push(heap.alloc(partition, small, 64).unwrap().0);
    }
    slots.drain(..).for_each(|slot| heap.free(slot, 64).unwrap());
    assert_eq!(heap.census().spare_slab_count, 4);
    // One thread can use the whole arena.
    for _ in 0..8 {
        slots.push(heap.alloc(0, whole, SLAB_SIZE).unwrap().0);
    }
    assert_eq!(heap.alloc(0, whole, SLAB_SIZE), None);
    assert_eq!(heap.census().counts.failed_allocations, 1);
    slots.drain(..).for_each(|slot| heap.free(slot, SLAB_SIZE).unwrap());
    // All but one are spare again.
    assert_eq!(heap.census().spare_slab_count, 7);
}

#[test]
fn slots_of_another_partition_are_used_when_no_slab_is_left() {
    let heap = heap::<u32>(2);
    heap.add_slabs([7]);
    let (first, _) = heap.alloc(0, 0, 64).unwrap();
    let (second, tag) = heap.alloc(1, 0, 64).unwrap();
    assert_eq!((first.partition(), second.partition(), tag), (0, 0, 7));
    assert_eq!(heap.census().counts.borrowed_slots, 1);
}

#[test]
fn partly_used_slabs_are_filled_before_empty_ones() {
    let heap = heap::<u32>(1);
    heap.add_slabs(0..4);
    let count = heap.classes().slot_count(0);
    let mut items: Vec<_> = (0..2 * count).map(|_| heap.alloc(0, 0, 64).unwrap()).collect();
    let second = items.split_off(count as usize);
    // The first slab has one free slot, and the second is empty.
    heap.free(items.pop().unwrap().0, 64).unwrap();
    second.into_iter().for_each(|(slot, _)| heap.free(slot, 64).unwrap());
    assert_eq!(heap.alloc(0, 0, 64).unwrap().1, items[0].1);
}

#[test]
fn an_empty_slab_is_found_behind_partly_used_ones() {
    let heap = heap::<usize>(1);
    heap.add_slabs(0..3);
    let mut items = [const { Vec::new() }; 3];
    for _ in 0..3 * heap.classes().slot_count(0) {
        let (slot, tag) = heap.alloc(0, 0, 64).unwrap();
        items[tag].push(slot);
    }
    // All three are partly used, then the one in the middle is empty.
    items.iter_mut().for_each(|slots| heap.free(slots.pop().unwrap(), 64).unwrap());
    items[1].drain(..).for_each(|slot| heap.free(slot, 64).unwrap());
    let whole = heap.classes().len() as u16 - 1;
    assert_eq!(heap.alloc(0, whole, SLAB_SIZE).unwrap().1, 1);
    assert_eq!(heap.alloc(0, whole, SLAB_SIZE), None);
}

/// A random sequence that is the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// Threads allocate, pass items to each other and free them, while slabs are added and withdrawn. No two items overlap at
/// any time, and in the end all slabs are free.
#[test]
fn threads_never_share_a_slot() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 15_000;
    const KEPT_SLABS: usize = 6;
    const SLABS: usize = 60;
    const UNIT: usize = 64;
    let heap = heap::<usize>(2);
    heap.add_slabs(0..KEPT_SLABS);
    let owned: Vec<AtomicBool> = (0..SLABS * SLAB_SIZE / UNIT).map(|_| AtomicBool::new(false)).collect();
    let units = |slot: &Slot, tag: usize, size: u32| {
        let start = (tag * SLAB_SIZE + slot.offset(size) as usize) / UNIT;
        &owned[start..start + size as usize / UNIT]
    };
    let passed = Mutex::new(Vec::new());
    let running = AtomicUsize::new(THREADS);
    let failures = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (heap, passed, running, failures) = (&heap, &passed, &running, &failures);
            scope.spawn(move || {
                let free = |(slot, tag, len): (Slot, usize, usize)| {
                    let size = heap.classes().size(heap.classes().class_of(len).unwrap());
                    for unit in units(&slot, tag, size) {
                        assert!(unit.swap(false, Ordering::Relaxed));
                    }
                    heap.free(slot, len).unwrap();
                };
                let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ thread as u64);
                let mut held = Vec::new();
                for _ in 0..ROUNDS {
                    if random.below(100) < 55 {
                        let len = if random.below(20) == 0 { SLAB_SIZE } else { random.below(700) };
                        let class = heap.classes().class_of(len).unwrap();
                        match heap.alloc(thread, class, len) {
                            Some((slot, tag)) => {
                                for unit in units(&slot, tag, heap.classes().size(class)) {
                                    assert!(!unit.swap(true, Ordering::Relaxed), "allocated twice");
                                }
                                held.push((slot, tag, len));
                            }
                            None => {
                                failures.fetch_add(1, Ordering::Relaxed);
                                held.drain(..held.len() / 2).for_each(free);
                            }
                        }
                    } else if !held.is_empty() {
                        let item = held.swap_remove(random.below(held.len()));
                        if random.below(2) == 0 {
                            free(item);
                        } else {
                            // Another thread frees it.
                            let other = {
                                let mut passed = passed.lock();
                                passed.push(item);
                                let index = random.below(passed.len());
                                passed.swap_remove(index)
                            };
                            free(other);
                        }
                    }
                }
                held.into_iter().for_each(free);
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        // Meanwhile, slabs are added and withdrawn.
        scope.spawn(|| {
            for tag in KEPT_SLABS..SLABS {
                heap.add_slabs([tag]);
                std::thread::yield_now();
                if running.load(Ordering::Relaxed) == 0 {
                    break;
                }
                heap.withdraw(|other| *other == tag);
            }
        });
    });
    for (slot, _, len) in passed.into_inner() {
        heap.free(slot, len).unwrap();
    }
    heap.withdraw(|tag| *tag >= KEPT_SLABS);
    let census = heap.census();
    assert!(census.classes.iter().all(|class| class.item_count == 0 && class.item_bytes == 0));
    let whole = heap.classes().len() as u16 - 1;
    let tags: std::collections::BTreeSet<usize> =
        (0..KEPT_SLABS).map(|_| heap.alloc(1, whole, SLAB_SIZE).unwrap().1).collect();
    assert_eq!(tags, (0..KEPT_SLABS).collect());
    assert_eq!(heap.alloc(1, whole, SLAB_SIZE), None);
}
