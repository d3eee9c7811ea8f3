//! The backends below [`verbs`](crate): each type here wraps the type of one backend, and its methods call that backend.
//!
//! Public types are concrete, so that no signature in a user's code depends on the backend. This module dispatches to the
//! backend.

#![cfg_attr(not(feature = "ibv"), allow(unused, reason = "some items are used only with rdma-core"))]

pub(crate) mod connection_manager;
mod failure;
#[cfg(feature = "ibv")]
mod ibv;
mod lists;
mod memory;
mod options;
mod outcome;
#[cfg(feature = "soft")]
mod soft;

#[cfg(feature = "soft")]
pub use adverb_soft::link::{IcmpError, PathSocket};
#[cfg(all(test, feature = "soft", not(loom)))]
pub(crate) use failure::with_destroy_failure;
pub(crate) use failure::{PostErrno, PostFailure};
pub(crate) use lists::{RecvList, SendList, SendSlot};
pub use memory::Memory;
pub(crate) use options::{
    Address, Init, PeerEnd, QueuePairLimits, QueuePairOptions, ReadyToReceive, ReadyToSend, StateChange,
};
pub(crate) use outcome::{RawCompletion, RawOutcome, flag, opcode};
#[cfg(feature = "soft")]
pub(crate) use soft::{LinkKind as SoftLink, Options as SoftOptions};

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_proto::ResourceCounts;
use adverb_proto::trace::{RecorderOptions, Recording, StopCause};
use adverb_proto::types::{
    Access, ArmFor, DeviceAttributes, DeviceEvent, DeviceInfo, ExtendedOperation, GidEntry, Port, QpState,
    Qpn, QueuePairAttributes, SendRequest,
};

#[cfg(not(feature = "ibv"))]
use failure::no_backend;
use failure::{check_injected, device_mismatch, no_event_channel, queue_pair_destroyed};

use crate::error::Result;
#[cfg(feature = "soft")]
use crate::error::{Error, NoDeviceReason, WithCauses};
use crate::recorder::{DeviceRecorder, StopSignal};

/// Calls the backend that the value belongs to.
macro_rules! dispatch {
    ($value:expr, $backend:ident => $call:expr) => {
        match *$value {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref $backend) => $call,
            #[cfg(feature = "soft")]
            Self::Soft(ref $backend) => $call,
        }
    };
}

/// Posts a list to a queue of the same backend.
macro_rules! post {
    ($queue:expr, $list:expr, $verb:ident) => {
        match *$queue {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref queue) if $list.ibv.len() > 0 => queue.$verb(&mut $list.ibv),
            #[cfg(all(feature = "ibv", feature = "soft"))]
            Self::Ibv(_) if $list.soft.is_some() => Err(PostErrno::foreign_list()),
            #[cfg(feature = "ibv")]
            Self::Ibv(_) => Ok(()),
            #[cfg(feature = "soft")]
            Self::Soft(ref queue) => match &mut $list.soft {
                Some(list) => queue.$verb(list),
                None => Err(PostErrno::foreign_list()),
            },
        }
    };
}

/// An open device.
pub(crate) enum Device {
    #[cfg(feature = "ibv")]
    Ibv(Arc<ibv::Device>),
    #[cfg(feature = "soft")]
    Soft(Arc<soft::Device>),
}

impl Device {
    /// Creates a list for the send requests of the device's queue pairs.
    pub(crate) fn send_list(&self) -> SendList {
        match self {
            #[cfg(feature = "ibv")]
            Device::Ibv(_) => SendList::ibv(),
            #[cfg(feature = "soft")]
            Device::Soft(_) => SendList::soft(),
            #[cfg(not(any(feature = "ibv", feature = "soft")))]
            _ => unreachable!(),
        }
    }

    /// Creates the memory for one send request of the device's queue pairs.
    pub(crate) fn send_slot(&self) -> SendSlot {
        match self {
            #[cfg(feature = "ibv")]
            Device::Ibv(_) => SendSlot::Ibv(ibv::SendSlot::default()),
            #[cfg(feature = "soft")]
            Device::Soft(_) => SendSlot::Soft,
            #[cfg(not(any(feature = "ibv", feature = "soft")))]
            _ => unreachable!(),
        }
    }

