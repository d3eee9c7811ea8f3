//! Slots for requests and replies.

use std::ops::{Deref, DerefMut};

use adverb_cluster_proto::rpc::{HEADER_LEN, Header};
use adverb_cluster_proto::{PeerId, PostError};

use crate::SendBuf;

/// A slot for a request or a reply to a peer: registered memory, and the credit to send it.
///
/// The slot derefs to the data, of which there is none at first. Pass the slot to [`Rpc::post_call`](super::Rpc::post_call)
/// or [`Rpc::post_reply`](super::Rpc::post_reply). If the slot is dropped instead, the broker takes it back.
#[derive(Debug)]
pub struct RpcBuf {
    /// The header, and then the data.
    message: SendBuf,
}

impl RpcBuf {
    pub(super) fn new(mut message: SendBuf) -> Result<RpcBuf, PostError> {
        message.resize(HEADER_LEN)?;
        Ok(RpcBuf { message })
    }

    /// Returns the peer.
    pub fn peer(&self) -> PeerId {
        self.message.peer()
    }

    /// Returns the maximum length of the data in bytes.
    pub fn capacity(&self) -> usize {
        self.message.capacity().saturating_sub(HEADER_LEN)
    }

    /// Appends bytes to the data.
    ///
    /// # Errors
    ///
    /// Returns [`PostError::MessageTooLong`] if the data would be longer than the slot allows. It is unchanged then.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), PostError> {
        self.check_len(self.len() + bytes.len())?;
        self.message.write(bytes)
    }

    /// Sets the length of the data. Bytes that were not written have any value, for example those of an earlier message.
    ///
    /// # Errors
    ///
    /// Returns [`PostError::MessageTooLong`] if the slot is shorter.
    pub fn resize(&mut self, len: usize) -> Result<(), PostError> {
        self.check_len(len)?;
        self.message.resize(HEADER_LEN + len)
    }

    fn check_len(&self, len: usize) -> Result<(), PostError> {
        let max = self.capacity();
        if len > max { Err(PostError::MessageTooLong { len, max }) } else { Ok(()) }
    }

    /// Writes the header, and returns the message.
    pub(super) fn finish(mut self, header: Header) -> SendBuf {
        self.message[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        self.message
    }
}

impl Deref for RpcBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.message[HEADER_LEN..]
    }
}

impl DerefMut for RpcBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.message[HEADER_LEN..]
    }
}
