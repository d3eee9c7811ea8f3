//! Copies to and from memory that a device, a peer or other threads access at the same time.
//!
//! Such memory is accessed in three ways, which may all race with each other:
//!
//! - by the copies of this module (adverb-verbs and adverb-soft have identical files);
//! - by atomic operations on aligned 8-byte words (`MemoryRegion::word`, and the atomics of peers);
//! - by an RDMA device, without the CPU.
//!
//! Rust has no operation for such accesses. A plain or volatile access would be a data race, and atomic accesses of two
//! sizes may not race with each other either (`std::sync::atomic`, "Memory model for atomic accesses"). The copies are
//! therefore CPU instructions in assembly, which the compiler neither merges nor splits: bytes at the edges, and between
//! them aligned words of the shared side, in blocks of 64 bytes if the CPU has instructions for that.
//!
//! # The remaining assumption
//!
//! Races between these accesses have the semantics of the CPU, and no other effect: each byte that is read was written
//! to that address, and an aligned word that is stored as a whole is read as a whole. Rust guarantees this neither for
//! assembly that races with atomics nor for a device that writes to memory; RDMA in Rust relies on it anyway.
//!
//! Without such assembly (on other CPUs, and for Miri and ThreadSanitizer, which must see the accesses), the copies are
//! relaxed atomics of bytes and words, and the assumption is that atomics of two sizes may race.

use std::ptr::NonNull;

/// Copies bytes to memory that may be accessed concurrently.
///
/// # Safety
///
/// `bytes.len()` bytes may be written at `to`, and all concurrent accesses to them are of the three kinds above.
#[inline]
pub(super) unsafe fn store(to: NonNull<u8>, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(unaligned_len(to, bytes.len()));
    for (index, byte) in head.iter().enumerate() {
        // SAFETY: `head` is a part of `bytes`, so this byte may be written.
        unsafe { store_byte(to.add(index), *byte) };
    }
    // SAFETY: `head` is a part of `bytes`.
    let to = unsafe { to.add(head.len()) };
    // SAFETY: `rest` is readable, and `rest.len()` bytes may be written at `to`. If `rest` isn't empty, `head` ends at
    // an aligned address, so `to` is aligned.
    let copied = unsafe { copy_blocks(to, NonNull::from(rest).cast(), rest.len()) };
    let (words, tail) = rest[copied..].as_chunks::<8>();
    // SAFETY: at most `rest.len()` bytes were copied.
    let to = unsafe { to.add(copied) };
    for (index, word) in words.iter().enumerate() {
        // SAFETY: the word is a part of `rest`, and aligned, because blocks are whole words.
        unsafe { store_word(to.cast().add(index), u64::from_ne_bytes(*word)) };
    }
    for (index, byte) in tail.iter().enumerate() {
        // SAFETY: the byte is a part of `rest`.
        unsafe { store_byte(to.add(words.len() * 8 + index), *byte) };
    }
}

/// Copies bytes from memory that may be accessed concurrently.
///
/// # Safety
///
/// `length` bytes may be read at `from`, and all concurrent writes to them are of the three kinds above. `length` bytes
/// may be written at `to`, and have no concurrent accesses.
#[inline]
pub(super) unsafe fn load(from: NonNull<u8>, to: NonNull<u8>, length: usize) {
    let head = unaligned_len(from, length);
    for index in 0..head {
        // SAFETY: `index` is less than `length`.
        unsafe { to.add(index).write(load_byte(from.add(index))) };
    }
    // SAFETY: `head` is at most `length`.
    let (from, to, length) = unsafe { (from.add(head), to.add(head), length - head) };
    // SAFETY: `length` bytes may be read and written, and `from` is aligned unless `length` is 0.
    let copied = unsafe { copy_blocks(to, from, length) };
    // SAFETY: at most `length` bytes were copied.
    let (from, to, length) = unsafe { (from.add(copied), to.add(copied), length - copied) };
    for index in 0..length / 8 {
        // SAFETY: the word lies within the `length` bytes, and is aligned at `from`, because blocks are whole words.
        unsafe { to.cast::<u64>().add(index).write_unaligned(load_word(from.cast().add(index))) };
    }
    for index in length / 8 * 8..length {
        // SAFETY: `index` is less than `length`.
        unsafe { to.add(index).write(load_byte(from.add(index))) };
    }
}

/// Returns the number of bytes before the first aligned word, at most `length`.
#[inline]
fn unaligned_len(address: NonNull<u8>, length: usize) -> usize {
    address.align_offset(8).min(length)
}

/// Accesses with CPU instructions.
#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64",
    not(any(miri, adverb_atomic_copies))
))]
mod processor {
    use std::arch::asm;
    use std::ptr::NonNull;

