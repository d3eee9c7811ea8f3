//! Where the news of a connection comes.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use adverb_proto::cm::Event;
use parking_lot::Mutex;

use crate::channel::Channel;

/// Where the connection manager's events of a connection, a listener or a question come: with a descriptor that is readable
/// while there are any.
///
/// ```
/// use adverb_soft::CmEventChannel;
///
/// let inbox = CmEventChannel::new().unwrap();
/// assert_eq!(inbox.take(), None);
/// ```
#[derive(Debug)]
pub struct CmEventChannel {
    channel: Channel,
    events: Mutex<VecDeque<CmEvent>>,
}

/// What an [`CmEventChannel`] gets.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CmEvent {
    /// What the connection manager has to say.
    Event(Event),
    /// The adapter has failed, and with it everything that this could tell of.
    NicFailed,
}

impl CmEventChannel {
    /// One with nothing in it.
    ///
    /// # Errors
    ///
    /// If the process has too many descriptors.
    pub fn new() -> io::Result<CmEventChannel> {
        Ok(CmEventChannel { channel: Channel::new()?, events: Mutex::default() })
    }

    /// Takes the oldest event, if there is one.
    pub fn take(&self) -> Option<CmEvent> {
        // Something may have been announced that is no longer here.
        _ = self.channel.take();
        self.events.lock().pop_front()
    }

    /// Makes the descriptor readable, for something that the owner knows of itself, until [`clear_wake`](CmEventChannel::clear_wake) is called as
    /// often.
    pub fn wake(&self) {
        self.channel.announce();
    }

    /// Takes back what [`wake`](CmEventChannel::wake) did.
    pub fn clear_wake(&self) {
        _ = self.channel.take();
    }

    pub(crate) fn put(&self, event: CmEvent) {
        self.events.lock().push_back(event);
        self.channel.announce();
    }

    pub(crate) fn len(&self) -> usize {
        self.events.lock().len()
    }

    /// Throws away what isn't to be kept.
    pub(crate) fn retain(&self, keep: impl FnMut(&CmEvent) -> bool) {
        self.events.lock().retain(keep);
    }
}

impl AsFd for CmEventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
