//! The engines below [`verbs`](crate): each type here is one of theirs, and every method asks it.
//!
//! Public types are concrete, so that no user's signature depends on the engine; this is where they part.

#![cfg_attr(not(feature = "ibv"), allow(unused, reason = "some things only rdma-core is asked for"))]

mod clock;
pub(crate) mod connection_manager;
mod failure;
#[cfg(feature = "ibv")]
mod ibv;
mod lists;
mod memory;
mod options;
mod outcome;
#[cfg(any(feature = "ibv", feature = "soft"))]
mod request_list;
#[cfg(feature = "soft")]
mod soft;
mod wait;

#[cfg(feature = "soft")]
pub use adverb_soft::link::{IcmpError, PathSocket};
pub(crate) use clock::clock_origin;
pub(crate) use failure::PostFailure;
#[cfg(all(test, feature = "soft", not(loom)))]
pub(crate) use failure::with_destroy_failure;
pub(crate) use lists::{RecvList, SendList, SendSlot};
pub use memory::Memory;
pub(crate) use options::{
    Address, Connection, Init, QueuePairLimits, QueuePairOptions, ReadyToReceive, ReadyToSend, StateChange,
};
pub(crate) use outcome::{RawCompletion, RawOutcome, flag, opcode};
#[cfg(feature = "soft")]
pub(crate) use soft::{LinkKind as SoftLink, Options as SoftOptions};
pub use wait::{Interest, Watch, start_connect, wait_either, wait_many};

#[cfg(not(feature = "ibv"))]
use failure::no_engine;
use failure::{check_injected, device_mismatch, no_event_channel, queue_pair_destroyed};

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_proto::ResourceCounts;
use adverb_proto::trace::{RecorderOptions, Recording, StopCause};
use adverb_proto::types::{
    Access, ArmFor, DeviceAttributes, DeviceEvent, DeviceInfo, GidEntry, Port, QpState, Qpn,
    QueuePairAttributes, SendOperation,
};

#[cfg(feature = "soft")]
use crate::error::Error;
use crate::error::Result;
use crate::recorder::DeviceRecorder;
use crate::recording::StopSignal;

/// Asks whichever engine it is.
macro_rules! dispatch {
    ($value:expr, $engine:ident => $call:expr) => {
        match *$value {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref $engine) => $call,
            #[cfg(feature = "soft")]
            Self::Soft(ref $engine) => $call,
        }
    };
}

/// Posts a list by a verb of whichever engine it is. Only that is asked of it: posting is the same for all, and done in one
/// place.
macro_rules! post {
    ($queue:expr, $list:expr, $verb:ident) => {{
        #[cfg(any(feature = "ibv", feature = "soft"))]
        let posted = $list.requests.post(|chain| dispatch!($queue, engine => engine.$verb(chain)));
        #[cfg(not(any(feature = "ibv", feature = "soft")))]
        let posted = dispatch!($queue, engine => unreachable!());
        posted
    }};
}

/// A device that is open.
pub(crate) enum Device {
    #[cfg(feature = "ibv")]
    Ibv(Arc<ibv::Device>),
    #[cfg(feature = "soft")]
    Soft(Arc<soft::Device>),
}

impl Device {
    /// All devices of all engines. An engine that isn't there has none; if no engine is there, the error says why.
    pub(crate) fn list() -> Result<Vec<DeviceInfo>> {
        let listed = Device::list_hardware();
        // Software devices are always there, and come last.
        #[cfg(feature = "soft")]
        let listed = {
            let others = listed.inspect_err(|error| tracing::debug!(%error, "listing hardware devices failed; only software devices are listed"));
            Ok([others.unwrap_or_default(), soft::Device::list()].concat())
        };
        listed
    }

    /// The devices of rdma-core.
    pub(crate) fn list_hardware() -> Result<Vec<DeviceInfo>> {
        #[cfg(feature = "ibv")]
        return ibv::Device::list();
        #[cfg(not(feature = "ibv"))]
        return Err(no_engine());
    }

