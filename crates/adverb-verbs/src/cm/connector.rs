//! Connecting to a listener.

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connecting::{Role, depths};
use super::failure::{self, Stage};
use super::{Connection, Deadline, MAX_CONNECT_DATA, PATIENCE, Path, PendingConnection, check_private_data};
use crate::backend::connection_manager::{Event, Identifier, Parameters, Use};
use crate::error::{Error, Result};
use crate::{ConnectOptions, QueuePair, Traffic};

/// Connects to listeners. It can be used again and again.
///
/// In one go, with a function that makes the queue pair once the device is known:
///
/// ```no_run
/// # use adverb::verbs::cm::Connector;
/// # fn example(domain: &adverb::verbs::ProtectionDomain, completions: &adverb::verbs::CompletionQueue)
/// # -> adverb::Result<()> {
/// let peer = "192.0.2.7:7471".parse().unwrap();
/// let connection = Connector::new()
///     .private_data(b"hello")
///     .connect(peer, |path| path.queue_pair(domain)?.completion_queue(completions).create())?;
/// # Ok(())
/// # }
/// ```
///
/// Or in two steps, blocking ([`resolve`](Connector::resolve), [`Route::connect`]) or not
/// ([`begin_resolve`](Connector::begin_resolve), [`Route::begin_connect`]).
#[derive(Clone, Debug)]
#[must_use = "nothing is connected until `connect` or `resolve` is called"]
pub struct Connector {
    timeout: Duration,
    /// When the connection has to be there, if that is said already.
    deadline: Option<Deadline>,
    private_data: Vec<u8>,
    local: Option<SocketAddr>,
    reuse_addr: bool,
    options: ConnectOptions,
}

impl Default for Connector {
    fn default() -> Connector {
        Connector {
            timeout: PATIENCE,
            deadline: None,
            private_data: Vec::new(),
            local: None,
            reuse_addr: false,
            options: ConnectOptions::default(),
        }
    }
}

impl Connector {
    /// One with the defaults.
    pub fn new() -> Connector {
        Connector::default()
    }

    /// How long it may take until the device is known, and again until there is a connection: 5 s each unless set.
    /// [`connect`](Connector::connect) takes no longer than this for both.
    pub fn timeout(mut self, timeout: Duration) -> Connector {
        self.timeout = timeout;
        self
    }

    /// By when there has to be a connection, from the very beginning, whatever the timeout.
    pub(crate) fn deadline(mut self, deadline: Deadline) -> Connector {
        self.deadline = Some(deadline);
        self
    }

    /// What the listener gets with the request: at most [`MAX_CONNECT_DATA`] bytes.
    pub fn private_data(mut self, data: &[u8]) -> Connector {
        self.private_data = data.to_vec();
        self
    }

    /// The address to connect from, if it isn't to be the one that the routing table says. Port 0 lets the system choose.
    pub fn local_addr(mut self, addr: SocketAddr) -> Connector {
        self.local = Some(addr);
        self
    }

    /// Lets several connections come from one [local](Connector::local_addr) port, if all ask for it: not unless set.
    pub fn reuse_addr(mut self, reuse: bool) -> Connector {
        self.reuse_addr = reuse;
        self
    }

    /// Timeouts, retries, and how the network is to treat the packets. What is said of that neither here, nor by the queue
    /// pair, nor by the process is as the connection manager says. The ACK timeout and the traffic class, as they are here
    /// or the process', are the peer's too.
    pub fn options(mut self, options: ConnectOptions) -> Connector {
        self.options = options;
        self
    }

    /// Connects to a listener, with a queue pair that `make` makes.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if there is no answer in time or no way there, [`Error::Rejected`] if the peer says no,
    /// and whatever `make` says.
    pub fn connect(
        &self,
        peer: SocketAddr,
        make: impl FnOnce(&Path) -> Result<QueuePair>,
    ) -> Result<Connection> {
        let mut route = self.resolve(peer)?;
        let queue_pair = make(route.path())?;
        route.deadline = Some(route.resolved_by);
        route.connect(queue_pair)
    }

    /// Finds the device and the route that lead to a listener.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if there is no way there, or none is found in time; and if the private data is too long.
    pub fn resolve(&self, peer: SocketAddr) -> Result<Route> {
        self.begin_resolve(peer)?.wait()
    }

    /// The same without waiting.
    ///
    /// # Errors
    ///
    /// If the connection manager refuses, or the private data is too long.
    pub fn begin_resolve(&self, peer: SocketAddr) -> Result<PendingRoute> {
        check_private_data(&self.private_data, MAX_CONNECT_DATA, "a request")?;
        self.begin(peer, Use::Connections)
    }

