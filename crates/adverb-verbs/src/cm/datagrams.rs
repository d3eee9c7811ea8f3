//! Resolving a UD queue pair by address and port: InfiniBand's service ID resolution (SIDR).

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_proto::types::{Qpn, Transport};

use super::connector::PendingRoute;
use super::failure;
use super::listener::{next_request, wait_for};
use super::{
    Connector, MAX_DATAGRAM_REPLY_DATA, MAX_DATAGRAM_REQUEST_DATA, Path, UD_QKEY, check_private_data,
};
use crate::backend::Address;
use crate::backend::connection_manager::{Event, Identifier, Purpose, Request};
use crate::device::{ProtectionDomain, Traffic, UdDestination};
use crate::error::{ConnectStage, Error, Result};
use crate::queue_pair::{QueuePair, QueuePairBuilder};

impl Connector {
    /// Resolves the UD queue pair that a [`DatagramListener`] offers at an address and port.
    ///
    /// The connector's timeout applies to the whole resolution.
    ///
    /// ```no_run
    /// # use adverb::verbs::{SendRequest, cm::Connector};
    /// # fn example() -> adverb::verbs::Result<()> {
    /// let service = Connector::new().resolve_service("192.0.2.7:7471".parse().unwrap())?;
    /// let device = service.path().open_device()?;
    /// let domain = device.create_protection_domain()?;
    /// let completions = device.completion_queue(128).create()?;
    /// let queue_pair = service.path().datagram_queue_pair(&domain)?.completion_queue(&completions).create()?;
    /// queue_pair.move_to_rts()?;
    /// let destination = service.create_ud_destination(&queue_pair)?;
    /// queue_pair.post_send(SendRequest::send(domain.allocate_buffer(64)?).destination(&destination))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unreachable`] if there is no route to the peer or the peer doesn't reply in time,
    /// [`Error::CmRejected`] if the peer rejects the request or has no listener at that port, and
    /// [`Error::LimitExceeded`] if the private data is longer than [`MAX_DATAGRAM_REQUEST_DATA`] bytes.
    pub fn resolve_service(&self, peer: SocketAddr) -> Result<DatagramService> {
        self.begin_resolve_service(peer)?.wait()
    }

    /// Starts [`resolve_service`](Connector::resolve_service) without blocking.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unreachable`] if no device has a route to the peer, and [`Error::LimitExceeded`] if the private
    /// data is too long.
    pub fn begin_resolve_service(&self, peer: SocketAddr) -> Result<PendingService> {
        check_private_data(self.data(), MAX_DATAGRAM_REQUEST_DATA)?;
        let resolving = self.begin(peer, Purpose::Datagrams)?;
        Ok(PendingService { identifier: resolving.identifier(), resolving, path: None, done: false })
    }
}

/// A UD queue pair that is being resolved, returned by [`Connector::begin_resolve_service`].
///
/// Its file descriptor is readable when [`poll`](PendingService::poll) may make progress.
#[must_use = "a pending service makes progress only when it is polled or waited for"]
pub struct PendingService {
    identifier: Arc<Identifier>,
    resolving: PendingRoute,
    /// The path to the peer, once it is resolved and the request was sent.
    path: Option<Path>,
    done: bool,
}

