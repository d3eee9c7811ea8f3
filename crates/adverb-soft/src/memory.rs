//! Registered memory of this process.
//!
//! This is the only module that accesses the application's bytes. A peer or another thread may read or write them at
//! any time, so the module never creates references to them: it copies bytes with CPU instructions that tolerate
//! concurrent access, and executes atomic operations with the CPU's atomic instructions on aligned words. The
//! operations are therefore also atomic for threads that access the memory directly. Races between these accesses are
//! assumed to have the semantics of the CPU, because Rust doesn't define them.

mod access;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use adverb_proto::memory::{Fault, Memory, Span, StorageId};

/// The memory that is registered with a NIC.
///
/// ```
/// use adverb_proto::memory::{Memory, Span};
/// use adverb_soft::memory::RegisteredMemory;
/// use std::ptr::NonNull;
///
/// let mut words = [0u64; 2];
/// let mut memory = RegisteredMemory::default();
/// // SAFETY: the words stay allocated until the storage is removed, and no reference to them is used meanwhile.
/// let storage = unsafe { memory.add(NonNull::from(&mut words).cast(), 16) };
/// memory.write(Span { storage, offset: 3, length: 2 }, b"hi").unwrap();
/// memory.fetch_add(Span { storage, offset: 8, length: 8 }, 7).unwrap();
/// memory.remove(storage);
/// assert_eq!(words[1], 7);
/// assert_eq!(&words[0].to_ne_bytes()[3..5], b"hi");
/// ```
#[derive(Debug, Default)]
pub struct RegisteredMemory {
    areas: Vec<Option<Area>>,
    /// The indexes of the free entries of `areas`.
    free: Vec<usize>,
    /// The memory of the areas that `self` owns.
    own: Vec<Vec<AtomicU64>>,
}

/// A range of this process's memory.
#[derive(Clone, Copy, Debug)]
struct Area {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: the caller of `add` guarantees that any thread may access the memory.
unsafe impl Send for Area {}

impl RegisteredMemory {
    /// Adds the range of `length` bytes at `address`, and returns its identifier.
    ///
    /// # Safety
    ///
    /// Until the range is [removed](RegisteredMemory::remove) or `self` is dropped:
    ///
    /// - the bytes stay allocated at `address`;
    /// - any thread may read them, and write them if a region over them allows local or remote writes;
    /// - other code in this process accesses them only with copies like [`copy_out`], with atomic operations on aligned
    ///   words of eight bytes, or while no request or peer can reach them.
    pub unsafe fn add(&mut self, address: NonNull<u8>, length: usize) -> StorageId {
        let area = Some(Area { address, length });
        let index = match self.free.pop() {
            Some(index) => {
                self.areas[index] = area;
                index
            }
            None => {
                self.areas.push(area);
                self.areas.len() - 1
            }
        };
        StorageId(index as u64)
    }

    /// Adds `length` zeroed bytes that `self` owns.
    pub(crate) fn add_own(&mut self, length: usize) -> StorageId {
        let words: Vec<AtomicU64> = (0..length.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let address = NonNull::from(words.as_slice()).cast();
        self.own.push(words);
        // SAFETY: `own` keeps the words allocated in place until `self` is dropped, and no other code has their
        // address.
        unsafe { self.add(address, length) }
    }

    /// Removes a range. `self` no longer accesses its bytes. A later [`add`](RegisteredMemory::add) may reuse the
    /// identifier, so no memory region may still refer to it.
    pub fn remove(&mut self, storage: StorageId) {
        let Ok(index) = usize::try_from(storage.0) else { return };
        if self.areas.get_mut(index).and_then(Option::take).is_some() {
            self.free.push(index);
        }
    }

    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.areas.len() - self.free.len()
    }

    /// Whether `self` has no ranges.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address of the bytes. The engine has checked the span against its region. This function checks it
    /// against the storage, so a bug in the engine can't reach bytes outside of it.
    #[inline]
    fn locate(&self, span: Span) -> Result<NonNull<u8>, Fault> {
        let index = usize::try_from(span.storage.0).map_err(|_| Fault)?;
        let area = self.areas.get(index).copied().flatten().ok_or(Fault)?;
        let offset = usize::try_from(span.offset).map_err(|_| Fault)?;
        let end = offset.checked_add(span.length as usize).ok_or(Fault)?;
        if end > area.length {
            return Err(Fault);
        }
        // SAFETY: the offset lies within the area, which is part of one allocation, as the caller of `add` guarantees.
        Ok(unsafe { area.address.add(offset) })
    }

