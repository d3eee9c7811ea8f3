//! Errors of a broker.

use adverb_cluster_proto::{ConfigError, PeerId, PostError, SessionError};
use adverb_verbs::memory::Payload;

use crate::RemotePtrError;

/// An error of a [`Broker`](super::Broker).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The configuration can't be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A request was refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A change of a session was refused.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] adverb_verbs::Error),
    /// A system call failed.
    #[error("{action} failed: {error}")]
    Io {
        /// The failed action.
        action: &'static str,
        /// The cause.
        error: std::io::Error,
    },
    /// The requests of all peers don't fit a completion queue of the device.
    #[error(
        "a broker with {peer_count} peers needs a completion queue of {requested} entries: the maximum of the device is \
         {max}\n  hint: use a smaller `send_queue_depth` or `recv_slots`"
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
    #[error(
        "{peer} has message slots of {remote} bytes, and this broker has slots of {local} bytes\n  hint: use the same \
         `slot_size` at all members"
    )]
    SlotSizeMismatch {
        /// The peer.
        peer: PeerId,
        /// The slot size of this broker.
        local: u32,
        /// The slot size of the peer.
        remote: u32,
    },
    /// The byte representation of an offer is invalid.
    #[error("the peer's offer is invalid: {reason}")]
    InvalidOffer {
        /// The violated rule.
        reason: &'static str,
    },
    /// A transfer was refused.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// An arena can't be published.
    #[error("publishing the arena failed: {reason}")]
    InvalidArena {
        /// The violated rule.
        reason: &'static str,
    },
    /// The broker belongs to no cluster, or has left it.
    #[error(
        "the broker belongs to no cluster, or has left it\n  hint: a broker without a cluster uses `prepare` and `establish`"
    )]
    NoCluster,
    /// Events of earlier sessions were not delivered.
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
    /// The local memory can't be used.
    #[error("the payload of the transfer is invalid: {reason}")]
    InvalidPayload {
        /// The violated rule.
        reason: &'static str,
    },
}

/// A transfer that was refused, with its payload.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RefusedTransfer {
    /// The cause.
    pub error: TransferError,
    /// The local memory.
    pub payload: Payload,
}

/// Drops the payload and keeps the cause.
impl From<RefusedTransfer> for BrokerError {
    fn from(refused: RefusedTransfer) -> BrokerError {
        refused.error.into()
    }
}
