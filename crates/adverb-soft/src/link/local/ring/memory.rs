//! The memory of a ring: a file that two processes have mapped.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use nix::libc;
use nix::unistd::{SysconfVar, sysconf};

use super::super::fork::{Guarded, MappingGuard};
use super::{Atomic, RingMemory, offset};
use crate::memory::{copy_in, copy_out};

/// The length of the memory: the fields, then the messages.
const LENGTH: usize = FIELDS_LEN + Mapping::CAPACITY;

/// The length of the fields, each of which has its own cache line.
const FIELDS_LEN: usize = 4096;

/// The offset of the number of bytes that were written.
const WRITTEN: usize = 0;

/// The offset of the number of bytes that were read.
const READ: usize = 128;

/// The offset of the flag that the reader wants to be woken.
const WANTS_WAKEUP: usize = 256;

/// The offset of the flag that the reader has opened the ring.
const IS_OPENED: usize = 384;

/// Memory that is shared with another process, between pages without access.
#[derive(Debug)]
pub(in crate::link::local) struct Mapping {
    // The guard is dropped first: afterwards, the address may belong to other memory.
    _guard: MappingGuard,
    pages: Pages,
    /// The file, which the writer of the ring keeps.
    file: Option<Guarded<File>>,
}

/// The pages of a mapping.
#[derive(Debug)]
struct Pages {
    /// The address of the [`LENGTH`] bytes of the file.
    start: NonNull<u8>,
    /// The address of the first page without access, and the length of all pages.
    reserved: (NonNull<u8>, usize),
}

// SAFETY: the memory belongs to the value, and all accesses to it are atomic, or those of the module `memory`.
unsafe impl Send for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        let (start, length) = self.reserved;
        // SAFETY: the memory was mapped with this length, and nothing refers to it.
        unsafe { libc::munmap(start.as_ptr().cast(), length) };
    }
}

impl Pages {
    /// Maps a file with [`LENGTH`] bytes.
    fn map(file: BorrowedFd<'_>) -> io::Result<Pages> {
        let page_len = sysconf(SysconfVar::PAGE_SIZE)?.and_then(|length| usize::try_from(length).ok());
        let page_len = page_len.ok_or(io::ErrorKind::Unsupported)?;
        let length = LENGTH.next_multiple_of(page_len) + 2 * page_len;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the call maps new memory.
        let reserved = unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
        if reserved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let reserved = NonNull::new(reserved.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the second page is within the memory.
        let pages = Pages { start: unsafe { reserved.add(page_len) }, reserved: (reserved, length) };
        let (start, access) = (pages.start.as_ptr().cast(), libc::PROT_READ | libc::PROT_WRITE);
        let (flags, file) = (libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd());
        // SAFETY: the call replaces pages that were just reserved, and no others.
        if unsafe { libc::mmap(start, LENGTH, access, flags, file, 0) } == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(pages)
    }
}

impl Mapping {
    /// Creates the memory of a ring, of which nothing is allocated.
    pub(super) fn create() -> io::Result<Mapping> {
        let file = create_file()?;
        file.set_len(LENGTH as u64)?;
        // SAFETY: the call changes only the file.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Mapping::new(Pages::map(file.as_fd())?, Some(Guarded::new(file)))
    }

    /// Maps the memory of a ring that another process has created.
    pub(super) fn open(file: OwnedFd) -> io::Result<Mapping> {
        let file = File::from(file);
        // SAFETY: the call only reads.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        // A file without these seals could be truncated, and an access to its memory would then end this process.
        if seals < 0 || seals & SEALS != SEALS || file.metadata()?.len() != LENGTH as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Mapping::new(Pages::map(file.as_fd())?, None)
    }

    fn new(pages: Pages, file: Option<Guarded<File>>) -> io::Result<Mapping> {
        Ok(Mapping { _guard: MappingGuard::new(pages.start, LENGTH), pages, file })
    }

    /// Returns the file, if this process has created the ring.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|file| file.as_fd())
    }

    fn counter(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset < FIELDS_LEN);
        // SAFETY: the fields are aligned parts of the memory, which lives as long as `self`, and other processes access
        // them atomically, too.
        unsafe { self.pages.start.add(offset).cast().as_ref() }
    }

    fn flag(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset < FIELDS_LEN);
        // SAFETY: as above.
        unsafe { self.pages.start.add(offset).cast().as_ref() }
    }

    /// Returns the address of `length` bytes for messages at a position, which must not exceed the end of the memory.
    fn at(&self, position: u64, length: usize) -> NonNull<u8> {
        let offset = offset::<Mapping>(position);
        assert!(offset + length <= Mapping::CAPACITY);
        // SAFETY: the offset is within the memory.
        unsafe { self.pages.start.add(FIELDS_LEN + offset) }
    }
}

