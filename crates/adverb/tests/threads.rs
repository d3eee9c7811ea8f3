//! Every public type is `Send` and `Sync`: a program may post on one thread, poll on another, and drop on a third.

// With every feature that adds types.
#![cfg(all(feature = "soft", feature = "tokio"))]

use std::collections::BTreeSet;

use adverb::{memory, net, net::blocking, verbs, verbs::cm, verbs::recording};

/// Checks the types at compile time, and lists their names.
macro_rules! assert_send_and_sync {
    ($list:ident: $($module:ident::$name:ident $(<$($parameter:ty),+>)? $([$($lifetime:lifetime),+])?),+ $(,)?) => {
        const $list: &[(&str, &str)] = {
            const fn assert_send_and_sync<T: Send + Sync>() {}
            $(assert_send_and_sync::<$module::$name $(<$($parameter),+>)? $(<$($lifetime),+>)?>();)+
            &[$((stringify!($module), stringify!($name))),+]
        };
    };
}

assert_send_and_sync!(TYPES:
    blocking::AddressSpace,
    blocking::Connection,
    blocking::Connector,
    blocking::Listener,
    blocking::ListenerBuilder,
    blocking::ReadHalf,
    blocking::RemoteRegion,
    blocking::Stream,
    blocking::WriteHalf,
    cm::CmHandle,
    cm::ConnectRequest,
    cm::Connection,
    cm::ConnectionEvent,
    cm::ConnectionParts,
    cm::Connector,
    cm::DatagramListener,
    cm::DatagramRequest,
    cm::DatagramService,
    cm::Listener,
    cm::ListenerBuilder,
    cm::Path,
    cm::PendingConnection,
    cm::PendingRoute,
    cm::PendingService,
    cm::RejectReason,
    cm::Route,
    memory::Buffer,
    memory::MemoryRegion,
    memory::Pages,
    memory::Payload,
    memory::PayloadSegment,
    memory::Pool,
    memory::PoolBuilder,
    memory::PoolStats,
    memory::RegionSlice,
    memory::PoolBuf,
    memory::RemoteMemory,
    memory::SharedMemory,
    net::AcceptError,
    net::BindError,
    net::Bootstrap,
    net::ConnectError,
    net::ConnectionError,
    net::ExposeError,
    net::HandshakeStage,
    net::Key,
    net::KeyMismatch,
    net::Message,
    net::Options,
    net::RecvError,
    net::RefusalReason,
    net::SendData['static],
    net::RemoteAccess,
    net::RemoteError,
    net::RemoteErrorKind,
    net::SendError,
    net::SendErrorKind,
    net::SharedRegion,
    net::UnacknowledgedMessage,
    recording::ActiveRecording,
    recording::ClockOrigin,
    recording::Cq,
    recording::DropReason,
    recording::Queue,
    recording::QueueEvent,
    recording::RecordedEvent,
    recording::Recording,
    recording::RecordingBuilder,
    recording::RecvQueueId,
    recording::RetryCause,
    recording::Segment,
    recording::SendFlags,
    recording::Srq,
    recording::StopCause,
    recording::Time,
    recording::TimerKind,
    recording::TraceEvent,
    verbs::Access,
    verbs::AddressHandle,
    verbs::ArmFor,
    verbs::CompletedOperation,
    verbs::ClockSample,
    verbs::Completion,
    verbs::CompletionQueue,
    verbs::CompletionQueueBuilder,
    verbs::CompletionQueueStats,
    verbs::ConnectOptions,
    verbs::ConnectStage,
    verbs::Counters,
    verbs::CountersDelta,
    verbs::Datagram,
    verbs::Dcqcn,
    verbs::Device,
    verbs::DeviceAttributes,
    verbs::DeviceEvent,
    verbs::DeviceInfo,
    verbs::DomainObject,
    verbs::Endpoint,
    verbs::Error,
    verbs::Failure,
    verbs::FaultConfig,
    verbs::Feature,
    verbs::FlushCapabilities,
    verbs::FlushPlacement,
    verbs::Gid,
    verbs::GidEntry,
    verbs::GidType,
    verbs::ResourceCounts,
    verbs::IcrcCheck,
    verbs::Limit,
    verbs::MessageLimit,
    verbs::NoDeviceReason,
    verbs::IpHeader,
    verbs::Ipv4Header,
    verbs::Ipv6Header,
    verbs::Key,
    verbs::KeyError,
    verbs::LinkLayer,
    verbs::MemoryWindow,
    verbs::ModerationLimits,
    verbs::OdpCapabilities,
    verbs::OdpOperations,
    verbs::PathMtu,
    verbs::PeerAttributes,
    verbs::Poller<()>,
    verbs::PollerOptions,
    verbs::PollerStats,
    verbs::Port,
    verbs::PortState,
    verbs::PostError<verbs::SendRequest>,
    verbs::ProtectionDomain,
    verbs::Psn,
    verbs::QpState,
    verbs::Qpn,
    verbs::QueuePair,
    verbs::QueuePairAttributes,
    verbs::QueuePairBuilder,
    verbs::QueuePairStats,
    verbs::QueueStats,
    verbs::UdDestination,
    verbs::ReclaimedRequest,
    verbs::RecvRequest,
    verbs::RemoteAddress,
    verbs::RequestId,
    verbs::RequestIds,
    verbs::Scope['static, 'static],
    verbs::SendRequest,
    verbs::SharedReceiveQueue,
    verbs::SharedReceiveQueueBuilder,
    verbs::SoftDevice,
    verbs::Status,
    verbs::PollerExit<()>,
    verbs::Success,
    verbs::Switch,
    verbs::SwitchConfig,
    verbs::TimestampClock,
    verbs::TimestampSource,
    verbs::Traffic,
    verbs::Transport,
);

assert_send_and_sync!(TASKS:
    net::AddressSpace,
    net::Connection,
    net::Connector,
    net::Listener,
    net::ListenerBuilder,
    net::ReadHalf,
    net::RemoteRegion,
    net::Stream,
    net::WriteHalf,
);

/// Names that need no check. (`Memory` itself requires `Send` and `Sync`; `Result` is an alias.)
const TRAITS: &[(&str, &str)] = &[("memory", "Memory"), ("verbs", "Result")];

#[test]
fn every_public_type_is_asserted_to_be_send_and_sync() {
    let asserted: BTreeSet<_> = TYPES.iter().chain(TASKS).chain(TRAITS).copied().collect();
    let mut public = BTreeSet::new();
    for (module, source) in [
        ("blocking", include_str!("../../adverb-net/src/threads/mod.rs")),
        ("cm", include_str!("../../adverb-verbs/src/cm/mod.rs")),
        ("memory", include_str!("../../adverb-verbs/src/memory/mod.rs")),
        ("net", include_str!("../../adverb-net/src/lib.rs")),
        ("recording", include_str!("../../adverb-verbs/src/recording.rs")),
        ("verbs", include_str!("../../adverb-verbs/src/lib.rs")),
    ] {
        public.extend(public_names(source).into_iter().map(|name| (module, name)));
    }
    let missing: Vec<_> = public.difference(&asserted).collect();
    assert!(missing.is_empty(), "public, but not in the list of this test: {missing:?}");
    let stale: Vec<_> = asserted.difference(&public).collect();
    assert!(stale.is_empty(), "in the list of this test, but not public: {stale:?}");
}

/// Returns the public types and traits of a `mod.rs`: its re-exports, and its own.
fn public_names(source: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for statement in source.split("pub use ").skip(1).filter_map(|text| text.split(';').next()) {
        let words = statement.split(|c: char| !c.is_alphanumeric() && c != '_');
        names.extend(words.filter(|word| word.starts_with(char::is_uppercase)));
    }
    for line in source.lines() {
        for keyword in ["pub struct ", "pub enum ", "pub trait ", "pub unsafe trait ", "pub type "] {
            let rest = line.strip_prefix(keyword);
            names.extend(rest.and_then(|rest| rest.split(|c: char| !c.is_alphanumeric()).next()));
        }
    }
    names
}
