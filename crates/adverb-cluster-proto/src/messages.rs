//! The texts of errors, as tracked in `messages.txt`.

use adverb_proto::types::Status;
use messages::samples;

use crate::rpc::{CallError, Failure};
use crate::{ConfigError, EndReason, PeerId, PostError, RemotePtrError, SessionError};

#[test]
fn messages_are_as_listed() {
    let peer = PeerId(3);
    let lists = [
        samples!(ConfigError {
            ConfigError::OutOfRange { .. } => ConfigError::OutOfRange { field: "send_slots", max: 16384 },
            ConfigError::ZeroKeepalive => ConfigError::ZeroKeepalive,
            ConfigError::TooManyPeers { .. } => ConfigError::TooManyPeers { requested: 70_000 },
            ConfigError::SlotTooSmall { .. } => ConfigError::SlotTooSmall { size: 8, min: 16 },
        }),
        samples!(PostError {
            PostError::NotOpen { .. } => PostError::NotOpen { peer },
            PostError::StaleEpoch { .. } => PostError::StaleEpoch { peer, current: 8, requested: 7 },
            PostError::WouldBlock { .. } => PostError::WouldBlock { peer },
            PostError::TooLong { .. } => PostError::TooLong { requested: 5000, max: 4096 },
            PostError::EmptyBatch => PostError::EmptyBatch,
            PostError::OutOfBounds { .. } => PostError::OutOfBounds { requested: 5000, size: 4096 },
            PostError::InvalidAtomic => PostError::InvalidAtomic,
            PostError::TooManyCalls { .. } => PostError::TooManyCalls { peer, max: 64 },
            PostError::RequestEnded { .. } => PostError::RequestEnded { peer },
        }),
        samples!(SessionError {
            SessionError::UnknownPeer { .. } => SessionError::UnknownPeer { peer },
            SessionError::WrongPhase { .. } => SessionError::WrongPhase { peer, expected: "closed" },
            SessionError::StaleEpoch { .. } => SessionError::StaleEpoch { peer, newest: 8, requested: 7 },
            SessionError::InvalidCredits { .. } => SessionError::InvalidCredits { peer },
        }),
        samples!(EndReason {
            EndReason::Closed => EndReason::Closed,
            EndReason::Left => EndReason::Left,
            EndReason::RequestFailed(_) => EndReason::RequestFailed(Status::RetryExceeded),
            EndReason::ProtocolViolation(_) => EndReason::ProtocolViolation("message without a credit"),
        }),
        samples!(RemotePtrError {
            RemotePtrError::WrongLength { .. } => RemotePtrError::WrongLength { len: 31 },
            RemotePtrError::Overflow { .. } => RemotePtrError::Overflow { offset: u64::MAX, len: 8 },
            RemotePtrError::WrongMember { .. } => RemotePtrError::WrongMember { member: 3, expected: 4 },
            RemotePtrError::StaleEpoch { .. } => RemotePtrError::StaleEpoch { epoch: 1, current: 2 },
            RemotePtrError::UnknownSegment { .. } => RemotePtrError::UnknownSegment { segment: 7 },
            RemotePtrError::OutOfBounds { .. } => {
                RemotePtrError::OutOfBounds { offset: 4090, len: 8, segment_len: 4096 }
            },
        }),
        samples!(CallError {
            CallError::TimedOut => CallError::TimedOut,
            CallError::SessionEnded(_) => CallError::SessionEnded(EndReason::Closed),
            CallError::Failed(_) => CallError::Failed(Failure::NoReply),
        }),
        samples!(Failure {
            Failure::NoReply => Failure::NoReply,
            Failure::Overloaded => Failure::Overloaded,
            Failure::UnknownMethod => Failure::UnknownMethod,
            Failure::Application(_) => Failure::Application(7),
        }),
    ];
    messages::check(concat!(env!("CARGO_MANIFEST_DIR"), "/messages.txt"), &lists);
}