impl PendingService {
    /// Returns the peer's queue pair if it is resolved, without blocking.
    ///
    /// Call this method when the file descriptor is readable, and at the [deadline](PendingService::deadline). Drop
    /// this value after `poll` has returned the result.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Connector::resolve_service`].
    pub fn poll(&mut self) -> Result<Option<DatagramService>> {
        if self.done {
            let reason = "the pending service has already returned its result";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        let result = self.advance();
        self.done = !matches!(result, Ok(None));
        result
    }

    fn advance(&mut self) -> Result<Option<DatagramService>> {
        if self.path.is_none() {
            let Some(path) = self.resolving.advance()? else { return Ok(None) };
            self.identifier.resolve_service(self.resolving.private_data())?;
            self.path = Some(path);
        }
        let peer = self.resolving.peer();
        while let Some(event) = self.identifier.try_event()? {
            match event {
                Event::ServiceResolved { qpn, qkey, address, private_data } => {
                    let Some(path) = self.path.take() else { continue };
                    return Ok(Some(DatagramService { path, qpn, qkey, address, private_data }));
                }
                Event::Rejected { reason, private_data } => {
                    return Err(failure::rejected(peer, reason, private_data));
                }
                Event::Failed(error) => return Err(failure::unreachable(peer, ConnectStage::Service, error)),
                Event::DeviceRemoved => {
                    return Err(failure::device_removed(format!("looking up {peer}")));
                }
                _ => {}
            }
        }
        let deadline = self.resolving.limit();
        if deadline.left().is_zero() {
            return Err(failure::timed_out(peer, ConnectStage::Service, deadline));
        }
        Ok(None)
    }

    /// Waits until the peer's queue pair is resolved.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Connector::resolve_service`].
    pub fn wait(mut self) -> Result<DatagramService> {
        loop {
            if let Some(service) = self.poll()? {
                return Ok(service);
            }
            self.identifier.wait(Some(self.resolving.limit().left()))?;
        }
    }

    /// Returns the time at which the resolution fails.
    pub fn deadline(&self) -> Instant {
        self.resolving.deadline()
    }
}

event_source!(PendingService);

impl fmt::Debug for PendingService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingService").field("peer", &self.resolving.peer()).finish_non_exhaustive()
    }
}

/// A peer's UD queue pair, returned by [`Connector::resolve_service`].
#[derive(Debug)]
pub struct DatagramService {
    path: Path,
    qpn: Qpn,
    qkey: u32,
    address: Address,
    private_data: Vec<u8>,
}

impl DatagramService {
    /// Returns the local address, the peer's address, and the local device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of the peer's queue pair.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns the queue key (Q_Key) of the peer's queue pair.
    pub fn qkey(&self) -> u32 {
        self.qkey
    }

    /// Returns the peer's private data, padded with zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Creates the destination with which `queue_pair` sends datagrams to the peer.
    ///
    /// `queue_pair` may be any UD queue pair of the path's device and port whose address has the same family as the
    /// path's addresses.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if the queue pair belongs to another device or port, or isn't a UD queue pair,
    /// and [`Error::CallFailed`] if the device can't create the address handle.
    pub fn create_ud_destination(&self, queue_pair: &QueuePair) -> Result<UdDestination> {
        self.path.check_datagrams(queue_pair)?;
        let mut address = Address { gid_index: queue_pair.source.gid_index, ..self.address };
        queue_pair.source.traffic(Traffic::new()).apply(&mut address);
        let address = queue_pair.route_to(&address)?;
        Ok(UdDestination { address_handle: address, qpn: self.qpn, qkey: self.qkey })
    }
}

/// A listener that sends peers the number of a UD queue pair.
///
/// Several threads may accept requests from one listener. Its file descriptor is readable when a request is waiting.
pub struct DatagramListener {
    identifier: Identifier,
    address: SocketAddr,
}

impl DatagramListener {
    /// Creates a listener at an address of an RDMA device, at every IPv4 address (`0.0.0.0`), or at every address of
    /// both families (`[::]`).
    ///
    /// With port 0 the system chooses a free port. Datagram listeners and connection listeners have separate port
    /// spaces, like UDP and TCP.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if no RDMA device has the address, or the port is in use.
    pub fn bind(address: SocketAddr) -> Result<DatagramListener> {
        let identifier = Identifier::at(Purpose::Datagrams, address.ip())?;
        identifier.bind(address)?;
        identifier.listen(128)?;
        let address = identifier.local_addr().unwrap_or(address);
        Ok(DatagramListener { identifier, address })
    }

