//! The texts of errors, as tracked in `messages.txt`.

use adverb_proto::types::Status;
use messages::samples;

use crate::{ConfigError, EndReason, PeerId, PostError, SessionError};

#[test]
fn messages_are_as_listed() {
    let peer = PeerId(3);
    let lists = [
        samples!(ConfigError {
            ConfigError::OutOfRange { .. } => ConfigError::OutOfRange { field: "send_slots", max: 16384 },
            ConfigError::ZeroKeepalive => ConfigError::ZeroKeepalive,
            ConfigError::TooManyPeers { .. } => ConfigError::TooManyPeers { requested: 70_000 },
        }),
        samples!(PostError {
            PostError::NotOpen { .. } => PostError::NotOpen { peer },
            PostError::StaleEpoch { .. } => PostError::StaleEpoch { peer, current: 8, requested: 7 },
            PostError::WouldBlock { .. } => PostError::WouldBlock { peer },
            PostError::TooLong { .. } => PostError::TooLong { requested: 5000, max: 4096 },
            PostError::EmptyBatch => PostError::EmptyBatch,
            PostError::OutOfBounds { .. } => PostError::OutOfBounds { requested: 5000, size: 4096 },
            PostError::InvalidAtomic => PostError::InvalidAtomic,
        }),
        samples!(SessionError {
            SessionError::UnknownPeer { .. } => SessionError::UnknownPeer { peer },
            SessionError::WrongPhase { .. } => SessionError::WrongPhase { peer, expected: "closed" },
            SessionError::StaleEpoch { .. } => SessionError::StaleEpoch { peer, newest: 8, requested: 7 },
            SessionError::InvalidCredits { .. } => SessionError::InvalidCredits { peer },
        }),
        samples!(EndReason {
            EndReason::Closed => EndReason::Closed,
            EndReason::RequestFailed(_) => EndReason::RequestFailed(Status::RetryExceeded),
            EndReason::ProtocolViolation(_) => EndReason::ProtocolViolation("message without a credit"),
        }),
    ];
    messages::check(concat!(env!("CARGO_MANIFEST_DIR"), "/messages.txt"), &lists);
}
