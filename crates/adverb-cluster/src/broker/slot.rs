//! Send slots.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adverb_cluster_proto::{PeerId, PostError, SendSlot};
use adverb_verbs::memory::Buffer;
use parking_lot::Mutex;

/// A slot for a message to a peer: registered memory, and the credit to send it.
///
/// The slot derefs to the bytes of the message, of which there are none at first. Pass the slot to
/// [`Broker::post_send`](super::Broker::post_send). If the slot is dropped instead, the broker takes it back.
#[derive(Debug)]
pub struct SendBuf {
    /// Present until the slot is posted.
    parts: Option<(SendSlot, Buffer)>,
    peer: PeerId,
    len: usize,
    returns: Arc<Returns>,
}

/// The slots that were dropped without being posted.
#[derive(Debug, Default)]
pub(super) struct Returns {
    has_slots: AtomicBool,
    slots: Mutex<Vec<(SendSlot, Buffer)>>,
}

impl Returns {
    pub(super) fn take(&self) -> Option<(SendSlot, Buffer)> {
        if !self.has_slots.load(Ordering::Acquire) {
            return None;
        }
        let mut slots = self.slots.lock();
        let slot = slots.pop();
        if slot.is_none() {
            self.has_slots.store(false, Ordering::Release);
        }
        slot
    }

    fn put(&self, slot: SendSlot, buffer: Buffer) {
        let mut slots = self.slots.lock();
        slots.push((slot, buffer));
        self.has_slots.store(true, Ordering::Release);
    }
}

impl SendBuf {
    pub(super) fn new(slot: SendSlot, buffer: Buffer, returns: &Arc<Returns>) -> SendBuf {
        SendBuf { peer: slot.peer(), parts: Some((slot, buffer)), len: 0, returns: Arc::clone(returns) }
    }

    /// Returns the peer.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Returns the maximum length of the message in bytes.
    pub fn capacity(&self) -> usize {
        self.parts.as_ref().map_or(0, |(_, buffer)| buffer.len())
    }

    /// Appends bytes to the message.
    ///
    /// # Errors
    ///
    /// Returns [`PostError::MessageTooLong`] if the message would be longer than the slot. The message is unchanged then.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), PostError> {
        let start = self.len;
        self.resize(start + bytes.len())?;
        self[start..].copy_from_slice(bytes);
        Ok(())
    }

    /// Sets the length of the message. Bytes that were not written have any value, for example those of an earlier
    /// message.
    ///
    /// # Errors
    ///
    /// Returns [`PostError::MessageTooLong`] if the slot is shorter.
    pub fn resize(&mut self, len: usize) -> Result<(), PostError> {
        let max = self.capacity();
        if len > max {
            return Err(PostError::MessageTooLong { len, max });
        }
        self.len = len;
        Ok(())
    }

    /// Takes the slot and its buffer, whose range is reduced to the message.
    pub(super) fn into_parts(mut self) -> Option<(SendSlot, Buffer)> {
        let (slot, mut buffer) = self.parts.take()?;
        // The length was checked.
        buffer.set_range(0..self.len).ok()?;
        Some((slot, buffer))
    }
}

impl Deref for SendBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.parts.as_ref().map_or(&[], |(_, buffer)| &buffer[..self.len])
    }
}

impl DerefMut for SendBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.parts.as_mut().map_or(&mut [], |(_, buffer)| &mut buffer[..self.len])
    }
}

impl Drop for SendBuf {
    fn drop(&mut self) {
        if let Some((slot, buffer)) = self.parts.take() {
            self.returns.put(slot, buffer);
        }
    }
}
