//! Memory windows of a device.

use super::Device;
use crate::event::EventSink;
use crate::memory::{Pd, WindowError};

impl<S: EventSink> Device<S> {
    /// Makes a memory window of type 2B, and gives its key. It shows nothing before it is bound, by a
    /// [`SendOperation::BindWindow`](crate::types::SendOperation::BindWindow) on a connection, and then only to
    /// that connection's peer.
    ///
    /// Each binding gives it another key, of which only the lowest 8 bits differ and are the owner's choice. It must be
    /// invalidated before it is bound anew: by a
    /// [`SendOperation::LocalInvalidate`](crate::types::SendOperation::LocalInvalidate) on the same connection, or
    /// by a SEND of the peer's. Destroying or resetting the queue pair does it too.
    ///
    /// Keys are all that stands between a peer and memory, so `random` must not be guessable.
    ///
    /// # Errors
    ///
    /// If there is no such domain, or there are too many windows.
    pub fn create_window(&mut self, pd: Pd, random: impl FnMut() -> u32) -> Result<u32, WindowError> {
        self.keys.create_window(pd, random)
    }

    /// Ends a memory window: nobody reaches anything through it any more, whether it was bound or not. Any of its keys
    /// names it.
    ///
    /// # Errors
    ///
    /// If there is no such window.
    pub fn destroy_window(&mut self, key: u32) -> Result<(), WindowError> {
        self.keys.destroy_window(key)
    }
}