    pub(crate) fn open(name: &str) -> Result<Device> {
        #[cfg(feature = "soft")]
        if soft::is_soft(name) {
            return Ok(Device::Soft(soft::Device::open(name)?));
        }
        #[cfg(feature = "ibv")]
        let opened = ibv::Device::open(name).map(|device| Device::Ibv(Arc::new(device)));
        #[cfg(not(feature = "ibv"))]
        let opened = Err(no_engine());
        // Whatever there is otherwise, there are software devices.
        #[cfg(feature = "soft")]
        let opened = opened.map_err(|error| match error {
            Error::NoDevice { .. } | Error::NotInstalled { .. } => {
                let keys: Vec<String> =
                    Device::list().unwrap_or_default().into_iter().map(|info| info.name).collect();
                let what = format!("no RDMA device is named {name}");
                Error::NoDevice { reason: what, hint: format!("use one of these: {}", keys.join(", ")) }
            }
            error => error,
        });
        opened
    }

    /// A new software device.
    #[cfg(feature = "soft")]
    pub(crate) fn soft(options: &SoftOptions) -> Result<Device> {
        Ok(Device::Soft(soft::Device::build(options)?))
    }

    /// The addresses that software devices have in this process, or could have.
    pub(crate) fn soft_addresses() -> Vec<IpAddr> {
        #[cfg(feature = "soft")]
        return soft::Device::addresses();
        #[cfg(not(feature = "soft"))]
        return Vec::new();
    }

    /// The name of a device that is opened once in a process, for all who ask; `None` of one that is opened anew each time.
    pub(crate) fn shared_name(&self) -> Option<&str> {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(_) => None,
            #[cfg(feature = "soft")]
            Self::Soft(ref device) => Some(device.name()),
        }
    }

    /// Whether its packets go over an IP network, and not over a network in memory.
    pub(crate) fn is_on_ip_network(&self) -> bool {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(_) => true,
            #[cfg(feature = "soft")]
            Self::Soft(ref device) => device.is_on_interface(),
        }
    }

    /// Opens a socket that traces the path of packets from a local address and source port.
    #[cfg(feature = "soft")]
    pub(crate) fn path_socket(&self, local: IpAddr, port: u16) -> std::io::Result<PathSocket> {
        match *self {
            // The NIC's packets don't pass the kernel, but packets with the same ports take the same path.
            #[cfg(feature = "ibv")]
            Self::Ibv(_) => PathSocket::bind((local, port).into()),
            Self::Soft(ref device) => device.nic().path_socket(local, port),
        }
    }

    /// Whether both are the same.
    pub(crate) fn is(&self, other: &Device) -> bool {
        match (self, other) {
            #[cfg(feature = "ibv")]
            (Self::Ibv(device), Self::Ibv(other)) => Arc::ptr_eq(device, other),
            #[cfg(feature = "soft")]
            (Self::Soft(device), Self::Soft(other)) => Arc::ptr_eq(device, other),
            #[allow(unreachable_patterns, reason = "with one engine there is nothing else")]
            _ => false,
        }
    }

    /// Whether this process opened it.
    pub(crate) fn is_owned(&self) -> bool {
        dispatch!(self, device => device.is_owned())
    }

    pub(crate) fn attributes(&self) -> Result<DeviceAttributes> {
        dispatch!(self, device => device.attributes())
    }

    /// The clock of timestamps: its ticks, when they were read, and how uncertain that is; `None` if it can't be read.
    pub(crate) fn read_clock(&self) -> Result<Option<(u64, Instant, Duration)>> {
        dispatch!(self, device => device.read_clock())
    }

    pub(crate) fn port(&self, number: u8) -> Result<Port> {
        dispatch!(self, device => device.port(number))
    }

    pub(crate) fn gid_table(&self) -> Result<Vec<GidEntry>> {
        dispatch!(self, device => device.gid_table())
    }

    /// What the device counts for a port, by the kernel's names.
    pub(crate) fn counters(&self, port: u8) -> Result<BTreeMap<String, u64>> {
        dispatch!(self, device => device.counters(port))
    }

    /// What the device holds, if it says.
    pub(crate) fn resource_counts(&self) -> Option<ResourceCounts> {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(_) => None,
            #[cfg(feature = "soft")]
            Self::Soft(ref device) => Some(device.resource_counts()),
        }
    }

    /// Returns the recorder of requests and completions, if the engine doesn't record them itself.
    pub(crate) fn recorder(&self) -> Option<&Arc<DeviceRecorder>> {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref device) => Some(&device.recorder),
            #[cfg(feature = "soft")]
            Self::Soft(_) => None,
        }
    }

    /// Starts a recording of the device with this name.
    pub(crate) fn start_recording(&self, name: &str, options: &RecorderOptions) -> Result<StopSignal> {
        dispatch!(self, device => device.start_recording(name, options))
    }

    /// Stops the recording and returns it, or `None` if there is none.
    pub(crate) fn stop_recording(&self, name: &str) -> Option<Recording> {
        dispatch!(self, device => device.stop_recording(name))
    }

    /// Returns a copy of the recording so far, or `None` if there is none.
    pub(crate) fn snapshot_recording(&self, name: &str) -> Option<Recording> {
        dispatch!(self, device => device.snapshot_recording(name))
    }

    /// Returns the cause if the recording has stopped by itself.
    pub(crate) fn recording_stop_cause(&self) -> Option<StopCause> {
        dispatch!(self, device => device.recording_stop_cause())
    }

    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        dispatch!(self, device => device.event_fd())
    }

    /// Waits for an event, copies and acknowledges it; `None` if none came in time.
    pub(crate) fn wait_event(&self, timeout: Option<Duration>) -> Result<Option<DeviceEvent>> {
        dispatch!(self, device => device.wait_event(timeout))
    }

    pub(crate) fn protection_domain(&self) -> Result<ProtectionDomain> {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref device) => Ok(ProtectionDomain::Ibv(Arc::new(ibv::ProtectionDomain::new(device)?))),
            #[cfg(feature = "soft")]
            Self::Soft(ref device) => {
                Ok(ProtectionDomain::Soft(Arc::new(soft::ProtectionDomain::new(device)?)))
            }
        }
    }

    pub(crate) fn completion_queue(
        &self,
        depth: u32,
        events: bool,
        vector: u32,
        kind: CompletionQueueKind,
    ) -> Result<CompletionQueue> {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref device) => {
                let queue = ibv::CompletionQueue::new(device, depth, events, vector, kind)?;
                Ok(CompletionQueue::Ibv(Arc::new(queue)))
            }
            #[cfg(feature = "soft")]
            Self::Soft(ref device) => {
                let queue = soft::CompletionQueue::new(device, depth, events, vector, kind)?;
                Ok(CompletionQueue::Soft(Arc::new(queue)))
            }
        }
    }

    /// The partition keys of a port, by their index.
    pub(crate) fn pkeys(&self, port: u8) -> Result<Vec<u16>> {
        dispatch!(self, device => device.pkeys(port))
    }
}