    /// Returns the address at which the listener listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a request. Returns `None` if the timeout expires first. A `timeout` of `None` means no limit.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the connection manager's events can't be read or the process has no free file
    /// descriptors, and [`Error::NoDevice`] if the device is being removed.
    pub fn accept_timeout(&self, timeout: impl Into<Option<Duration>>) -> Result<Option<DatagramRequest>> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        wait_for(&self.identifier, timeout, || self.try_accept())
    }

    /// Returns the next request, if there is one, without blocking. Call this method when the file descriptor is
    /// readable.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`accept_timeout`](DatagramListener::accept_timeout).
    pub fn try_accept(&self) -> Result<Option<DatagramRequest>> {
        let request = next_request(&self.identifier, self.address)?;
        Ok(request.map(|(Request { identifier, private_data, .. }, path)| DatagramRequest {
            identifier,
            path,
            private_data,
        }))
    }
}

event_source!(DatagramListener);

impl fmt::Debug for DatagramListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DatagramListener").field(&self.address).finish()
    }
}

/// A peer's request for a UD queue pair. Dropping it rejects the request.
#[must_use = "dropping a request rejects it"]
pub struct DatagramRequest {
    identifier: Identifier,
    path: Path,
    private_data: Vec<u8>,
}

impl DatagramRequest {
    /// Returns the local address, the peer's address, and the local device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the peer's private data, padded with zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Accepts the request: sends the peer the number of `queue_pair`, and at most [`MAX_DATAGRAM_REPLY_DATA`] bytes of
    /// private data.
    ///
    /// Post receives to the queue pair first. One queue pair may serve any number of peers. The request doesn't contain
    /// the number of the peer's queue pair; each datagram from the peer contains that number.
    ///
    /// # Errors
    ///
    /// Returns [`Error::LimitExceeded`] if the private data is too long, and [`Error::InvalidRequest`] if the queue
    /// pair belongs to another device or port, isn't a UD queue pair, or has another queue key.
    /// [`Path::datagram_queue_pair`] sets the queue key. After an error the request is rejected.
    pub fn accept(self, queue_pair: &QueuePair, private_data: &[u8]) -> Result<()> {
        check_private_data(private_data, MAX_DATAGRAM_REPLY_DATA)?;
        self.path.check_datagrams(queue_pair)?;
        if queue_pair.datagrams.qkey != UD_QKEY {
            let reason = format!(
                "the queue pair's Q_Key is {:#x}, but the connection manager advertises {UD_QKEY:#x}: create the queue \
                 pair with `Path::datagram_queue_pair`",
                queue_pair.datagrams.qkey
            );
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        self.identifier.accept_query(queue_pair.qpn(), private_data)
    }

    /// Rejects the request, with at most [`MAX_DATAGRAM_REPLY_DATA`] bytes of private data for the peer.
    ///
    /// # Errors
    ///
    /// Returns [`Error::LimitExceeded`] if the private data is too long. The request is then rejected without private
    /// data.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        check_private_data(private_data, MAX_DATAGRAM_REPLY_DATA)?;
        self.identifier.reject(private_data)
    }
}

impl fmt::Debug for DatagramRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DatagramRequest").field(&self.path).finish()
    }
}

impl Path {
    /// Returns a builder of a UD queue pair with the path's port and address, and the queue key [`UD_QKEY`].
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if the domain belongs to another device.
    pub fn datagram_queue_pair(&self, domain: &ProtectionDomain) -> Result<QueuePairBuilder> {
        Ok(self.builder(domain, Transport::Ud)?.qkey(UD_QKEY))
    }

    /// Checks that a queue pair can send datagrams over this path.
    fn check_datagrams(&self, queue_pair: &QueuePair) -> Result<()> {
        self.check_port(queue_pair)?;
        if queue_pair.transport() != Transport::Ud {
            let reason =
                "service ID resolution requires a UD queue pair: create it with `Path::datagram_queue_pair`";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        Ok(())
    }
}