    /// Returns an aligned word.
    #[inline]
    fn word(&self, span: Span) -> Result<&AtomicU64, Fault> {
        let address = self.locate(span)?.cast::<AtomicU64>();
        if span.length != 8 || !address.is_aligned() {
            return Err(Fault);
        }
        // SAFETY: the eight bytes lie within the area and are aligned. The area is removed only through `&mut self`.
        // Other code accesses the bytes as `add` requires, with the semantics that `access` describes.
        Ok(unsafe { address.as_ref() })
    }
}

impl Memory for RegisteredMemory {
    #[inline]
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Fault> {
        if span.length as usize != bytes.len() {
            return Err(Fault);
        }
        let address = self.locate(span)?;
        // A reader that sees a byte of this packet, and then reads earlier packets with acquire ordering, sees all
        // their bytes.
        fence(Ordering::Release);
        // SAFETY: `locate` found `bytes.len()` bytes at the address, and other code accesses them as `add` requires.
        unsafe { access::store(address, bytes) };
        Ok(())
    }

    #[inline]
    fn read(&self, span: Span, out: &mut [u8]) -> Result<(), Fault> {
        if span.length as usize != out.len() {
            return Err(Fault);
        }
        let address = self.locate(span)?;
        // SAFETY: `locate` found `out.len()` bytes at the address, other code accesses them as `add` requires, and
        // `out` is writable.
        unsafe { access::load(address, NonNull::from(&mut *out).cast(), out.len()) };
        fence(Ordering::Acquire);
        Ok(())
    }

    #[inline]
    fn append_to(&self, span: Span, out: &mut Vec<u8>) -> Result<(), Fault> {
        let address = self.locate(span)?;
        let length = span.length as usize;
        out.reserve(length);
        // SAFETY: `locate` found `length` bytes at the address, other code accesses them as `add` requires, and the
        // spare capacity has `length` bytes.
        unsafe {
            access::load(address, NonNull::from(&mut out.spare_capacity_mut()[..length]).cast(), length);
        };
        // SAFETY: `load` has initialized `length` further bytes.
        unsafe { out.set_len(out.len() + length) };
        fence(Ordering::Acquire);
        Ok(())
    }

    fn compare_swap(&mut self, word: Span, compare: u64, swap: u64) -> Result<u64, Fault> {
        let word = self.word(word)?;
        match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
            Ok(old) | Err(old) => Ok(old),
        }
    }

    fn fetch_add(&mut self, word: Span, add: u64) -> Result<u64, Fault> {
        Ok(self.word(word)?.fetch_add(add, Ordering::AcqRel))
    }

    fn write_word(&mut self, word: Span, bytes: [u8; 8]) -> Result<(), Fault> {
        self.word(word)?.store(u64::from_ne_bytes(bytes), Ordering::Release);
        Ok(())
    }

    /// Makes written bytes visible to all threads. A persistent flush is a fault: the memory doesn't survive a power
    /// loss.
    fn flush(&mut self, span: Span, persistent: bool) -> Result<(), Fault> {
        self.locate(span)?;
        fence(Ordering::SeqCst);
        if persistent { Err(Fault) } else { Ok(()) }
    }
}

/// Copies `out.len()` bytes from memory that other threads or peers may access at the same time.
///
/// # Safety
///
/// The `out.len()` bytes at `from` are readable, and concurrent writes to them follow the rules of
/// [`RegisteredMemory::add`].
pub unsafe fn copy_out(from: NonNull<u8>, out: &mut [u8]) {
    // SAFETY: the caller guarantees that the bytes at `from` are readable, and `out` is writable.
    unsafe { access::load(from, NonNull::from(&mut *out).cast(), out.len()) };
}