    /// Begins to find the device and the route that lead to a peer.
    pub(super) fn begin(&self, peer: SocketAddr, purpose: Use) -> Result<PendingRoute> {
        let local = self.local.map(|local| local.ip());
        let identifier = Identifier::toward(purpose, local, peer.ip())
            .map_err(|error| explain(error, peer, Stage::Address))?;
        let options = &self.options;
        identifier.ack_timeout(options.timeout);
        if let Some(traffic_class) = options.traffic.or(Traffic::process_default()).traffic_class {
            identifier.traffic_class(traffic_class)?;
        }
        if self.reuse_addr {
            identifier.reuse_addr()?;
        }
        let mut resolving = PendingRoute {
            identifier: Arc::new(identifier),
            connector: self.clone(),
            peer,
            deadline: self.deadline.unwrap_or_else(|| Deadline::new(self.timeout)),
            stage: Stage::Address,
            slice: FIRST_SLICE,
            done: false,
        };
        resolving.ask()?;
        Ok(resolving)
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.private_data
    }
}

/// On the way to know the device and the route to a peer.
#[must_use = "nothing comes of it unless it is polled or waited for"]
pub struct PendingRoute {
    identifier: Arc<Identifier>,
    connector: Connector,
    peer: SocketAddr,
    deadline: Deadline,
    stage: Stage,
    /// How long the kernel gets to find the address, the next time.
    slice: Duration,
    done: bool,
}

/// The kernel waits for a neighbour's answer, and misses one that comes before it begins to wait, as those of the same
/// machine do (rdma_resolve_ip in its addr.c): it would look again only when its time is up. So that is short at first.
const FIRST_SLICE: Duration = Duration::from_millis(20);
const LAST_SLICE: Duration = Duration::from_secs(1);

impl PendingRoute {
    /// The route, if it is known by now. Call it when the descriptor is readable, and at the latest at the
    /// [deadline](PendingRoute::deadline); and drop this once it has given the route.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if there is no way there, or the deadline has passed.
    pub fn poll(&mut self) -> Result<Option<Route>> {
        if self.done {
            let reason = "the route was given already, or there is none";
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

    /// Asks for the address, for a while.
    fn ask(&mut self) -> Result<()> {
        let timeout = self.slice.min(self.deadline.left());
        self.slice = (self.slice * 2).min(LAST_SLICE);
        let asked = self.identifier.resolve_address(self.connector.local, self.peer, timeout);
        asked.map_err(|error| self.explain(error))
    }

    fn explain(&self, error: Error) -> Error {
        explain(error, self.peer, self.stage)
    }

    /// The way to the peer, once it is known.
    pub(super) fn advance(&mut self) -> Result<Option<Path>> {
        while let Some(event) = self.identifier.try_event()? {
            match event {
                Event::AddressResolved => {
                    self.stage = Stage::Route;
                    let asked = self.identifier.resolve_route(self.deadline.left());
                    asked.map_err(|error| self.explain(error))?;
                }
                Event::RouteResolved => {
                    return Ok(Some(Path::new(&self.identifier)?));
                }
                Event::Failed(error)
                    if self.stage == Stage::Address
                        && error.kind() == ErrorKind::TimedOut
                        && !self.deadline.left().is_zero() =>
                {
                    self.ask()?;
                }
                Event::Failed(error) => return Err(failure::unreachable(self.peer, self.stage, error)),
                Event::DeviceRemoved => return Err(failure::cut_off(self.peer, self.stage)),
                _ => {}
            }
        }
        if self.deadline.left().is_zero() {
            return Err(failure::too_late(self.peer, self.stage, &self.deadline));
        }
        Ok(None)
    }

    /// Waits for the route.
    ///
    /// # Errors
    ///
    /// As [`poll`](PendingRoute::poll).
    pub fn wait(mut self) -> Result<Route> {
        loop {
            if let Some(route) = self.poll()? {
                return Ok(route);
            }
            self.identifier.wait(Some(self.deadline.left()))?;
        }
    }

    /// Until when the route has to be known.
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

/// What a refusal at once means: the same as one that comes later.
fn explain(error: Error, peer: SocketAddr, stage: Stage) -> Error {
    match error {
        Error::Verb { error, .. } => failure::unreachable(peer, stage, error),
        other => other,
    }
}

/// The way to a peer: to make a queue pair for, and to connect it.
pub struct Route {
    path: Path,
    identifier: Arc<Identifier>,
    connector: Connector,
    /// When it had to be found.
    resolved_by: Deadline,
    /// When the connection has to be there, if that is said already.
    deadline: Option<Deadline>,
}

impl Route {
    /// Between which addresses, and over which device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks the peer for a connection, and waits for it.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if there is no answer in time, [`Error::Rejected`] if the peer says no, and if the queue
    /// pair doesn't fit the path. The queue pair is gone then.
    pub fn connect(self, queue_pair: QueuePair) -> Result<Connection> {
        self.begin_connect(queue_pair)?.wait()
    }

    /// The same without waiting.
    ///
    /// # Errors
    ///
    /// If the queue pair doesn't fit the path, or the connection manager refuses. The queue pair is gone then.
    pub fn begin_connect(self, queue_pair: QueuePair) -> Result<PendingConnection> {
        self.path.check(&queue_pair)?;
        let Connector { timeout, private_data, options, .. } = self.connector;
        let deadline = self.deadline.unwrap_or_else(|| Deadline::new(timeout));
        let depths = depths(&queue_pair, &options);
        self.identifier.connect(&Parameters {
            qpn: queue_pair.qpn(),
            shared_receives: queue_pair.recv.own().is_none(),
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
