//! Connectors and listeners.

macro_rules! endpoint {
    ($(tasks $async:tt $await:tt #[$tasks:meta])? $(threads #[$threads:meta])?) => { mod endpoint {

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use adverb_verbs::internal::Deadline;

use super::{Connection, Stream, ToSocketAddrs, listen, resolve, resolve_names, wait_readable};
use crate::bootstrap::{Accepted, Dial, Listening};
use crate::driver::{Driver, Established};
use crate::error::{AcceptError, BindError, ConnectError};
use crate::options::Options;
use crate::access::RemoteAccess;
use crate::session::{Origin, Paths};
use crate::shared_region::{Exposure, SharedRegion};

/// Connects to a [listener](Listener) with the default [options](Options).
///
$(#[$tasks]
/// The address implements tokio's [`ToSocketAddrs`](https://docs.rs/tokio/latest/tokio/net/trait.ToSocketAddrs.html), such as
/// `"host:7471"` or a [`SocketAddr`].
)?
$(#[$threads]
/// The address implements std's [`ToSocketAddrs`](std::net::ToSocketAddrs), such as `"host:7471"` or a [`SocketAddr`].
)?
///
/// # Errors
///
/// Returns the errors of [`Connector::connect`].
$(#[$tasks]
/// # Cancel safety
///
/// Dropping the future cancels the connection attempt.
)?
pub $($async)? fn connect(address: impl ToSocketAddrs + fmt::Debug) -> Result<Connection, ConnectError> {
    Connector::new().connect(address)$(.$await)?
}

/// Connects a byte stream to a [listener](Listener) with the default [options](Options).
///
/// # Errors
///
/// Returns the errors of [`Connector::connect`].
$(#[$tasks]
/// # Cancel safety
///
/// Dropping the future cancels the connection attempt.
)?
pub $($async)? fn connect_stream(address: impl ToSocketAddrs + fmt::Debug) -> Result<Stream, ConnectError> {
    Connector::new().connect_stream(address)$(.$await)?
}

/// A builder for connections and streams to a listener.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Connector {
    options: Options,
    alternate_addr: Vec<String>,
}

impl Connector {
    /// Creates a connector with the default options.
    pub fn new() -> Connector {
        Connector::default()
    }

    /// Sets the options of the connections.
    pub fn options(mut self, options: &Options) -> Connector {
        self.options = options.clone();
        self
    }

    /// Adds an alternate address of the peer, as `host:port`.
    ///
    /// The connector tries the alternate address if the addresses passed to [`connect`](Connector::connect) are
    /// unreachable, and when a connection [reconnects](Options::reconnect). It resolves the alternate host name again
    /// each time. The route to each address determines the local device, unless [`Options::device`] sets one.
    pub fn alternate_addr(mut self, address: impl Into<String>) -> Connector {
        self.alternate_addr.push(address.into());
        self
    }

    /// Connects to a listener at an address, of a type that the function [`connect`](fn@connect) describes. If the host name
    /// has several addresses, the connector tries the addresses in turn.
    ///
    /// # Errors
    ///
    /// - Returns [`ConnectError::Resolve`] if the host name cannot be resolved.
    /// - Returns [`ConnectError::Refused`] if no program listens at the address, and [`ConnectError::Unreachable`] if
    ///   there is no route to it.
    /// - Returns [`ConnectError::TimedOut`] if the peer does not answer within [`Options::connect_timeout`], and
    ///   [`ConnectError::RdmaUnreachable`] if it answers over TCP, but RDMA packets do not arrive.
    /// - Returns [`ConnectError::Aborted`] if the peer stops during the handshake.
    /// - Returns [`ConnectError::Authentication`] if the keys differ or one side has none, [`ConnectError::Version`] if
    ///   the peer uses another version of the protocol, [`ConnectError::NotAdverb`] if it uses another protocol, and
    ///   [`ConnectError::Rejected`] if the listener rejects the connection for another reason.
    /// - Returns [`ConnectError::NoDevice`] if no device has the local address of the route to the peer.
    /// - Returns [`ConnectError::DescriptorLimit`] if the process has no file descriptors left, and
    ///   [`ConnectError::Device`] if this side's device fails: its source tells lack of permission and of locked memory
    ///   apart.
    /// - Returns [`ConnectError::InvalidOption`] if an [option](Options) is outside its range, and
    ///   [`ConnectError::ForeignPool`] if [`Options::pool`] does not belong to [`Options::device`].
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// Dropping the future cancels the connection attempt.
    )?
    pub $($async)? fn connect(
        &self,
        address: impl ToSocketAddrs + fmt::Debug,
    ) -> Result<Connection, ConnectError> {
        let name = format!("{address:?}");
        let not_resolved = |error| ConnectError::resolve(&name, error);
        let addresses = resolve(address)$(.$await)?.map_err(not_resolved)?;
        self.options.check()?;
        let mut paths = Paths::new(addresses, &self.alternate_addr, &self.options);
        resolve_names(&mut paths)$(.$await)?;
        let deadline = Deadline::new(self.options.connect_timeout);
        let mut failure = None;
        for peer in paths.peers() {
            match dial(peer, &self.options, deadline)$(.$await)? {
                Ok(driver) => {
                    let watched = Connection::new(driver, Origin::Connected(paths));
                    return watched.map_err(|error| ConnectError::system("watching a completion queue", error));
                }
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| not_resolved(io::Error::other("the host name has no address"))))
    }

    /// Connects a byte stream to a listener, like [`connect`](Connector::connect).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`connect`](Connector::connect).
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// Dropping the future cancels the connection attempt.
    )?
    pub $($async)? fn connect_stream(
        &self,
        address: impl ToSocketAddrs + fmt::Debug,
    ) -> Result<Stream, ConnectError> {
        Ok(Stream::new(self.connect(address)$(.$await)??))
    }
}

