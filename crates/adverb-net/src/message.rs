//! What is sent and received.

use std::fmt;
use std::ops::{Deref, DerefMut};

use adverb_verbs::Error;
use adverb_verbs::memory::RegisteredBuf;
use bytes::Bytes;

/// A message that came: its bytes, and 32 bits beside them if the sender gave any.
///
/// The bytes are registered memory with one owner, so that a message can be sent on as it is. Short messages that came together
/// are parts of one piece of memory, which goes home when all of them are dropped: of what is kept for long, make a copy.
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
pub struct SendData<'a>(pub(super) Source<'a>);

pub(super) enum Source<'a> {
    Bytes(&'a [u8]),
    Buffer(RegisteredBuf),
}

impl SendData<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.0 {
            Source::Bytes(bytes) => bytes,
            Source::Buffer(buffer) => buffer,
        }
    }
}

impl SendData<'_> {
    /// Why it wasn't sent, with the buffer that it is.
    pub(super) fn refused(self, error: Error) -> SendError {
        let buffer = match self.0 {
            Source::Buffer(buffer) => Some(buffer),
            Source::Bytes(_) => None,
        };
        SendError { error, buffer }
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for SendData<'a> {
    fn from(bytes: &'a T) -> SendData<'a> {
        SendData(Source::Bytes(bytes.as_ref()))
    }
}

impl From<RegisteredBuf> for SendData<'_> {
    fn from(buffer: RegisteredBuf) -> Self {
        SendData(Source::Buffer(buffer))
    }
}

impl From<Message> for SendData<'_> {
    fn from(message: Message) -> Self {
        message.buffer.into()
    }
}

/// A message that was sent, and of which nobody knows whether the peer has it.
#[derive(Debug)]
#[non_exhaustive]
pub struct UnacknowledgedMessage {
    /// How many messages were sent before it over this connection.
    pub index: u64,
    /// Its bytes.
    pub buffer: RegisteredBuf,
    /// The 32 bits beside it.
    pub immediate: Option<u32>,
}

/// Sending, or writing to a peer's memory, failed: why, and what was to be sent.
///
/// `?` makes an [`Error`] of it; so who doesn't want the buffer back needn't care.
///
/// ```
/// use adverb::net::blocking::Connection;
///
/// /// Sends it over the first connection that is well.
/// fn send_anywhere(connections: &[Connection], mut message: adverb::memory::RegisteredBuf) -> adverb::Result<()> {
///     for connection in connections {
///         match connection.send(message) {
///             Ok(()) => return Ok(()),
///             Err(failure) => match failure.buffer {
///                 Some(buffer) => message = buffer,
///                 None => return Err(failure.error),
///             },
///         }
///     }
///     Err(adverb::Error::InvalidRequest { reason: "no connection is well".into() })
/// }
/// ```
#[derive(Debug)]
pub struct SendError {
    /// Why.
    pub error: Error,
    /// The registered memory that was to be sent. None if it was bytes, of which only a copy would have been sent; or if the
    /// message was taken all the same, and is on its way or in the device's hands.
    pub buffer: Option<RegisteredBuf>,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for SendError {}

impl From<Error> for SendError {
    fn from(error: Error) -> SendError {
        SendError { error, buffer: None }
    }
}

/// Drops the buffer, which goes home.
impl From<SendError> for Error {
    fn from(error: SendError) -> Error {
        error.error
    }
}

/// Drops the buffer, which goes home.
impl From<SendError> for std::io::Error {
    fn from(error: SendError) -> std::io::Error {
        error.error.into()
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

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_send_error_prints_its_cause_once() {
        let error =
            || Error::NoDevice { reason: "there is no device mlx5_0".into(), hint: "try soft".into() };
        let send_error = SendError::from(error());
        assert_eq!(send_error.to_string(), error().to_string());
        assert_eq!(format!("{send_error:?}"), format!("SendError {{ error: {:?}, buffer: None }}", error()));
        assert!(send_error.source().is_none());
    }
}
