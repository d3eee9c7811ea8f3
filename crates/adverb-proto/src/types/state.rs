//! The states of a queue pair, and its transports.

use core::fmt;

/// The transport service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Transport {
    /// Reliable connection (RC): every message is delivered once and in order, or the queue pair fails.
    Rc,
    /// Unreliable connection (UC): messages are delivered whole and in order, or not at all.
    Uc,
    /// Unreliable datagram (UD): messages of one packet, to and from any queue pair.
    Ud,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Ud => "UD",
        })
    }
}

/// The state of a queue pair (vol. 1, 10.3.1).
///
/// ```
/// # mod adverb { pub use adverb_proto::types as verbs; }
/// use adverb::verbs::QpState;
///
/// assert!(QpState::ReadyToSend.may_post_send());
/// assert!(!QpState::Init.may_post_send());
/// assert!(QpState::Init.may_post_recv());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpState {
    /// The state after creation by the specification: no request may be posted. Of the crate adverb-verbs,
    /// `QueuePairBuilder::create` and `QueuePair::reset` move the queue pair on to [`Init`](QpState::Init).
    Reset,
    /// Initialized: receives may be posted, but packets are dropped.
    Init,
    /// Ready to receive (RTR).
    ReadyToReceive,
    /// Ready to send (RTS): the fully operational state.
    ReadyToSend,
    /// Send queue drained or draining (SQD): started requests are completed, and no further request is started.
    SendQueueDrained,
    /// Send queue error (SQE), for UC and UD only: sending has stopped, receiving continues.
    SendQueueError,
    /// Error: every outstanding request completes with the status [`Flushed`](super::Status::Flushed). By the
    /// specification, so does every request that is posted later. `QueuePair` of the crate adverb-verbs doesn't post it, and
    /// returns `Error::WrongState`, as soon as the program has moved the queue pair to this state or has queried it.
    Error,
}

impl QpState {
    /// Whether the specification allows posting send requests. In the error and the send queue error state, posted
    /// requests are flushed at once (vol. 1, 10.3.1).
    ///
    /// `QueuePair` of the crate adverb-verbs posts send requests only in the state [`ReadyToSend`](QpState::ReadyToSend).
    pub const fn may_post_send(self) -> bool {
        matches!(
            self,
            QpState::ReadyToSend | QpState::SendQueueDrained | QpState::SendQueueError | QpState::Error
        )
    }

    /// Whether the specification allows posting receive requests. `QueuePair` of the crate adverb-verbs does not post them
    /// in the state [`Error`](QpState::Error) either.
    pub const fn may_post_recv(self) -> bool {
        !matches!(self, QpState::Reset)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            QpState::Reset => "reset",
            QpState::Init => "init",
            QpState::ReadyToReceive => "ready to receive",
            QpState::ReadyToSend => "ready to send",
            QpState::SendQueueDrained => "send queue drained",
            QpState::SendQueueError => "send queue error",
            QpState::Error => "error",
        })
    }
}
