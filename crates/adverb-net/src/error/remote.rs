//! The errors of one-sided access: exposing memory, and operations on a peer's memory.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use adverb_verbs as verbs;
use adverb_verbs::memory::PoolBuf;

use super::{
    ConnectionError, RECONNECTING_HINT, SendError, SendErrorKind, WaitError, into_io_error, reconnecting,
};
use crate::access::RemoteAccess;

/// The error of memory that could not be exposed to the peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExposeError {
    /// The name of the memory is too long.
    #[error("the name of exposed memory has {len} bytes, but the maximum is {max}")]
    NameTooLong {
        /// The length of the name in bytes.
        len: usize,
        /// The maximum length in bytes.
        max: usize,
    },
    /// This side exposes other memory under the name.
    #[error("this side exposes other memory under the same name to {peer}")]
    NameInUse {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// The memory could not be allocated or registered.
    #[error("registering memory to be exposed to {peer} failed")]
    Memory {
        /// The peer's address.
        peer: SocketAddr,
        /// The cause.
        source: Box<verbs::Error>,
    },
    /// The connection has a protection domain of its own, so it can't use the registration of a shared region.
    #[error("the connection to {peer} shares no protection domain, in which the region is registered")]
    UnsharedDomain {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// The shared region was withdrawn from all peers.
    #[error("the region was withdrawn from all peers")]
    Withdrawn,
    /// The memory could not be announced to the peer.
    #[error(transparent)]
    Send(#[from] SendErrorKind),
}

/// The error of a failed access to the peer's memory, with the caller's buffer.
///
/// The operator `?` converts this error into an `adverb::Error`, and drops the buffer.
#[derive(Debug)]
pub struct RemoteError {
    /// The reason of the failure.
    pub kind: RemoteErrorKind,
    /// The caller's pool buffer. This field is `None` if the operation has none, or if the device may still use it.
    pub buffer: Option<PoolBuf>,
}

/// The reason of a failed access to the peer's memory.
///
/// This side checks the range, the alignment and the permission before it posts a request, because a request that the
/// peer's device refuses ends the connection. Such a refusal is [`ConnectionError::RequestFailed`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteErrorKind {
    /// The range is not within the peer's memory. No request was posted.
    #[error(
        "the range of {len} bytes at offset {offset} is out of bounds: the peer's memory has {size} bytes"
    )]
    OutOfBounds {
        /// The start of the range, in bytes from the start of the memory.
        offset: u64,
        /// The length of the range in bytes.
        len: u64,
        /// The size of the memory in bytes.
        size: u64,
    },
    /// The range ends before it starts. No request was posted.
    #[error("the range {start}..{end} ends before it starts")]
    InvalidRange {
        /// The start of the range.
        start: u64,
        /// The end of the range.
        end: u64,
    },
    /// A 64-bit word is not aligned to its size. No request was posted.
    #[error("the 64-bit word at offset {offset} of the peer's memory is not aligned")]
    Unaligned {
        /// The word's offset in bytes.
        offset: u64,
    },
    /// The peer has not granted this access. No request was posted.
    #[error("the peer has not granted {} access to its memory{}", access_name(*.access), quoted(.name))]
    NotPermitted {
        /// The name of the memory, or `None` for memory that is exposed at addresses.
        name: Option<Box<str>>,
        /// The access that the operation needs.
        access: RemoteAccess,
    },
    /// The peer exposes no memory that contains all of these addresses. No request was posted.
    #[error("the peer exposes no memory with all addresses from {:#x} to {:#x}", .addresses.start, .addresses.end)]
    UnknownAddresses {
        /// The addresses.
        addresses: Range<u64>,
    },
    /// The peer has shut down sending, and has not exposed the memory before.
    #[error("{peer} has shut down sending, and has not exposed the memory")]
    NotExposed {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// The peer has withdrawn the memory. No request was posted.
    #[error("{peer} has withdrawn the memory {name:?}")]
    Withdrawn {
        /// The peer's address.
        peer: SocketAddr,
        /// The name of the memory.
        name: Box<str>,
    },
    /// The device cannot transfer that many bytes in one request.
    #[error("a transfer of {len} bytes exceeds the device's maximum of {max} bytes")]
    TooLong {
        /// The length of the transfer in bytes.
        len: u64,
        /// The maximum length in bytes.
        max: u64,
    },
    /// The buffer is not from the connection's pool, so the device cannot read into it.
    #[error("the buffer is not from the pool of the connection to {peer}")]
    ForeignBuffer {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// The connection was re-established since the peer exposed the memory. No request was posted.
    #[error("the connection to {peer} was re-established since the memory was exposed")]
    Stale {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// The connection failed while the operation was in flight, and is being re-established. The operation may have been
    /// executed.
    #[error("the connection to {peer} failed while the operation was in flight")]
    Interrupted {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// The operation did not complete within the time limit, and may still be executed.
    #[error("the access to memory of {peer} took longer than {timeout:?}{}", reconnecting(*.is_reconnecting))]
    TimedOut {
        /// The peer's address.
        peer: SocketAddr,
        /// The time limit.
        timeout: Duration,
        /// Whether the connection has failed, and was being re-established when the time limit expired.
        is_reconnecting: bool,
    },
    /// The peer did not expose memory under the name, or at any addresses, within the time limit.
    #[error(
        "{peer} has not exposed memory {} within {timeout:?}{}",
        named(.name),
        reconnecting(*.is_reconnecting)
    )]
    RegionTimedOut {
        /// The peer's address.
        peer: SocketAddr,
        /// The name, or `None` if the call waited for an address space.
        name: Option<Box<str>>,
        /// The time limit.
        timeout: Duration,
        /// Whether the connection has failed, and was being re-established when the time limit expired.
        is_reconnecting: bool,
    },
    /// Memory for the operation could not be allocated.
    #[error("allocating memory for an access to memory of {peer} failed")]
    Memory {
        /// The peer's address.
        peer: SocketAddr,
        /// The cause.
        source: Box<verbs::Error>,
    },
    /// The bytes were written, but the notification could not be sent.
    #[error("notifying {peer} of written bytes failed")]
    Notify {
        /// The peer's address.
        peer: SocketAddr,
        /// The cause.
        source: Box<SendErrorKind>,
    },
    /// The connection has ended.
    #[error(transparent)]
    ConnectionLost(#[from] ConnectionError),
}

impl ExposeError {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        match self {
            ExposeError::NameTooLong { .. } => Some("use a shorter name".into()),
            ExposeError::NameInUse { .. } => {
                Some("use another name, or withdraw the other memory first".into())
            }
            ExposeError::Memory { source, .. } => source.hint(),
            ExposeError::UnsharedDomain { .. } => {
                Some("set `Options::shared_domain`, or use `ListenerBuilder::expose_region`".into())
            }
            ExposeError::Withdrawn => None,
            ExposeError::Send(error) => error.hint(),
        }
    }

    /// Whether a time limit has expired.
    pub fn is_timeout(&self) -> bool {
        matches!(self, ExposeError::Send(error) if error.is_timeout())
    }

    /// Whether exposing the memory later can succeed without a change of the program or the configuration. After the
    /// end of the connection, this takes a new connection.
    pub fn is_retryable(&self) -> bool {
        match self {
            ExposeError::NameTooLong { .. }
            | ExposeError::NameInUse { .. }
            | ExposeError::UnsharedDomain { .. }
            | ExposeError::Withdrawn => false,
            ExposeError::Memory { source, .. } => source.is_retryable(),
            ExposeError::Send(error) => error.is_retryable(),
        }
    }

    /// Returns the error of memory that can't be registered.
    pub(crate) fn memory(peer: SocketAddr, error: verbs::Error) -> ExposeError {
        ExposeError::Memory { peer, source: Box::new(error) }
    }
}

impl RemoteError {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        self.kind.hint()
    }

    /// Whether a time limit has expired.
    pub fn is_timeout(&self) -> bool {
        self.kind.is_timeout()
    }

    /// Returns the value of [`RemoteErrorKind::is_retryable`].
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }
}

