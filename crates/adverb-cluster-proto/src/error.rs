//! Refused requests, and refused changes of a session.

use core::fmt;

use crate::{PeerId, Phase};

/// The reason why a request was refused. A refused request has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PostError {
    /// The broker has no session with the peer, or the session of a send slot has ended.
    NotOpen {
        /// The peer.
        peer: PeerId,
    },
    /// The remote memory belongs to an earlier run of the member.
    StaleEpoch {
        /// The peer.
        peer: PeerId,
        /// The epoch of the session.
        current: u64,
        /// The epoch of the remote memory.
        requested: u64,
    },
    /// The ring of send slots, the peer's credits or the request queue is exhausted.
    /// [`Event::Unblocked`](crate::Event::Unblocked) follows.
    WouldBlock {
        /// The peer.
        peer: PeerId,
    },
    /// The message is longer than a slot.
    MessageTooLong {
        /// The length of the message in bytes.
        len: usize,
        /// The maximum.
        max: usize,
    },
    /// The batch is longer than the request queue, or has more WRITEs with immediate data than there are receive slots.
    BatchTooLong {
        /// The number of transfers.
        len: usize,
        /// The maximum.
        max: usize,
    },
    /// The batch is empty.
    EmptyBatch,
    /// The local range is longer than the remote range.
    OutOfBounds {
        /// The length of the local range.
        requested: u64,
        /// The length of the remote range.
        size: u64,
    },
    /// An atomic needs eight local bytes, and eight remote bytes at an aligned address.
    InvalidAtomic,
    /// The session has the maximum number of outstanding calls. The next reply, cancellation or timeout ends one.
    TooManyCalls {
        /// The peer.
        peer: PeerId,
        /// The maximum.
        max: u16,
    },
    /// The request of a peer can't be answered: it was answered or cancelled, or its session has ended.
    RequestEnded {
        /// The peer.
        peer: PeerId,
    },
}

impl PostError {
    /// Returns an action that may solve the problem, if one is known.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            PostError::NotOpen { .. } => Some(
                "post requests after `Event::SessionOpened`; `Cluster::status` returns the last failed attempt and the end \
                 of the last session; a member has no session with itself",
            ),
            PostError::StaleEpoch { .. } => Some("request a new address from the peer, which has restarted"),
            PostError::WouldBlock { .. } => Some("poll, and try again after `Event::Unblocked`"),
            PostError::MessageTooLong { .. } => Some("use a larger `slot_size` at all members"),
            PostError::BatchTooLong { .. } => {
                Some("divide the batch, or use a larger `queue_depth` or `recv_slots`")
            }
            PostError::TooManyCalls { .. } => {
                Some("poll, and try again after the end of a call; or use a larger `max_calls`")
            }
            PostError::EmptyBatch
            | PostError::OutOfBounds { .. }
            | PostError::InvalidAtomic
            | PostError::RequestEnded { .. } => None,
        }
    }

    /// Whether the same request can succeed later: a session may be established, or resources may become free.
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self,
            PostError::NotOpen { .. } | PostError::WouldBlock { .. } | PostError::TooManyCalls { .. }
        )
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostError::NotOpen { peer } => write!(f, "the broker has no open session with {peer}"),
            PostError::StaleEpoch { peer, current, requested } => write!(
                f,
                "the remote memory belongs to epoch {requested} of {peer}, which is now at epoch {current}"
            ),
            PostError::WouldBlock { peer } => {
                write!(f, "the send slots, the credits or the request queue of {peer} are exhausted")
            }
            PostError::MessageTooLong { len, max } => {
                write!(f, "a message of {len} bytes exceeds the maximum of {max} bytes")
            }
            PostError::BatchTooLong { len, max } => {
                write!(f, "a batch with {len} transfers exceeds the maximum of {max}")
            }
            PostError::EmptyBatch => f.write_str("the batch contains no transfer"),
            PostError::OutOfBounds { requested, size } => {
                write!(f, "the transfer of {requested} bytes exceeds the remote range of {size} bytes")
            }
            PostError::InvalidAtomic => {
                f.write_str("an atomic needs eight local bytes, and eight remote bytes at an aligned address")
            }
            PostError::TooManyCalls { peer, max } => write!(f, "{max} calls to {peer} are outstanding"),
            PostError::RequestEnded { peer } => {
                write!(f, "the request of {peer} was already answered or cancelled, or its session has ended")
            }
        }
    }
}

impl std::error::Error for PostError {}

/// The reason why a change of a session was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SessionError {
    /// The peer's index is not below the number of peers.
    UnknownPeer {
        /// The peer.
        peer: PeerId,
    },
    /// The session is in another phase.
    WrongPhase {
        /// The peer.
        peer: PeerId,
        /// The phase that the call needs.
        expected: Phase,
    },
    /// The epoch is smaller than that of the open session with the peer.
    StaleEpoch {
        /// The peer.
        peer: PeerId,
        /// The epoch of the open session.
        newest: u64,
        /// The epoch of the call.
        requested: u64,
    },
    /// The peer granted more credits than a broker can.
    InvalidCredits {
        /// The peer.
        peer: PeerId,
    },
}

impl SessionError {
    /// Returns an action that may solve the problem, if one is known.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            SessionError::StaleEpoch { .. } => Some(
                "stop the other run of the peer, or correct the clock of the peer's host; if that run has ended, its \
                 session ends soon",
            ),
            _ => None,
        }
    }

    /// Whether the same call can succeed later: the session with a newer run of the peer may end.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, SessionError::StaleEpoch { .. })
    }
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionError::UnknownPeer { peer } => write!(f, "the broker has no {peer}"),
            SessionError::WrongPhase { peer, expected } => {
                write!(f, "the session with {peer} is not {expected}")
            }
            SessionError::StaleEpoch { peer, newest, requested } => {
                write!(f, "a session with epoch {newest} of {peer} is open, and epoch {requested} is older")
            }
            SessionError::InvalidCredits { peer } => {
                write!(f, "{peer} granted an invalid number of credits")
            }
        }
    }
}

impl std::error::Error for SessionError {}

const _: () = assert!(size_of::<PostError>() <= 64 && size_of::<SessionError>() <= 64);