/// Connects to a listener at one address.
$($async)? fn dial(
    peer: SocketAddr,
    options: &Options,
    deadline: Deadline,
) -> Result<Arc<Driver>, ConnectError> {
    let mut dial = Dial::new(peer, options, deadline)?;
    loop {
        let now = Instant::now();
        if let Some(Established::New(driver)) = dial.poll(now)? {
            return Ok(driver);
        }
        let waited = wait_readable(&dial, dial.time_left(now))$(.$await)?;
        waited.map_err(|error| ConnectError::system("waiting for a peer", error))?;
    }
}

/// A builder for listeners.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ListenerBuilder {
    options: Options,
    exposures: Vec<Exposure>,
}

impl ListenerBuilder {
    /// Sets the options of the connections.
    pub fn options(mut self, options: &Options) -> ListenerBuilder {
        self.options = options.clone();
        self
    }

    /// Exposes a region to each peer under a name, as
    /// [`Connection::expose_region`](super::Connection::expose_region) does, before the listener returns the
    /// connection. The connections then [share](Options::shared_domain) a protection domain, in which
    /// [`bind`](ListenerBuilder::bind) registers the region once for each device of the listener.
    ///
    /// [`accept`](Listener::accept) returns a connection after it has posted the announcements. The peer's ring has room for
    /// those of a few regions, and the peer must receive them before more are posted. If that takes longer than
    /// [`Options::connect_timeout`], `accept` returns the connection, and later calls that use it announce the remaining
    /// regions.
    pub fn expose_region(
        mut self,
        name: impl Into<String>,
        region: &SharedRegion,
        access: RemoteAccess,
    ) -> ListenerBuilder {
        self.exposures.push(Exposure { name: name.into(), region: region.clone(), access });
        self
    }

    /// Creates a listener at an address, like [`Listener::bind`].
    ///
    /// # Errors
    ///
    /// Returns [`BindError::RegionName`] if the name of an exposed region has more than 64 bytes,
    /// [`BindError::DuplicateRegionName`] if two regions have the same name, and [`BindError::Region`] if a region cannot be
    /// registered.
    ///
    /// Returns the errors of [`Listener::bind`], [`BindError::InvalidOption`] if an [option](Options) is outside its range,
    /// and [`BindError::ForeignPool`] if [`Options::pool`] does not belong to [`Options::device`].
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, no listener remains. The port may stay in use until devices are opened.
    )?
    pub $($async)? fn bind(&self, address: impl ToSocketAddrs + fmt::Debug) -> Result<Listener, BindError> {
        let name = format!("{address:?}");
        let not_resolved = |error| BindError::resolve(&name, error);
        let addresses = resolve(address)$(.$await)?.map_err(not_resolved)?;
        if addresses.is_empty() {
            return Err(not_resolved(io::Error::other("the host name has no address")));
        }
        let listening = listen(addresses, self.options.clone(), self.exposures.clone())$(.$await)??;
        Ok(Listener { listening: Arc::new(listening) })
    }
}

/// A listening endpoint, which accepts connections at an address.
///
/// The listener listens on a TCP port, over which both sides exchange the attributes of their queue pairs. If its
/// device has a connection manager, the listener also listens on the same port number of the connection manager: see
/// [`Bootstrap`](crate::Bootstrap). All later traffic uses the queue pairs.
///
/// A listener listens until it is [stopped](Listener::stop) or dropped, and can be [started](Listener::start) again.
/// Accepted connections continue without the listener. A peer can [reconnect](Options::reconnect) only while a listener
/// of the process listens: this one, or another one with the same key. The connection keeps the memory that it exposes, and
/// gets none of the regions of another listener.
pub struct Listener {
    listening: Arc<Listening>,
}