    /// Creates a list for the receive requests of the device's queues.
    pub(crate) fn recv_list(&self) -> RecvList {
        match self {
            #[cfg(feature = "ibv")]
            Device::Ibv(_) => RecvList::ibv(),
            #[cfg(feature = "soft")]
            Device::Soft(_) => RecvList::soft(),
            #[cfg(not(any(feature = "ibv", feature = "soft")))]
            _ => unreachable!(),
        }
    }

    /// Lists the devices of all backends. A backend that isn't installed has no devices. If no backend is installed, the
    /// error contains the cause.
    pub(crate) fn list() -> Result<Vec<DeviceInfo>> {
        let listed = Device::list_hardware();
        // Software devices always exist, and are listed last.
        #[cfg(feature = "soft")]
        let listed = {
            let others = listed.inspect_err(|error| tracing::debug!(error = %WithCauses(error), "listing hardware devices failed; only software devices are listed"));
            Ok([others.unwrap_or_default(), soft::Device::list()].concat())
        };
        listed
    }

    /// Lists the devices of rdma-core.
    pub(crate) fn list_hardware() -> Result<Vec<DeviceInfo>> {
        #[cfg(feature = "ibv")]
        return ibv::Device::list();
        #[cfg(not(feature = "ibv"))]
        return Err(no_backend());
    }

    pub(crate) fn open(name: &str) -> Result<Device> {
        #[cfg(feature = "soft")]
        if soft::is_soft(name) {
            return Ok(Device::Soft(soft::Device::open(name)?));
        }
        #[cfg(feature = "ibv")]
        let opened = ibv::Device::open(name).map(|device| Device::Ibv(Arc::new(device)));
        #[cfg(not(feature = "ibv"))]
        let opened = Err(no_backend());
        // The hint lists all devices. The list is never empty, because there is always a software device.
        #[cfg(feature = "soft")]
        let opened = opened.map_err(|error| match error {
            Error::NoDevice { .. } | Error::NotInstalled { .. } => {
                let list = Device::list().unwrap_or_default();
                Error::NoDevice {
                    problem: format!("no RDMA device is named {name}").into(),
                    reason: NoDeviceReason::NotFound,
                    available: list.into_iter().map(|info| info.name).collect(),
                }
            }
            error => error,
        });
        opened
    }

    /// Creates a software device.
    #[cfg(feature = "soft")]
    pub(crate) fn soft(options: &SoftOptions) -> Result<Device> {
        Ok(Device::Soft(soft::Device::build(options)?))
    }

    /// Returns the addresses that software devices of this process have or could have.
    pub(crate) fn soft_addresses() -> Vec<IpAddr> {
        #[cfg(feature = "soft")]
        return soft::Device::addresses();
        #[cfg(not(feature = "soft"))]
        return Vec::new();
    }

