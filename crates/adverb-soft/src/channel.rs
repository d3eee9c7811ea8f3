//! What wakes those who wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Where events are announced: a descriptor that is readable while there are any.
///
/// ```
/// use adverb_soft::Channel;
///
/// let channel = Channel::new().unwrap();
/// assert!(!channel.take().unwrap());
/// ```
#[derive(Debug)]
pub struct Channel(EventFd);

impl Channel {
    /// A channel without events.
    ///
    /// # Errors
    ///
    /// If the process has too many descriptors.
    pub fn new() -> io::Result<Channel> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_SEMAPHORE;
        Ok(Channel(EventFd::from_value_and_flags(0, flags)?))
    }

    /// Announces an event.
    pub(crate) fn announce(&self) {
        // It fails only after 2⁶⁴ events that nobody took: then there is one to be seen all the same.
        _ = self.0.write(1);
    }

    /// Takes an event, if there is one.
    ///
    /// # Errors
    ///
    /// If the descriptor can't be read, which doesn't happen to one that is open.
    pub fn take(&self) -> io::Result<bool> {
        match self.0.read() {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_taken_one_by_one() {
        let channel = Channel::new().unwrap();
        channel.announce();
        channel.announce();
        assert!(channel.take().unwrap());
        assert!(channel.take().unwrap());
        assert!(!channel.take().unwrap());
    }
}
