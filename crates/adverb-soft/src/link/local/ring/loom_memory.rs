//! A model of the memory of a ring, in which loom checks the order of accesses.

use std::io;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::{Atomic, RingMemory, WORD_LEN, offset};

/// Memory that is shared with the other end.
#[derive(Clone, Debug)]
pub(super) struct Model {
    shared: Arc<Shared>,
    /// Whether this end executes fences. A mutation lets it execute none.
    has_fences: bool,
}

#[derive(Debug)]
struct Shared {
    written: AtomicU64,
    read: AtomicU64,
    wants_wakeup: Flag,
    is_opened: Flag,
    words: Vec<UnsafeCell<[u8; WORD_LEN]>>,
}

/// A flag that both ends store to. The stores to an atomic variable have one order, in which a swap follows the store that
/// it reads from. loom doesn't derive the order of a plain store and a swap from that, and lets a later swap read from the
/// older one in spite of fences, so that a wake-up seems to be lost. A store that is a swap has its place in the order.
#[derive(Debug)]
pub(super) struct Flag(AtomicU32);

impl Atomic<u32> for Flag {
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.0.swap(value, order);
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.0.swap(value, order)
    }
}

impl Atomic<u64> for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }
}

// SAFETY: loom fails a test in which two threads access a word at the same time.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Model {
    pub(super) fn new() -> Model {
        let shared = Arc::new(Shared {
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            wants_wakeup: Flag(AtomicU32::new(0)),
            is_opened: Flag(AtomicU32::new(0)),
            words: (0..Model::CAPACITY / WORD_LEN).map(|_| UnsafeCell::new([0; WORD_LEN])).collect(),
        });
        Model { shared, has_fences: true }
    }

    /// Returns the memory for an end that executes no fences.
    pub(super) fn without_fences(self) -> Model {
        Model { has_fences: false, ..self }
    }
}

impl RingMemory for Model {
    type Counter = AtomicU64;
    type Flag = Flag;

    const CAPACITY: usize = 160;
    const BLOCK_LEN: usize = 80;

    fn written(&self) -> &AtomicU64 {
        &self.shared.written
    }

    fn read(&self) -> &AtomicU64 {
        &self.shared.read
    }

    fn wants_wakeup(&self) -> &Flag {
        &self.shared.wants_wakeup
    }

    fn is_opened(&self) -> &Flag {
        &self.shared.is_opened
    }

    fn fence(&self) {
        if self.has_fences {
            fence(Ordering::SeqCst);
        }
    }

    fn store(&self, position: u64, bytes: &[u8]) {
        let offset = offset::<Model>(position);
        assert!(offset + bytes.len() <= Model::CAPACITY);
        for (index, byte) in (offset..).zip(bytes) {
            // SAFETY: loom checks that no other thread accesses the word.
            self.shared.words[index / WORD_LEN]
                .with_mut(|word| unsafe { (&mut (*word))[index % WORD_LEN] = *byte });
        }
    }

    fn load(&self, position: u64, out: &mut [u8]) {
        let offset = offset::<Model>(position);
        assert!(offset + out.len() <= Model::CAPACITY);
        for (index, byte) in (offset..).zip(out) {
            // SAFETY: as above.
            *byte = self.shared.words[index / WORD_LEN].with(|word| unsafe { (&(*word))[index % WORD_LEN] });
        }
    }

    fn allocate(&self, _: usize, _: usize) -> io::Result<()> {
        Ok(())
    }
}
