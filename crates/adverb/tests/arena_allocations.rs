//! Allocating and freeing items of an arena allocates no other memory, even when slabs change their slot size. This
//! test has its own process, whose allocations are counted.

#![cfg(all(feature = "soft", feature = "cluster"))]

#[path = "common/counting.rs"]
mod counting;

use adverb::cluster::{Arena, Draft};
use adverb::verbs::{Access, SoftDevice};

const SLAB_SIZE: usize = 64 << 10;
const SLABS: usize = 16;

#[test]
fn allocating_and_freeing_items_allocates_no_other_memory() {
    let domain = SoftDevice::loopback().open().unwrap().create_protection_domain().unwrap();
    let arena = Arena::builder().slab_size(SLAB_SIZE).partitions(2).create(&[domain]).unwrap();
    arena.allocate_segment(SLABS * SLAB_SIZE, Access::REMOTE_READ).unwrap();
    let mut held: Vec<Draft> = Vec::with_capacity(SLABS * SLAB_SIZE / 64);
    counting::assert_no_allocations("items of all sizes", 0, || {
        for len in [1, 64, 100, 1000, 5000, 30_000, SLAB_SIZE] {
            // The whole arena, in slots of one size, from both partitions.
            while let Ok(draft) = arena.allocate_in(held.len(), len) {
                held.push(draft);
            }
            assert!(held.len() >= SLABS);
            held.clear();
        }
    });
}
