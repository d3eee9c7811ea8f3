//! Counts the allocations of the whole process that includes this module.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the number of allocations so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// The number of measured rounds.
pub(crate) const ROUNDS: usize = 4;

/// Checks that `run` allocates nothing after `warm_up_rounds` rounds.
pub(crate) fn assert_no_allocations(name: &str, warm_up_rounds: usize, mut run: impl FnMut()) {
    (0..warm_up_rounds).for_each(|_| run());
    let counts = std::array::from_fn(|_| {
        let before = allocations();
        run();
        allocations() - before
    });
    assert_allocation_free(name, counts);
}

/// Checks the counts of code that allocates nothing. Lists may still grow to their maximum size in some rounds, but
/// code that needs memory would allocate in each of them.
pub(crate) fn assert_allocation_free(name: &str, counts: [u64; ROUNDS]) {
    println!("{name}: {counts:?} allocations");
    assert_eq!(counts.iter().min(), Some(&0), "{name}: {counts:?}");
    assert!(counts[1..].iter().sum::<u64>() <= 64, "{name}: {counts:?}");
}

/// The system allocator, with a count of allocations.
struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

// SAFETY: all calls are passed to the system allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the system allocator's requirements.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the system allocator's requirements.
        unsafe { System.dealloc(pointer, layout) }
    }
}
