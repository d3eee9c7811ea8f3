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
//! # From a device to a completion
//!
//! Two queue pairs on the software NIC, one SEND and one WRITE. On a machine with an RDMA NIC, `Device::open` takes its name.
//! Usually the two sides are different programs, and exchange the endpoints and the address of the region over another
//! connection.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> adverb::verbs::Result<()> {
//! use std::time::Duration;
//! use adverb::verbs::{Access, Device, SendRequest, Transport};
//!
//! let device = Device::open("soft")?;
//! let domain = device.create_protection_domain()?;
//! let completions = device.completion_queue(64).create()?; // one entry for each request of all queues
//! let create = || {
//!     let builder = domain.queue_pair(Transport::Rc).completion_queue(&completions).depth(16, 16);
//!     builder.access(Access::REMOTE_WRITE).create() // the peer may WRITE, if it has the key of a region
//! };
//! let (client, server) = (create()?, create()?);
//! client.connect(&server.endpoint())?;
//! server.connect(&client.endpoint())?;
//!
//! // A SEND consumes a receive, which the peer has posted before.
//! server.post_recv(domain.allocate_buffer(64)?)?;
//! let mut message = domain.allocate_buffer(5)?;
//! message.copy_from_slice(b"hello");
//! client.post_send(SendRequest::send(message))?;
//! let mut polled = Vec::new();
//! while polled.len() < 2 {
//!     let count = completions.poll_timeout(&mut polled, Duration::from_secs(5))?;
//!     assert!(count > 0, "no completion for 5 s");
//! }
//! for completion in polled {
//!     let success = completion.result()?; // the operation, or the status of the failure
//!     println!("{:?}", success.operation); // `Send`, and `Recv` of the message
//! }
//!
//! // A WRITE into the peer's region involves no call of the peer. `wait` returns the completion of one request.
//! let region = domain.allocate_region(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! let mut bytes = domain.allocate_buffer(5)?;
//! bytes.copy_from_slice(b"world");
//! let id = client.post_send(SendRequest::write(bytes, region.remote().at(0)))?;
//! completions.wait(id, Duration::from_secs(5))?.result()?;
//! let mut copy = [0; 5];
//! region.read(0, &mut copy)?;
//! assert_eq!(&copy, b"world");
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```
//!
//! A [`Datagram`] has an example of UD queue pairs, which need no connection.
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
#![cfg_attr(
    not(any(feature = "ibv", feature = "soft")),
    allow(unreachable_code, unused_variables, reason = "without a backend no device exists")
)]

#[cfg(not(target_os = "linux"))]
compile_error!("adverb-verbs requires Linux; adverb-wire and adverb-proto work everywhere");

mod backend;
pub mod cm;
mod completion_queue;
mod deadline;
mod device;
mod error;
#[cfg(all(test, feature = "ibv", not(loom)))]
mod explanations;
#[doc(hidden)]
pub mod internal;
mod key;
mod logging;
pub mod memory;
mod os;
mod queue_pair;
mod recorder;
pub mod recording;
mod request;
mod request_id;
mod shared_receive_queue;
#[cfg(feature = "soft")]
mod soft_device;
mod stats;
#[cfg(all(test, feature = "soft", not(loom)))]
mod tests;

pub use adverb_proto::ResourceCounts;
#[doc(inline)]
pub use adverb_proto::explain;
pub use adverb_proto::types::{
    Access, ArmFor, DeviceAttributes, DeviceEvent, DeviceInfo, Endpoint, Failure, FlushCapabilities,
    FlushPlacement, Gid, GidEntry, GidType, LinkLayer, ModerationLimits, OdpCapabilities, OdpOperations,
    PathMtu, PeerAttributes, Port, PortState, Psn, QpState, Qpn, QueuePairAttributes, RemoteAddress, Status,
    TimestampClock, TimestampSource, Transport,
};
pub use adverb_wire::{IpHeader, Ipv4Header, Ipv6Header};

pub use completion_queue::poller::{Poller, PollerExit, PollerOptions, PollerStats};
pub use completion_queue::{CompletionQueue, CompletionQueueBuilder};
pub use device::clock::ClockSample;
pub use device::counters::{Counters, CountersDelta};
pub use device::{AddressHandle, Device, ProtectionDomain, Traffic, UdDestination};
pub use error::{ConnectStage, DomainObject, Error, Feature, Limit, MessageLimit, NoDeviceReason, Result};
pub use key::{Key, KeyError};
pub use memory::window::MemoryWindow;
pub use queue_pair::raw;
pub use queue_pair::{ConnectOptions, Datagram, QueuePair, QueuePairBuilder, Scope};
pub use request::{
    CompletedOperation, Completion, PostError, ReclaimedRequest, RecvRequest, RequestIds, SendRequest,
    Success,
};
pub use request_id::RequestId;
pub use shared_receive_queue::{SharedReceiveQueue, SharedReceiveQueueBuilder};
#[cfg(feature = "soft")]
pub use soft_device::{Dcqcn, FaultConfig, IcrcCheck, SoftDevice, Switch, SwitchConfig};
pub use stats::{CompletionQueueStats, QueuePairStats, QueueStats};
