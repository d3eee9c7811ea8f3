//! Lanes: connected queue pairs, each with a completion queue and a pool.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use adverb_net_proto::{Config, LaneConfig, MAX_MESSAGE_SIZE, MAX_RENDEZVOUS, UNCREDITED_WRITES};
use adverb_verbs::cm::{CmHandle, ConnectionEvent};
use adverb_verbs::internal::{OwnerProcess, Watch, device_removed, wait_either};
use adverb_verbs::memory::Pool;
use adverb_verbs::{
    Access, CompletionQueue, ConnectOptions, Device, Endpoint, Error, PathMtu, ProtectionDomain, QueuePair,
    QueuePairBuilder, RecvRequest, Result,
};

use super::region::MAX_BINDS;
use crate::domains::SharedDomain;
use crate::error::ConnectionError;
use crate::options::Options;
use crate::protocol::proof::Seal;

/// The tag of the receive for the peer's hello. The tags of other requests are those of adverb-net-proto, and not zero.
pub(super) const HELLO_RECV: u64 = 0;

/// The resources of a lane, before its queue pair is connected.
pub(crate) struct LaneParts {
    completions: CompletionQueue,
    pool: Pool,
    shared: Option<Arc<SharedDomain>>,
    peer: SocketAddr,
    options: Options,
}

impl LaneParts {
    /// Creates the resources of a lane on this device, and a queue pair, whose builder `make` returns. The queue pair
    /// has one receive, for the peer's hello, and grants the peer no rights until the peer is authenticated.
    pub(crate) fn new(
        device: &Device,
        peer: SocketAddr,
        options: &Options,
        make: impl FnOnce(&ProtectionDomain) -> Result<QueuePairBuilder>,
    ) -> Result<(LaneParts, QueuePair)> {
        let created = LaneParts::create(device, peer, options, make);
        if let (Err(Error::DeviceFailed { .. }), Some(domains)) = (&created, &options.domains) {
            domains.remove(device);
        }
        created
    }

    fn create(
        device: &Device,
        peer: SocketAddr,
        options: &Options,
        make: impl FnOnce(&ProtectionDomain) -> Result<QueuePairBuilder>,
    ) -> Result<(LaneParts, QueuePair)> {
        let shared = options.shared_domain_of(device)?;
        let pool = match (&shared, &options.pool) {
            (Some(shared), _) => shared.pool.clone(),
            (None, Some(pool)) => pool.clone(),
            (None, None) => Pool::builder().partitions(1).create(&device.create_protection_domain()?),
        };
        let domain = pool.protection_domain().clone();
        let config = config(options, MIN_READ_LEN);
        let (sends, recvs) = (send_queue_depth(options), config.recv_queue_depth());
        let sends = if shared.is_some() { sends + MAX_BINDS as u32 } else { sends };
        // Each queue of a draining queue pair also has a marker.
        let completions = domain.device().completion_queue(sends + recvs + 2).events().create()?;
        let queue_pair = make(&domain)?.completion_queue(&completions).depth(sends, recvs);
        let queue_pair = queue_pair.access(Access::LOCAL_WRITE).create()?;
        let hello = pool.allocate(PathMtu::Mtu4096.bytes().into())?;
        queue_pair.post_recv(RecvRequest::new(hello).tag(HELLO_RECV))?;
        Ok((LaneParts { completions, pool, shared, peer, options: options.clone() }, queue_pair))
    }

    /// Returns the options for connecting the queue pair.
    pub(crate) fn connect_options(options: &Options) -> ConnectOptions {
        // The peer has a receive for each write with a credit, so an RNR NAK is an error of the peer, and not retried.
        // The ACK timeout suits a software NIC on a loaded machine: a dead peer is detected after two seconds. (With
        // seven retries, rxe never gives up.)
        ConnectOptions::new().rnr_retry(0).ack_timeout(16).retry_count(6).traffic(options.traffic)
    }
}

/// A connected queue pair under a connection.
pub(crate) struct Lane {
    /// The queue pair is dropped first, so that the peer can't access memory over the lane afterwards.
    pub(super) queue_pair: QueuePair,
    /// The peer's queue pair, with the path MTU of the lane, if it is known.
    pub(super) remote: Option<Endpoint>,
    /// The connection manager's handle, if it established the lane.
    manager: Option<CmHandle>,
    pub(super) completions: CompletionQueue,
    pub(super) pool: Pool,
    /// The protection domain, if other connections share it.
    pub(super) shared: Option<Arc<SharedDomain>>,
    pub(super) peer: SocketAddr,
    /// The seal of the hellos, if the sides have a key.
    pub(super) seal: Option<Seal>,
    /// The options of the connector or the listener that established the lane.
    pub(super) options: Options,
    pub(super) config: LaneConfig,
    owner: OwnerProcess,
}

