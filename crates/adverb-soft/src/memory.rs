//! Registered memory, as it lies in this process.
//!
//! This is the only place where the adapter touches bytes that are an application's. A peer or a thread may be looking at
//! them or changing them at any moment, so that there is never a reference to them: bytes are copied by relaxed atomic
//! loads and stores, eight at a time where they are aligned, and atomic operations are the processor's own, so that they
//! are atomic for threads that don't go through the adapter too.
//!
//! An application may look at a byte (`MemoryRegion::read`) while a word that holds it is stored here. What it means that
//! atomic accesses of two sizes overlap, Rust's memory model has yet to say; where this crate runs (x86-64 and aarch64), each
//! is one instruction, the compiler joins or splits none, and a byte is either old or new, which is all that is promised of
//! memory that a peer writes. Words that are used as words ([`fetch_add`](Memory::fetch_add), `MemoryRegion::word`) are always
//! stored and loaded whole and aligned.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use adverb_proto::memory::{Backing, Fault, Memory, Span};

/// The memory that is registered with an adapter.
///
/// ```
/// use adverb_proto::memory::{Memory, Span};
/// use adverb_soft::memory::RegisteredMemory;
/// use std::ptr::NonNull;
///
/// let mut words = [0u64; 2];
/// let mut memory = RegisteredMemory::default();
/// // SAFETY: the words are there until the backing is removed, and nobody refers to them meanwhile.
/// let backing = unsafe { memory.add(NonNull::from(&mut words).cast(), 16) };
/// memory.write(Span { backing, offset: 3, length: 2 }, b"hi").unwrap();
/// memory.fetch_add(Span { backing, offset: 8, length: 8 }, 7).unwrap();
/// memory.remove(backing);
/// assert_eq!(words[1], 7);
/// assert_eq!(&words[0].to_ne_bytes()[3..5], b"hi");
/// ```
#[derive(Debug, Default)]
pub struct RegisteredMemory {
    areas: Vec<Option<Area>>,
    /// Places in `areas` that are free.
    free: Vec<usize>,
    /// Bytes that are nobody else's.
    own: Vec<Vec<AtomicU64>>,
}

/// Some bytes of this process.
#[derive(Clone, Copy, Debug)]
struct Area {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: who registers memory promises that it may be reached from any thread.
unsafe impl Send for Area {}

impl RegisteredMemory {
    /// Takes in `length` bytes at `address`.
    ///
    /// # Safety
    ///
    /// Until the backing is [removed](RegisteredMemory::remove), or this is gone, the bytes stay there, may be read from
    /// any thread (and written, if a region over them lets anybody write), and others in this process touch them only
    /// through atomics or while no request or peer can reach them.
    pub unsafe fn add(&mut self, address: NonNull<u8>, length: usize) -> Backing {
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
        Backing(index as u64)
    }