/// What memory and queue pairs belong to.
#[derive(Clone)]
pub(crate) enum ProtectionDomain {
    #[cfg(feature = "ibv")]
    Ibv(Arc<ibv::ProtectionDomain>),
    #[cfg(feature = "soft")]
    Soft(Arc<soft::ProtectionDomain>),
}

impl ProtectionDomain {
    /// Registers memory under addresses that begin with `iova`, or under its own.
    pub(crate) fn register(
        &self,
        memory: &dyn Memory,
        iova: Option<u64>,
        access: Access,
    ) -> Result<Registration> {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref domain) => {
                Ok(Registration::Ibv(ibv::Registration::new(domain, memory, iova, access)?))
            }
            #[cfg(feature = "soft")]
            Self::Soft(ref domain) => {
                Ok(Registration::Soft(soft::Registration::new(domain, memory, iova, access)?))
            }
        }
    }

    /// Registers `len` bytes of a dma-buf under addresses that begin with `iova`.
    pub(crate) fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Registration> {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref domain) => {
                let registration = ibv::Registration::of_dmabuf(domain, dmabuf, offset, len, iova, access)?;
                Ok(Registration::Ibv(registration))
            }
            #[cfg(feature = "soft")]
            Self::Soft(ref domain) => Ok(Registration::Soft(soft::Registration::of_dmabuf(domain)?)),
        }
    }

    /// Whether dma-bufs can be registered.
    pub(crate) fn can_register_dmabuf(&self) -> bool {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref domain) => ibv::Registration::supports_dmabuf(domain),
            #[cfg(feature = "soft")]
            Self::Soft(_) => false,
        }
    }

    pub(crate) fn queue_pair(
        &self,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        shared: Option<&Arc<SharedReceiveQueue>>,
        options: &QueuePairOptions,
    ) -> Result<(QueuePair, QueuePairLimits)> {
        match (self, send_cq, recv_cq) {
            #[cfg(feature = "ibv")]
            (Self::Ibv(domain), CompletionQueue::Ibv(send_cq), CompletionQueue::Ibv(recv_cq)) => {
                let (queue_pair, limits) = ibv::QueuePair::new(domain, send_cq, recv_cq, shared, options)?;
                Ok((QueuePair::Ibv(queue_pair), limits))
            }
            #[cfg(feature = "soft")]
            (Self::Soft(domain), CompletionQueue::Soft(send_cq), CompletionQueue::Soft(recv_cq)) => {
                let (queue_pair, limits) = soft::QueuePair::new(domain, send_cq, recv_cq, shared, options)?;
                Ok((QueuePair::Soft(queue_pair), limits))
            }
            #[allow(unreachable_patterns, reason = "with one engine there is nothing else")]
            _ => Err(device_mismatch()),
        }
    }

    /// Makes a shared receive queue; also says how many segments a request may have.
    pub(crate) fn shared_receive_queue(
        &self,
        depth: u32,
        segments: u32,
        id: u32,
    ) -> Result<(SharedReceiveQueue, u32)> {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref domain) => {
                let (queue, segments) = ibv::SharedReceiveQueue::new(domain, depth, segments, id)?;
                Ok((SharedReceiveQueue::Ibv(queue), segments))
            }
            #[cfg(feature = "soft")]
            Self::Soft(ref domain) => {
                let (queue, segments) = soft::SharedReceiveQueue::new(domain, depth, segments, id)?;
                Ok((SharedReceiveQueue::Soft(queue), segments))
            }
        }
    }

    pub(crate) fn memory_window(&self) -> Result<MemoryWindow> {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref domain) => Ok(MemoryWindow::Ibv(ibv::MemoryWindow::new(domain)?)),
            #[cfg(feature = "soft")]
            Self::Soft(ref domain) => Ok(MemoryWindow::Soft(soft::MemoryWindow::new(domain)?)),
        }
    }

    pub(crate) fn address_handle(&self, address: &Address) -> Result<AddressHandle> {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref domain) => Ok(AddressHandle::Ibv(ibv::AddressHandle::new(domain, address)?)),
            #[cfg(feature = "soft")]
            Self::Soft(ref domain) => Ok(AddressHandle::Soft(soft::AddressHandle::new(domain, address)?)),
        }
    }
}

