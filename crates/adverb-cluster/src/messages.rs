//! The list of this crate's error messages and hints, `messages.txt`.

use messages::samples;

use crate::{
    ArenaError, BrokerError, CallError, CallerError, ClusterError, ConfigError, PeerId, PostError,
    RemotePtrError, SessionError, TransferError,
};

#[test]
fn error_messages_are_as_listed() {
    let out_of_bounds = || adverb_verbs::Error::OutOfBounds { offset: 4096, len: 64, size: 4096 };
    let lists = [
        samples!(ArenaError {
            ArenaError::InvalidOption { .. } => ArenaError::InvalidOption {
                option: "growth_factor",
                rule: "it must be from 1.05 to 4",
            },
            ArenaError::ItemTooLarge { .. } => ArenaError::ItemTooLarge { len: 2 << 20, max: 1 << 20 },
            ArenaError::Full { .. } => ArenaError::Full { len: 100, slot_size: 128 },
            ArenaError::UnknownSegment { .. } => ArenaError::UnknownSegment { segment: 7 },
            ArenaError::ForeignRegion { .. } => ArenaError::ForeignRegion { domain: 5 },
            ArenaError::OutOfBounds { .. } => ArenaError::OutOfBounds { offset: 90, len: 20, item_len: 100 },
            ArenaError::InvalidPointer(_) => {
                ArenaError::InvalidPointer(RemotePtrError::StaleEpoch { epoch: 1, current: 2 })
            },
            ArenaError::Verbs(_) => ArenaError::Verbs(out_of_bounds()),
        }),
        samples!(BrokerError {
            BrokerError::Config(_) => BrokerError::Config(ConfigError::ZeroKeepalive),
            BrokerError::Post(_) => BrokerError::Post(PostError::EmptyBatch),
            BrokerError::Session(_) => BrokerError::Session(SessionError::UnknownPeer { peer: PeerId(3) }),
            BrokerError::Verbs(_) => BrokerError::Verbs(out_of_bounds()),
            BrokerError::Io { .. } => BrokerError::Io {
                action: "waiting for a completion",
                error: std::io::Error::other("the cause"),
            },
            BrokerError::SlotSizeMismatch { .. } => {
                BrokerError::SlotSizeMismatch { peer: PeerId(3), local: 4096, remote: 256 }
            },
            BrokerError::InvalidOffer { .. } => {
                BrokerError::InvalidOffer { reason: "the endpoint has no unicast address" }
            },
            BrokerError::Transfer(_) => {
                BrokerError::Transfer(TransferError::InvalidPayload { reason: "a transfer has at most 1 GiB" })
            },
            BrokerError::InvalidArena { .. } => {
                BrokerError::InvalidArena { reason: "its epoch is not that of the broker" }
            },
            BrokerError::NoCluster => BrokerError::NoCluster,
            BrokerError::SessionLost { .. } => BrokerError::SessionLost { peer: PeerId(3) },
        }),
        samples!(CallerError {
            CallerError::Post(_) => CallerError::Post(PostError::NotOpen { peer: PeerId(3) }),
            CallerError::Call(_) => CallerError::Call(CallError::TimedOut),
            CallerError::Stopped => CallerError::Stopped,
        }),
        samples!(ClusterError {
            ClusterError::UnknownMember { .. } => ClusterError::UnknownMember { name: "d".into() },
            ClusterError::DuplicateMember { .. } => ClusterError::DuplicateMember { name: "a".into() },
            ClusterError::OutOfRange { .. } => {
                ClusterError::OutOfRange { quantity: "threads", requested: 0, max: 4096 }
            },
            ClusterError::Resolve { .. } => {
                ClusterError::Resolve { name: "a".into(), error: std::io::Error::other("the cause") }
            },
            ClusterError::Listen { .. } => ClusterError::Listen {
                addr: ([192, 0, 2, 7], 7471).into(),
                error: std::io::Error::other("the cause"),
            },
            ClusterError::Io { .. } => ClusterError::Io {
                action: "starting a thread",
                error: std::io::Error::other("the cause"),
            },
            ClusterError::BrokerTaken { .. } => ClusterError::BrokerTaken { thread: 2 },
            ClusterError::Verbs(_) => ClusterError::Verbs(out_of_bounds()),
            ClusterError::Broker(_) => {
                ClusterError::Broker(BrokerError::SessionLost { peer: PeerId(3) })
            },
        }),
    ];
    messages::check(concat!(env!("CARGO_MANIFEST_DIR"), "/messages.txt"), &lists);
}
