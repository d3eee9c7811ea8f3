//! A word of a region can't be kept when the region becomes a buffer: it would change the buffer's bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use adverb::memory::{Buffer, MemoryRegion};

fn keep(region: MemoryRegion) -> Buffer {
    let word: &AtomicU64 = region.word(0).unwrap();
    let buffer = region.into_buffer().unwrap();
    word.store(1, Ordering::Relaxed);
    buffer
}

fn main() {}