    /// Returns the name of a device that is opened once per process and shared by all callers, or `None` for a device
    /// that each call opens separately.
    pub(crate) fn shared_name(&self) -> Option<&str> {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(_) => None,
            #[cfg(feature = "soft")]
            Self::Soft(ref device) => Some(device.name()),
        }
    }

    /// Whether the device sends packets over an IP network, not over an in-memory switch.
    pub(crate) fn is_on_ip_network(&self) -> bool {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(_) => true,
            #[cfg(feature = "soft")]
            Self::Soft(ref device) => device.is_on_interface(),
        }
    }

    /// Whether the device has no network.
    pub(crate) fn is_isolated(&self) -> bool {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(_) => false,
            #[cfg(feature = "soft")]
            Self::Soft(ref device) => device.is_isolated(),
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

    /// Whether both are the same open device.
    pub(crate) fn is(&self, other: &Device) -> bool {
        match (self, other) {
            #[cfg(feature = "ibv")]
            (Self::Ibv(device), Self::Ibv(other)) => Arc::ptr_eq(device, other),
            #[cfg(feature = "soft")]
            (Self::Soft(device), Self::Soft(other)) => Arc::ptr_eq(device, other),
            #[allow(unreachable_patterns, reason = "with one backend, the patterns above are exhaustive")]
            _ => false,
        }
    }

    /// Whether this process opened the device.
    pub(crate) fn is_owned(&self) -> bool {
        dispatch!(self, device => device.is_owned())
    }

    pub(crate) fn attributes(&self) -> Result<DeviceAttributes> {
        dispatch!(self, device => device.attributes())
    }

    /// Reads the clock of timestamps. Returns its ticks, the time of the reading and its uncertainty, or `None` if the
    /// clock can't be read.
    pub(crate) fn read_clock(&self) -> Result<Option<(u64, Instant, Duration)>> {
        dispatch!(self, device => device.read_clock())
    }

    pub(crate) fn port(&self, number: u8) -> Result<Port> {
        dispatch!(self, device => device.port(number))
    }

    pub(crate) fn gid_table(&self) -> Result<Vec<GidEntry>> {
        dispatch!(self, device => device.gid_table())
    }

    /// Reads the counters of a port, by the kernel's names.
    pub(crate) fn counters(&self, port: u8) -> Result<BTreeMap<String, u64>> {
        dispatch!(self, device => device.counters(port))
    }

    /// Returns the numbers of objects that the device holds, if it reports them.
    pub(crate) fn resource_counts(&self) -> Option<ResourceCounts> {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(_) => None,
            #[cfg(feature = "soft")]
            Self::Soft(ref device) => Some(device.resource_counts()),
        }
    }

    /// Returns the recorder of requests and completions, if the backend doesn't record them itself.
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

    /// Waits for an event, copies it and acknowledges it. Returns `None` if the timeout expires first.
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
        has_events: bool,
        vector: u32,
        kind: CompletionQueueKind,
    ) -> Result<CompletionQueue> {
        match *self {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref device) => {
                let queue = ibv::CompletionQueue::new(device, depth, has_events, vector, kind)?;
                Ok(CompletionQueue::Ibv(Arc::new(queue)))
            }
            #[cfg(feature = "soft")]
            Self::Soft(ref device) => {
                let queue = soft::CompletionQueue::new(device, depth, has_events, vector, kind)?;
                Ok(CompletionQueue::Soft(Arc::new(queue)))
            }
        }
    }

    /// Returns the partition keys of a port, by index.
    pub(crate) fn pkeys(&self, port: u8) -> Result<Vec<u16>> {
        dispatch!(self, device => device.pkeys(port))
    }
}

/// A protection domain, to which memory and queue pairs belong.
#[derive(Clone)]
pub(crate) enum ProtectionDomain {
    #[cfg(feature = "ibv")]
    Ibv(Arc<ibv::ProtectionDomain>),
    #[cfg(feature = "soft")]
    Soft(Arc<soft::ProtectionDomain>),
}

impl ProtectionDomain {
    /// Registers memory at addresses that start at `iova`, or at its own addresses.
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

    /// Registers `len` bytes of a dma-buf at addresses that start at `iova`.
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
            #[allow(unreachable_patterns, reason = "with one backend, the patterns above are exhaustive")]
            _ => Err(device_mismatch()),
        }
    }

    /// Creates a shared receive queue, and returns it with the maximum number of segments of a request.
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
    pub(crate) fn post_recvs(&self, list: &mut RecvList) -> Result<(), PostErrno> {
        post!(self, list, post_recvs)
    }

    /// Requests an event for when fewer than `limit` requests remain.
    pub(crate) fn arm(&self, limit: u32) -> Result<()> {
        dispatch!(self, queue => queue.arm(limit))
    }

    /// Destroys the queue: afterwards the device no longer accesses the memory of its requests. After an error, it may.
    pub(crate) fn destroy(&self) -> Result<()> {
        check_injected("shared receive queue")?;
        dispatch!(self, queue => queue.destroy())
    }
}

/// Registered memory.
pub(crate) enum Registration {
    #[cfg(feature = "ibv")]
    Ibv(ibv::Registration),
    #[cfg(feature = "soft")]
    Soft(soft::Registration),
}

/// The address and the keys by which requests and peers access registered memory.
#[derive(Clone, Copy)]
pub(crate) struct MemoryKeys {
    /// The address of the first byte.
    pub(crate) addr: u64,
    /// Whether this is also the address of the memory in this process.
    pub(crate) is_identity_mapped: bool,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

impl Registration {
    /// Returns the address and the keys. They don't change, so callers that post keep a copy.
    pub(crate) fn keys(&self) -> MemoryKeys {
        dispatch!(self, registration => registration.keys())
    }

