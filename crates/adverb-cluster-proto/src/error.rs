//! Refused requests, and refused changes of a session.

use core::fmt;

use crate::PeerId;

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
    /// The message is longer than a slot, or the batch is longer than the request queue, or has more WRITEs with immediate data
    /// than there are receive slots.
    TooLong {
        /// The requested number of bytes or transfers.
        requested: usize,
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

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostError::NotOpen { peer } => write!(
                f,
                "the broker has no open session with {peer}\n  hint: post requests after `Event::SessionOpened`; a member has \
                 no session with itself"
            ),
            PostError::StaleEpoch { peer, current, requested } => write!(
                f,
                "the remote memory belongs to epoch {requested} of {peer}, which is now at epoch {current}\n  hint: request \
                 a new address from the peer, which has restarted"
            ),
            PostError::WouldBlock { peer } => write!(
                f,
                "the send slots, the credits or the request queue of {peer} are exhausted\n  hint: poll, and try again after \
                 `Event::Unblocked`"
            ),
            PostError::TooLong { requested, max } => {
                write!(
                    f,
                    "the message or batch has a length of {requested}: the maximum is {max}\n  hint: use a larger \
                     `slot_size` for messages, or a larger `queue_depth` or `recv_slots` for batches"
                )
            }
            PostError::EmptyBatch => f.write_str("the batch contains no transfer"),
            PostError::OutOfBounds { requested, size } => {
                write!(f, "the transfer of {requested} bytes exceeds the remote range of {size} bytes")
            }
            PostError::InvalidAtomic => {
                f.write_str("an atomic needs eight local bytes, and eight remote bytes at an aligned address")
            }
            PostError::TooManyCalls { peer, max } => {
                write!(f, "{max} calls to {peer} are outstanding: wait for a reply, and try again")
            }
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
        expected: &'static str,
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

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionError::UnknownPeer { peer } => write!(f, "the broker has no {peer}"),
            SessionError::WrongPhase { peer, expected } => {
                write!(f, "the session with {peer} is not {expected}")
            }
            SessionError::StaleEpoch { peer, newest, requested } => {
                write!(
                    f,
                    "a session with epoch {newest} of {peer} is open, and epoch {requested} is older\n  hint: stop the \
                     other run of the peer; if it has ended, its session ends soon"
                )
            }
            SessionError::InvalidCredits { peer } => {
                write!(f, "{peer} granted an invalid number of credits")
            }
        }
    }
}

impl std::error::Error for SessionError {}
