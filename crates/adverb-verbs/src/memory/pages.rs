//! Pages from the operating system.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use super::Memory;

/// Zeroed pages from the operating system. Dropping the value unmaps the pages.
///
/// ```
/// use adverb::memory::{Memory, Pages};
///
/// let pages = Pages::new(10_000)?;
/// assert_eq!(pages.len(), 10_000);
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Pages {
    address: NonNull<u8>,
    len: usize,
    /// The length of the mapping: `len` rounded up to whole pages.
    mapped: usize,
    is_huge: bool,
    memfd: Option<OwnedFd>,
}

// SAFETY: only this value owns the mapping, and munmap may be called from any thread.
unsafe impl Send for Pages {}
// SAFETY: no method gives access to the bytes.
unsafe impl Sync for Pages {}

// SAFETY: the mapping belongs to this value, doesn't move until it is dropped, and is readable and writable. Any
// process with the descriptor of a memfd can change it, so it isn't exclusive. The memfd is sealed, so it can't be
// truncated.
unsafe impl Memory for Pages {
    fn as_ptr(&self) -> NonNull<u8> {
        self.address
    }

    fn len(&self) -> usize {
        self.len
    }

    fn is_exclusive(&self) -> bool {
        self.memfd.is_none()
    }
}

impl Pages {
    /// Allocates `len` bytes in ordinary pages.
    ///
    /// # Errors
    ///
    /// Returns the system's error if the system has no free memory, and [`InvalidInput`](io::ErrorKind::InvalidInput)
    /// if `len` is 0.
    pub fn new(len: usize) -> io::Result<Pages> {
        Pages::map(len, PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None)
    }

    /// Allocates `len` bytes in huge pages of 2 MiB, which need fewer address translations in the device.
    ///
    /// # Errors
    ///
    /// Returns the system's error if the system has too few reserved huge pages (`/proc/sys/vm/nr_hugepages`), and
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if `len` is 0.
    pub fn huge(len: usize) -> io::Result<Pages> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
        Pages::map(len, HUGE_PAGE, flags, None)
    }

    /// Allocates `len` bytes in huge pages if the system has enough reserved, and otherwise in ordinary pages.
    ///
    /// The ordinary pages are aligned to 2 MiB and marked with `MADV_HUGEPAGE`, so the system may merge them into huge
    /// pages (`/sys/kernel/mm/transparent_hugepage/enabled`).
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`new`](Pages::new).
    pub fn prefer_huge(len: usize) -> io::Result<Pages> {
        if let Ok(pages) = Pages::huge(len) {
            return Ok(pages);
        }
        let mut pages = Pages::new(round_up(len, HUGE_PAGE)?.saturating_add(HUGE_PAGE))?;
        pages.cut_to_huge_pages(len);
        // SAFETY: the mapping belongs to this value. The advice has no effect on its contents, and may fail.
        unsafe { libc::madvise(pages.address.as_ptr().cast(), pages.mapped, libc::MADV_HUGEPAGE) };
        Ok(pages)
    }

    /// Unmaps the bytes before the first boundary of a huge page, and those after the huge pages that `len` needs. The
    /// mapping must be at least one huge page longer than these.
    fn cut_to_huge_pages(&mut self, len: usize) {
        let before = self.address.as_ptr().align_offset(HUGE_PAGE);
        let kept = len.next_multiple_of(HUGE_PAGE);
        let after = self.mapped - before - kept;
        // SAFETY: the result lies within the mapping, which is a huge page longer than the kept part.
        let address = unsafe { self.address.add(before) };
        // SAFETY: as above.
        let end = unsafe { address.add(kept) };
        for (at, len) in [(self.address, before), (end, after)] {
            if len > 0 {
                // SAFETY: these are whole pages of the mapping that are neither used nor kept.
                let result = unsafe { libc::munmap(at.as_ptr().cast(), len) };
                debug_assert_eq!(result, 0, "unmapping a mapping succeeds");
            }
        }
        (self.address, self.len, self.mapped) = (address, len, kept);
    }

    /// Allocates `len` bytes in a memfd, whose descriptor can be passed to another process.
    ///
    /// The kernel shows the name in `/proc/self/fd`. The memfd is sealed, so it can't be truncated.
    ///
    /// # Errors
    ///
    /// Returns the system's error if the system has no free memory, and [`InvalidInput`](io::ErrorKind::InvalidInput)
    /// if `len` is 0 or `name` contains a NUL.
    pub fn memfd(name: &str, len: usize) -> io::Result<Pages> {
        let name = CString::new(name)?;
        // SAFETY: the name is a C string that outlives the call.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created, and no other value owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let size = round_up(len, PAGE)?;
        // SAFETY: the descriptor is open.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), size.try_into().map_err(io::Error::other)?) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // Otherwise, a process with the descriptor could truncate the file, and the next access here would raise
        // SIGBUS.
        // SAFETY: the descriptor is open.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Pages::map(len, PAGE, libc::MAP_SHARED, Some(fd))
    }

    /// Whether the pages are huge pages that the system had reserved: always for [`huge`](Pages::huge), and for
    /// [`prefer_huge`](Pages::prefer_huge) if there were enough of them.
    pub fn is_huge(&self) -> bool {
        self.is_huge
    }

    /// Returns the memfd, if the pages are in a memfd.
    ///
    /// A process that has the descriptor may change the bytes at any time, so such memory can't become a
    /// [`Buffer`](super::Buffer).
    pub fn as_memfd(&self) -> Option<BorrowedFd<'_>> {
        self.memfd.as_ref().map(AsFd::as_fd)
    }

    fn map(len: usize, page: usize, flags: libc::c_int, memfd: Option<OwnedFd>) -> io::Result<Pages> {
        let mapped = round_up(len, page)?;
        let fd = memfd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        // SAFETY: this is a new mapping at an address of the kernel's choice, which affects no memory in use.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), mapped, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Pages { address, len, mapped, is_huge: page == HUGE_PAGE, memfd })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping was created with this length and is unmapped once. The owner of a `Memory` drops it only
        // when nothing uses it any more.
        let result = unsafe { libc::munmap(self.address.as_ptr().cast(), self.mapped) };
        debug_assert_eq!(result, 0, "unmapping a mapping succeeds");
    }
}

const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

fn round_up(len: usize, page: usize) -> io::Result<usize> {
    match len.checked_next_multiple_of(page) {
        Some(0) => Err(io::Error::new(io::ErrorKind::InvalidInput, "the length is 0")),
        Some(size) => Ok(size),
        None => Err(io::Error::new(io::ErrorKind::OutOfMemory, "the length exceeds the address space")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefer_huge_aligns_both_ends_to_huge_pages() {
        for len in [1, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1, 5 * HUGE_PAGE] {
            let pages = Pages::prefer_huge(len).unwrap();
            assert_eq!(pages.len(), len);
            assert_eq!(pages.mapped, len.next_multiple_of(HUGE_PAGE));
            assert_eq!(pages.as_ptr().as_ptr().align_offset(HUGE_PAGE), 0);
            assert!(!Pages::new(len).unwrap().is_huge());
            for at in [0, len - 1] {
                // SAFETY: the byte lies within the pages, which only this test accesses.
                unsafe { pages.as_ptr().add(at).write(7) };
            }
        }
        assert!(Pages::prefer_huge(0).is_err());
    }
}
