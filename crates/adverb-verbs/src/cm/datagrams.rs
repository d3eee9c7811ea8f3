//! Finding a datagram queue pair by address and port: InfiniBand's service ID resolution (SIDR).

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_proto::types::{Qpn, Transport};

use super::connector::PendingRoute;
use super::failure::{self, Stage};
use super::listener::{next_request, wait_for};
use super::{
    Connector, DATAGRAM_QKEY, MAX_DATAGRAM_REPLY_DATA, MAX_DATAGRAM_REQUEST_DATA, Path, check_private_data,
};
use crate::backend::Address;
use crate::backend::connection_manager::{Event, Identifier, Request, Use};
use crate::error::{Error, Result};
use crate::{AddressHandle, ProtectionDomain, QueuePair, QueuePairBuilder, UdDestination};

impl Connector {
    /// Finds the datagram queue pair that [answers](DatagramListener) at an address and port. Its timeout is for all of it.
    ///
    /// ```no_run
    /// # use adverb::verbs::{SendRequest, cm::Connector};
    /// # fn example() -> adverb::Result<()> {
    /// let service = Connector::new().resolve_service("192.0.2.7:7471".parse().unwrap())?;
    /// let device = service.path().device()?;
    /// let domain = device.protection_domain()?;
    /// let completions = device.completion_queue(128).create()?;
    /// let queue_pair = service.path().datagram_queue_pair(&domain)?.completion_queue(&completions).create()?;
    /// queue_pair.move_to_rts()?;
    /// let recipient = service.ud_destination(&queue_pair)?;
    /// queue_pair.post_send(SendRequest::send(domain.buffer(64)?).destination(&recipient))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if there is no answer in time or no way there, [`Error::Rejected`] if the peer says no or
    /// nobody answers for that port, and if there are more than [`MAX_DATAGRAM_REQUEST_DATA`] bytes of private data.
    pub fn resolve_service(&self, peer: SocketAddr) -> Result<DatagramService> {
        self.begin_resolve_service(peer)?.wait()
    }

    /// The same without waiting.
    ///
    /// # Errors
    ///
    /// If the connection manager refuses, or there is too much private data.
    pub fn begin_resolve_service(&self, peer: SocketAddr) -> Result<PendingService> {
        check_private_data(self.data(), MAX_DATAGRAM_REQUEST_DATA, "a question for a datagram queue pair")?;
        let resolving = self.begin(peer, Use::Datagrams)?;
        Ok(PendingService { identifier: resolving.identifier(), resolving, path: None, done: false })
    }
}

/// On the way to know a datagram queue pair.
#[must_use = "nothing comes of it unless it is polled or waited for"]
pub struct PendingService {
    identifier: Arc<Identifier>,
    resolving: PendingRoute,
    /// The way there, once it is known: then the peer has been asked.
    path: Option<Path>,
    done: bool,
}

impl PendingService {
    /// What was found, if it is there by now. Call it when the descriptor is readable, and at the latest at the
    /// [deadline](PendingService::deadline); and drop this once it has given it.
    ///
    /// # Errors
    ///
    /// As [`Connector::resolve_service`].
    pub fn poll(&mut self) -> Result<Option<DatagramService>> {
        if self.done {
            let reason = "what was looked for was given already, or there is none";
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
                Event::Found { qpn, qkey, address, private_data } => {
                    let Some(path) = self.path.take() else { continue };
                    return Ok(Some(DatagramService { path, qpn, qkey, address, private_data }));
                }
                Event::Rejected { reason, private_data } => {
                    return Err(failure::rejected(peer, reason, private_data));
                }
                Event::Failed(error) => return Err(failure::unreachable(peer, Stage::Question, error)),
                Event::DeviceRemoved => return Err(failure::cut_off(peer, Stage::Question)),
                _ => {}
            }
        }
        let deadline = self.resolving.limit();
        if deadline.left().is_zero() {
            return Err(failure::too_late(peer, Stage::Question, deadline));
        }
        Ok(None)
    }

    /// Waits for what is looked for.
    ///
    /// # Errors
    ///
    /// As [`Connector::resolve_service`].
    pub fn wait(mut self) -> Result<DatagramService> {
        loop {
            if let Some(service) = self.poll()? {
                return Ok(service);
            }
            self.identifier.wait(Some(self.resolving.limit().left()))?;
        }
    }

    /// Until when it has to be found.
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

/// A peer's datagram queue pair: see [`Connector::resolve_service`].
#[derive(Debug)]
pub struct DatagramService {
    path: Path,
    qpn: Qpn,
    qkey: u32,
    address: Address,
    private_data: Vec<u8>,
}

impl DatagramService {
    /// Between which addresses, and over which device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The peer's queue pair.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its queue key.
    pub fn qkey(&self) -> u32 {
        self.qkey
    }

