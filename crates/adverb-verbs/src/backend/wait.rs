//! Waiting for descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Waits until one of two descriptors can be read or has ended; `false` if that doesn't happen in time, or a signal came.
pub fn wait_either(
    first: BorrowedFd<'_>,
    second: Option<BorrowedFd<'_>>,
    timeout: Option<Duration>,
) -> io::Result<bool> {
    let entry = |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // An entry whose descriptor is negative is passed over.
    let absent = libc::pollfd { fd: -1, events: 0, revents: 0 };
    let mut entries = [entry(first), second.map_or(absent, entry)];
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: two entries, which may be written; the timeout is absent or outlives the call, and no signals are masked.
    let count = unsafe { libc::ppoll(entries.as_mut_ptr(), 2, timeout, std::ptr::null()) };
    if count >= 0 {
        return Ok(count > 0);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) }
}

/// A descriptor that can be read while any of several others can, or has ended.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    /// Makes a watch without descriptors.
    ///
    /// # Errors
    ///
    /// If the process has no descriptors left.
    pub fn new() -> io::Result<Watch> {
        // SAFETY: the call takes no memory.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nobody else's.
        Ok(Watch(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches another descriptor, until that is closed or removed.
    pub fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd)
    }

    /// Doesn't watch a descriptor any more.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd)
    }

    fn control(&self, operation: libc::c_int, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: both descriptors are open, and the event can be read.
        let code = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) };
        if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn either_descriptor_ends_the_wait() {
        let (first, mut first_writer) = io::pipe().unwrap();
        let (second, second_writer) = io::pipe().unwrap();
        let wait = |timeout| wait_either(first.as_fd(), Some(second.as_fd()), timeout).unwrap();
        assert!(!wait(Some(Duration::from_millis(1))));
        first_writer.write_all(&[1]).unwrap();
        assert!(wait(None));
        (&first).read_exact(&mut [0]).unwrap();
        assert!(!wait(Some(Duration::ZERO)));
        drop(second_writer);
        assert!(wait(None), "a pipe whose writer is gone has ended");
    }

    #[test]
    fn a_watch_can_be_read_while_one_of_its_descriptors_can() {
        let (outer, inner) = (Watch::new().unwrap(), Watch::new().unwrap());
        outer.add(inner.as_fd()).unwrap();
        let ready = |watch: &Watch| wait_either(watch.as_fd(), None, Some(Duration::ZERO)).unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        inner.add(reader.as_fd()).unwrap();
        assert!(!ready(&inner) && !ready(&outer));
        writer.write_all(&[1]).unwrap();
        assert!(ready(&inner) && ready(&outer));
        (&reader).read_exact(&mut [0]).unwrap();
        assert!(!ready(&inner) && !ready(&outer));
        drop(writer);
        assert!(ready(&outer), "a pipe whose writer is gone has ended");
        inner.remove(reader.as_fd()).unwrap();
        assert!(!ready(&outer), "what is removed isn't watched any more");
        inner.add(reader.as_fd()).unwrap();
        assert!(ready(&outer));
        drop(reader);
        assert!(!ready(&outer), "what is closed isn't watched any more");
    }

    #[test]
    fn one_descriptor_may_be_absent() {
        let (reader, _writer) = io::pipe().unwrap();
        assert!(!wait_either(reader.as_fd(), None, Some(Duration::from_micros(10))).unwrap());
    }
}