    /// # Safety
    ///
    /// The byte may be read, and all concurrent writes to it are of the kinds that the module names.
    #[inline(always)]
    pub(super) unsafe fn load_byte(from: NonNull<u8>) -> u8 {
        let value: u32;
        // SAFETY: the caller guarantees that the byte may be read. The instruction changes no memory.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!(
                "movzx {:e}, byte ptr [{}]",
                out(reg) value, in(reg) from.as_ptr(),
                options(nostack, preserves_flags, readonly)
            );
            #[cfg(target_arch = "aarch64")]
            asm!(
                "ldrb {:w}, [{}]",
                out(reg) value, in(reg) from.as_ptr(),
                options(nostack, preserves_flags, readonly)
            );
        }
        value as u8
    }

    /// # Safety
    ///
    /// As [`load_byte`], for an aligned word.
    #[inline(always)]
    pub(super) unsafe fn load_word(from: NonNull<u64>) -> u64 {
        let value: u64;
        // SAFETY: the caller guarantees that the word may be read. The instruction changes no memory.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!(
                "mov {}, qword ptr [{}]",
                out(reg) value, in(reg) from.as_ptr(),
                options(nostack, preserves_flags, readonly)
            );
            #[cfg(target_arch = "aarch64")]
            asm!(
                "ldr {}, [{}]",
                out(reg) value, in(reg) from.as_ptr(),
                options(nostack, preserves_flags, readonly)
            );
        }
        value
    }

    /// # Safety
    ///
    /// The byte may be written, and all concurrent accesses to it are of the kinds that the module names.
    #[inline(always)]
    pub(super) unsafe fn store_byte(to: NonNull<u8>, byte: u8) {
        // SAFETY: the caller guarantees that the byte may be written.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!(
                "mov byte ptr [{}], {}",
                in(reg) to.as_ptr(), in(reg_byte) byte,
                options(nostack, preserves_flags)
            );
            #[cfg(target_arch = "aarch64")]
            asm!(
                "strb {:w}, [{}]",
                in(reg) u32::from(byte), in(reg) to.as_ptr(),
                options(nostack, preserves_flags)
            );
        }
    }

    /// # Safety
    ///
    /// As [`store_byte`], for an aligned word.
    #[inline(always)]
    pub(super) unsafe fn store_word(to: NonNull<u64>, word: u64) {
        // SAFETY: the caller guarantees that the word may be written.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!(
                "mov qword ptr [{}], {}",
                in(reg) to.as_ptr(), in(reg) word,
                options(nostack, preserves_flags)
            );
            #[cfg(target_arch = "aarch64")]
            asm!(
                "str {}, [{}]",
                in(reg) word, in(reg) to.as_ptr(),
                options(nostack, preserves_flags)
            );
        }
    }
}

/// Accesses with atomics instead of CPU instructions.
#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64",
    not(any(miri, adverb_atomic_copies))
)))]
mod processor {
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    /// # Safety
    ///
    /// The byte may be read, and all concurrent writes to it are of the kinds that the module names.
    #[inline(always)]
    pub(super) unsafe fn load_byte(from: NonNull<u8>) -> u8 {
        // SAFETY: the caller guarantees that the byte may be read, and an `AtomicU8` has the layout of a `u8`.
        unsafe { from.cast::<AtomicU8>().as_ref() }.load(Ordering::Relaxed)
    }

    /// # Safety
    ///
    /// As [`load_byte`], for an aligned word.
    #[inline(always)]
    pub(super) unsafe fn load_word(from: NonNull<u64>) -> u64 {
        // SAFETY: the caller guarantees that the word may be read, and an `AtomicU64` has the layout of an aligned
        // `u64`.
        unsafe { from.cast::<AtomicU64>().as_ref() }.load(Ordering::Relaxed)
    }

    /// # Safety
    ///
    /// The byte may be written, and all concurrent accesses to it are of the kinds that the module names.
    #[inline(always)]
    pub(super) unsafe fn store_byte(to: NonNull<u8>, byte: u8) {
        // SAFETY: the caller guarantees that the byte may be written, and an `AtomicU8` has the layout of a `u8`.
        unsafe { to.cast::<AtomicU8>().as_ref() }.store(byte, Ordering::Relaxed);
    }

    /// # Safety
    ///
    /// As [`store_byte`], for an aligned word.
    #[inline(always)]
    pub(super) unsafe fn store_word(to: NonNull<u64>, word: u64) {
        // SAFETY: the caller guarantees that the word may be written, and an `AtomicU64` has the layout of an aligned
        // `u64`.
        unsafe { to.cast::<AtomicU64>().as_ref() }.store(word, Ordering::Relaxed);
    }
}

use processor::{load_byte, load_word, store_byte, store_word};

/// Copies all whole blocks of 64 bytes, and returns the number of copied bytes. The CPU's instructions for 16 bytes are
/// faster than those for words. If one of the two ranges is aligned to 8 bytes, none of its words is accessed in
/// part.
///
/// # Safety
///
/// `length` bytes may be read at `from` and written at `to`. One of the two ranges has no concurrent accesses. All
/// concurrent accesses to the other range are of the kinds that the module names.
#[cfg(all(target_arch = "x86_64", not(any(miri, adverb_atomic_copies))))]
#[inline]
unsafe fn copy_blocks(to: NonNull<u8>, from: NonNull<u8>, length: usize) -> usize {
    let blocks = length / 64;
    if blocks == 0 {
        return 0;
    }
    // SAFETY: the instructions read and write only bytes that the caller guarantees to be accessible.
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

/// Copies nothing: on other CPUs, the caller copies words.
///
/// # Safety
///
/// There are no requirements, because the function copies nothing.
#[cfg(not(all(target_arch = "x86_64", not(any(miri, adverb_atomic_copies)))))]
#[inline]
unsafe fn copy_blocks(_to: NonNull<u8>, _from: NonNull<u8>, _length: usize) -> usize {
    0
}