impl RemoteErrorKind {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        let hint = match self {
            RemoteErrorKind::Unaligned { .. } => "use an offset that is a multiple of 8",
            RemoteErrorKind::NotPermitted { .. } => "let the peer expose the memory with this access",
            RemoteErrorKind::TooLong { .. } => "split the transfer: the maximum is that of the device's port",
            RemoteErrorKind::ForeignBuffer { .. } => "allocate the buffer from `Connection::pool`",
            RemoteErrorKind::Stale { .. } => {
                "call `remote_region` again: remote regions are valid until the connection is re-established"
            }
            RemoteErrorKind::Interrupted { .. } => {
                "check whether the operation took effect; after a reconnect, call `remote_region` again"
            }
            RemoteErrorKind::Withdrawn { .. } => {
                "call `remote_region` again after the peer has exposed memory under this name again"
            }
            RemoteErrorKind::TimedOut { is_reconnecting: true, .. }
            | RemoteErrorKind::RegionTimedOut { is_reconnecting: true, .. } => RECONNECTING_HINT,
            RemoteErrorKind::RegionTimedOut { name: Some(_), .. } => {
                "check the name; a withdrawn region is not exposed to new connections"
            }
            RemoteErrorKind::RegionTimedOut { name: None, .. } => {
                "check that the peer calls `expose_addresses` for this connection"
            }
            RemoteErrorKind::Memory { source, .. } => return source.hint(),
            RemoteErrorKind::Notify { source, .. } => return source.hint(),
            RemoteErrorKind::ConnectionLost(error) => return error.hint(),
            RemoteErrorKind::OutOfBounds { .. }
            | RemoteErrorKind::InvalidRange { .. }
            | RemoteErrorKind::UnknownAddresses { .. }
            | RemoteErrorKind::NotExposed { .. }
            | RemoteErrorKind::TimedOut { is_reconnecting: false, .. } => return None,
        };
        Some(hint.into())
    }

    /// Whether a time limit has expired.
    pub fn is_timeout(&self) -> bool {
        match self {
            RemoteErrorKind::TimedOut { .. } | RemoteErrorKind::RegionTimedOut { .. } => true,
            RemoteErrorKind::Notify { source, .. } => source.is_timeout(),
            RemoteErrorKind::ConnectionLost(error) => error.is_timeout(),
            _ => false,
        }
    }

    /// Whether the same access can succeed later without a change of the program or the configuration. After
    /// [`Stale`](RemoteErrorKind::Stale) and [`Interrupted`](RemoteErrorKind::Interrupted), this takes a new call of
    /// `remote_region`, and after [`ConnectionLost`](RemoteErrorKind::ConnectionLost) a new connection. The time
    /// limits ([`TimedOut`](RemoteErrorKind::TimedOut), [`RegionTimedOut`](RemoteErrorKind::RegionTimedOut)) are retryable,
    /// too. After `Interrupted` and `TimedOut`, the first access may have been executed.
    pub fn is_retryable(&self) -> bool {
        match self {
            RemoteErrorKind::Stale { .. }
            | RemoteErrorKind::Interrupted { .. }
            | RemoteErrorKind::TimedOut { .. }
            | RemoteErrorKind::RegionTimedOut { .. } => true,
            RemoteErrorKind::Memory { source, .. } => source.is_retryable(),
            RemoteErrorKind::Notify { source, .. } => source.is_retryable(),
            RemoteErrorKind::ConnectionLost(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// Returns the error of memory that can't be allocated.
    pub(crate) fn memory(peer: SocketAddr, error: verbs::Error) -> RemoteErrorKind {
        RemoteErrorKind::Memory { peer, source: Box::new(error) }
    }

    /// Returns the error of a wait for exposed memory, from that of the wait.
    pub(crate) fn of_region(self, name: Option<&str>) -> RemoteErrorKind {
        match self {
            RemoteErrorKind::TimedOut { peer, timeout, is_reconnecting } => {
                let name = name.map(Box::from);
                RemoteErrorKind::RegionTimedOut { peer, name, timeout, is_reconnecting }
            }
            kind => kind,
        }
    }

    /// Returns the error of a notification that can't be sent.
    pub(crate) fn notify(peer: SocketAddr, error: SendError) -> RemoteErrorKind {
        match error.kind {
            SendErrorKind::ConnectionLost(error) => error.into(),
            kind => RemoteErrorKind::Notify { peer, source: Box::new(kind) },
        }
    }
}

impl WaitError for RemoteErrorKind {
    fn timed_out(peer: SocketAddr, timeout: Duration, is_reconnecting: bool) -> RemoteErrorKind {
        RemoteErrorKind::TimedOut { peer, timeout, is_reconnecting }
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl std::error::Error for RemoteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.kind.source()
    }
}

impl From<RemoteErrorKind> for RemoteError {
    fn from(kind: RemoteErrorKind) -> RemoteError {
        RemoteError { kind, buffer: None }
    }
}

/// Drops the buffer, which returns to its pool.
impl From<RemoteError> for RemoteErrorKind {
    fn from(error: RemoteError) -> RemoteErrorKind {
        error.kind
    }
}

/// Drops the buffer, which returns to its pool.
impl From<RemoteError> for io::Error {
    fn from(error: RemoteError) -> io::Error {
        error.kind.into()
    }
}

/// Drops the buffer: no announcement has one.
impl From<SendError> for ExposeError {
    fn from(error: SendError) -> ExposeError {
        error.kind.into()
    }
}

into_io_error! {
    ExposeError: |error| match error {
        ExposeError::NameTooLong { .. } | ExposeError::UnsharedDomain { .. } | ExposeError::Withdrawn => {
            io::ErrorKind::InvalidInput
        }
        ExposeError::NameInUse { .. } => io::ErrorKind::AlreadyExists,
        ExposeError::Memory { .. } => io::ErrorKind::OutOfMemory,
        ExposeError::Send(SendErrorKind::TimedOut { .. }) => io::ErrorKind::TimedOut,
        ExposeError::Send(SendErrorKind::ConnectionLost(error)) => error.io_kind(),
        ExposeError::Send(_) => io::ErrorKind::Other,
    },
    RemoteErrorKind: |error| match error {
        RemoteErrorKind::TimedOut { .. } | RemoteErrorKind::RegionTimedOut { .. } => io::ErrorKind::TimedOut,
        RemoteErrorKind::Memory { .. } => io::ErrorKind::OutOfMemory,
        RemoteErrorKind::NotPermitted { .. } => io::ErrorKind::PermissionDenied,
        RemoteErrorKind::NotExposed { .. }
        | RemoteErrorKind::Withdrawn { .. }
        | RemoteErrorKind::UnknownAddresses { .. } => io::ErrorKind::NotFound,
        RemoteErrorKind::Stale { .. } | RemoteErrorKind::Interrupted { .. } => io::ErrorKind::ConnectionReset,
        RemoteErrorKind::ConnectionLost(error) => error.io_kind(),
        RemoteErrorKind::Notify { .. } => io::ErrorKind::Other,
        RemoteErrorKind::OutOfBounds { .. }
        | RemoteErrorKind::InvalidRange { .. }
        | RemoteErrorKind::Unaligned { .. }
        | RemoteErrorKind::TooLong { .. }
        | RemoteErrorKind::ForeignBuffer { .. } => io::ErrorKind::InvalidInput,
    },
}

fn access_name(access: RemoteAccess) -> &'static str {
    match access {
        RemoteAccess::READ => "read",
        RemoteAccess::WRITE => "write",
        RemoteAccess::ATOMIC => "atomic",
        _ => "the required",
    }
}

/// Returns the name of memory after a space, if the memory has one.
fn quoted(name: &Option<Box<str>>) -> String {
    name.as_ref().map_or_else(String::new, |name| format!(" {name:?}"))
}

/// Returns the way in which the peer was to expose memory.
fn named(name: &Option<Box<str>>) -> String {
    name.as_ref().map_or_else(|| "at addresses".to_owned(), |name| format!("named {name:?}"))
}
