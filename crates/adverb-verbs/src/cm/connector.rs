//! Connecting to a listener.

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connecting::{Role, depths};
use super::failure;
use super::{
    Connection, DEFAULT_TIMEOUT, Deadline, MAX_CONNECT_DATA, Path, PendingConnection, check_private_data,
};
use crate::backend::connection_manager::{Event, Identifier, Parameters, Purpose};
use crate::error::{ConnectStage, Error, Result};
use crate::queue_pair::{ConnectOptions, QueuePair};

/// A connector to [`Listener`](super::Listener)s, with its options. It can be used any number of times.
///
/// [`connect`](Connector::connect) resolves the route and connects in one call. It takes a function that creates the
/// queue pair once the device is known:
///
/// ```no_run
/// # use adverb::verbs::cm::Connector;
/// # fn example(domain: &adverb::verbs::ProtectionDomain, completions: &adverb::verbs::CompletionQueue)
/// # -> adverb::verbs::Result<()> {
/// let peer = "192.0.2.7:7471".parse().unwrap();
/// let connection = Connector::new()
///     .private_data(b"hello")
///     .connect(peer, |path| path.queue_pair(domain)?.completion_queue(completions).create())?;
/// # Ok(())
/// # }
/// ```
///
/// The two steps can also be separate calls, either blocking ([`resolve`](Connector::resolve), [`Route::connect`]) or
/// non-blocking ([`begin_resolve`](Connector::begin_resolve), [`Route::begin_connect`]).
#[derive(Clone, Debug)]
#[must_use = "a connector does nothing until `connect` or `resolve` is called"]
pub struct Connector {
    timeout: Duration,
    /// The deadline of the whole connect, if one is set: it overrides the timeout.
    deadline: Option<Deadline>,
    private_data: Vec<u8>,
    local: Option<SocketAddr>,
    reuse_addr: bool,
    options: ConnectOptions,
}

impl Default for Connector {
    fn default() -> Connector {
        Connector {
            timeout: DEFAULT_TIMEOUT,
            deadline: None,
            private_data: Vec::new(),
            local: None,
            reuse_addr: false,
            options: ConnectOptions::default(),
        }
    }
}

impl Connector {
    /// Creates a connector with the default options.
    pub fn new() -> Connector {
        Connector::default()
    }

    /// Sets the timeout of each step: resolving the route, and connecting. The default is 5 s.
    ///
    /// In [`connect`](Connector::connect), the timeout applies to both steps together.
    pub fn timeout(mut self, timeout: Duration) -> Connector {
        self.timeout = timeout;
        self
    }