/// A receive queue that queue pairs share.
pub(crate) enum SharedReceiveQueue {
    #[cfg(feature = "ibv")]
    Ibv(ibv::SharedReceiveQueue),
    #[cfg(feature = "soft")]
    Soft(soft::SharedReceiveQueue),
}

impl SharedReceiveQueue {
    /// Posts requests with one doorbell.
    pub(crate) fn post_recvs(&self, list: &mut RecvList) -> Result<(), PostFailure> {
        post!(self, list, post_recvs)
    }

    /// Asks for an event when fewer requests than this are left.
    pub(crate) fn arm(&self, limit: u32) -> Result<()> {
        dispatch!(self, queue => queue.arm(limit))
    }

    /// Destroys the queue: afterwards the device uses none of its requests' memory. If that fails it may.
    pub(crate) fn destroy(&self) -> Result<()> {
        check_injected("shared receive queue")?;
        dispatch!(self, queue => queue.destroy())
    }
}

/// Memory that a device knows.
pub(crate) enum Registration {
    #[cfg(feature = "ibv")]
    Ibv(ibv::Registration),
    #[cfg(feature = "soft")]
    Soft(soft::Registration),
}

/// How requests and peers name registered memory.
#[derive(Clone, Copy)]
pub(crate) struct MemoryKeys {
    /// The address of its first byte.
    pub(crate) addr: u64,
    /// Whether that is where this process has it.
    pub(crate) is_identity_mapped: bool,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

impl Registration {
    /// How the memory is named. That doesn't change: what posts keeps it, and needn't ask the engine each time.
    pub(crate) fn keys(&self) -> MemoryKeys {
        dispatch!(self, registration => registration.keys())
    }

