//! Memory windows of a device.

use super::Device;
use crate::memory::{Pd, WindowError};
use crate::trace::EventSink;

impl<S: EventSink> Device<S> {
    /// Creates a memory window of type 2B and returns its key. The window grants no access until a
    /// [`SendOperation::BindWindow`](crate::types::SendOperation::BindWindow) on a connection binds it. A bound window
    /// grants access only to that connection's peer.
    ///
    /// Each binding assigns a new key to the window. The owner chooses the lowest 8 bits of the key, which must differ
    /// from those of the previous key; the other bits stay the same. The window must be invalidated before it is bound
    /// again: by a
    /// [`SendOperation::LocalInvalidate`](crate::types::SendOperation::LocalInvalidate) on the same connection, or by a
    /// SEND with invalidate of the peer. Destroying or resetting the queue pair also invalidates the window.
    ///
    /// `random` must be unpredictable, because a peer that guesses a key can use any window that is bound on its
    /// connection.
    ///
    /// # Errors
    ///
    /// Returns an error if the protection domain does not exist, or if the maximum number of windows is reached.
    pub fn create_window(&mut self, pd: Pd, random: impl FnMut() -> u32) -> Result<u32, WindowError> {
        self.keys.create_window(pd, random)
    }

    /// Destroys a memory window, bound or not, and ends all access through the window. `key` can be the key of any
    /// binding of the window.
    ///
    /// # Errors
    ///
    /// Returns [`WindowError::UnknownWindow`] if the window does not exist.
    pub fn destroy_window(&mut self, key: u32) -> Result<(), WindowError> {
        self.keys.destroy_window(key)
    }
}