    /// Sets the deadline of both steps together, which overrides the timeout.
    pub(crate) fn deadline(mut self, deadline: Deadline) -> Connector {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the private data that the listener receives with the request: at most [`MAX_CONNECT_DATA`] bytes.
    pub fn private_data(mut self, data: &[u8]) -> Connector {
        self.private_data = data.to_vec();
        self
    }

    /// Sets the local address to connect from. With port 0 the system chooses the port.
    ///
    /// The default is the address that the routing table selects.
    pub fn local_addr(mut self, addr: SocketAddr) -> Connector {
        self.local = Some(addr);
        self
    }

    /// Sets whether several connections may share one [local](Connector::local_addr) port. All these connections must
    /// set the option. The default is false.
    pub fn reuse_addr(mut self, reuse: bool) -> Connector {
        self.reuse_addr = reuse;
        self
    }

    /// Sets the timeouts, retries and traffic options of the connection.
    ///
    /// Each traffic option has the value from the first of these sources that sets it: these options, the queue pair,
    /// the connection manager. The ACK timeout, and the traffic class if these options set it, apply to the peer's packets
    /// too.
    pub fn options(mut self, options: ConnectOptions) -> Connector {
        self.options = options;
        self
    }

    /// Connects to a listener, with the queue pair that `create_queue_pair` returns.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unreachable`] if there is no route to the peer or the peer doesn't reply in time,
    /// [`Error::CmRejected`] if the peer rejects the request, and the error of `create_queue_pair`.
    pub fn connect(
        &self,
        peer: SocketAddr,
        create_queue_pair: impl FnOnce(&Path) -> Result<QueuePair>,
    ) -> Result<Connection> {
        let mut route = self.resolve(peer)?;
        let queue_pair = create_queue_pair(route.path())?;
        route.deadline = Some(route.resolved_by);
        route.connect(queue_pair)
    }

    /// Resolves the device and the route to a listener.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unreachable`] if there is no route to the listener or the resolution exceeds the timeout, and
    /// [`Error::LimitExceeded`] if the private data is too long.
    pub fn resolve(&self, peer: SocketAddr) -> Result<Route> {
        self.begin_resolve(peer)?.wait()
    }

    /// Starts [`resolve`](Connector::resolve) without blocking.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unreachable`] if no device has a route to the peer, and [`Error::LimitExceeded`] if the private
    /// data is too long.
    pub fn begin_resolve(&self, peer: SocketAddr) -> Result<PendingRoute> {
        check_private_data(&self.private_data, MAX_CONNECT_DATA)?;
        self.begin(peer, Purpose::Connections)
    }

    /// Starts resolving the device and the route to a peer.
    pub(super) fn begin(&self, peer: SocketAddr, purpose: Purpose) -> Result<PendingRoute> {
        let local = self.local.map(|local| local.ip());
        let identifier = Identifier::for_connecting(purpose, local, peer.ip())
            .map_err(|error| explain(error, peer, ConnectStage::Address))?;
        let options = &self.options;
        identifier.set_ack_timeout(options.ack_timeout);
        if let Some(traffic_class) = options.traffic.traffic_class {
            identifier.set_traffic_class(traffic_class)?;
        }
        if self.reuse_addr {
            identifier.reuse_addr()?;
        }
        let mut resolving = PendingRoute {
            identifier: Arc::new(identifier),
            connector: self.clone(),
            peer,
            deadline: self.deadline.unwrap_or_else(|| Deadline::new(self.timeout)),
            stage: ConnectStage::Address,
            attempt_timeout: MIN_ATTEMPT_TIMEOUT,
            done: false,
        };
        resolving.start_attempt()?;
        Ok(resolving)
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.private_data
    }
}

/// A route that is being resolved, returned by [`Connector::begin_resolve`].
///
/// Its file descriptor is readable when [`poll`](PendingRoute::poll) may make progress.
#[must_use = "a pending route makes progress only when it is polled or waited for"]
pub struct PendingRoute {
    identifier: Arc<Identifier>,
    connector: Connector,
    peer: SocketAddr,
    deadline: Deadline,
    stage: ConnectStage,
    /// The timeout of the kernel's next attempt to resolve the address.
    attempt_timeout: Duration,
    done: bool,
}

/// The timeout of the kernel's first attempt to resolve an address. The kernel misses a neighbor's reply that arrives
/// before it starts to wait, as replies of the same machine do (rdma_resolve_ip in its addr.c), and retries only when
/// its timeout expires. So the first timeout is short.
const MIN_ATTEMPT_TIMEOUT: Duration = Duration::from_millis(20);
const MAX_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

impl PendingRoute {
    /// Returns the route if it is resolved, without blocking.
    ///
    /// Call this method when the file descriptor is readable, and at the [deadline](PendingRoute::deadline). Drop this
    /// value after `poll` has returned the route.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unreachable`] if there is no route, or the deadline has passed.
    pub fn poll(&mut self) -> Result<Option<Route>> {
        if self.done {
            let reason = "the pending route has already returned its result";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        let result = self.advance();
        self.done = !matches!(result, Ok(None));
        Ok(result?.map(|path| Route {
            path,
            identifier: Arc::clone(&self.identifier),
            connector: self.connector.clone(),
            resolved_by: self.deadline,
            deadline: self.connector.deadline,
        }))
    }

    /// Starts an attempt to resolve the address.
    fn start_attempt(&mut self) -> Result<()> {
        let timeout = self.attempt_timeout.min(self.deadline.left());
        self.attempt_timeout = (self.attempt_timeout * 2).min(MAX_ATTEMPT_TIMEOUT);
        let started = self.identifier.resolve_address(self.connector.local, self.peer, timeout);
        started.map_err(|error| self.explain(error))
    }

    fn explain(&self, error: Error) -> Error {
        explain(error, self.peer, self.stage)
    }

    /// Returns the path to the peer once it is resolved.
    pub(super) fn advance(&mut self) -> Result<Option<Path>> {
        while let Some(event) = self.identifier.try_event()? {
            match event {
                Event::AddressResolved => {
                    self.stage = ConnectStage::Route;
                    let started = self.identifier.resolve_route(self.deadline.left());
                    started.map_err(|error| self.explain(error))?;
                }
                Event::RouteResolved => {
                    return Ok(Some(Path::new(&self.identifier)?));
                }
                Event::Failed(error)
                    if self.stage == ConnectStage::Address
                        && error.kind() == ErrorKind::TimedOut
                        && !self.deadline.left().is_zero() =>
                {
                    self.start_attempt()?;
                }
                Event::Failed(error) => return Err(failure::unreachable(self.peer, self.stage, error)),
                Event::DeviceRemoved => {
                    return Err(failure::device_removed(format!("connecting to {}", self.peer)));
                }
                _ => {}
            }
        }
        if self.deadline.left().is_zero() {
            return Err(failure::timed_out(self.peer, self.stage, &self.deadline));
        }
        Ok(None)
    }

    /// Waits until the route is resolved.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`poll`](PendingRoute::poll).
    pub fn wait(mut self) -> Result<Route> {
        loop {
            if let Some(route) = self.poll()? {
                return Ok(route);
            }
            self.identifier.wait(Some(self.deadline.left()))?;
        }
    }

    /// Returns the time at which the resolution fails.
    pub fn deadline(&self) -> Instant {
        self.deadline.at()
    }
}

impl PendingRoute {
    pub(super) fn identifier(&self) -> Arc<Identifier> {
        Arc::clone(&self.identifier)
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn private_data(&self) -> &[u8] {
        self.connector.data()
    }

    pub(super) fn limit(&self) -> &Deadline {
        &self.deadline
    }
}

event_source!(PendingRoute);

impl fmt::Debug for PendingRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingRoute").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Returns the error of a call that failed immediately. The same failure in a later event has the same error.
fn explain(error: Error, peer: SocketAddr, stage: ConnectStage) -> Error {
    match error {
        Error::CallFailed { source, .. } => failure::unreachable(peer, stage, source),
        other => other,
    }
}

/// A resolved route to a peer, over which a queue pair can be connected.
pub struct Route {
    path: Path,
    identifier: Arc<Identifier>,
    connector: Connector,
    /// The deadline of the resolution.
    resolved_by: Deadline,
    /// The deadline of the connection, if one is set.
    deadline: Option<Deadline>,
}

impl Route {
    /// Returns the addresses and the device of the route.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sends the peer a connect request, and waits until the connection is established.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unreachable`] if the peer doesn't reply in time, [`Error::CmRejected`] if the peer rejects the
    /// request, and the same errors as [`begin_connect`](Route::begin_connect). After an error the queue pair is
    /// destroyed.
    pub fn connect(self, queue_pair: QueuePair) -> Result<Connection> {
        self.begin_connect(queue_pair)?.wait()
    }

    /// Starts [`connect`](Route::connect) without blocking.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if the queue pair belongs to another device or port, [`Error::Unsupported`] if
    /// its transport isn't RC, [`Error::WrongState`] if it is already connected, and [`Error::CallFailed`] if the request
    /// can't be sent. After an error the queue pair is destroyed.
    pub fn begin_connect(self, queue_pair: QueuePair) -> Result<PendingConnection> {
        self.path.check(&queue_pair)?;
        let Connector { timeout, private_data, options, .. } = self.connector;
        let deadline = self.deadline.unwrap_or_else(|| Deadline::new(timeout));
        let depths = depths(&queue_pair, &options);
        self.identifier.connect(&Parameters {
            qpn: queue_pair.qpn(),
            shared_receives: queue_pair.has_shared_receives(),
            private_data: &private_data,
            depths,
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
        })?;
        let role = Role::Active { options, depths };
        Ok(PendingConnection::new(queue_pair, self.identifier, self.path, role, deadline))
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Route").field(&self.path).finish()
    }
}