impl Lane {
    pub(crate) fn new(
        parts: LaneParts,
        queue_pair: QueuePair,
        remote: Option<Endpoint>,
        manager: Option<CmHandle>,
        seal: Option<Seal>,
    ) -> Lane {
        let LaneParts { completions, pool, shared, peer, options } = parts;
        let config = config(&options, queue_pair.max_message_size()).lane();
        let owner = OwnerProcess::current();
        Lane { queue_pair, remote, manager, completions, pool, shared, peer, seal, options, config, owner }
    }

    /// Returns the path MTU in bytes: 0 if it is not known.
    pub(crate) fn mtu(&self) -> u16 {
        self.remote.map_or(0, |remote| remote.mtu)
    }

    /// Returns the addresses to which this side's packets and the peer's packets are sent.
    pub(crate) fn udp_addrs(&self) -> Option<(SocketAddr, SocketAddr)> {
        Some((self.remote?.gid.udp_addr(), self.local_addr()))
    }

    /// Returns the address of this side's device.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.queue_pair.endpoint().gid.udp_addr()
    }

    /// Whether the device is a software NIC, whose packets pass the host's firewall.
    pub(crate) fn is_software(&self) -> bool {
        self.pool.protection_domain().device().is_software()
    }

    /// Returns a descriptor that is readable when the completion queue has an event, if the device has such a descriptor.
    pub(crate) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.completions.event_fd()
    }

    /// Returns a descriptor that is readable when the kernel's connection manager may report that the peer's process
    /// has ended. The connection manager of the software NIC does not report that.
    pub(crate) fn manager_events(&self) -> Option<BorrowedFd<'_>> {
        self.manager.as_ref().filter(|_| !self.is_software()).map(CmHandle::as_fd)
    }

    /// Watches the events of the completion queue, and those of the connection manager.
    pub(super) fn add_events(&self, watch: &Watch) -> io::Result<()> {
        let descriptors = [self.completions.event_fd(), self.manager_events()];
        descriptors.into_iter().flatten().try_for_each(|events| watch.add(events))
    }

    /// Takes the pending events of the connection manager. Returns whether the peer has disconnected.
    ///
    /// # Errors
    ///
    /// Returns [`Error::DeviceFailed`](adverb_verbs::Error::DeviceFailed) if the device is being removed, which also
    /// disconnects peers on the same device.
    pub(crate) fn take_manager_events(&self) -> Result<bool> {
        let Some(manager) = &self.manager else { return Ok(false) };
        let mut has_disconnected = false;
        while let Some(event) = manager.try_event()? {
            match event {
                ConnectionEvent::Disconnected => has_disconnected = true,
                ConnectionEvent::DeviceRemoved => {
                    return Err(device_removed("keeping a connection established"));
                }
                _ => {}
            }
        }
        Ok(has_disconnected)
    }

    /// Takes the pending events of the completion queue. Returns whether there were any.
    pub(crate) fn take_events(&self) -> Result<bool, ConnectionError> {
        let mut has_events = false;
        while self.completions.try_event().map_err(|error| ConnectionError::device(self.peer, error))? {
            has_events = true;
        }
        Ok(has_events)
    }

    /// Waits for an event of the completion queue, but no longer than `time`, and takes it. Returns `false` if the time
    /// is up, or only the connection manager has an event.
    pub(super) fn wait_event(&self, time: Duration) -> Result<bool, ConnectionError> {
        let failed = |error| ConnectionError::device(self.peer, error);
        let (Some(manager), Some(events)) = (self.manager_events(), self.completions.event_fd()) else {
            return self.completions.wait_event(time).map_err(failed);
        };
        wait_either(events, Some(manager), (time < Duration::MAX).then_some(time))
            .map_err(|error| ConnectionError::system(self.peer, "waiting for an event", error))?;
        self.completions.try_event().map_err(failed)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            return;
        }
        // A software NIC sends delayed ACKs with the next poll, and the peer may wait for the ACK of its last message.
        let mut done = Vec::new();
        while self.completions.poll(&mut done).is_ok_and(|count| count > 0) {}
    }
}

/// The length of a READ that every device supports: the maximum of rxe.
const MIN_READ_LEN: u32 = 8 << 20;

/// Returns the depth of a send queue, on a device whose READs can have at least [`MIN_READ_LEN`].
fn send_queue_depth(options: &Options) -> u32 {
    2 * (options.max_outstanding_writes + UNCREDITED_WRITES + 2 * MAX_RENDEZVOUS)
        + MAX_MESSAGE_SIZE / MIN_READ_LEN
}

/// Returns the configuration of a connection on a queue pair with this maximum length of a request.
pub(super) fn config(options: &Options, max_read_len: u32) -> Config {
    Config {
        recv_ring_size: options.recv_ring_size,
        max_outstanding_writes: options.max_outstanding_writes,
        eager_threshold: options.eager_threshold,
        recv_buffer_limit: options.recv_buffer_limit,
        max_message_size: options.max_message_size,
        max_read_len,
        handshake_timeout: options.connect_timeout,
        close_timeout: options.connect_timeout,
        keepalive: options.keepalive,
        reconnect: options.reconnect,
        ..Config::default()
    }
    .clamped()
}
