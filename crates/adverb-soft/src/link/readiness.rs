//! A descriptor for several descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

/// An epoll instance that is readable when a descriptor in it is. Its events are never read.
#[derive(Debug)]
pub(super) struct Readiness(Epoll);

/// The token of all descriptors, because no event is read.
const UNREAD_TOKEN: u64 = 0;

impl Readiness {
    pub(super) fn new() -> io::Result<Readiness> {
        Ok(Readiness(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?))
    }

    /// Adds a descriptor.
    pub(super) fn add(&self, descriptor: impl AsFd) -> io::Result<()> {
        Ok(self.0.add(descriptor, EpollEvent::new(EpollFlags::EPOLLIN, UNREAD_TOKEN))?)
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}
