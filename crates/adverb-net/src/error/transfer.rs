//! The errors of messages: sending and receiving.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use adverb_verbs as verbs;
use adverb_verbs::memory::PoolBuf;

use super::{ConnectionError, RECONNECTING_HINT, WaitError, into_io_error, reconnecting};

/// The error of a failed send, with the buffer that was not sent.
///
/// The operator `?` converts this error into an `adverb::Error`, and drops the buffer.
///
/// ```
/// use adverb::net::SendErrorKind;
/// use adverb::net::blocking::Connection;
///
/// /// Sends a message over the first connection that works. Returns the message if none does.
/// fn send_anywhere(
///     connections: &[Connection],
///     mut message: adverb::memory::PoolBuf,
/// ) -> adverb::Result<Option<adverb::memory::PoolBuf>> {
///     for connection in connections {
///         match connection.send(message) {
///             Ok(()) => return Ok(None),
///             Err(failure) => match (failure.kind, failure.buffer) {
///                 (SendErrorKind::ConnectionLost(_), Some(buffer)) => message = buffer,
///                 (kind, _) => return Err(kind.into()),
///             },
///         }
///     }
///     Ok(Some(message))
/// }
/// ```
#[derive(Debug)]
pub struct SendError {
    /// The reason of the failure.
    pub kind: SendErrorKind,
    /// The pool buffer that was not sent. This field is `None` if the data was no pool buffer, if the message is queued or
    /// in flight, or if the buffer could not be registered.
    pub buffer: Option<PoolBuf>,
}

/// The reason of a failed send.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// The message is longer than the peer accepts. The connection remains usable.
    #[error("a message of {len} bytes exceeds the maximum of {peer}, which is {max} bytes")]
    TooLong {
        /// The peer's address.
        peer: SocketAddr,
        /// The length of the message in bytes.
        len: u64,
        /// The maximum length in bytes.
        max: u64,
    },
    /// The message cannot be sent without waiting. Only `try_send` returns this error.
    #[error("sending to {peer} would wait: the peer has granted no credits, or earlier messages are queued")]
    WouldBlock {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// The peer did not grant credits within the time limit.
    #[error("{peer} accepted no further data within {timeout:?}{}", reconnecting(*.is_reconnecting))]
    TimedOut {
        /// The peer's address.
        peer: SocketAddr,
        /// The time limit.
        timeout: Duration,
        /// Whether the connection has failed, and was being re-established when the time limit expired.
        is_reconnecting: bool,
    },
    /// This side has shut down sending.
    #[error("this side has shut down sending to {peer}")]
    ShutDown {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// Memory for the message could not be allocated or registered.
    #[error("allocating or registering memory for a message to {peer} failed")]
    Memory {
        /// The peer's address.
        peer: SocketAddr,
        /// The cause.
        source: Box<verbs::Error>,
    },
    /// The connection has ended.
    #[error(transparent)]
    ConnectionLost(#[from] ConnectionError),
}

/// The error of a failed receive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// No message arrived within the time limit.
    #[error("no message from {peer} arrived within {timeout:?}{}", reconnecting(*.is_reconnecting))]
    TimedOut {
        /// The peer's address.
        peer: SocketAddr,
        /// The time limit.
        timeout: Duration,
        /// Whether the connection has failed, and was being re-established when the time limit expired.
        is_reconnecting: bool,
    },
    /// The connection has ended.
    #[error(transparent)]
    ConnectionLost(#[from] ConnectionError),
}

impl SendError {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        self.kind.hint()
    }

    /// Whether a time limit has expired.
    pub fn is_timeout(&self) -> bool {
        self.kind.is_timeout()
    }

    /// Returns the value of [`SendErrorKind::is_retryable`].
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }
}

