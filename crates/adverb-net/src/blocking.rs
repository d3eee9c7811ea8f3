//! Connections for threads: calls that wait block their thread.

mod address_space;
mod remote;
mod stream;

pub use address_space::AddressSpace;
pub use remote::RemoteRegion;
pub use stream::{ReadHalf, Stream, WriteHalf};

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_verbs::internal::{Deadline, wait_either};
use adverb_verbs::memory::Pool;
use adverb_verbs::{Error, Result};

use crate::bootstrap::{Accepted, Dial, Listening};
use crate::driver::{Driver, Established, LINGER, Outgoing, Sent};
use crate::error::{no_address, not_watched};
use crate::message::{Message, SendData, SendError, UnacknowledgedMessage};
use crate::options::Options;
use crate::session::{self, Origin, Paths};

/// Connects to a [listener](Listener) with the default [options](Options).
///
/// # Errors
///
/// Returns the errors of [`Connector::connect`].
pub fn connect(address: impl ToSocketAddrs + fmt::Debug) -> Result<Connection> {
    Connector::new().connect(address)
}

/// A builder for connections to a listener.
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

    /// Connects to a listener. If the host name has several addresses, the connector tries the addresses in turn.
    ///
    /// # Errors
    ///
    /// - Returns [`Error::Unreachable`] if no listener replies within [`Options::connect_timeout`].
    /// - Returns [`Error::HandshakeRejected`] if the peer rejects the connection, or does not use Adverb's protocol.
    /// - Returns [`Error::CmRejected`] if the peer's connection manager rejects the request, for example because no
    ///   listener is bound to the port.
    /// - Returns [`Error::NoDevice`] if no device has the local address of the route to the peer.
    /// - Returns [`Error::Verb`] if the host name cannot be resolved.
    /// - Returns [`Error::InvalidRequest`] if an [option](Options) is outside its range.
    pub fn connect(&self, address: impl ToSocketAddrs + fmt::Debug) -> Result<Connection> {
        let not_resolved = |error| no_address(&address, error);
        let addresses = address.to_socket_addrs().map_err(not_resolved)?.collect();
        self.options.check()?;
        let mut paths = Paths::new(addresses, &self.alternate_addr, &self.options);
        paths.resolve();
        let deadline = Deadline::new(self.options.connect_timeout);
        let mut failure = None;
        for peer in paths.peers() {
            match connect_driver(peer, &self.options, deadline) {
                Ok(driver) => {
                    return Ok(Connection {
                        driver: session::enable_reconnect(driver, Origin::Connected(paths)),
                    });
                }
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| not_resolved(io::Error::other("the host name has no address"))))
    }
}

/// Connects to a listener at one address.
fn connect_driver(peer: SocketAddr, options: &Options, deadline: Deadline) -> Result<Arc<Driver>> {
    let mut dial = Dial::new(peer, options, deadline)?;
    loop {
        let now = Instant::now();
        if let Some(Established::New(driver)) = dial.poll(now)? {
            return Ok(driver);
        }
        wait(&dial, dial.time_left(now))?;
    }
}

/// Waits until a descriptor is readable, but no longer than `timeout`.
fn wait(descriptor: &impl AsFd, timeout: Duration) -> Result<()> {
    let waited = wait_either(descriptor.as_fd(), None, Some(timeout));
    waited.map(drop).map_err(not_watched)
}

/// A builder for listeners.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ListenerBuilder {
    options: Options,
}

impl ListenerBuilder {
    /// Sets the options of the connections.
    pub fn options(mut self, options: &Options) -> ListenerBuilder {
        self.options = options.clone();
        self
    }

