//! Plain data of the inputs and outputs of [`Rpc`](super::Rpc).

use core::fmt;
use core::time::Duration;

use super::header::{Failure, Header, WireId};
use crate::{ConfigError, EndReason, MAX_COUNT, PeerId};

/// The limits of calls and requests, which are the same for each peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The maximum number of outstanding calls to a peer.
    pub max_calls: u16,
    /// The maximum number of a peer's requests that are not answered. It should be at least
    /// [`max_calls`](Config::max_calls) of the peers: further requests fail with [`Failure::Overloaded`].
    pub max_requests: u16,
}

/// 64 calls and 64 requests.
impl Default for Config {
    fn default() -> Config {
        Config { max_calls: 64, max_requests: 64 }
    }
}

impl Config {
    /// Checks that each number is in its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (field, count) in [("max_calls", self.max_calls), ("max_requests", self.max_requests)] {
            if count == 0 || count > MAX_COUNT {
                return Err(ConfigError::OutOfRange { field, max: u32::from(MAX_COUNT) });
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

/// The reason why a call has no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The deadline expired. The peer may have executed the request, or execute it later.
    TimedOut,
    /// The session ended. The peer may have executed the request.
    SessionEnded(EndReason),
    /// The peer reported a failure.
    Failed(Failure),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::TimedOut => {
                f.write_str("the call timed out: the peer did not reply before its deadline")
            }
            CallError::SessionEnded(reason) => {
                write!(f, "the session ended before the peer replied: {reason}")
            }
            CallError::Failed(failure) => write!(f, "the call failed: {failure}"),
        }
    }
}

impl std::error::Error for CallError {}

/// The numbers of calls, requests and unexpected messages.
///
/// Each of the [`calls`](Counters::calls) is outstanding, or in exactly one of the four counts that follow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Counters {
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
    /// Requests above [`max_requests`](Config::max_requests), which were not delivered to the application.
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