/// Copies bytes to memory that other processes may access at the same time.
///
/// # Safety
///
/// The `bytes.len()` bytes at `to` are writable, and concurrent accesses to them follow the rules of
/// [`RegisteredMemory::add`].
pub(crate) unsafe fn copy_in(to: NonNull<u8>, bytes: &[u8]) {
    // SAFETY: the caller guarantees that the bytes at `to` are writable.
    unsafe { access::store(to, bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns memory with one storage, whose bytes tests access as atomics.
    fn area(words: &[AtomicU64]) -> (RegisteredMemory, StorageId) {
        let mut memory = RegisteredMemory::default();
        // SAFETY: tests keep the words allocated as long as the memory, and access them as atomics.
        let storage = unsafe { memory.add(NonNull::from(words).cast(), size_of_val(words)) };
        (memory, storage)
    }

    fn words(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    fn bytes(words: &[AtomicU64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }

    #[test]
    fn every_alignment_and_length_is_copied_exactly() {
        let message: Vec<u8> = (1..=200).collect();
        for offset in 0..17 {
            for length in (0..40).chain(60..70).chain(120..200) {
                let backing = words(30);
                let (mut memory, storage) = area(&backing);
                let span = Span { storage, offset: offset as u64, length: length as u32 };
                memory.write(span, &message[..length]).unwrap();
                let mut expected = vec![0; 240];
                expected[offset..offset + length].copy_from_slice(&message[..length]);
                assert_eq!(bytes(&backing), expected, "{length} bytes at {offset}");
                let mut out = vec![0; length];
                memory.read(span, &mut out).unwrap();
                assert_eq!(out, message[..length]);
                let mut out = b"before".to_vec();
                memory.append_to(span, &mut out).unwrap();
                assert_eq!(out.strip_prefix(b"before"), Some(&message[..length]));
            }
        }
    }

    #[test]
    fn spans_outside_the_storage_are_faults() {
        let backing = words(2);
        let (mut memory, storage) = area(&backing);
        let span = |offset, length| Span { storage, offset, length };
        for outside in [span(9, 8), span(16, 1), span(17, 0), span(u64::MAX, 1), span(8, u32::MAX)] {
            let mut out = vec![0; if outside.length > 8 { 0 } else { outside.length as usize }];
            assert_eq!(memory.read(outside, &mut out), Err(Fault), "{outside:?}");
            assert_eq!(memory.write(outside, &out), Err(Fault), "{outside:?}");
            assert_eq!(memory.fetch_add(outside, 1), Err(Fault), "{outside:?}");
            assert_eq!(memory.flush(outside, false), Err(Fault), "{outside:?}");
        }
        assert_eq!(memory.read(span(0, 4), &mut [0; 5]), Err(Fault), "a length other than the span's");
        assert_eq!(bytes(&backing), [0; 16]);
        memory.remove(storage);
        assert_eq!(memory.write(span(0, 1), &[1]), Err(Fault), "a removed storage");
        assert!(memory.is_empty());
    }

    #[test]
    fn a_removed_storage_id_is_reused_and_a_second_removal_has_no_effect() {
        let (first, second) = (words(1), words(1));
        let (mut memory, storage) = area(&first);
        memory.remove(storage);
        memory.remove(storage);
        memory.remove(StorageId(77));
        // SAFETY: the words outlive the memory, and tests access them as atomics.
        let reused = unsafe { memory.add(NonNull::from(second.as_slice()).cast(), 8) };
        // SAFETY: as above.
        let third = unsafe { memory.add(NonNull::from(first.as_slice()).cast(), 8) };
        assert_eq!((reused, memory.len()), (storage, 2));
        assert_ne!(reused, third);
        memory.write(Span { storage: reused, offset: 0, length: 8 }, &[1; 8]).unwrap();
        assert_eq!((bytes(&first), bytes(&second)), (vec![0; 8], vec![1; 8]));
    }

    #[test]
    fn word_operations_are_atomic_for_other_threads() {
        const ROUNDS: u64 = 20_000;
        let backing = words(1);
        let (mut memory, storage) = area(&backing);
        let word = Span { storage, offset: 0, length: 8 };
        std::thread::scope(|scope| {
            let thread =
                scope.spawn(|| (0..ROUNDS).for_each(|_| _ = backing[0].fetch_add(1, Ordering::Relaxed)));
            for _ in 0..ROUNDS {
                memory.fetch_add(word, 1).unwrap();
            }
            // ThreadSanitizer recognizes `join`, but not the end of the scope.
            thread.join().unwrap();
        });
        assert_eq!(memory.compare_swap(word, 2 * ROUNDS, 5), Ok(2 * ROUNDS));
        assert_eq!(memory.compare_swap(word, 2 * ROUNDS, 6), Ok(5));
        memory.write_word(word, 9u64.to_ne_bytes()).unwrap();
        assert_eq!(backing[0].load(Ordering::Relaxed), 9);
        let odd = Span { storage, offset: 0, length: 4 };
        assert_eq!(memory.fetch_add(odd, 1), Err(Fault));
    }

    #[test]
    fn unaligned_words_are_faults() {
        let backing = words(2);
        let (mut memory, storage) = area(&backing);
        let word = Span { storage, offset: 4, length: 8 };
        assert_eq!(memory.compare_swap(word, 0, 1), Err(Fault));
        assert_eq!(memory.write_word(word, [1; 8]), Err(Fault));
        assert_eq!(bytes(&backing), [0; 16]);
    }

    #[test]
    fn a_persistent_flush_is_a_fault() {
        let backing = words(1);
        let (mut memory, storage) = area(&backing);
        let span = Span { storage, offset: 0, length: 8 };
        assert_eq!(memory.flush(span, false), Ok(()));
        assert_eq!(memory.flush(span, true), Err(Fault));
    }
}
