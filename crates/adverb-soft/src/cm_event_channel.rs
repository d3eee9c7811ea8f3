//! The connection manager's event channels.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use adverb_proto::cm::Event;
use parking_lot::Mutex;

use crate::channel::Channel;

/// A queue of connection manager events of a connection, a listener or a query, with a file descriptor that becomes
/// readable after an event was added. The descriptor may also be readable without an event.
///
/// ```
/// use adverb_soft::CmEventChannel;
///
/// let channel = CmEventChannel::new().unwrap();
/// assert_eq!(channel.take(), None);
/// ```
#[derive(Debug)]
pub struct CmEventChannel {
    channel: Arc<Channel>,
    events: Mutex<VecDeque<CmEvent>>,
}

/// An event in a [`CmEventChannel`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CmEvent {
    /// An event of the connection manager.
    Event(Event),
    /// The NIC has failed. The channel receives no further events.
    NicFailed,
}

impl CmEventChannel {
    /// Creates an empty channel.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system can't create a file descriptor.
    pub fn new() -> io::Result<CmEventChannel> {
        Ok(CmEventChannel { channel: Arc::new(Channel::new()?), events: Mutex::default() })
    }

    /// Removes and returns the oldest event. Returns `None` if the channel is empty.
    pub fn take(&self) -> Option<CmEvent> {
        // The queue alone determines the result: `retain` may have removed events that the channel still counts.
        _ = self.channel.take();
        self.events.lock().pop_front()
    }

    /// Wakes a caller that sleeps on the file descriptor: the descriptor becomes readable without an event. The caller
    /// must call [`clear_wake`](CmEventChannel::clear_wake) once for each call of `wake`.
    pub fn wake(&self) {
        self.channel.notify();
    }

    /// Reverts one call of [`wake`](CmEventChannel::wake).
    pub fn clear_wake(&self) {
        _ = self.channel.take();
    }

    /// Adds an event, and returns the channel that the caller must notify.
    #[must_use]
    pub(crate) fn put(&self, event: CmEvent) -> &Arc<Channel> {
        self.events.lock().push_back(event);
        &self.channel
    }

    pub(crate) fn len(&self) -> usize {
        self.events.lock().len()
    }

    /// Removes the events for which `keep` returns false.
    pub(crate) fn retain(&self, keep: impl FnMut(&CmEvent) -> bool) {
        self.events.lock().retain(keep);
    }
}

impl AsFd for CmEventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