    /// Creates a listener at an address, like [`Listener::bind`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Listener::bind`], and [`Error::InvalidRequest`] if an [option](Options) is outside its range.
    pub fn bind(&self, address: impl ToSocketAddrs + fmt::Debug) -> Result<Listener> {
        let not_resolved = |error| no_address(&address, error);
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(not_resolved)?.collect();
        Ok(Listener { listening: Arc::new(Listening::bind(&addresses, &self.options, session::find)?) })
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
/// of the process listens.
pub struct Listener {
    listening: Arc<Listening>,
}

impl Listener {
    /// Creates a listener at an address, with the default options. Port 0 selects a free port.
    ///
    /// The listener opens its devices in this call, and opens no others later. At a wildcard address (`0.0.0.0`,
    /// `[::]`) it serves all RDMA hardware, the software devices that this process has open, and the software device
    /// `soft` for loopback addresses. It opens no software device at a routable address: to serve one, bind to that
    /// address, or [open](adverb_verbs::Device::open) `soft:ADDRESS` first. The listener rejects a connector that dials
    /// an address without a device, with an error that names this cause. The listener does not serve addresses and
    /// devices that appear after the call.
    ///
    /// # Errors
    ///
    /// - Returns [`Error::NoDevice`] if no device has the address.
    /// - Returns [`Error::Verb`] if the address does not belong to this machine, or if the port is in use.
    pub fn bind(address: impl ToSocketAddrs + fmt::Debug) -> Result<Listener> {
        Listener::builder().bind(address)
    }

    /// Creates a builder of a listener with the default options.
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder::default()
    }

    /// Returns the address to which the listener is bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.listening.address()
    }