    /// What the peer sent along; zeros follow it.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Whom to send datagrams with this queue pair. Any datagram queue pair of the path's device and port will do, if its
    /// address is of the same family.
    ///
    /// # Errors
    ///
    /// If the queue pair is of another device or port, isn't for datagrams, or the device refuses.
    pub fn ud_destination(&self, queue_pair: &QueuePair) -> Result<UdDestination> {
        self.path.check_datagrams(queue_pair)?;
        let mut address = Address { gid_index: queue_pair.gid_index, ..self.address };
        queue_pair.traffic(crate::Traffic::new()).apply(&mut address);
        let address = AddressHandle::at(queue_pair, &address)?;
        Ok(UdDestination { address, qpn: self.qpn, qkey: self.qkey })
    }
}

/// Answers those who look for a datagram queue pair.
///
/// Several threads may take questions from one.
pub struct DatagramListener {
    identifier: Identifier,
    address: SocketAddr,
}

impl DatagramListener {
    /// Listens at an address of an RDMA device, or at any of IPv4 (`0.0.0.0`) or of both families (`[::]`). Port 0
    /// takes any that is free. Ports of datagrams and of connections are different ones, as with UDP and TCP.
    ///
    /// # Errors
    ///
    /// If no RDMA device has the address, or somebody listens there already.
    pub fn bind(address: SocketAddr) -> Result<DatagramListener> {
        let identifier = Identifier::at(Use::Datagrams, address.ip())?;
        identifier.bind(address)?;
        identifier.listen(128)?;
        let address = identifier.local_addr().unwrap_or(address);
        Ok(DatagramListener { identifier, address })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a question; `None` if none came in time. `Duration::MAX` is no limit.
    ///
    /// # Errors
    ///
    /// If the connection manager can't be asked, or there are no descriptors left.
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Option<DatagramRequest>> {
        wait_for(&self.identifier, timeout, || self.try_accept())
    }

    /// Takes a question, if there is one. Call it when the descriptor is readable.
    ///
    /// # Errors
    ///
    /// As [`accept_timeout`](DatagramListener::accept_timeout).
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

/// A peer's question for a datagram queue pair. Dropping it rejects it.
#[must_use = "dropping it rejects it"]
pub struct DatagramRequest {
    identifier: Identifier,
    path: Path,
    private_data: Vec<u8>,
}

impl DatagramRequest {
    /// Between which addresses, and over which device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the peer sent along; zeros follow it.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Answers with a queue pair, and at most [`MAX_DATAGRAM_REPLY_DATA`] bytes. One may serve any number of peers.
    ///
    /// Post receives to it first. The peer's own queue pair isn't told by its question: its datagrams do.
    ///
    /// # Errors
    ///
    /// If the private data is too long, or the queue pair doesn't fit the path: make it with
    /// [`Path::datagram_queue_pair`]. The question is rejected then.
    pub fn accept(self, queue_pair: &QueuePair, private_data: &[u8]) -> Result<()> {
        check_private_data(private_data, MAX_DATAGRAM_REPLY_DATA, "an answer")?;
        self.path.check_datagrams(queue_pair)?;
        if queue_pair.qkey != DATAGRAM_QKEY {
            let reason = format!(
                "the connection manager tells peers the queue key {DATAGRAM_QKEY:#x}, and the queue pair's is {:#x}: make it \
                 with `Path::datagram_queue_pair`",
                queue_pair.qkey
            );
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        self.identifier.answer(queue_pair.qpn(), private_data)
    }

    /// Rejects it, with at most [`MAX_DATAGRAM_REPLY_DATA`] bytes for the peer that may say why.
    ///
    /// # Errors
    ///
    /// If the private data is too long. The question is rejected all the same.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        check_private_data(private_data, MAX_DATAGRAM_REPLY_DATA, "a rejection")?;
        self.identifier.reject(private_data)
    }
}

impl fmt::Debug for DatagramRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DatagramRequest").field(&self.path).finish()
    }
}

impl Path {
    /// Begins to make a datagram queue pair for this path: with its port, address and queue key set.
    ///
    /// # Errors
    ///
    /// If the domain belongs to another device.
    pub fn datagram_queue_pair(&self, domain: &ProtectionDomain) -> Result<QueuePairBuilder> {
        Ok(self.builder(domain, Transport::Ud)?.qkey(DATAGRAM_QKEY))
    }

    /// Whether a queue pair can send datagrams over this path.
    fn check_datagrams(&self, queue_pair: &QueuePair) -> Result<()> {
        self.check_port(queue_pair)?;
        if queue_pair.transport() != Transport::Ud {
            let reason = "datagrams need a datagram queue pair: make it with `Path::datagram_queue_pair`";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        Ok(())
    }
}
