//! Messages, and data to send.

use std::fmt;
use std::ops::{Deref, DerefMut};

use adverb_verbs::ProtectionDomain;
use adverb_verbs::memory::PoolBuf;
use bytes::Bytes;

use crate::error::{SendError, SendErrorKind};

/// A received message: its bytes, and its immediate data if the sender attached any.
///
/// The bytes are registered memory with a single owner, so a long message can be forwarded without a copy, over this
/// connection or another one with the same [pool](crate::Options::pool). Short messages that arrive together share one
/// buffer, which returns to the pool when the last of them is dropped. A program should copy messages that it keeps for
/// a long time.
#[derive(Debug)]
pub struct Message {
    buffer: PoolBuf,
    immediate: Option<u32>,
}

impl Message {
    pub(crate) fn new(buffer: PoolBuf, immediate: Option<u32>) -> Message {
        Message { buffer, immediate }
    }

    /// Returns the 32 bits of immediate data [sent with the message](crate::blocking::Connection::send_with_imm), if
    /// any.
    pub fn immediate(&self) -> Option<u32> {
        self.immediate
    }

    /// Converts the message into its pool buffer.
    pub fn into_buffer(self) -> PoolBuf {
        self.buffer
    }

    /// Converts the message into shared [`Bytes`](https://docs.rs/bytes/latest/bytes/struct.Bytes.html) without copying.
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

/// Data to send: bytes, which are copied, or a pool buffer, which is not copied if the message is long.
///
/// Conversions from references to bytes, from `Vec<u8>` and [`Bytes`](https://docs.rs/bytes/latest/bytes/struct.Bytes.html), from [`PoolBuf`] and from [`Message`] create this
/// type, so callers seldom need to name this type. A `Vec<u8>` or `Bytes` is copied into registered memory, and dropped.
#[derive(Debug)]
pub struct SendData<'a>(Source<'a>);

enum Source<'a> {
    Borrowed(&'a [u8]),
    Owned(Bytes),
    Buffer(PoolBuf),
}

impl SendData<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.0 {
            Source::Borrowed(bytes) => bytes,
            Source::Owned(bytes) => bytes,
            Source::Buffer(buffer) => buffer,
        }
    }

    /// Returns the data's buffer, if the data is one of this protection domain, and otherwise the data.
    pub(crate) fn into_buffer_of(self, domain: &ProtectionDomain) -> Result<PoolBuf, Self> {
        match self.0 {
            Source::Buffer(buffer) if buffer.protection_domain() == domain => Ok(buffer),
            source => Err(SendData(source)),
        }
    }

    /// Returns an error with the data's buffer, if the data is one.
    pub(crate) fn into_error(self, kind: SendErrorKind) -> SendError {
        SendError { kind, buffer: self.into_buffer() }
    }

    /// Returns the data's buffer, if the data is one.
    pub(crate) fn into_buffer(self) -> Option<PoolBuf> {
        match self.0 {
            Source::Buffer(buffer) => Some(buffer),
            Source::Borrowed(_) | Source::Owned(_) => None,
        }
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for SendData<'a> {
    fn from(bytes: &'a T) -> SendData<'a> {
        SendData(Source::Borrowed(bytes.as_ref()))
    }
}

/// The bytes are copied when they are sent.
impl From<Bytes> for SendData<'_> {
    fn from(bytes: Bytes) -> Self {
        SendData(Source::Owned(bytes))
    }
}

/// The bytes are copied when they are sent.
impl From<Vec<u8>> for SendData<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<PoolBuf> for SendData<'_> {
    fn from(buffer: PoolBuf) -> Self {
        SendData(Source::Buffer(buffer))
    }
}

impl From<Message> for SendData<'_> {
    fn from(message: Message) -> Self {
        message.buffer.into()
    }
}

/// A sent message that the peer may not have received.
#[derive(Debug)]
#[non_exhaustive]
pub struct UnacknowledgedMessage {
    /// The zero-based index of the message among all messages that this side has sent over this connection.
    pub index: u64,
    /// The bytes of the message.
    pub buffer: PoolBuf,
    /// The immediate data of the message.
    pub immediate: Option<u32>,
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Borrowed(bytes) => write!(f, "{} bytes", bytes.len()),
            Source::Owned(bytes) => write!(f, "{} bytes", bytes.len()),
            Source::Buffer(buffer) => buffer.fmt(f),
        }
    }
}
