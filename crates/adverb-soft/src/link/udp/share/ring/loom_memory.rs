//! A model of the memory of a ring, in which loom checks the order of accesses.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{CAPACITY, IS_OPENED, READ, WANTS_WAKEUP, WORD_LEN, WRITTEN, offset};

/// Memory that is shared with the other end.
#[derive(Clone)]
pub(super) struct Memory(Arc<Shared>);

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
pub(super) struct Flag(AtomicU32);

impl Flag {
    pub(super) fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    pub(super) fn store(&self, value: u32, order: Ordering) {
        self.0.swap(value, order);
    }

    pub(super) fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.0.swap(value, order)
    }
}

// SAFETY: loom fails a test in which two threads access a word at the same time.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

impl Memory {
    pub(super) fn new() -> Memory {
        Memory(Arc::new(Shared {
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            wants_wakeup: Flag(AtomicU32::new(0)),
            is_opened: Flag(AtomicU32::new(0)),
            words: (0..CAPACITY / WORD_LEN).map(|_| UnsafeCell::new([0; WORD_LEN])).collect(),
        }))
    }

    /// Files have no model.
    pub(super) fn map(_: BorrowedFd<'_>) -> io::Result<Memory> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn counter(&self, offset: usize) -> &AtomicU64 {
        match offset {
            WRITTEN => &self.0.written,
            READ => &self.0.read,
            _ => panic!("no counter is at offset {offset}"),
        }
    }

    pub(super) fn flag(&self, offset: usize) -> &Flag {
        match offset {
            WANTS_WAKEUP => &self.0.wants_wakeup,
            IS_OPENED => &self.0.is_opened,
            _ => panic!("no flag is at offset {offset}"),
        }
    }

    pub(super) fn store(&self, position: u64, bytes: &[u8]) {
        assert!(offset(position) + bytes.len() <= CAPACITY);
        for (index, byte) in (offset(position)..).zip(bytes) {
            // SAFETY: loom checks that no other thread accesses the word.
            self.0.words[index / WORD_LEN]
                .with_mut(|word| unsafe { (&mut (*word))[index % WORD_LEN] = *byte });
        }
    }

    pub(super) fn load(&self, position: u64, out: &mut [u8]) {
        assert!(offset(position) + out.len() <= CAPACITY);
        for (index, byte) in (offset(position)..).zip(out) {
            // SAFETY: as above.
            *byte = self.0.words[index / WORD_LEN].with(|word| unsafe { (&(*word))[index % WORD_LEN] });
        }
    }
}