    /// Waits until a peer connects, and returns the connection. Several threads may wait at the same time.
    ///
    /// If a handshake fails, or does not finish within [`Options::connect_timeout`], the listener logs the reason, and
    /// the call continues to wait. Handshakes do not delay each other. If 256 handshakes are pending, or the process
    /// has no file descriptors left, the listener drops handshakes that have made no progress for a second.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Verb`] if the listener is stopped, before or during the call, or if the system cannot accept
    /// another connection, for example because the process has no file descriptors left.
    pub fn accept(&self) -> Result<Connection> {
        let accepting = self.listening.accepting();
        loop {
            match self.listening.poll(&accepting)? {
                Accepted::Connection(driver) => {
                    return Ok(Connection {
                        driver: session::enable_reconnect(
                            driver,
                            Origin::Accepted(Arc::downgrade(&self.listening)),
                        ),
                    });
                }
                Accepted::Wait(accept_fd, left) => wait(&*accept_fd, left)?,
            }
        }
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
    /// Returns [`Error::Verb`] if another socket uses the port.
    pub fn start(&self) -> Result<()> {
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

/// A connection to a peer, which carries messages in order in both directions. Many threads may use it at the same
/// time.
///
/// The receiver's [`max_message_size`](Options::max_message_size) limits the size of a message. A send waits until the
/// peer grants credits, so a slow receiver slows its sender, and memory use is bounded.
///
/// Dropping a connection aborts it; [`close`](Connection::close) first waits until the peer has received everything. If
/// the peer has closed the connection, the drop waits until the peer has received the acknowledgement of its last
/// messages. This wait is short unless packets are lost, and takes at most two seconds.
///
/// ```
/// use adverb::net::blocking::{Listener, connect};
///
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr();
/// std::thread::spawn(move || {
///     let connection = listener.accept()?;
///     // A long message is sent from the buffer in which it was received, without a copy.
///     while let Some(message) = connection.recv()? {
///         connection.send(message)?;
///     }
///     connection.close()
/// });
/// let connection = connect(address)?;
/// connection.send(b"hello")?;
/// assert_eq!(&connection.recv()?.expect("an answer")[..], b"hello");
/// connection.close()?;
/// # Ok::<(), adverb::Error>(())
/// ```
pub struct Connection {
    driver: Arc<Driver>,
}

impl Connection {
    /// Sends a message. The call returns when the message is in flight; the peer may not have received it yet.
    ///
    /// A byte slice is copied. A [`PoolBuf`](adverb_verbs::memory::PoolBuf) from this connection's
    /// [`pool`](Connection::pool), or a [`Message`] that this connection has received, is not copied if it is longer
    /// than [`Options::eager_threshold`]: the peer's device reads it in place. A buffer of another protection domain is
    /// copied.
    ///
    /// # Errors
    ///
    /// - Returns [`Error::Disconnected`] if the connection has ended, or if this side has [shut it
    ///   down](Connection::shutdown).
    /// - Returns [`Error::Timeout`] if the peer grants no credits within [`Options::timeout`].
    /// - Returns [`Error::MessageTooLong`] if the message is longer than the peer's [`Options::max_message_size`].
    /// - Returns the errors of [`Pool::alloc`] if there is no memory.
    ///
    /// The error contains the pool buffer, unless the connection has queued the message or could not register the
    /// buffer. After a timeout, the message may be queued: the connection then sends it when the peer grants credits.
    pub fn send<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendError> {
        self.send_message(message.into(), None)
    }

    /// Sends a message with 32 bits of immediate data.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Connection::send).
    pub fn send_with_imm<'a>(
        &self,
        message: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<(), SendError> {
        self.send_message(message.into(), Some(immediate))
    }

    /// Sends a message like [`send`](Connection::send), but waits no longer than `timeout` for credits. The time counts
    /// again if the connection [reconnects](Options::reconnect) meanwhile.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Connection::send).
    pub fn send_timeout<'a>(
        &self,
        message: impl Into<SendData<'a>>,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<(), SendError> {
        let outgoing = self.driver.prepare(message.into(), None)?;
        self.send_outgoing(Some(outgoing), timeout.into().unwrap_or(Duration::MAX))
    }

    /// Queues a message for coalescing with others. For many consecutive short messages, this method uses far less CPU
    /// time than [`send`](Connection::send).
    ///
    /// Queued messages are sent when enough are queued, with the next [`send`](Connection::send), when a call waits on
    /// this connection, or by [`flush`](Connection::flush). Until then the peer does not receive them.
    ///
    /// ```
    /// # use adverb::net::blocking::{Listener, connect};
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let server = std::thread::spawn(move || {
    /// #     let connection = listener.accept()?;
    /// #     let mut count = 0;
    /// #     while connection.recv()?.is_some() { count += 1; }
    /// #     connection.close()?;
    /// #     Ok::<_, adverb::Error>(count)
    /// # });
    /// let connection = connect(address)?;
    /// for number in 0..1000_u32 {
    ///     connection.feed(&number.to_le_bytes())?;
    /// }
    /// connection.flush()?;
    /// # connection.close()?;
    /// # assert_eq!(server.join().unwrap()?, 1000);
    /// # Ok::<(), adverb::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Connection::send).
    pub fn feed<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendError> {
        let mut outgoing = Some(self.driver.prepare(message.into(), None)?);
        let (timeout, waiting) = (self.driver.options.timeout, "waiting to send");
        loop {
            let fed = self.driver.wait(timeout, waiting, |driver, core| driver.feed(core, &mut outgoing));
            match fed {
                Ok(Sent::Posted) => return Ok(()),
                Ok(Sent::Stale) => outgoing = self.driver.prepare_again(outgoing)?,
                Err(error) => return Err(Outgoing::into_error(outgoing, error)),
            }
        }
    }

    /// Waits until all messages queued by [`feed`](Connection::feed) are in flight.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Connection::send).
    pub fn flush(&self) -> Result<()> {
        let (timeout, waiting) = (self.driver.options.timeout, "waiting to send");
        let write = self.driver.last_write();
        self.driver.wait(timeout, waiting, |driver, core| driver.is_posted(core, write))
    }

    /// Sends a message without waiting, if the peer has granted credits for it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::WouldBlock`] if there are no credits, and the other errors of [`send`](Connection::send)
    /// except [`Error::Timeout`].
    pub fn try_send<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendError> {
        let outgoing = self.driver.prepare(message.into(), None)?;
        let mut core = self.driver.lock();
        self.driver.drive(&mut core);
        self.driver.try_send(&mut core, outgoing)
    }

    fn send_message(&self, message: SendData<'_>, immediate: Option<u32>) -> Result<(), SendError> {
        let outgoing = self.driver.prepare(message, immediate)?;
        self.send_outgoing(Some(outgoing), self.driver.options.timeout)
    }

    fn send_outgoing(&self, mut outgoing: Option<Outgoing<'_>>, timeout: Duration) -> Result<(), SendError> {
        let mut write = None;
        loop {
            let sent = self.driver.wait(timeout, "waiting to send", |driver, core| {
                driver.send(core, &mut outgoing, &mut write)
            });
            match sent {
                Ok(Sent::Posted) => return Ok(()),
                Ok(Sent::Stale) => outgoing = self.driver.prepare_again(outgoing)?,
                Err(error) => return Err(Outgoing::into_error(outgoing, error)),
            }
        }
    }

    /// Waits for a message, and returns it. Returns `None` after the last message, when the peer has shut down or
    /// closed the connection.
    ///
    /// # Errors
    ///
    /// - Returns [`Error::Disconnected`] if the connection has ended in any other way.
    /// - Returns [`Error::Timeout`] if no message arrives within [`Options::timeout`].
    pub fn recv(&self) -> Result<Option<Message>> {
        self.driver.wait(self.driver.options.timeout, "waiting for a message", Driver::try_recv)
    }

    /// Waits for a message, but no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`recv`](Connection::recv).
    pub fn recv_timeout(&self, timeout: impl Into<Option<Duration>>) -> Result<Option<Message>> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        self.driver.wait(timeout, "waiting for a message", Driver::try_recv)
    }

    /// Waits until the connection has ended, and returns the reason: [`Error::Disconnected`]. Another thread may use the
    /// connection meanwhile.
    ///
    /// While more than [`Options::recv_buffer_limit`] bytes of messages wait to be received, the connection does not
    /// notice that the peer has closed it.
    pub fn closed(&self) -> Error {
        let waiting = "waiting for the end of the connection";
        self.driver.wait(Duration::MAX, waiting, Driver::end).unwrap_or_else(|error| error)
    }

    /// Shuts down the sending direction: the peer's [`recv`](Connection::recv) returns `None` after all sent messages.
    /// This side can still receive.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Connection::send).
    pub fn shutdown(&self) -> Result<()> {
        self.driver.begin_shutdown()?;
        let (timeout, waiting) = (self.driver.options.timeout, "waiting to send");
        self.driver.wait(timeout, waiting, |driver, core| driver.is_flushed(core))
    }

    /// Waits until the peer has received all sent messages, and closes the connection.
    ///
    /// Eager messages count as received when they are in the peer's memory, even if its program has not read them
    /// yet. A rendezvous message counts as received when the peer has read it. The peer's program can still receive
    /// all of them, but discards those that it has not received if it closes or aborts the connection, ends, or has
    /// given up the handshake. Let the peer reply if you need to know that it has processed a message.
    ///
    /// # Errors
    ///
    /// - Returns [`Error::Timeout`] if the peer does not receive everything within [`Options::connect_timeout`].
    /// - Returns [`Error::Disconnected`] if the connection has already ended, or if the peer closes the connection
    ///   without some of the messages.
    pub fn close(self) -> Result<()> {
        self.driver.begin_close();
        // The connection has its own time limit.
        self.driver.wait(Duration::MAX, "waiting for the peer to receive all messages", Driver::is_closed)
    }

    /// Returns the pool from which the connection allocates the memory of its messages.
    pub fn pool(&self) -> Pool {
        self.driver.pool()
    }

    /// Returns the messages that the peer may not have received, after a connection with [`Options::reconnect`] has
    /// ended.
    ///
    /// The call removes the messages from the connection, so the next call returns none. Without that option the
    /// connection keeps no messages, and the result is empty.
    pub fn take_unacknowledged(&self) -> Vec<UnacknowledgedMessage> {
        self.driver.take_unacknowledged()
    }

    #[cfg(all(test, feature = "soft"))]
    pub(super) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Returns the address of this side's device: its IP address, and the UDP port of its RoCE packets. It changes if the
    /// connection [reconnects](Options::reconnect) over another device.
    pub fn local_addr(&self) -> SocketAddr {
        self.driver.lane().local_addr()
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.driver.peer()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.driver.is_owned() {
            return Driver::leak(&self.driver);
        }
        if self.driver.is_lingering() {
            // The connection ends even if the peer's acknowledgement of the close does not arrive in time.
            let _ = self.driver.wait(LINGER, "waiting for the peer to close", Driver::linger);
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer_addr()).finish_non_exhaustive()
    }
}
