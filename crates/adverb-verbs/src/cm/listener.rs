//! Listening for connections.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::connecting::{Role, depths, make_ready};
use super::{
    Connection, Deadline, MAX_ACCEPT_DATA, MAX_REJECT_DATA, PATIENCE, Path, PendingConnection,
    check_private_data,
};
use crate::backend::connection_manager::{Depths, Event, Identifier, Parameters, Request, Use};
use crate::error::{Error, Result};
use crate::{ConnectOptions, Endpoint, QueuePair};

/// Listens for peers that want to be connected.
///
/// Several threads may accept from one. Dropping it rejects the requests that nobody has taken; those that were taken,
/// and connections, don't need it any more.
pub struct Listener {
    identifier: Identifier,
    address: SocketAddr,
    timeout: Duration,
    options: ConnectOptions,
}

impl Listener {
    /// Listens at an address of an RDMA device, or at any of IPv4 (`0.0.0.0`) or of both families (`[::]`). Port 0 takes
    /// any that is free. [Which device](super#which-device) that is, the address decides.
    ///
    /// # Errors
    ///
    /// If no RDMA device has the address, or somebody listens there already.
    pub fn bind(address: SocketAddr) -> Result<Listener> {
        Listener::builder().bind(address)
    }

    /// Begins to make one, with options.
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder {
            backlog: 128,
            timeout: PATIENCE,
            options: ConnectOptions::default(),
            hardware_only: false,
        }
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a request.
    ///
    /// # Errors
    ///
    /// If the connection manager can't be asked, or there are no descriptors left. Others may be accepted all the same.
    pub fn accept(&self) -> Result<ConnectRequest> {
        loop {
            if let Some(incoming) = self.try_accept()? {
                return Ok(incoming);
            }
            self.identifier.wait(None)?;
        }
    }

    /// Waits for a request; `None` if none came in time.
    ///
    /// # Errors
    ///
    /// As [`accept`](Listener::accept).
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Option<ConnectRequest>> {
        wait_for(&self.identifier, timeout, || self.try_accept())
    }

    /// Takes a request, if there is one. Call it when the descriptor is readable.
    ///
    /// # Errors
    ///
    /// As [`accept`](Listener::accept).
    pub fn try_accept(&self) -> Result<Option<ConnectRequest>> {
        let Some((request, path)) = next_request(&self.identifier, self.address)? else { return Ok(None) };
        let Request { identifier, depths, private_data } = request;
        let (identifier, timeout, options) = (Arc::new(identifier), self.timeout, self.options);
        Ok(Some(ConnectRequest { identifier, path, private_data, depths, timeout, options }))
    }
}