    /// Makes the device forget the memory. If that fails it may still use it.
    pub(crate) fn deregister(&self) -> Result<()> {
        check_injected("registration")?;
        dispatch!(self, registration => registration.deregister())
    }
}

/// A window on memory, of type 2B.
pub(crate) enum MemoryWindow {
    #[cfg(feature = "ibv")]
    Ibv(ibv::MemoryWindow),
    #[cfg(feature = "soft")]
    Soft(soft::MemoryWindow),
}

impl MemoryWindow {
    /// The key that it gets when it is bound next.
    pub(crate) fn next_rkey(&self) -> u32 {
        dispatch!(self, window => window.next_rkey())
    }

    /// Says that it was bound, and has this key now.
    pub(crate) fn set_rkey(&self, rkey: u32) {
        dispatch!(self, window => window.set_rkey(rkey));
    }

    /// Frees it: afterwards nobody reaches memory through it. If that fails somebody may.
    pub(crate) fn free(&self) -> Result<()> {
        check_injected("memory window")?;
        dispatch!(self, window => window.free())
    }
}

/// How completions are taken from a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CompletionQueueKind {
    /// Many at once.
    Plain,
    /// One by one.
    Extended,
    /// One by one, and with the device's time.
    Timestamps,
    /// The same, and with the kernel's send times on the software NIC.
    SendTimestamps,
}

impl CompletionQueueKind {
    pub(crate) const fn has_timestamps(self) -> bool {
        matches!(self, CompletionQueueKind::Timestamps | CompletionQueueKind::SendTimestamps)
    }
}

/// A completion queue.
#[derive(Clone)]
pub(crate) enum CompletionQueue {
    #[cfg(feature = "ibv")]
    Ibv(Arc<ibv::CompletionQueue>),
    #[cfg(feature = "soft")]
    Soft(Arc<soft::CompletionQueue>),
}

impl CompletionQueue {
    /// How many completions fit.
    pub(crate) fn depth(&self) -> u32 {
        dispatch!(self, queue => queue.depth())
    }

    /// Gives it room for so many completions.
    pub(crate) fn resize(&self, depth: u32) -> Result<()> {
        dispatch!(self, queue => queue.resize(depth))
    }

    /// Has events wait for so many completions, or so many microseconds.
    pub(crate) fn moderate(&self, count: u16, period: u16) -> Result<()> {
        dispatch!(self, queue => queue.moderate(count, period))
    }

    /// Takes completions, as many as there are and there is room for, and says how many those were.
    #[inline]
    pub(crate) fn poll(&self, out: &mut [RawCompletion]) -> Result<usize> {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref queue) => queue.poll(out),
            #[cfg(feature = "soft")]
            Self::Soft(ref queue) => Ok(queue.poll(out)),
        }
    }

    /// Requests an event for the next completion, or for the next solicited one.
    pub(crate) fn arm(&self, arm_for: ArmFor) -> Result<()> {
        dispatch!(self, queue => queue.arm(arm_for))
    }

    /// Puts right what the device says in a way of its own, in an outcome with [unusual](flag::UNUSUAL) flags.
    pub(crate) fn normalize(&self, outcome: &mut RawOutcome) {
        dispatch!(self, queue => queue.normalize(outcome));
    }

    /// Whether it was made with events.
    pub(crate) fn has_events(&self) -> bool {
        dispatch!(self, queue => queue.has_events())
    }

    /// The descriptor that is readable when there is an event, if the queue has events. It is made non-blocking.
    pub(crate) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        dispatch!(self, queue => queue.event_fd())
    }

    /// Takes and acknowledges an event, if there is one.
    pub(crate) fn try_event(&self) -> Result<bool> {
        dispatch!(self, queue => queue.try_event())
    }

    /// Waits until there is an event, takes and acknowledges it; `false` if none came in time, or something came between.
    pub(crate) fn wait_event(&self, timeout: Option<Duration>) -> Result<bool> {
        dispatch!(self, queue => queue.wait_event(timeout))
    }
}

/// A queue pair.
pub(crate) enum QueuePair {
    #[cfg(feature = "ibv")]
    Ibv(ibv::QueuePair),
    #[cfg(feature = "soft")]
    Soft(soft::QueuePair),
}

impl QueuePair {
    pub(crate) fn qpn(&self) -> Qpn {
        dispatch!(self, queue_pair => queue_pair.qpn())
    }

