//! The error of a connection that has ended.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use adverb_verbs as verbs;
use adverb_verbs::{DeviceEvent, Status, explain};

use super::{ConnectError, WaitError, into_io_error};

/// The reason why a connection has ended.
///
/// Every operation of an ended connection returns the same reason, so the type is [`Clone`].
///
/// Hardware cannot tell a peer whose process was killed from a peer whose host or network has failed: in both cases the
/// peer's device stops acknowledging packets. Both are [`PeerLost`](ConnectionError::PeerLost). If a process is killed while
/// this side reads or writes its exposed memory, the device may refuse that operation instead: the error is then
/// [`RequestFailed`](ConnectionError::RequestFailed) with [`Status::RemoteAccess`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The peer closed the connection.
    #[error("{peer} closed the connection")]
    PeerClosed {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// The peer ended the connection without closing it: its program exited or dropped the connection, or it had no memory
    /// for a message, because the limit of its [pool](crate::Options::pool) is reached.
    #[error(
        "the program at {peer} exited, dropped the connection without closing it, or had no memory for a message"
    )]
    PeerAborted {
        /// The peer's address.
        peer: SocketAddr,
        /// The indices of the messages that the peer may not have received, if the connection has
        /// [`Options::reconnect`](crate::Options::reconnect). Otherwise the connection keeps no messages, and the range
        /// is empty.
        unacknowledged: Range<u64>,
    },
    /// The peer's device no longer acknowledges packets: the peer's process was killed, its host has failed, or the
    /// network has failed.
    #[error("the connection to {peer} is lost: {}", lost(*.has_exited))]
    PeerLost {
        /// The peer's address.
        peer: SocketAddr,
        /// Whether the connection manager has reported the end of the peer's process. `false` if it has reported
        /// nothing.
        has_exited: bool,
    },
    /// The peer violated the protocol.
    #[error("{peer} violated the protocol: {reason}")]
    ProtocolViolation {
        /// The peer's address.
        peer: SocketAddr,
        /// The violation, as a clause about the peer: "it sent ...".
        reason: &'static str,
    },
    /// This side closed the connection.
    #[error("this side closed the connection to {peer}")]
    LocallyClosed {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// This side closed the connection, and the peer did not receive all messages within
    /// [`Options::connect_timeout`](crate::Options::connect_timeout).
    #[error("{peer} did not receive all messages within {timeout:?} after this side closed the connection")]
    CloseTimedOut {
        /// The peer's address.
        peer: SocketAddr,
        /// The time limit.
        timeout: Duration,
    },
    /// A request failed. With [`Status::RemoteAccess`], the peer's device has refused an operation of this side on its
    /// memory: the peer has probably withdrawn the memory while the operation was in flight.
    #[error("a request to {peer} failed: {status}")]
    RequestFailed {
        /// The peer's address.
        peer: SocketAddr,
        /// The status of the request.
        status: Status,
    },
    /// The queue pair failed without a failed request of this side: its device has refused a request of the peer, or
    /// has failed itself.
    #[error("the queue pair to {peer} failed: {}", event_summary(*.event))]
    QueuePairFailed {
        /// The peer's address.
        peer: SocketAddr,
        /// The event that the device has reported, if it has reported one.
        event: Option<DeviceEvent>,
    },
    /// This side has [withdrawn](crate::blocking::Connection::withdraw) memory that was exposed without a memory window,
    /// or whose window the device failed to free. Only the end of the queue pair ends the peer's access.
    #[error("this side withdrew memory from {peer}, which ended the queue pair")]
    MemoryWithdrawn {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// The connection failed, and was not re-established within [`Options::reconnect`](crate::Options::reconnect).
    #[error("reconnecting to {peer} failed; {}", unacknowledged_summary(.unacknowledged))]
    ReconnectFailed {
        /// The peer's address.
        peer: SocketAddr,
        /// The indices of the messages that the peer may not have received.
        /// [`take_unacknowledged`](crate::blocking::Connection::take_unacknowledged) returns these messages.
        unacknowledged: Range<u64>,
        /// The error of the last attempt.
        source: Arc<ConnectError>,
    },
    /// A call to this side's device failed.
    #[error("using the RDMA device for the connection to {peer} failed")]
    Device {
        /// The peer's address.
        peer: SocketAddr,
        /// The cause.
        source: Arc<verbs::Error>,
    },
    /// A call to the operating system or the runtime failed.
    #[error("{action} for the connection to {peer} failed")]
    System {
        /// The peer's address.
        peer: SocketAddr,
        /// The failed operation: "waiting for an event".
        action: &'static str,
        /// The cause.
        source: Arc<io::Error>,
    },
}

impl ConnectionError {
    /// Returns the peer's address.
    pub fn peer(&self) -> SocketAddr {
        use ConnectionError::*;
        match self {
            PeerClosed { peer }
            | PeerAborted { peer, .. }
            | PeerLost { peer, .. }
            | ProtocolViolation { peer, .. }
            | LocallyClosed { peer }
            | CloseTimedOut { peer, .. }
            | RequestFailed { peer, .. }
            | QueuePairFailed { peer, .. }
            | MemoryWithdrawn { peer }
            | ReconnectFailed { peer, .. }
            | Device { peer, .. }
            | System { peer, .. } => *peer,
        }
    }

    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        let hint = match self {
            ConnectionError::PeerLost { has_exited: true, .. } => {
                "check whether the peer's program has exited"
            }
            ConnectionError::PeerLost { peer, has_exited: false } => {
                let host = peer.ip();
                return Some(
                    format!(
                        "connect again: the peer's process or host has probably ended; if it runs, test the path with \
                         `adverb doctor {host}`"
                    )
                    .into(),
                );
            }
            ConnectionError::ProtocolViolation { .. } => "use the same version of Adverb on both sides",
            ConnectionError::CloseTimedOut { .. } => {
                "check that the peer's program receives its messages, or raise `Options::connect_timeout`"
            }
            ConnectionError::RequestFailed { status: Status::RemoteAccess, .. } => {
                "connect again: the peer has probably withdrawn the memory while an operation was in flight"
            }
            ConnectionError::RequestFailed { status, .. } => return status.hint().map(Cow::from),
            ConnectionError::QueuePairFailed { event: Some(event), .. } => {
                return explain::device_event(*event)?.hint.map(Cow::from);
            }
            ConnectionError::QueuePairFailed { event: None, .. } => {
                "check the device's events: it may have refused a request of the peer, because no request of this side \
                 failed"
            }
            ConnectionError::PeerAborted { unacknowledged, .. }
            | ConnectionError::ReconnectFailed { unacknowledged, .. }
                if !unacknowledged.is_empty() =>
            {
                "call `take_unacknowledged` for the messages that the peer may not have received"
            }
            ConnectionError::MemoryWithdrawn { .. } => {
                "set `Options::shared_domain` on a device with memory windows, or `Options::reconnect`"
            }
            ConnectionError::ReconnectFailed { source, .. } => return source.hint(),
            ConnectionError::Device { source, .. } => return source.hint(),
            ConnectionError::PeerClosed { .. }
            | ConnectionError::PeerAborted { .. }
            | ConnectionError::LocallyClosed { .. }
            | ConnectionError::System { .. } => return None,
        };
        Some(hint.into())
    }

    /// Whether a time limit has expired.
    pub fn is_timeout(&self) -> bool {
        match self {
            ConnectionError::CloseTimedOut { .. } => true,
            ConnectionError::ReconnectFailed { source, .. } => source.is_timeout(),
            _ => false,
        }
    }

    /// Whether a new connection to the same peer can succeed later, without a change of the program or the
    /// configuration.
    pub fn is_retryable(&self) -> bool {
        match self {
            ConnectionError::PeerClosed { .. }
            | ConnectionError::PeerAborted { .. }
            | ConnectionError::PeerLost { .. }
            | ConnectionError::CloseTimedOut { .. }
            | ConnectionError::MemoryWithdrawn { .. }
            | ConnectionError::RequestFailed { status: Status::RemoteAccess, .. }
            | ConnectionError::ReconnectFailed { .. } => true,
            ConnectionError::ProtocolViolation { .. }
            | ConnectionError::LocallyClosed { .. }
            | ConnectionError::RequestFailed { .. }
            | ConnectionError::QueuePairFailed { .. }
            | ConnectionError::Device { .. }
            | ConnectionError::System { .. } => false,
        }
    }

    /// Returns the error of a connection on which a request has failed with this status.
    pub(crate) fn request_failed(peer: SocketAddr, status: Status) -> ConnectionError {
        match status {
            Status::RetryExceeded | Status::ResponseTimeout => {
                ConnectionError::PeerLost { peer, has_exited: false }
            }
            status => ConnectionError::RequestFailed { peer, status },
        }
    }

    /// Returns the error of a connection whose device has failed.
    pub(crate) fn device(peer: SocketAddr, error: verbs::Error) -> ConnectionError {
        ConnectionError::Device { peer, source: Arc::new(error) }
    }

    /// Returns the error of a connection for which a call to the system has failed.
    pub(crate) fn system(peer: SocketAddr, action: &'static str, error: io::Error) -> ConnectionError {
        ConnectionError::System { peer, action, source: Arc::new(error) }
    }

    /// Returns the kind for [`io::Error`].
    pub(super) fn io_kind(&self) -> io::ErrorKind {
        match self {
            ConnectionError::CloseTimedOut { .. } => io::ErrorKind::TimedOut,
            ConnectionError::LocallyClosed { .. } => io::ErrorKind::NotConnected,
            _ => io::ErrorKind::ConnectionReset,
        }
    }
}

/// A close has its own time limit, and the other operations that return this error have none.
impl WaitError for ConnectionError {
    fn timed_out(peer: SocketAddr, timeout: Duration, _: bool) -> ConnectionError {
        ConnectionError::CloseTimedOut { peer, timeout }
    }
}

into_io_error! {
    ConnectionError: |error| error.io_kind(),
}

fn lost(has_exited: bool) -> &'static str {
    if has_exited {
        "the peer's connection manager has disconnected, as it does when the process ends"
    } else {
        "the peer's device no longer acknowledges packets"
    }
}

fn event_summary(event: Option<DeviceEvent>) -> &'static str {
    let explanation = event.and_then(explain::device_event);
    explanation.map_or("the device flushed its requests", |explanation| explanation.summary)
}

fn unacknowledged_summary(unacknowledged: &Range<u64>) -> String {
    match unacknowledged.end - unacknowledged.start {
        0 => "all messages were acknowledged".to_owned(),
        count => {
            let last = unacknowledged.end - 1;
            format!("messages {} to {last} were not acknowledged ({count})", unacknowledged.start)
        }
    }
}
