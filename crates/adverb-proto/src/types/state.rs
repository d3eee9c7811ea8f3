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
    /// The state after creation: no request may be posted.
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
    /// Error: every posted request completes with the status [`Flushed`](super::Status::Flushed).
    Error,
}

impl QpState {
    /// Whether send requests may be posted. In the error and the send queue error state, posted requests are flushed at
    /// once (vol. 1, 10.3.1).
    pub const fn may_post_send(self) -> bool {
        matches!(
            self,
            QpState::ReadyToSend | QpState::SendQueueDrained | QpState::SendQueueError | QpState::Error
        )
    }

    /// Whether receive requests may be posted.
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