impl RingMemory for Mapping {
    type Counter = AtomicU64;
    type Flag = AtomicU32;

    // More than twice the receive buffer that Linux grants to an unprivileged process by default, 416 KiB, which limits the
    // packets in flight of a queue pair.
    const CAPACITY: usize = 1 << 20;

    const BLOCK_LEN: usize = 128 << 10;

    #[inline]
    fn written(&self) -> &AtomicU64 {
        self.counter(WRITTEN)
    }

    #[inline]
    fn read(&self) -> &AtomicU64 {
        self.counter(READ)
    }

    #[inline]
    fn wants_wakeup(&self) -> &AtomicU32 {
        self.flag(WANTS_WAKEUP)
    }

    #[inline]
    fn is_opened(&self) -> &AtomicU32 {
        self.flag(IS_OPENED)
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn store(&self, position: u64, bytes: &[u8]) {
        // SAFETY: the bytes are within the memory, and other processes access them in the same way.
        unsafe { copy_in(self.at(position, bytes.len()), bytes) };
    }

    #[inline]
    fn load(&self, position: u64, out: &mut [u8]) {
        // SAFETY: as above, and `out` belongs to the caller.
        unsafe { copy_out(self.at(position, out.len()), out) };
    }

    fn allocate(&self, start: usize, end: usize) -> io::Result<()> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::Unsupported)?.as_raw_fd();
        let start = if start == 0 { 0 } else { FIELDS_LEN + start };
        let length = (FIELDS_LEN + end - start) as libc::off_t;
        // SAFETY: the call changes only the file.
        while unsafe { libc::fallocate(file, 0, start as libc::off_t, length) } < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Atomic<u64> for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }
}

impl Atomic<u32> for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.swap(value, order)
    }
}

/// Creates an empty file in memory.
fn create_file() -> io::Result<File> {
    let create = |flags| {
        // SAFETY: the name is a string.
        unsafe { libc::memfd_create(c"adverb".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flags) }
    };
    // Linux 6.3 and later want to know that the file is not executable. Earlier versions refuse the flag.
    let descriptor = match create(libc::MFD_NOEXEC_SEAL) {
        refused if refused < 0 => create(0),
        descriptor => descriptor,
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(descriptor) }))
}

/// The seals of the file: no process can change its size, so that the memory stays accessible.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

#[cfg(test)]
mod tests {
    use super::super::{Reader, Writer};
    use super::*;

    #[test]
    fn other_files_are_no_rings() {
        let file = File::open("/dev/null").unwrap();
        assert!(Reader::open(file.into()).is_err());
        let seal = |length: usize, seals: libc::c_int| {
            let file = create_file().unwrap();
            file.set_len(length as u64).unwrap();
            // SAFETY: the call changes only the file.
            assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
            Reader::open(file.into()).is_ok()
        };
        assert!(seal(LENGTH, SEALS));
        assert!(!seal(LENGTH - 1, SEALS));
        assert!(!seal(LENGTH, SEALS & !libc::F_SEAL_SHRINK));
        assert!(!seal(LENGTH, 0));
        let writer = Writer::create().unwrap();
        assert!(writer.memory.file.unwrap().set_len(0).is_err());
    }

    #[test]
    fn a_ring_lies_between_pages_without_access() {
        let mapping = Mapping::create().unwrap();
        let start = mapping.pages.start.as_ptr().addr();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let areas: Vec<(usize, usize, &str)> = maps
            .lines()
            .map(|line| {
                let (range, rest) = line.split_once(' ').unwrap();
                let (from, to) = range.split_once('-').unwrap();
                let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16).unwrap());
                (from, to, &rest[..4])
            })
            .collect();
        let index = areas.iter().position(|(from, ..)| *from == start).unwrap();
        let (_, end, access) = areas[index];
        assert_eq!(access, "rw-s");
        assert!(end - start >= LENGTH);
        let (_, before_end, before) = areas[index - 1];
        let (after_start, _, after) = areas[index + 1];
        assert_eq!((before_end, before, after_start, after), (start, "---p", end, "---p"));
    }
}