    /// Deregisters the memory. After an error, the device may still access it.
    pub(crate) fn deregister(&self) -> Result<()> {
        check_injected("registration")?;
        dispatch!(self, registration => registration.deregister())
    }
}

/// A memory window of type 2B.
pub(crate) enum MemoryWindow {
    #[cfg(feature = "ibv")]
    Ibv(ibv::MemoryWindow),
    #[cfg(feature = "soft")]
    Soft(soft::MemoryWindow),
}

impl MemoryWindow {
    /// Returns the key of the next binding.
    pub(crate) fn next_rkey(&self) -> u32 {
        dispatch!(self, window => window.next_rkey())
    }

    /// Sets the current key, after the window was bound.
    pub(crate) fn set_rkey(&self, rkey: u32) {
        dispatch!(self, window => window.set_rkey(rkey));
    }

    /// Frees the window, which ends all access through it. After an error, the access may continue.
    pub(crate) fn free(&self) -> Result<()> {
        check_injected("memory window")?;
        dispatch!(self, window => window.free())
    }
}

/// The interface for polling a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CompletionQueueKind {
    /// Polls many completions at once.
    Plain,
    /// Polls completions one by one.
    Extended,
    /// Polls completions one by one, with the device's timestamps.
    Timestamps,
    /// The same as `Timestamps`, with the kernel's send times on the software NIC.
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
    /// Returns the number of entries.
    pub(crate) fn depth(&self) -> u32 {
        dispatch!(self, queue => queue.depth())
    }

    /// Changes the number of entries.
    pub(crate) fn resize(&self, depth: u32) -> Result<()> {
        dispatch!(self, queue => queue.resize(depth))
    }

    /// Delays events until `count` completions are available, or for `period` microseconds.
    pub(crate) fn moderate(&self, count: u16, period: u16) -> Result<()> {
        dispatch!(self, queue => queue.moderate(count, period))
    }

    /// Polls up to `out.len()` completions, and returns their number.
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

    /// Converts an outcome with [slow-path](flag::SLOW_PATH) flags from the device's own format to the common one.
    pub(crate) fn normalize(&self, outcome: &mut RawOutcome) {
        dispatch!(self, queue => queue.normalize(outcome));
    }

    /// Whether the queue was created with events.
    pub(crate) fn has_events(&self) -> bool {
        dispatch!(self, queue => queue.has_events())
    }

