//! The states of a queue pair, and its transports.

use core::fmt;

/// What a queue pair promises about delivery.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Transport {
    /// Reliable connection: everything arrives, once and in order, or the queue pair fails.
    Rc,
    /// Unreliable connection: messages arrive whole and in order, or not at all.
    Uc,
    /// Unreliable datagram: single packets, to and from anyone.
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

/// Where a queue pair is in its life (vol. 1, 10.3.1).
///
/// ```
/// use adverb_proto::types::QpState;
///
/// assert!(QpState::ReadyToSend.may_post_send());
/// assert!(!QpState::Init.may_post_send());
/// assert!(QpState::Init.may_post_recv());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpState {
    /// Just created: nothing may be posted.
    Reset,
    /// Receives may be posted; nothing is received yet.
    Init,
    /// Ready to receive (RTR).
    ReadyToReceive,
    /// Ready to send (RTS): the state of work.
    ReadyToSend,
    /// Send queue drained or draining (SQD): what was begun is finished, nothing new is begun.
    SendQueueDrained,
    /// Send queue error (SQE): UC and UD only; receiving goes on.
    SendQueueError,
    /// Error: everything that is posted comes back flushed.
    Error,
}

impl QpState {
    /// Whether send requests may be posted: in Error they come back flushed at once (vol. 1, 10.3.1).
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