/// Takes the next request that came to a listener, if there is one, and the way that it came.
pub(super) fn next_request(listener: &Identifier, address: SocketAddr) -> Result<Option<(Request, Path)>> {
    while let Some(event) = listener.try_event()? {
        match event {
            // Where this fails, the peer gave up meanwhile. Strangers can cause any number of these: no log.
            Event::Request(request) => {
                if let Ok(path) = Path::new(&request.identifier) {
                    return Ok(Some((request, path)));
                }
            }
            Event::DeviceRemoved => {
                return Err(Error::NoDevice {
                    what: format!("the RDMA device of {address} is going away"),
                    hint: "drop the listener, and what was made from the device".to_owned(),
                });
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Waits until something has come to a listener; `None` if nothing did in time.
pub(super) fn wait_for<T>(
    listener: &Identifier,
    timeout: Duration,
    mut take: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let deadline = Deadline::new(timeout);
    loop {
        let taken = take()?;
        let left = deadline.left();
        if taken.is_some() || left.is_zero() {
            return Ok(taken);
        }
        listener.wait(Some(left))?;
    }
}

event_source!(Listener);

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.address).finish()
    }
}

/// Makes a listener, with options: see [`Listener::builder`].
#[must_use = "nothing listens until `bind` is called"]
#[derive(Clone, Debug)]
pub struct ListenerBuilder {
    backlog: u32,
    timeout: Duration,
    options: ConnectOptions,
    hardware_only: bool,
}

impl ListenerBuilder {
    /// How many requests may wait to be taken: 128 unless set. More are dropped, and their peers ask again.
    pub fn backlog(mut self, backlog: u32) -> ListenerBuilder {
        self.backlog = backlog;
        self
    }

    /// How long it may take from accepting a request until there is a connection: 5 s unless set.
    pub fn timeout(mut self, timeout: Duration) -> ListenerBuilder {
        self.timeout = timeout;
        self
    }

    /// Timeouts, retries, and how the network is to treat the packets, for the connections that are accepted. What is said
    /// of that neither here, nor by the queue pair, nor by the process is as the peer asked.
    pub fn options(mut self, options: ConnectOptions) -> ListenerBuilder {
        self.options = options;
        self
    }

    /// Listens on RDMA hardware even if the process has software devices open.
    pub(crate) fn hardware_only(mut self, hardware_only: bool) -> ListenerBuilder {
        self.hardware_only = hardware_only;
        self
    }

    /// Listens at an address: see [`Listener::bind`].
    ///
    /// # Errors
    ///
    /// If no RDMA device has the address, or somebody listens there already.
    pub fn bind(self, address: SocketAddr) -> Result<Listener> {
        let identifier = match self.hardware_only {
            true => Identifier::of_hardware(Use::Connections, address.ip())?,
            false => Identifier::at(Use::Connections, address.ip())?,
        };
        identifier.bind(address)?;
        identifier.listen(self.backlog)?;
        let address = identifier.local_addr().unwrap_or(address);
        Ok(Listener { identifier, address, timeout: self.timeout, options: self.options })
    }
}

/// A peer's request to be connected. Dropping it rejects it.
#[must_use = "dropping it rejects it"]
pub struct ConnectRequest {
    identifier: Arc<Identifier>,
    path: Path,
    private_data: Vec<u8>,
    /// As many as the peer would use, and offers.
    depths: Depths,
    timeout: Duration,
    options: ConnectOptions,
}

impl ConnectRequest {
    /// Between which addresses, and over which device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the peer sent along; zeros follow it.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Accepts it, with at most [`MAX_ACCEPT_DATA`] bytes for the peer, and waits until there is a connection.
    ///
    /// Post receives to the queue pair first: the peer may send as soon as it knows.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if the peer has given up, and if the queue pair doesn't fit the path. The queue pair is
    /// gone then, and the request rejected.
    pub fn accept(self, queue_pair: QueuePair, private_data: &[u8]) -> Result<Connection> {
        self.begin_accept(queue_pair, private_data)?.wait()
    }

    /// The same without waiting.
    ///
    /// # Errors
    ///
    /// If the private data is too long, the queue pair doesn't fit the path, or the peer has given up already. The queue
    /// pair is gone then, and the request rejected.
    pub fn begin_accept(self, queue_pair: QueuePair, private_data: &[u8]) -> Result<PendingConnection> {
        self.begin_accept_with(queue_pair, |_, _| private_data.to_vec())
    }

    /// The same, with private data that is made when both queue pairs are known: ours, ready to send, and the peer's.
    pub(crate) fn begin_accept_with(
        self,
        queue_pair: QueuePair,
        private_data: impl FnOnce(&QueuePair, &Endpoint) -> Vec<u8>,
    ) -> Result<PendingConnection> {
        self.path.check(&queue_pair)?;
        let deadline = Deadline::new(self.timeout);
        let options = &self.options;
        let depths = depths(&queue_pair, options).min(self.depths);
        let peer = make_ready(&queue_pair, &self.identifier, options, depths)?;
        let private_data = &private_data(&queue_pair, &peer);
        check_private_data(private_data, MAX_ACCEPT_DATA, "an acceptance")?;
        self.identifier.accept(&Parameters {
            qpn: queue_pair.qpn(),
            shared_receives: queue_pair.recv.own().is_none(),
            private_data,
            depths,
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
        })?;
        let role = Role::Passive { private_data: self.private_data };
        Ok(PendingConnection::new(queue_pair, self.identifier, self.path, role, deadline))
    }

    /// Rejects it, with at most [`MAX_REJECT_DATA`] bytes for the peer that may say why: its error is
    /// [`Error::Rejected`] with the reason [`ConsumerReject`](super::RejectReason::ConsumerReject).
    ///
    /// # Errors
    ///
    /// If the private data is too long, or the peer has given up already. The request is rejected all the same.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        check_private_data(private_data, MAX_REJECT_DATA, "a rejection")?;
        self.identifier.reject(private_data)
    }
}

impl fmt::Debug for ConnectRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectRequest")
            .field("path", &self.path)
            .field("private_data_len", &self.private_data.len())
            .finish_non_exhaustive()
    }
}