impl SendErrorKind {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        let hint = match self {
            SendErrorKind::TooLong { .. } => {
                "split the message, or raise `Options::max_message_size` on the peer"
            }
            SendErrorKind::WouldBlock { .. } => {
                "try again after the peer has received messages, or use the method that waits"
            }
            SendErrorKind::TimedOut { is_reconnecting: true, .. } => RECONNECTING_HINT,
            SendErrorKind::TimedOut { is_reconnecting: false, .. } => {
                "check that the peer's program receives its messages"
            }
            SendErrorKind::Memory { source, .. } => return source.hint(),
            SendErrorKind::ConnectionLost(error) => return error.hint(),
            SendErrorKind::ShutDown { .. } => return None,
        };
        Some(hint.into())
    }

    /// Whether a time limit has expired.
    pub fn is_timeout(&self) -> bool {
        match self {
            SendErrorKind::TimedOut { .. } => true,
            SendErrorKind::ConnectionLost(error) => error.is_timeout(),
            _ => false,
        }
    }

    /// Whether sending later can succeed without a change of the program or the configuration. After
    /// [`ConnectionLost`](SendErrorKind::ConnectionLost), this takes a new connection.
    pub fn is_retryable(&self) -> bool {
        match self {
            SendErrorKind::WouldBlock { .. } | SendErrorKind::TimedOut { .. } => true,
            SendErrorKind::Memory { source, .. } => source.is_retryable(),
            SendErrorKind::ConnectionLost(error) => error.is_retryable(),
            SendErrorKind::TooLong { .. } | SendErrorKind::ShutDown { .. } => false,
        }
    }

    /// Returns the error of memory that can't be allocated or registered.
    pub(crate) fn memory(peer: SocketAddr, error: verbs::Error) -> SendErrorKind {
        SendErrorKind::Memory { peer, source: Box::new(error) }
    }
}

impl RecvError {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        match self {
            RecvError::TimedOut { is_reconnecting: true, .. } => Some(RECONNECTING_HINT.into()),
            RecvError::TimedOut { is_reconnecting: false, .. } => None,
            RecvError::ConnectionLost(error) => error.hint(),
        }
    }

    /// Whether a time limit has expired.
    pub fn is_timeout(&self) -> bool {
        match self {
            RecvError::TimedOut { .. } => true,
            RecvError::ConnectionLost(error) => error.is_timeout(),
        }
    }

    /// Whether receiving later can succeed without a change of the program or the configuration: `true` for
    /// [`TimedOut`](RecvError::TimedOut), because a message may arrive later. After
    /// [`ConnectionLost`](RecvError::ConnectionLost), this takes a new connection.
    pub fn is_retryable(&self) -> bool {
        match self {
            RecvError::TimedOut { .. } => true,
            RecvError::ConnectionLost(error) => error.is_retryable(),
        }
    }
}

impl WaitError for SendErrorKind {
    fn timed_out(peer: SocketAddr, timeout: Duration, is_reconnecting: bool) -> SendErrorKind {
        SendErrorKind::TimedOut { peer, timeout, is_reconnecting }
    }
}

impl WaitError for RecvError {
    fn timed_out(peer: SocketAddr, timeout: Duration, is_reconnecting: bool) -> RecvError {
        RecvError::TimedOut { peer, timeout, is_reconnecting }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.kind.source()
    }
}

impl From<SendErrorKind> for SendError {
    fn from(kind: SendErrorKind) -> SendError {
        SendError { kind, buffer: None }
    }
}

/// Drops the buffer, which returns to its pool.
impl From<SendError> for SendErrorKind {
    fn from(error: SendError) -> SendErrorKind {
        error.kind
    }
}

/// Drops the buffer, which returns to its pool.
impl From<SendError> for io::Error {
    fn from(error: SendError) -> io::Error {
        error.kind.into()
    }
}

into_io_error! {
    SendErrorKind: |error| match error {
        SendErrorKind::TooLong { .. } => io::ErrorKind::InvalidInput,
        SendErrorKind::WouldBlock { .. } => io::ErrorKind::WouldBlock,
        SendErrorKind::TimedOut { .. } => io::ErrorKind::TimedOut,
        SendErrorKind::ShutDown { .. } => io::ErrorKind::BrokenPipe,
        SendErrorKind::Memory { .. } => io::ErrorKind::OutOfMemory,
        SendErrorKind::ConnectionLost(error) => error.io_kind(),
    },
    RecvError: |error| match error {
        RecvError::TimedOut { .. } => io::ErrorKind::TimedOut,
        RecvError::ConnectionLost(error) => error.io_kind(),
    },
}