    pub(crate) fn modify(&self, change: &StateChange) -> Result<()> {
        dispatch!(self, queue_pair => queue_pair.modify(change))
    }

    pub(crate) fn state(&self) -> Result<QpState> {
        dispatch!(self, queue_pair => queue_pair.state())
    }

    /// Returns the event that moved the queue pair to the error state, where the device stores it.
    pub(crate) fn error_event(&self) -> Option<DeviceEvent> {
        match *self {
            #[cfg(feature = "ibv")]
            QueuePair::Ibv(_) => None,
            #[cfg(feature = "soft")]
            QueuePair::Soft(ref queue_pair) => queue_pair.error_event(),
        }
    }

    /// All that the device knows of it. What it says of a peer is of no meaning for datagrams.
    pub(crate) fn query(&self) -> Result<QueuePairAttributes> {
        dispatch!(self, queue_pair => queue_pair.query())
    }

    /// Posts one request.
    #[inline]
    pub(crate) fn post_send(&self, slot: &mut SendSlot) -> Result<(), PostFailure> {
        post!(self, slot, post_sends)
    }

    /// Posts requests with one doorbell.
    #[inline]
    pub(crate) fn post_sends(&self, list: &mut SendList) -> Result<(), PostFailure> {
        post!(self, list, post_sends)
    }

    /// Whether the queue pair can post an ATOMIC WRITE or a FLUSH that its device supports.
    pub(crate) fn can_post(&self, operation: &SendOperation) -> bool {
        dispatch!(self, queue_pair => queue_pair.can_post(operation))
    }

    /// Posts requests, some of which are ATOMIC WRITEs or FLUSHes.
    #[cold]
    pub(crate) fn post_extended_sends(&self, list: &mut SendList) -> Result<(), PostFailure> {
        post!(self, list, post_extended_sends)
    }

    /// Posts requests with one doorbell.
    #[inline]
    pub(crate) fn post_recvs(&self, list: &mut RecvList) -> Result<(), PostFailure> {
        post!(self, list, post_recvs)
    }

    /// Lets datagrams to a group come to it too.
    pub(crate) fn attach_multicast(&self, group: adverb_proto::types::Gid, lid: u16) -> Result<()> {
        dispatch!(self, queue_pair => queue_pair.attach_multicast(group, lid))
    }

    /// Undoes that. A queue pair that is attached can't be destroyed.
    pub(crate) fn detach_multicast(&self, group: adverb_proto::types::Gid, lid: u16) -> Result<()> {
        dispatch!(self, queue_pair => queue_pair.detach_multicast(group, lid))
    }

    /// Whether it was destroyed before its time.
    pub(crate) fn is_destroyed(&self) -> bool {
        dispatch!(self, queue_pair => queue_pair.is_destroyed())
    }

    /// Destroys the queue pair: afterwards the device uses none of its requests' memory. If that fails it may.
    pub(crate) fn destroy(&self) -> Result<()> {
        check_injected("queue pair")?;
        dispatch!(self, queue_pair => queue_pair.destroy())
    }
}

/// How to reach a peer with datagrams.
pub(crate) enum AddressHandle {
    #[cfg(feature = "ibv")]
    Ibv(ibv::AddressHandle),
    #[cfg(feature = "soft")]
    Soft(soft::AddressHandle),
}

impl AddressHandle {
    /// Whether it was made in this domain.
    #[inline]
    pub(crate) fn is_of(&self, domain: &ProtectionDomain) -> bool {
        match (self, domain) {
            #[cfg(feature = "ibv")]
            (Self::Ibv(handle), ProtectionDomain::Ibv(domain)) => handle.is_of(domain),
            #[cfg(feature = "soft")]
            (Self::Soft(handle), ProtectionDomain::Soft(domain)) => handle.is_of(domain),
            #[allow(unreachable_patterns, reason = "with one engine there is nothing else")]
            _ => false,
        }
    }

    /// The UDP source port of its datagrams, if the engine chooses it.
    pub(crate) fn source_port(&self) -> Option<u16> {
        match self {
            #[cfg(feature = "ibv")]
            Self::Ibv(_) => None,
            #[cfg(feature = "soft")]
            Self::Soft(handle) => Some(handle.source_port()),
            #[cfg(not(any(feature = "ibv", feature = "soft")))]
            _ => None,
        }
    }
}
