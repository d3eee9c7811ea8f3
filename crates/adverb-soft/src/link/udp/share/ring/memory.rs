//! The memory of a ring: a file that two processes have mapped.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

use nix::libc;

use super::super::fork::MappingGuard;
use super::{CAPACITY, FIELDS_LEN, LENGTH, offset};
use crate::memory::{copy_in, copy_out};

/// Memory that is shared with another process.
#[derive(Debug)]
pub(super) struct Memory {
    // The guard is dropped first: afterwards, the address may belong to other memory.
    _guard: MappingGuard,
    mapping: Mapping,
}

/// The mapping of [`LENGTH`] bytes at an address.
#[derive(Debug)]
struct Mapping(NonNull<u8>);

// SAFETY: the memory belongs to the value, and all accesses to it are atomic, or those of the module `memory`.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped with this length, and nothing refers to it.
        unsafe { libc::munmap(self.0.as_ptr().cast(), LENGTH) };
    }
}

impl Memory {
    pub(super) fn map(file: BorrowedFd<'_>) -> io::Result<Memory> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the call maps new memory.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), LENGTH, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory { _guard: MappingGuard::new(start, LENGTH), mapping: Mapping(start) })
    }

    pub(super) fn counter(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset < FIELDS_LEN);
        // SAFETY: the fields are aligned parts of the memory, which lives as long as `self`, and other processes access
        // them atomically, too.
        unsafe { self.mapping.0.add(offset).cast().as_ref() }
    }

    pub(super) fn flag(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset < FIELDS_LEN);
        // SAFETY: as above.
        unsafe { self.mapping.0.add(offset).cast().as_ref() }
    }

    /// Returns the address of `length` bytes for messages at a position, which must not exceed the end of the memory.
    fn at(&self, position: u64, length: usize) -> NonNull<u8> {
        let offset = offset(position);
        assert!(offset + length <= CAPACITY);
        // SAFETY: the offset is within the memory.
        unsafe { self.mapping.0.add(FIELDS_LEN + offset) }
    }

    pub(super) fn store(&self, position: u64, bytes: &[u8]) {
        // SAFETY: the bytes are within the memory, and other processes access them in the same way.
        unsafe { copy_in(self.at(position, bytes.len()), bytes) };
    }

    pub(super) fn load(&self, position: u64, out: &mut [u8]) {
        // SAFETY: as above, and `out` belongs to the caller.
        unsafe { copy_out(self.at(position, out.len()), out) };
    }
}
