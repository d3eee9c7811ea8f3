//! Plain data of the inputs and outputs of [`Rpc`](super::Rpc).

use core::fmt;
use core::time::Duration;

use super::header::{Failure, Header, WireId};
use crate::{ConfigError, EndReason, MAX_COUNT, PeerId};

/// The limits of calls and requests, which are the same for each peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RpcConfig {
    /// The maximum number of outstanding calls to a peer. The default is 64.
    pub max_calls: u16,
    /// The maximum number of a peer's requests that are not answered. It should be at least
    /// [`max_calls`](RpcConfig::max_calls) of the peers: further requests fail with [`Failure::Overloaded`].
    /// The default is 64.
    pub max_requests: u16,
}

impl Default for RpcConfig {
    fn default() -> RpcConfig {
        RpcConfig { max_calls: 64, max_requests: 64 }
    }
}

impl RpcConfig {
    /// Checks that each number is in its range.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::OutOfRange`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (field, count) in [("max_calls", self.max_calls), ("max_requests", self.max_requests)] {
            if count == 0 || count > MAX_COUNT {
                let (requested, max) = (count.into(), MAX_COUNT.into());
                return Err(ConfigError::OutOfRange { field, requested, max });
            }
        }
        Ok(())
    }
}

/// A call to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CallId {
    pub(super) peer: PeerId,
    pub(super) id: WireId,
}

impl CallId {
    /// Returns the peer.
    pub const fn peer(self) -> PeerId {
        self.peer
    }

    /// Returns a number that identifies the call. A number is used again after 2³² calls at the earliest.
    pub const fn number(self) -> u64 {
        (self.id.generation as u64) << 32 | (self.id.index as u64) << 16 | self.peer.0 as u64
    }
}

/// A request of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId {
    pub(super) peer: PeerId,
    pub(super) session: u32,
    pub(super) id: WireId,
}

impl RequestId {
    /// Returns the peer.
    pub const fn peer(self) -> PeerId {
        self.peer
    }
}

/// A message of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Incoming<'a> {
    /// A request, which the application answers now or later.
    Request {
        /// The id, to answer the request.
        request: RequestId,
        /// The method.
        method: u16,
        /// The time until the caller stops waiting, measured from when it sent the request.
        timeout: Option<Duration>,
        /// The data.
        data: &'a [u8],
    },
    /// The end of a call.
    Reply {
        /// The call.
        call: CallId,
        /// The data of the reply, or the failure.
        result: Result<&'a [u8], Failure>,
    },
    /// A message that is not for the application.
    Ignored,
}

/// A message to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Output<'a> {
    /// The header.
    pub header: Header,
    /// The data that follows the header.
    pub data: &'a [u8],
}

/// The reason why a call has no reply. [`execution`](CallError::execution) returns whether the peer may have executed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The deadline expired. The peer may have executed the call, or execute it later.
    TimedOut {
        /// The peer.
        peer: PeerId,
    },
    /// The session ended. The peer may have executed the call. Calls to other peers are not affected.
    SessionEnded {
        /// The peer.
        peer: PeerId,
        /// The reason.
        reason: EndReason,
    },
    /// The peer reported a failure.
    Failed {
        /// The peer.
        peer: PeerId,
        /// The failure.
        source: Failure,
    },
}

/// Whether a call that failed was executed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Execution {
    /// The peer did not execute the call, and won't.
    NotExecuted,
    /// The peer may have executed the call, completely or in part, or execute it later.
    Unknown,
}

impl CallError {
    /// Returns whether the peer may have executed the call. A caller repeats a call whose execution is
    /// [unknown](Execution::Unknown) only if executing it twice does no harm.
    pub const fn execution(&self) -> Execution {
        match self {
            CallError::Failed { source: Failure::Overloaded | Failure::UnknownMethod, .. } => {
                Execution::NotExecuted
            }
            _ => Execution::Unknown,
        }
    }

    /// Returns an action that may solve the problem, if one is known.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            CallError::TimedOut { .. } => {
                Some("repeat the call only if executing it twice does no harm: the peer may have executed it")
            }
            CallError::SessionEnded { reason, .. } => reason.hint(),
            CallError::Failed { source: Failure::Overloaded, .. } => {
                Some("use a `max_requests` of the peer that is at least `max_calls` of its callers")
            }
            CallError::Failed { .. } => None,
        }
    }

    /// Whether the call expired.
    pub const fn is_timeout(&self) -> bool {
        matches!(self, CallError::TimedOut { .. })
    }

    /// Whether a further call can succeed later: the peer may reply faster, a session may be established again, or the
    /// peer may have fewer requests. The first call may have been [executed](CallError::execution).
    pub const fn is_retryable(&self) -> bool {
        match self {
            CallError::TimedOut { .. } => true,
            CallError::SessionEnded { reason, .. } => !matches!(reason, EndReason::ProtocolViolation { .. }),
            CallError::Failed { source, .. } => matches!(source, Failure::Overloaded),
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::TimedOut { peer } => {
                write!(f, "{peer} did not reply to the call before its deadline")
            }
            CallError::SessionEnded { peer, reason } => {
                write!(f, "the session with {peer} ended before the reply: {reason}")
            }
            CallError::Failed { peer, .. } => write!(f, "the call to {peer} failed"),
        }
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CallError::Failed { source, .. } => Some(source),
            CallError::TimedOut { .. } | CallError::SessionEnded { .. } => None,
        }
    }
}

const _: () = assert!(size_of::<CallError>() <= 64);

/// The numbers of calls, requests and unexpected messages.
///
/// Each of the [`calls`](RpcCounters::calls) is outstanding, or in exactly one of the four counts that follow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct RpcCounters {
    /// Calls that were started.
    pub calls: u64,
    /// Calls that ended with a reply or a failure.
    pub answered_calls: u64,
    /// Calls whose deadline expired.
    pub expired_calls: u64,
    /// Calls that were cancelled.
    pub cancelled_calls: u64,
    /// Calls whose session ended.
    pub lost_calls: u64,
    /// Requests that were delivered to the application.
    pub requests: u64,
    /// Requests that the peer cancelled before they were answered.
    pub cancelled_requests: u64,
    /// Requests above [`max_requests`](RpcConfig::max_requests), which were not delivered to the application.
    pub refused_requests: u64,
    /// Replies and failures of calls that had ended: the calls expired or were cancelled, or the peer replied twice.
    pub late_replies: u64,
    /// Cancellations of requests that were answered already, or never existed.
    pub late_cancellations: u64,
    /// Replies and failures of calls that never existed. No correct peer sends them.
    pub unknown_replies: u64,
    /// Requests whose id is in use or was used. No correct peer sends them.
    pub duplicate_requests: u64,
    /// Messages of a wrong length or with invalid numbers. No correct peer sends them.
    pub malformed_messages: u64,
}
