//! Devices, queue pairs and completion queues: safe RDMA verbs with every option, over rdma-core and over a software NIC.
//!
//! Programs depend on `adverb`, which re-exports this crate as `adverb::verbs`.
//!
//! The objects, each made from the one before it:
//!
//! - a [`Device`], found by name or address;
//! - a [`ProtectionDomain`], within which memory and queue pairs may meet;
//! - [`Buffer`](crate::memory::Buffer)s and [`MemoryRegion`](crate::memory::MemoryRegion)s, registered in it;
//! - a [`CompletionQueue`], which tells what became of requests;
//! - a [`QueuePair`], to which [`SendRequest`]s and [`RecvRequest`]s are posted; a [`SharedReceiveQueue`] supplies many
//!   of them with receives;
//! - a [`MemoryWindow`], with which a peer gets rights to a part of a region, and loses them again;
//! - a [`Poller`], a thread that hands the completions of a queue to a function.
//!
//! Objects hold what they stand on, so that they can be dropped in any order.
//!
//! # What isn't here
//!
//! Extended reliable connections (XRC), raw packets, steering rules and device memory. Devices that aren't InfiniBand or
//! RoCE (iWARP, EFA) are listed, and answered with [`Unsupported`](crate::Error::Unsupported) when they are opened. A
//! completion channel is its completion queue's own: an event loop waits for many by their
//! [descriptors](CompletionQueue::event_fd).
//!
//! # What is safe, and how
//!
//! A request owns its buffers until it completes: posting takes them, and only the completion gives them back. So
//! nothing can free, move, read or write memory that the device works on, whatever is dropped, forgotten or cancelled.
//! Dropping a queue pair destroys it, and only a destroy that succeeded frees the buffers that were still in flight; if
//! it fails they are leaked, with an error in the log. Memory that a peer may write is never a `&[u8]`.
//!
//! There are two other ways. Within a [scope](QueuePair::scope) requests may borrow their memory, and leaving it waits for
//! them. And [`raw`] requests are posted as C posts them, with `unsafe` and the caller's word that all is well.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!("adverb-verbs needs Linux: adverb-wire and adverb-proto work everywhere");

mod address_cache;
mod address_handle;
mod backend;
pub mod cm;
mod completion;
mod completion_queue;
mod completion_queue_control;
mod connect_options;
mod counters;
mod datagram;
mod deadline;
mod device;
mod error;
mod event;
mod in_flight;
#[doc(hidden)]
pub mod internal;
pub mod memory;
mod memory_window;
mod multicast;
mod poller;
mod post;
mod protection_domain;
mod query;
mod queue_pair;
mod queue_pair_builder;
pub mod raw;
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
pub use adverb_proto::types::{
    Access, CompletedOperation, DeviceAttributes, DeviceEvent, DeviceInfo, Endpoint, Failure, Gid, GidEntry,
    GidType, LinkLayer, ModerationLimits, OdpCapabilities, OdpOperations, PathMtu, PeerAttributes, Port,
    PortState, Psn, QpState, Qpn, QueuePairAttributes, RemoteAddress, Status, Success, TimestampClock,
    Transport,
};

pub use address_handle::{AddressHandle, UdDestination};
pub use adverb_wire::IpHeader;
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

/// Logs on the way to something that must be done: a panic of the log's subscriber ends here.
fn contained(log: impl FnOnce()) {
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(log)) {
        // Its destructor may panic too.
        std::mem::forget(panic);
    }
}
