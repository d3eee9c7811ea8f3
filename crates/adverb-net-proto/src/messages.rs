//! The texts of errors, as tracked in `messages.txt`.

use adverb_proto::types::Status;
use messages::samples;

use crate::{EndReason, SendError, Violation};

#[test]
fn messages_are_as_listed() {
    let lists = [
        samples!(SendError {
            SendError::WouldBlock => SendError::WouldBlock,
            SendError::Shutdown => SendError::Shutdown,
            SendError::TooLong { .. } => SendError::TooLong { len: 70_000, max: 65_536 },
            SendError::StaleRegion => SendError::StaleRegion,
            SendError::Ended(_) => SendError::Ended(EndReason::PeerClosed),
        }),
        samples!(EndReason {
            EndReason::Closed => EndReason::Closed,
            EndReason::PeerClosed => EndReason::PeerClosed,
            EndReason::Aborted => EndReason::Aborted,
            EndReason::RequestFailed(_) => EndReason::RequestFailed(Status::RetryExceeded),
            EndReason::LaneFailed => EndReason::LaneFailed,
            EndReason::HandshakeTimedOut => EndReason::HandshakeTimedOut,
            EndReason::CloseTimedOut => EndReason::CloseTimedOut,
            EndReason::ReconnectTimedOut => EndReason::ReconnectTimedOut,
            EndReason::SessionUnknown => EndReason::SessionUnknown,
            EndReason::Replaced => EndReason::Replaced,
            EndReason::OutOfMemory => EndReason::OutOfMemory,
            EndReason::ProtocolViolation(_) => EndReason::ProtocolViolation(Violation("it sent a truncated frame")),
        }),
    ];
    messages::check(concat!(env!("CARGO_MANIFEST_DIR"), "/messages.txt"), &lists);
}
