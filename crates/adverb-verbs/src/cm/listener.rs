//! Listening for connections.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adverb_proto::types::Endpoint;

use super::connecting::{Role, depths, make_ready};
use super::{
    Connection, DEFAULT_TIMEOUT, Deadline, MAX_ACCEPT_DATA, MAX_REJECT_DATA, Path, PendingConnection,
    check_private_data, failure,
};
use crate::backend::connection_manager::{Depths, Event, Identifier, Parameters, Purpose, Request};
#[allow(unused_imports, reason = "for links")]
use crate::error::{Error, Result};
use crate::queue_pair::{ConnectOptions, QueuePair};

/// A listener for connect requests.
///
/// Several threads may accept requests from one listener. Its file descriptor is readable when a request is waiting.
/// Dropping the listener rejects the waiting requests. Requests that [`accept`](Listener::accept) has returned, and
/// connections, don't depend on the listener.
pub struct Listener {
    identifier: Identifier,
    address: SocketAddr,
    timeout: Duration,
    options: ConnectOptions,
}

impl Listener {
    /// Creates a listener at an address of an RDMA device, at every IPv4 address (`0.0.0.0`), or at every address of
    /// both families (`[::]`).
    ///
    /// With port 0 the system chooses a free port. The address selects [the device](super#device-selection).
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if no RDMA device has the address, or the port is in use.
    pub fn bind(address: SocketAddr) -> Result<Listener> {
        Listener::builder().bind(address)
    }

    /// Returns a builder with the default options.
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder {
            backlog: 128,
            timeout: DEFAULT_TIMEOUT,
            options: ConnectOptions::default(),
            hardware_only: false,
        }
    }

    /// Returns the address at which the listener listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a request.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the connection manager's events can't be read or the process has no free file
    /// descriptors, and [`Error::NoDevice`] if the device is being removed. Later calls may succeed.
    pub fn accept(&self) -> Result<ConnectRequest> {
        loop {
            if let Some(request) = self.try_accept()? {
                return Ok(request);
            }
            self.identifier.wait(None)?;
        }
    }

    /// Waits for a request. Returns `None` if the timeout expires first.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`accept`](Listener::accept).
    pub fn accept_timeout(&self, timeout: impl Into<Option<Duration>>) -> Result<Option<ConnectRequest>> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        wait_for(&self.identifier, timeout, || self.try_accept())
    }

    /// Returns the next request, if there is one, without blocking. Call this method when the file descriptor is
    /// readable.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`accept`](Listener::accept).
    pub fn try_accept(&self) -> Result<Option<ConnectRequest>> {
        let Some((request, path)) = next_request(&self.identifier, self.address)? else { return Ok(None) };
        let Request { identifier, depths, private_data } = request;
        let (identifier, timeout, options) = (Arc::new(identifier), self.timeout, self.options);
        Ok(Some(ConnectRequest { identifier, path, private_data, depths, timeout, options }))
    }
}

