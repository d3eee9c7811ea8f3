//! Safe RDMA verbs over two backends: rdma-core's drivers and Adverb's software NIC.
//!
//! Programs depend on `adverb`, which re-exports this crate as `adverb::verbs`.
//!
//! The crate has these objects, each created from an earlier one in the list:
//!
//! - a [`Device`], opened by name or IP address;
//! - a [`ProtectionDomain`]: memory and queue pairs can be used together only within one domain;
//! - [`Buffer`](crate::memory::Buffer)s and [`MemoryRegion`](crate::memory::MemoryRegion)s: registered memory;
//! - a [`CompletionQueue`], which receives the completions of requests;
//! - a [`QueuePair`], to which [`SendRequest`]s and [`RecvRequest`]s are posted;
//! - a [`SharedReceiveQueue`], which supplies several queue pairs with receive requests;
//! - a [`MemoryWindow`], which gives a peer revocable access to a part of a region;
//! - a [`Poller`], a thread that calls a function with each completion of a queue.
//!
//! Each object keeps the objects that it was created from alive, so they can be dropped in any order.
//!
//! # Not supported
//!
//! Extended reliable connections (XRC), raw packets, flow steering rules and device memory are not supported. Devices
//! that are neither InfiniBand nor RoCE (iWARP, EFA) are listed, but opening one returns
//! [`Unsupported`](crate::Error::Unsupported). Each completion queue has its own completion channel; an event loop
//! waits for several queues by their [file descriptors](CompletionQueue::event_fd).
//!
//! # Memory safety
//!
//! A request owns its buffers until it completes: the buffers are moved into the request, and only the completion
//! returns them. Safe code therefore can't free, move, read or write memory that the device uses, even if objects are
//! dropped, forgotten or canceled. Dropping a queue pair destroys it, and the buffers that were in flight are freed
//! only after it was destroyed successfully. If destroying fails, they are leaked and an error is logged. Memory that a
//! peer may write is never a `&[u8]`.
//!
//! There are two alternatives. Within a [scope](QueuePair::scope), requests may borrow their memory, and the scope
//! waits for their completion before it ends. [`raw`] requests are posted as in C, with `unsafe`: the caller guarantees
//! that the memory stays valid.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!("adverb-verbs requires Linux; adverb-wire and adverb-proto work everywhere");

mod address_cache;
mod address_handle;
mod backend;
mod clock;
pub mod cm;
mod completion;
mod completion_queue;
mod completion_queue_control;
mod connect_options;
mod counters;
mod datagram;
mod deadline;
mod device;
mod drain;
mod error;
mod event;
#[cfg(all(test, feature = "ibv", not(loom)))]
mod explanations;
mod in_flight;
#[doc(hidden)]
pub mod internal;
pub mod memory;
mod memory_window;
#[cfg(all(test, not(loom)))]
mod messages;
mod multicast;
mod poller;
mod post;
mod protection_domain;
mod query;
mod queue_pair;
mod queue_pair_builder;
mod queue_pair_recording;
pub mod raw;
mod recorder;
pub mod recording;
mod request;
mod ring;
mod scope;
mod shared_receive_queue;
#[cfg(feature = "soft")]
mod soft_device;
mod stats;
#[cfg(all(test, feature = "soft", not(loom)))]
mod tests;
mod traffic;

pub use adverb_proto::ResourceCounts;
#[doc(inline)]
pub use adverb_proto::explain;
pub use adverb_proto::types::{
    Access, ArmFor, CompletedOperation, DeviceAttributes, DeviceEvent, DeviceInfo, Endpoint, Failure,
    FlushCapabilities, FlushPlacement, Gid, GidEntry, GidType, LinkLayer, ModerationLimits, OdpCapabilities,
    OdpOperations, PathMtu, PeerAttributes, Port, PortState, Psn, QpState, Qpn, QueuePairAttributes,
    RemoteAddress, Status, Success, TimestampClock, TimestampSource, Transport,
};

pub use address_handle::{AddressHandle, UdDestination};
pub use adverb_wire::IpHeader;
pub use clock::ClockSample;
pub use completion::{Completion, RequestId, RequestIds};
pub use completion_queue::{CompletionQueue, CompletionQueueBuilder};
pub use connect_options::ConnectOptions;
pub use counters::{Counters, CountersDelta};
pub use datagram::Datagram;
pub use device::Device;
pub use error::{Error, Result};
pub use memory_window::MemoryWindow;
pub use poller::{Poller, PollerExit, PollerOptions, PollerStats};
pub use protection_domain::ProtectionDomain;
pub use queue_pair::QueuePair;
pub use queue_pair_builder::QueuePairBuilder;
pub use request::{PostError, RecvRequest, SendRequest};
pub use scope::Scope;
pub use shared_receive_queue::{SharedReceiveQueue, SharedReceiveQueueBuilder};
#[cfg(feature = "soft")]
pub use soft_device::{Dcqcn, FaultConfig, IcrcCheck, SoftDevice, Switch, SwitchConfig};
pub use stats::{CompletionQueueStats, QueuePairStats, QueueStats};
pub use traffic::Traffic;

/// Logs from code that must not unwind: a panic of the log's subscriber is caught.
fn log_without_unwinding(log: impl FnOnce()) {
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(log)) {
        // Dropping the panic's payload may panic, too.
        std::mem::forget(panic);
    }
}
