//! Counts what a program allocates, all of it: whoever has this module counts its whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// How often something was allocated.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// How often something is done of which the allocations are counted.
pub(crate) const ROUNDS: usize = 4;

/// Runs something again and again, which allocates nothing once it has been done so often.
pub(crate) fn assert_no_allocations(name: &str, warm_up_rounds: usize, mut run: impl FnMut()) {
    (0..warm_up_rounds).for_each(|_| run());
    let counts = std::array::from_fn(|_| {
        let before = allocations();
        run();
        allocations() - before
    });
    assert_allocation_free(name, counts);
}

/// Something that allocates nothing had these counts: lists grow to what they hold at most, at which they may arrive late, but
/// what needs memory needs it always.
pub(crate) fn assert_allocation_free(name: &str, counts: [u64; ROUNDS]) {
    println!("{name}: {counts:?} allocations");
    assert_eq!(counts.iter().min(), Some(&0), "{name}: {counts:?}");
    assert!(counts[1..].iter().sum::<u64>() <= 64, "{name}: {counts:?}");
}

/// Counts allocations.
struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds what the system allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds what the system allocator asks for.
        unsafe { System.dealloc(pointer, layout) }
    }
}