    /// Takes in `length` bytes of its own, which are there as long as this is.
    pub(crate) fn add_own(&mut self, length: usize) -> Backing {
        let words: Vec<AtomicU64> = (0..length.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let address = NonNull::from(words.as_slice()).cast();
        self.own.push(words);
        // SAFETY: the words are kept where they are until this is gone, and nobody else knows of them.
        unsafe { self.add(address, length) }
    }

    /// Forgets a backing: its bytes aren't touched any more. Its number may be given to another, so that no region may be
    /// left that stands for it.
    pub fn remove(&mut self, backing: Backing) {
        let Ok(index) = usize::try_from(backing.0) else { return };
        if self.areas.get_mut(index).and_then(Option::take).is_some() {
            self.free.push(index);
        }
    }

    /// How many backings there are.
    pub fn len(&self) -> usize {
        self.areas.len() - self.free.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the bytes are. The engine has checked them against the region; this checks them against the backing, so that
    /// nothing outside it is reached whatever the engine does.
    #[inline]
    fn locate(&self, span: Span) -> Result<NonNull<u8>, Fault> {
        let index = usize::try_from(span.backing.0).map_err(|_| Fault)?;
        let area = self.areas.get(index).copied().flatten().ok_or(Fault)?;
        let offset = usize::try_from(span.offset).map_err(|_| Fault)?;
        let end = offset.checked_add(span.length as usize).ok_or(Fault)?;
        if end > area.length {
            return Err(Fault);
        }
        // SAFETY: within the area, which lies in one allocation, as who added it promised.
        Ok(unsafe { area.address.add(offset) })
    }

    /// An aligned word.
    #[inline]
    fn word(&self, span: Span) -> Result<&AtomicU64, Fault> {
        let address = self.locate(span)?.cast::<AtomicU64>();
        if span.length != 8 || !address.is_aligned() {
            return Err(Fault);
        }
        // SAFETY: eight bytes within the area, aligned as checked; they stay as long as the area, which is removed only
        // by who has this exclusively; and others touch them through atomics.
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
        // Who sees a byte of this packet, and looks in the right order, sees all of the packets before it.
        fence(Ordering::Release);
        // SAFETY: as many bytes are there as are written, and others touch them through atomics.
        unsafe { store(address, bytes) };
        Ok(())
    }

    #[inline]
    fn read(&self, span: Span, out: &mut [u8]) -> Result<(), Fault> {
        if span.length as usize != out.len() {
            return Err(Fault);
        }
        let address = self.locate(span)?;
        // SAFETY: as many bytes are there as are read, and others touch them through atomics; and as many may be written.
        unsafe { load(address, NonNull::from(&mut *out).cast(), out.len()) };
        fence(Ordering::Acquire);
        Ok(())
    }

    #[inline]
    fn append_to(&self, span: Span, out: &mut Vec<u8>) -> Result<(), Fault> {
        let address = self.locate(span)?;
        let length = span.length as usize;
        out.reserve(length);
        // SAFETY: as many bytes are there as are read, and others touch them through atomics; and there is room for them.
        unsafe { load(address, NonNull::from(&mut out.spare_capacity_mut()[..length]).cast(), length) };
        // SAFETY: so many bytes more are written.
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

    /// Everyone sees what is written. Nothing here outlasts a loss of power, and nobody is told that it does.
    fn flush(&mut self, span: Span, persistent: bool) -> Result<(), Fault> {
        self.locate(span)?;
        fence(Ordering::SeqCst);
        if persistent { Err(Fault) } else { Ok(()) }
    }
}

/// How many bytes go before the first aligned word, at most `length`.
fn unaligned(address: NonNull<u8>, length: usize) -> usize {
    address.align_offset(align_of::<AtomicU64>()).min(length)
}

/// Copies bytes to memory that others may touch meanwhile.
///
/// # Safety
///
/// As many bytes may be written at `to`, and whoever touches them meanwhile does so through atomics.
#[inline]
unsafe fn store(to: NonNull<u8>, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(unaligned(to, bytes.len()));
    // SAFETY: within what may be written, as `head` is a part of the bytes.
    unsafe { store_bytes(to, head) };
    // SAFETY: as above; `head` and `rest` together are the bytes.
    let to = unsafe { to.add(head.len()) };
    // SAFETY: `rest` can be read, and as many bytes may be written behind `head`; `to` is aligned: only if `head` reached
    // an aligned address is there a `rest`.
    let done = unsafe { copy_blocks(to, NonNull::from(rest).cast(), rest.len()) };
    let (words, tail) = rest[done..].as_chunks::<8>();
    // SAFETY: as above, for what is left of `rest`.
    let to = unsafe { to.add(done) };
    for (index, word) in words.iter().enumerate() {
        // SAFETY: as above for each whole word, and aligned, because blocks are whole words.
        let place = unsafe { to.cast::<AtomicU64>().add(index).as_ref() };
        place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
    }
    // SAFETY: as above, for what is left.
    unsafe { store_bytes(to.add(words.len() * 8), tail) };
}

/// Copies a few bytes to memory that others may touch meanwhile.
///
/// # Safety
///
/// As [`store`].
#[inline]
unsafe fn store_bytes(to: NonNull<u8>, bytes: &[u8]) {
    for (index, byte) in bytes.iter().enumerate() {
        // SAFETY: within what may be written, as the caller says; an AtomicU8 is as a u8.
        let place = unsafe { to.cast::<AtomicU8>().add(index).as_ref() };
        place.store(*byte, Ordering::Relaxed);
    }
}

/// Copies bytes from memory that others may touch meanwhile.
///
/// # Safety
///
/// As many bytes may be read at `from`, and whoever changes them meanwhile does so through atomics; as many may be written
/// at `to`, which nobody else touches.
#[inline]
unsafe fn load(from: NonNull<u8>, to: NonNull<u8>, length: usize) {
    let head = unaligned(from, length);
    // SAFETY: within what may be read and written.
    unsafe { load_bytes(from, to, head) };
    // SAFETY: as above.
    let (from, to, length) = unsafe { (from.add(head), to.add(head), length - head) };
    // SAFETY: as above; `from` is aligned, or nothing is left.
    let done = unsafe { copy_blocks(to, from, length) };
    // SAFETY: as above.
    let (from, to, length) = unsafe { (from.add(done), to.add(done), length - done) };
    for index in 0..length / 8 {
        // SAFETY: as above for each whole word, and aligned, because blocks are whole words.
        let place = unsafe { from.cast::<AtomicU64>().add(index).as_ref() };
        // SAFETY: as above; it needn't be aligned there.
        unsafe { to.cast::<u64>().add(index).write_unaligned(place.load(Ordering::Relaxed)) };
    }
    let words = length / 8 * 8;
    // SAFETY: as above, for what is left.
    unsafe { load_bytes(from.add(words), to.add(words), length - words) };
}

/// Copies a few bytes from memory that others may touch meanwhile.
///
/// # Safety
///
/// As [`load`].
#[inline]
unsafe fn load_bytes(from: NonNull<u8>, to: NonNull<u8>, length: usize) {
    for index in 0..length {
        // SAFETY: within what may be read, as the caller says; an AtomicU8 is as a u8.
        let place = unsafe { from.cast::<AtomicU8>().add(index).as_ref() };
        // SAFETY: within what may be written, as the caller says.
        unsafe { to.add(index).write(place.load(Ordering::Relaxed)) };
    }
}

/// Copies as many whole blocks of 64 bytes as there are, and says how many bytes that were. The compiler makes words of
/// words: it joins no atomic accesses. The processor's instructions for 16 bytes are twice as fast, and where one end is
/// aligned to 8 bytes, no word of that end is seen in part.
///
/// # Safety
///
/// `length` bytes may be read at `from` and written at `to`, and one of the two is memory that nobody else touches; whoever
/// touches the other meanwhile does so through atomics.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_blocks(to: NonNull<u8>, from: NonNull<u8>, length: usize) -> usize {
    let blocks = length / 64;
    if blocks == 0 {
        return 0;
    }
    // SAFETY: it reads and writes only what it may, as the caller says; the accesses are the processor's, to which data
    // races mean nothing.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {blocks}",
            "jnz 2b",
            from = inout(reg) from.as_ptr() => _,
            to = inout(reg) to.as_ptr() => _,
            blocks = inout(reg) blocks => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
    blocks * 64
}

/// Elsewhere words will do.
///
/// # Safety
///
/// None: it copies nothing.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
unsafe fn copy_blocks(_to: NonNull<u8>, _from: NonNull<u8>, _length: usize) -> usize {
    0
}

/// Copies bytes that others may touch meanwhile.
///
/// # Safety
///
/// As many bytes may be read at `from`, and whoever changes them meanwhile does so through atomics.
pub unsafe fn copy_out(from: NonNull<u8>, out: &mut [u8]) {
    // SAFETY: as the caller says; and as many bytes may be written.
    unsafe { load(from, NonNull::from(&mut *out).cast(), out.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory with one backing, whose bytes are atomics here too.
    fn area(words: &[AtomicU64]) -> (RegisteredMemory, Backing) {
        let mut memory = RegisteredMemory::default();
        // SAFETY: tests keep the words for as long as the memory, and reach them through atomics.
        let backing = unsafe { memory.add(NonNull::from(words).cast(), size_of_val(words)) };
        (memory, backing)
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
                let place = words(30);
                let (mut memory, backing) = area(&place);
                let span = Span { backing, offset: offset as u64, length: length as u32 };
                memory.write(span, &message[..length]).unwrap();
                let mut expected = vec![0; 240];
                expected[offset..offset + length].copy_from_slice(&message[..length]);
                assert_eq!(bytes(&place), expected, "{length} bytes at {offset}");
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
    fn nothing_outside_a_backing_is_reached() {
        let place = words(2);
        let (mut memory, backing) = area(&place);
        let span = |offset, length| Span { backing, offset, length };
        for outside in [span(9, 8), span(16, 1), span(17, 0), span(u64::MAX, 1), span(8, u32::MAX)] {
            let mut out = vec![0; if outside.length > 8 { 0 } else { outside.length as usize }];
            assert_eq!(memory.read(outside, &mut out), Err(Fault), "{outside:?}");
            assert_eq!(memory.write(outside, &out), Err(Fault), "{outside:?}");
            assert_eq!(memory.fetch_add(outside, 1), Err(Fault), "{outside:?}");
            assert_eq!(memory.flush(outside, false), Err(Fault), "{outside:?}");
        }
        assert_eq!(memory.read(span(0, 4), &mut [0; 5]), Err(Fault), "a length that isn't the span's");
        assert_eq!(bytes(&place), [0; 16]);
        memory.remove(backing);
        assert_eq!(memory.write(span(0, 1), &[1]), Err(Fault), "a backing that is gone");
        assert!(memory.is_empty());
    }

    #[test]
    fn a_removed_backing_is_used_again_and_removing_twice_changes_nothing() {
        let (first, second) = (words(1), words(1));
        let (mut memory, backing) = area(&first);
        memory.remove(backing);
        memory.remove(backing);
        memory.remove(Backing(77));
        // SAFETY: the words outlive the memory, and are reached through atomics.
        let again = unsafe { memory.add(NonNull::from(second.as_slice()).cast(), 8) };
        // SAFETY: as above.
        let third = unsafe { memory.add(NonNull::from(first.as_slice()).cast(), 8) };
        assert_eq!((again, memory.len()), (backing, 2));
        assert_ne!(again, third);
        memory.write(Span { backing: again, offset: 0, length: 8 }, &[1; 8]).unwrap();
        assert_eq!((bytes(&first), bytes(&second)), (vec![0; 8], vec![1; 8]));
    }

    #[test]
    fn words_are_atomic_for_threads_too() {
        const TIMES: u64 = 20_000;
        let place = words(1);
        let (mut memory, backing) = area(&place);
        let word = Span { backing, offset: 0, length: 8 };
        std::thread::scope(|scope| {
            let thread =
                scope.spawn(|| (0..TIMES).for_each(|_| _ = place[0].fetch_add(1, Ordering::Relaxed)));
            for _ in 0..TIMES {
                memory.fetch_add(word, 1).unwrap();
            }
            // ThreadSanitizer sees this, and not that a scope ends.
            thread.join().unwrap();
        });
        assert_eq!(memory.compare_swap(word, 2 * TIMES, 5), Ok(2 * TIMES));
        assert_eq!(memory.compare_swap(word, 2 * TIMES, 6), Ok(5));
        memory.write_word(word, 9u64.to_ne_bytes()).unwrap();
        assert_eq!(place[0].load(Ordering::Relaxed), 9);
        let odd = Span { backing, offset: 0, length: 4 };
        assert_eq!(memory.fetch_add(odd, 1), Err(Fault));
    }

    #[test]
    fn words_that_lie_across_are_refused() {
        let place = words(2);
        let (mut memory, backing) = area(&place);
        let word = Span { backing, offset: 4, length: 8 };
        assert_eq!(memory.compare_swap(word, 0, 1), Err(Fault));
        assert_eq!(memory.write_word(word, [1; 8]), Err(Fault));
        assert_eq!(bytes(&place), [0; 16]);
    }

    #[test]
    fn what_is_written_isnt_said_to_outlast_a_loss_of_power() {
        let place = words(1);
        let (mut memory, backing) = area(&place);
        let span = Span { backing, offset: 0, length: 8 };
        assert_eq!(memory.flush(span, false), Ok(()));
        assert_eq!(memory.flush(span, true), Err(Fault));
    }
}