/// Returns the next request of a listener, if there is one, and its path.
pub(super) fn next_request(listener: &Identifier, address: SocketAddr) -> Result<Option<(Request, Path)>> {
    while let Some(event) = listener.try_event()? {
        match event {
            // This fails if the peer has abandoned the request. Any host can cause this any number of times, so it
            // isn't logged.
            Event::Request(request) => {
                if let Ok(path) = Path::new(&request.identifier) {
                    return Ok(Some((request, path)));
                }
            }
            Event::DeviceRemoved => {
                return Err(failure::device_removed(format!("listening at {address}")));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Waits until `next` returns a value. Returns `None` if the timeout expires first.
pub(super) fn wait_for<T>(
    listener: &Identifier,
    timeout: Duration,
    mut next: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let deadline = Deadline::new(timeout);
    loop {
        let value = next()?;
        let left = deadline.left();
        if value.is_some() || left.is_zero() {
            return Ok(value);
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

/// A builder of a [`Listener`], returned by [`Listener::builder`].
#[must_use = "a builder does nothing until `bind` is called"]
#[derive(Clone, Debug)]
pub struct ListenerBuilder {
    backlog: u32,
    timeout: Duration,
    options: ConnectOptions,
    hardware_only: bool,
}

impl ListenerBuilder {
    /// Sets the maximum number of waiting requests. The default is 128.
    ///
    /// Requests beyond this number are dropped, and the peers retransmit them.
    pub fn backlog(mut self, backlog: u32) -> ListenerBuilder {
        self.backlog = backlog;
        self
    }

    /// Sets the timeout from the acceptance of a request until the connection is established. The default is 5 s.
    pub fn timeout(mut self, timeout: Duration) -> ListenerBuilder {
        self.timeout = timeout;
        self
    }

    /// Sets the timeouts, retries and traffic options of the accepted connections.
    ///
    /// Each traffic option has the value from the first of these sources that sets it: these options, the queue pair,
    /// the peer's request. A software device doesn't take the flow label from the request, so that
    /// peers can't make it open source ports.
    pub fn options(mut self, options: ConnectOptions) -> ListenerBuilder {
        self.options = options;
        self
    }

    /// Listens on RDMA hardware even if the process has software devices open.
    pub(crate) fn hardware_only(mut self, hardware_only: bool) -> ListenerBuilder {
        self.hardware_only = hardware_only;
        self
    }

    /// Creates the listener at an address, like [`Listener::bind`].
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Listener::bind`].
    pub fn bind(self, address: SocketAddr) -> Result<Listener> {
        let identifier = match self.hardware_only {
            true => Identifier::on_hardware(Purpose::Connections, address.ip())?,
            false => Identifier::at(Purpose::Connections, address.ip())?,
        };
        identifier.bind(address)?;
        identifier.listen(self.backlog)?;
        let address = identifier.local_addr().unwrap_or(address);
        Ok(Listener { identifier, address, timeout: self.timeout, options: self.options })
    }
}

/// A peer's request for a connection. Dropping it rejects the request.
#[must_use = "dropping a request rejects it"]
pub struct ConnectRequest {
    identifier: Arc<Identifier>,
    path: Path,
    private_data: Vec<u8>,
    /// The numbers of outstanding READs and atomics that the peer wants to use and offers.
    depths: Depths,
    timeout: Duration,
    options: ConnectOptions,
}

impl ConnectRequest {
    /// Returns the addresses and the device of the request.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the peer's private data, padded with zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Accepts the request, with at most [`MAX_ACCEPT_DATA`] bytes of private data for the peer, and waits until the
    /// connection is established.
    ///
    /// Post receives to the queue pair first: the peer may send as soon as it receives the reply.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unreachable`] if the peer has abandoned its request or doesn't reply in time, and the same
    /// errors as [`begin_accept`](ConnectRequest::begin_accept). After an error the queue pair is destroyed, and the
    /// request is rejected.
    pub fn accept(self, queue_pair: QueuePair, private_data: &[u8]) -> Result<Connection> {
        self.begin_accept(queue_pair, private_data)?.wait()
    }

    /// Starts [`accept`](ConnectRequest::accept) without blocking.
    ///
    /// # Errors
    ///
    /// Returns [`Error::LimitExceeded`] if the private data is too long, [`Error::InvalidRequest`] if the queue pair
    /// belongs to another device or port, [`Error::Unsupported`] if its transport isn't RC, [`Error::WrongState`] if it
    /// is already connected, and [`Error::CallFailed`] if the peer has abandoned its request. After an error the queue pair
    /// is destroyed, and the request is rejected.
    pub fn begin_accept(self, queue_pair: QueuePair, private_data: &[u8]) -> Result<PendingConnection> {
        self.begin_accept_with(queue_pair, |_, _| private_data.to_vec())
    }

    /// Starts to accept, with private data that is computed from both queue pairs: the local one, ready to send, and
    /// the peer's.
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
        check_private_data(private_data, MAX_ACCEPT_DATA)?;
        self.identifier.accept(&Parameters {
            qpn: queue_pair.qpn(),
            shared_receives: queue_pair.has_shared_receives(),
            private_data,
            depths,
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
        })?;
        let role = Role::Passive { private_data: self.private_data };
        Ok(PendingConnection::new(queue_pair, self.identifier, self.path, role, deadline))
    }

    /// Rejects the request, with at most [`MAX_REJECT_DATA`] bytes of private data for the peer.
    ///
    /// The peer's call returns [`Error::CmRejected`] with the reason
    /// [`ConsumerReject`](super::RejectReason::ConsumerReject).
    ///
    /// # Errors
    ///
    /// Returns [`Error::LimitExceeded`] if the private data is too long, and [`Error::CallFailed`] if the peer has abandoned
    /// its request. The request is rejected even if this call returns an error.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        check_private_data(private_data, MAX_REJECT_DATA)?;
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