    /// Returns the descriptor that is readable when an event is pending, if the queue has events. The descriptor
    /// becomes non-blocking.
    pub(crate) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        dispatch!(self, queue => queue.event_fd())
    }

    /// Reads and acknowledges a pending event, if there is one.
    pub(crate) fn try_event(&self) -> Result<bool> {
        dispatch!(self, queue => queue.try_event())
    }

    /// Waits for an event, reads it and acknowledges it. Returns `false` if the timeout expires first, or the wait is
    /// interrupted.
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

    /// Returns the event that moved the queue pair to the error state, if the device stores it.
    pub(crate) fn error_event(&self) -> Option<DeviceEvent> {
        match *self {
            #[cfg(feature = "ibv")]
            QueuePair::Ibv(_) => None,
            #[cfg(feature = "soft")]
            QueuePair::Soft(ref queue_pair) => queue_pair.error_event(),
        }
    }

    /// Queries all attributes from the device. For UD queue pairs, the attributes of the peer are meaningless.
    pub(crate) fn query(&self) -> Result<QueuePairAttributes> {
        dispatch!(self, queue_pair => queue_pair.query())
    }

    /// Posts one request of at most one segment on a connection. The request is built in `slot`.
    #[inline(always)]
    pub(crate) fn post_send(
        &self,
        slot: &mut SendSlot,
        request: &SendRequest<'_, &AddressHandle>,
    ) -> Result<(), PostErrno> {
        match (self, slot) {
            #[cfg(feature = "ibv")]
            (QueuePair::Ibv(queue_pair), SendSlot::Ibv(slot)) => queue_pair.post_send(slot, request),
            #[cfg(feature = "soft")]
            (QueuePair::Soft(queue_pair), SendSlot::Soft) => {
                let SendRequest { wr_id, tag, operation, flags, segments, destination: _ } = *request;
                let destination = None;
                // With a copy, the segment stays in registers if the device is hardware.
                let copy;
                let segments = match *segments {
                    [segment] => {
                        copy = [segment];
                        &copy
                    }
                    _ => segments,
                };
                queue_pair.post_send(SendRequest { wr_id, tag, operation, flags, segments, destination })
            }
            #[allow(unreachable_patterns, reason = "with one backend, the patterns above are exhaustive")]
            _ => Err(PostErrno::foreign_list()),
        }
    }

    /// Posts requests with one doorbell.
    #[inline]
    pub(crate) fn post_sends(&self, list: &mut SendList) -> Result<(), PostErrno> {
        post!(self, list, post_sends)
    }

    /// Whether the queue pair can post an ATOMIC WRITE or a FLUSH that its device supports.
    pub(crate) fn can_post(&self, _operation: ExtendedOperation) -> bool {
        match self {
            #[cfg(feature = "ibv")]
            QueuePair::Ibv(queue_pair) => queue_pair.can_post(_operation),
            #[cfg(feature = "soft")]
            QueuePair::Soft(_) => true,
            #[cfg(not(any(feature = "ibv", feature = "soft")))]
            _ => false,
        }
    }

    /// Posts requests, some of which are ATOMIC WRITEs or FLUSHes.
    #[cold]
    pub(crate) fn post_extended_sends(&self, list: &mut SendList) -> Result<(), PostErrno> {
        match self {
            #[cfg(feature = "ibv")]
            QueuePair::Ibv(queue_pair) => queue_pair.post_extended_sends(&mut list.ibv),
            #[cfg(feature = "soft")]
            QueuePair::Soft(_) => self.post_sends(list),
            #[cfg(not(any(feature = "ibv", feature = "soft")))]
            _ => unreachable!(),
        }
    }

    /// Posts requests with one doorbell.
    #[inline]
    pub(crate) fn post_recvs(&self, list: &mut RecvList) -> Result<(), PostErrno> {
        post!(self, list, post_recvs)
    }

    /// Attaches the queue pair to a multicast group.
    pub(crate) fn attach_multicast(&self, group: adverb_proto::types::Gid, lid: u16) -> Result<()> {
        dispatch!(self, queue_pair => queue_pair.attach_multicast(group, lid))
    }

    /// Detaches the queue pair from a multicast group. An attached queue pair can't be destroyed.
    pub(crate) fn detach_multicast(&self, group: adverb_proto::types::Gid, lid: u16) -> Result<()> {
        dispatch!(self, queue_pair => queue_pair.detach_multicast(group, lid))
    }

    /// Whether the queue pair was destroyed early.
    pub(crate) fn is_destroyed(&self) -> bool {
        dispatch!(self, queue_pair => queue_pair.is_destroyed())
    }

    /// Destroys the queue pair: afterwards the device no longer accesses the memory of its requests. After an error, it
    /// may.
    pub(crate) fn destroy(&self) -> Result<()> {
        check_injected("queue pair")?;
        dispatch!(self, queue_pair => queue_pair.destroy())
    }
}

/// A route to a peer, for datagrams.
pub(crate) enum AddressHandle {
    #[cfg(feature = "ibv")]
    Ibv(ibv::AddressHandle),
    #[cfg(feature = "soft")]
    Soft(soft::AddressHandle),
}

impl AddressHandle {
    /// Whether the handle was created in this domain.
    #[inline]
    pub(crate) fn is_of(&self, domain: &ProtectionDomain) -> bool {
        match (self, domain) {
            #[cfg(feature = "ibv")]
            (Self::Ibv(handle), ProtectionDomain::Ibv(domain)) => handle.is_of(domain),
            #[cfg(feature = "soft")]
            (Self::Soft(handle), ProtectionDomain::Soft(domain)) => handle.is_of(domain),
            #[allow(unreachable_patterns, reason = "with one backend, the patterns above are exhaustive")]
            _ => false,
        }
    }

    /// Returns the UDP source port of the datagrams, if the backend chooses it.
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
