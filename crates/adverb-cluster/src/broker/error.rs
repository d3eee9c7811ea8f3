//! Errors of a broker.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;

use adverb_cluster_proto::{ConfigError, PeerId, PostError, RemotePtrError, SessionError};
use adverb_verbs::memory::Payload;

use crate::limit_hint;

/// An error of a [`Broker`](super::Broker) that is not about one request: creating it, its sessions, and waiting.
///
/// Refused requests have errors of their own: [`PostError`], and [`TransferError`] for one-sided transfers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The configuration can't be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A change of a session was refused.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] adverb_verbs::Error),
    /// A system call failed.
    #[error("{action} failed")]
    System {
        /// The failed action.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The requests of all peers don't fit a completion queue of the device.
    #[error(
        "a broker with {peer_count} peers needs a completion queue of {requested} entries, but the maximum of the device \
         is {max}"
    )]
    CompletionQueueTooDeep {
        /// The number of peers.
        peer_count: usize,
        /// The number of entries that the broker needs.
        requested: u32,
        /// The maximum.
        max: u32,
    },
    /// The two brokers of a session have slots of different sizes.
    #[error("{peer} has message slots of {remote} bytes, and this broker has slots of {local} bytes")]
    SlotSizeMismatch {
        /// The peer.
        peer: PeerId,
        /// The slot size of this broker.
        local: u32,
        /// The slot size of the peer.
        remote: u32,
    },
    /// The byte representation of an offer is invalid.
    #[error("the peer's offer is invalid: {violation}")]
    InvalidOffer {
        /// The violated rule.
        violation: &'static str,
    },
    /// The broker has published an arena before.
    #[error("publishing an arena failed: the broker has published an arena before")]
    AlreadyPublished,
    /// The arena to publish has another epoch than the broker.
    #[error("publishing an arena failed: its epoch is {arena}, and the epoch of the broker is {broker}")]
    ArenaEpochMismatch {
        /// The epoch of the arena.
        arena: u64,
        /// The epoch of the broker.
        broker: u64,
    },
    /// The arena to publish is not registered in the broker's protection domain.
    #[error("publishing an arena failed: it is not registered in protection domain {domain} of the broker")]
    ArenaNotRegistered {
        /// The number of the broker's protection domain.
        domain: u64,
    },
    /// The broker belongs to no cluster, or has left it.
    #[error("the broker belongs to no cluster, or has left it")]
    NoCluster,
    /// The application has not polled for the events of earlier sessions.
    #[error("the application has not polled for the events of earlier sessions with {peer}")]
    UndeliveredEvents {
        /// The peer.
        peer: PeerId,
    },
    /// A session ended before it was established.
    #[error("the session with {peer} ended before it was established")]
    SessionLost {
        /// The peer.
        peer: PeerId,
    },
}

impl BrokerError {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        let hint = match self {
            BrokerError::Config(error) => error.hint()?,
            BrokerError::Session(error) => error.hint()?,
            BrokerError::Verbs(error) => return error.hint(),
            BrokerError::System { source, .. } => limit_hint(source)?,
            BrokerError::CompletionQueueTooDeep { .. } => {
                "use a smaller `send_queue_depth` or `recv_slots`, or fewer members"
            }
            BrokerError::SlotSizeMismatch { .. } => "use the same `slot_size` at all members",
            BrokerError::ArenaEpochMismatch { .. } => {
                "build the arena with `ArenaBuilder::epoch`, and `Cluster::epoch` or `Broker::epoch`"
            }
            BrokerError::ArenaNotRegistered { .. } => {
                "build the arena with `Cluster::protection_domains` or `Broker::protection_domain`"
            }
            BrokerError::NoCluster => "a broker without a cluster uses `prepare` and `establish`",
            BrokerError::UndeliveredEvents { .. } => "poll the broker, also for events of other peers",
            BrokerError::InvalidOffer { .. }
            | BrokerError::AlreadyPublished
            | BrokerError::SessionLost { .. } => return None,
        };
        Some(hint.into())
    }

    /// Whether the same operation can succeed later, without a change of the program or the configuration.
    pub fn is_retryable(&self) -> bool {
        match self {
            BrokerError::Session(error) => error.is_retryable(),
            BrokerError::Verbs(error) => error.is_retryable(),
            BrokerError::System { source, .. } => limit_hint(source).is_some(),
            BrokerError::UndeliveredEvents { .. } | BrokerError::SessionLost { .. } => true,
            _ => false,
        }
    }
}

/// The reason why a transfer was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The request was refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The pointer can't be used.
    #[error(transparent)]
    Pointer(#[from] RemotePtrError),
    /// The payload is a memory window, which has no bytes to transfer.
    #[error("a memory window has no bytes to transfer")]
    WindowPayload,
    /// The payload has too many segments.
    #[error("a transfer of {count} segments exceeds the maximum of {max}")]
    TooManySegments {
        /// The number of segments.
        count: usize,
        /// The maximum, which may depend on the device.
        max: usize,
    },
    /// The payload is too long.
    #[error("a transfer of {len} bytes exceeds the maximum of {max} bytes")]
    TooLong {
        /// The length in bytes.
        len: usize,
        /// The maximum.
        max: usize,
    },
}

impl TransferError {
    /// Returns an action that may solve the problem, if one is known.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            TransferError::Post(error) => error.hint(),
            TransferError::Pointer(error) => error.hint(),
            TransferError::TooManySegments { .. } | TransferError::TooLong { .. } => {
                Some("divide the transfer: `Broker::post_batch` posts several under one ticket")
            }
            TransferError::WindowPayload => None,
        }
    }

    /// Whether the same transfer can succeed later: see [`PostError::is_retryable`].
    pub const fn is_retryable(&self) -> bool {
        matches!(self, TransferError::Post(error) if error.is_retryable())
    }
}

/// A transfer that was refused, with its payload. `Display` prints the cause.
#[derive(Debug)]
#[non_exhaustive]
pub struct RefusedTransfer {
    /// The cause.
    pub error: TransferError,
    /// The local memory.
    pub payload: Payload,
}

impl RefusedTransfer {
    /// Returns an action that may solve the problem, if one is known.
    pub const fn hint(&self) -> Option<&'static str> {
        self.error.hint()
    }
}

impl fmt::Display for RefusedTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for RefusedTransfer {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

/// Drops the payload and keeps the cause.
impl From<RefusedTransfer> for TransferError {
    fn from(refused: RefusedTransfer) -> TransferError {
        refused.error
    }
}

const _: () = assert!(size_of::<BrokerError>() <= 64 && size_of::<TransferError>() <= 64);
