//! Event channels.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// An event channel: a counter of pending events, with a file descriptor that is readable while the counter isn't zero.
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
    /// Creates a channel without events.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system can't create a file descriptor.
    pub fn new() -> io::Result<Channel> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_SEMAPHORE;
        Ok(Channel(EventFd::from_value_and_flags(0, flags)?))
    }

    /// Adds an event.
    pub(crate) fn notify(&self) {
        // The write fails only with 2⁶⁴ pending events, and then the descriptor is readable anyway.
        _ = self.0.write(1);
    }

    /// Consumes one event. Returns false if no event is pending.
    ///
    /// # Errors
    ///
    /// Returns an error if the file descriptor can't be read. This doesn't happen while the descriptor is open.
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
    fn take_consumes_one_event() {
        let channel = Channel::new().unwrap();
        channel.notify();
        channel.notify();
        assert!(channel.take().unwrap());
        assert!(channel.take().unwrap());
        assert!(!channel.take().unwrap());
    }
}
