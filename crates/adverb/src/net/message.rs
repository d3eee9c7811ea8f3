//! What is sent and received.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytes::Bytes;

use crate::memory::RegisteredBuf;

/// A message that came: its bytes, and 32 bits beside them if the sender gave any.
///
/// The bytes are registered memory with one owner, so that a message can be sent on as it is.
#[derive(Debug)]
pub struct Message {
    pub(super) buffer: RegisteredBuf,
    pub(super) immediate: Option<u32>,
}

impl Message {
    /// The 32 bits that were [sent with it](super::blocking::Connection::send_with_imm).
    pub fn immediate(&self) -> Option<u32> {
        self.immediate
    }

    /// Its memory.
    pub fn into_buffer(self) -> RegisteredBuf {
        self.buffer
    }

    /// The bytes, to be shared.
    pub fn freeze(self) -> Bytes {
        self.buffer.freeze()
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl DerefMut for Message {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// What can be sent: bytes, which are copied, or registered memory, of which a long message is sent without a copy.
#[derive(Debug)]
pub struct Outgoing<'a>(pub(super) Source<'a>);

pub(super) enum Source<'a> {
    Bytes(&'a [u8]),
    Buffer(RegisteredBuf),
}

impl Outgoing<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.0 {
            Source::Bytes(bytes) => bytes,
            Source::Buffer(buffer) => buffer,
        }
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Outgoing<'a> {
    fn from(bytes: &'a T) -> Outgoing<'a> {
        Outgoing(Source::Bytes(bytes.as_ref()))
    }
}

impl From<RegisteredBuf> for Outgoing<'_> {
    fn from(buffer: RegisteredBuf) -> Self {
        Outgoing(Source::Buffer(buffer))
    }
}

impl From<Message> for Outgoing<'_> {
    fn from(message: Message) -> Self {
        message.buffer.into()
    }
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Source::Buffer(buffer) => buffer.fmt(f),
        }
    }
}