impl Listener {
    /// Creates a listener at an address, with the default options. Port 0 selects a free port.
    ///
    /// The listener opens its devices in this call, and opens no others later. At one address it serves the RDMA NIC with this
    /// address, or else a software device at the address. The listener skips an RDMA NIC that it cannot open, for example
    /// because the user has no permission for the device file: it logs a warning, and serves the software device. To serve
    /// an RDMA NIC or fail, set [`Options::device`]. At a wildcard address (`0.0.0.0`,
    /// `[::]`) it serves all RDMA hardware, the software devices with a network that this process has open, and the software
    /// device `soft` for loopback addresses. It opens no software device at a routable address: to serve one, bind to that
    /// address, or [open](adverb_verbs::Device::open) `soft:ADDRESS` first. The listener rejects a connector that dials
    /// an address without a device, with an error that names this cause. The listener does not serve addresses and
    /// devices that appear after the call.
    ///
    /// # Errors
    ///
    /// - Returns [`BindError::Resolve`] if the host name cannot be resolved.
    /// - Returns [`BindError::AddrInUse`] if the port is in use, [`BindError::AddrNotAvailable`] if the address does not
    ///   belong to this machine, and [`BindError::PermissionDenied`] if the user may not use the port.
    /// - Returns [`BindError::NoDevice`] if no device has the address, or no device exists.
    /// - Returns [`BindError::DescriptorLimit`] if the process has no file descriptors left, and [`BindError::Device`]
    ///   if a device fails.
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, no listener remains. The port may stay in use until devices are opened.
    )?
    pub $($async)? fn bind(address: impl ToSocketAddrs + fmt::Debug) -> Result<Listener, BindError> {
        Listener::builder().bind(address)$(.$await)?
    }

    /// Creates a builder of a listener with the default options.
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder::default()
    }

    /// Returns the address to which the listener is bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.listening.address()
    }

    /// Waits until a peer connects, and returns the connection. Several callers may wait at the same time.
    ///
    /// If a handshake fails, or does not finish within [`Options::connect_timeout`], the listener logs the reason, and
    /// the call continues to wait. Handshakes do not delay each other. If 256 handshakes are pending, or the process
    /// has no file descriptors left, the listener drops handshakes that have made no progress for a second.
    ///
    /// # Errors
    ///
    /// Returns [`AcceptError::Stopped`] if the listener is stopped, before or during the call. Returns another error if
    /// the system cannot accept another connection, such as [`AcceptError::DescriptorLimit`] if the process has no file
    /// descriptors left.
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// Dropping the future loses no connection: the next call continues its handshakes.
    )?
    pub $($async)? fn accept(&self) -> Result<Connection, AcceptError> {
        let failed = |error| AcceptError::system(self.local_addr(), error);
        let accepting = self.listening.accepting();
        loop {
            match self.listening.poll(&accepting)? {
                Accepted::Connection(driver) => {
                    let origin = Origin::Accepted(Arc::downgrade(&self.listening));
                    return Connection::new(driver, origin).map_err(failed);
                }
                Accepted::Wait(accept_fd, left) => {
                    wait_readable(&*accept_fd, left)$(.$await)?.map_err(failed)?;
                }
            }
        }
    }

    /// Waits until a peer connects, like [`accept`](Listener::accept), and returns a byte stream.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`accept`](Listener::accept).
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// Dropping the future loses no connection: the next call continues its handshakes.
    )?
    pub $($async)? fn accept_stream(&self) -> Result<Stream, AcceptError> {
        Ok(Stream::new(self.accept()$(.$await)??))
    }

    /// Stops listening. The call releases the port, calls to [`accept`](Listener::accept) return an error, and
    /// connections that no call has accepted yet end. Accepted connections continue.
    pub fn stop(&self) {
        self.listening.stop();
    }

    /// Listens again at the same address and port, after the listener was [stopped](Listener::stop). The call has no
    /// effect if the listener is listening.
    ///
    /// # Errors
    ///
    /// Returns [`BindError::AddrInUse`] if another socket uses the port.
    pub fn start(&self) -> Result<(), BindError> {
        self.listening.start()
    }

    /// Whether the listener is listening.
    pub fn is_listening(&self) -> bool {
        self.listening.is_listening()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        Listening::end(&self.listening);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.local_addr()).finish_non_exhaustive()
    }
}

    } };
}
pub(crate) use endpoint;
