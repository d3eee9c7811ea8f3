//! Connections for tasks: calls that wait let other tasks run.

mod address_space;
mod remote;
mod stream;
mod wait;

pub use address_space::AddressSpace;
pub use remote::RemoteRegion;
pub use stream::{ReadHalf, Stream, WriteHalf};

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use adverb_verbs::internal::Deadline;
use adverb_verbs::memory::Pool;
use adverb_verbs::{Error, Result};
use tokio::io::unix::AsyncFd;
use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::runtime::Handle;

use crate::bootstrap::{Accepted, Dial, Listening};
use crate::driver::{Core, Driver, Established, LINGER, Outgoing, Sent};
use crate::error::{no_address, not_bound, not_watched, verb_error};
use crate::message::{Message, SendData, SendError, UnacknowledgedMessage};
use crate::options::Options;
use crate::readiness::readable_by_tasks;
use crate::session::{self, Origin, Paths};
use wait::TaskWait;

/// Connects to a [listener](Listener) with the default [options](Options).
///
/// # Errors
///
/// Returns the errors of [`Connector::connect`].
///
/// # Cancel safety
///
/// Dropping the future cancels the connection attempt.
pub async fn connect(address: impl ToSocketAddrs + fmt::Debug) -> Result<Connection> {
    Connector::new().connect(address).await
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
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the connection attempt.
    pub async fn connect(&self, address: impl ToSocketAddrs + fmt::Debug) -> Result<Connection> {
        let name = format!("{address:?}");
        let not_resolved = |error| no_address(format_args!("{name}"), error);
        let addresses = lookup_host(address).await.map_err(not_resolved)?.collect();
        self.options.check()?;
        let mut paths = Paths::new(addresses, &self.alternate_addr, &self.options);
        for name in Vec::from_iter(paths.names().map(str::to_owned)) {
            // A name that cannot be resolved now may be resolvable later.
            if let Ok(addresses) = lookup_host(&name).await {
                paths.set_resolved(&name, &Vec::from_iter(addresses));
            }
        }
        let deadline = Deadline::new(self.options.connect_timeout);
        let mut failure = None;
        for peer in paths.peers() {
            match connect_driver(peer, &self.options, deadline).await {
                Ok(driver) => return Connection::new(driver, Origin::Connected(paths)),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| not_resolved(io::Error::other("the host name has no address"))))
    }
}

/// Connects to a listener at one address.
async fn connect_driver(peer: SocketAddr, options: &Options, deadline: Deadline) -> Result<Arc<Driver>> {
    let mut dial = Dial::new(peer, options, deadline)?;
    loop {
        let now = Instant::now();
        if let Some(Established::New(driver)) = dial.poll(now)? {
            return Ok(driver);
        }
        wait(&dial, dial.time_left(now)).await?;
    }
}

/// Waits until a descriptor is readable, but no longer than `timeout`.
async fn wait(descriptor: &impl AsFd, timeout: Duration) -> Result<()> {
    let descriptor = readable_by_tasks(descriptor.as_fd()).map_err(not_watched)?;
    match tokio::time::timeout(timeout, descriptor.readable()).await {
        Ok(readable) => readable.map(drop).map_err(not_watched),
        Err(_) => Ok(()),
    }
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
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no listener remains. The port may stay in use until devices are opened.
    pub async fn bind(&self, address: impl ToSocketAddrs + fmt::Debug) -> Result<Listener> {
        let name = format!("{address:?}");
        let not_resolved = |error| no_address(format_args!("{name}"), error);
        let addresses: Vec<SocketAddr> = lookup_host(address).await.map_err(not_resolved)?.collect();
        let options = self.options.clone();
        // Opening devices blocks, above all for hardware.
        let bound =
            tokio::task::spawn_blocking(move || Listening::bind(&addresses, &options, session::find)).await;
        let listening = bound.map_err(|error| not_bound(name, io::Error::other(error)))??;
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
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no listener remains. The port may stay in use until devices are opened.
    pub async fn bind(address: impl ToSocketAddrs + fmt::Debug) -> Result<Listener> {
        Listener::builder().bind(address).await
    }

    /// Creates a builder of a listener with the default options.
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder::default()
    }

    /// Returns the address to which the listener is bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.listening.address()
    }

    /// Waits until a peer connects, and returns the connection. Several tasks may wait at the same time.
    ///
    /// If a handshake fails, or does not finish within [`Options::connect_timeout`], the listener logs the reason, and
    /// the call continues to wait. Handshakes do not delay each other. If 256 handshakes are pending, or the process
    /// has no file descriptors left, the listener drops handshakes that have made no progress for a second.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Verb`] if the listener is stopped, before or during the call, or if the system cannot accept
    /// another connection, for example because the process has no file descriptors left.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no connection: the next call continues its handshakes.
    pub async fn accept(&self) -> Result<Connection> {
        let accepting = self.listening.accepting();
        loop {
            match self.listening.poll(&accepting)? {
                Accepted::Connection(driver) => {
                    return Connection::new(driver, Origin::Accepted(Arc::downgrade(&self.listening)));
                }
                Accepted::Wait(accept_fd, left) => wait(&*accept_fd, left).await?,
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

/// A connection to a peer, which carries messages in order in both directions. Many tasks may use it at the same
/// time.
///
/// The receiver's [`max_message_size`](Options::max_message_size) limits the size of a message. A send waits until the
/// peer grants credits, so a slow receiver slows its sender, and memory use is bounded.
///
/// Dropping a connection aborts it; [`close`](Connection::close) first waits until the peer has received everything. If
/// the peer has closed the connection, a task of the runtime keeps the queue pair after the drop, until the peer has
/// received the acknowledgement of its last messages. This time is short unless packets are lost, and at most two
/// seconds.
///
/// ```
/// use adverb::net::{Listener, connect};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let address = listener.local_addr();
/// tokio::spawn(async move {
///     let connection = listener.accept().await?;
///     // A long message is sent from the buffer in which it was received, without a copy.
///     while let Some(message) = connection.recv().await? {
///         connection.send(message).await?;
///     }
///     connection.close().await
/// });
/// let connection = connect(address).await?;
/// connection.send(b"hello").await?;
/// assert_eq!(&connection.recv().await?.expect("an answer")[..], b"hello");
/// connection.close().await?;
/// # Ok::<(), adverb::Error>(())
/// # }).unwrap();
/// ```
///
/// # Cancellation
///
/// A dropped future frees no memory that the device uses: buffers stay allocated until their requests are complete, and
/// the connection continues. The section "Cancel safety" of each method describes all other effects.
pub struct Connection {
    driver: Arc<Driver>,
    /// Readable when the completion queue or the connection manager may have an event.
    events: Arc<AsyncFd<OwnedFd>>,
    /// Runtime that created the connection. Tasks that outlive the connection run there.
    runtime: Handle,
}

impl Connection {
    /// Makes an established driver usable by tasks.
    fn new(driver: Arc<Driver>, origin: Origin) -> Result<Connection> {
        let watch_error = |error| {
            verb_error(
                "watching a completion queue",
                error,
                "enable I/O in the tokio runtime: `Builder::enable_io`",
            )
        };
        let lane = driver.lane();
        let events = lane.event_fd().ok_or_else(|| watch_error(io::ErrorKind::Unsupported.into()))?;
        let events = match (driver.session(), lane.manager_events()) {
            (None, None) => readable_by_tasks(events),
            // The completion queue may change, or there is a second descriptor to watch.
            _ => readable_by_tasks(driver.watch_events().map_err(watch_error)?),
        };
        let events = Arc::new(events.map_err(watch_error)?);
        let driver = session::enable_reconnect(driver, origin);
        Ok(Connection { driver, events, runtime: Handle::current() })
    }

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
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, either the whole message is sent, or none of it. A message that the connection has
    /// queued is sent when the peer has granted credits and a call uses the connection.
    pub async fn send<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendError> {
        self.send_message(message.into(), None).await
    }

    /// Sends a message with 32 bits of immediate data.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Connection::send).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has the same effect as for [`send`](Connection::send).
    pub async fn send_with_imm<'a>(
        &self,
        message: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<(), SendError> {
        self.send_message(message.into(), Some(immediate)).await
    }

    /// Sends a message like [`send`](Connection::send), but waits no longer than `timeout` for credits. The time counts
    /// again if the connection [reconnects](Options::reconnect) meanwhile.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Connection::send).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has the same effect as for [`send`](Connection::send).
    pub async fn send_timeout<'a>(
        &self,
        message: impl Into<SendData<'a>>,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<(), SendError> {
        let outgoing = self.driver.prepare(message.into(), None)?;
        self.send_outgoing(Some(outgoing), timeout.into().unwrap_or(Duration::MAX)).await
    }

    /// Queues a message for coalescing with others. For many consecutive short messages, this method uses far less CPU
    /// time than [`send`](Connection::send).
    ///
    /// Queued messages are sent when enough are queued, with the next [`send`](Connection::send), when a call waits on
    /// this connection, or by [`flush`](Connection::flush). Until then the peer does not receive them.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Connection::send).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the message may or may not be queued.
    pub async fn feed<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendError> {
        let mut outgoing = Some(self.driver.prepare(message.into(), None)?);
        let (timeout, waiting) = (self.driver.options.timeout, "waiting to send");
        loop {
            let fed = self.wait(timeout, waiting, |driver, core| driver.feed(core, &mut outgoing)).await;
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
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no message.
    pub async fn flush(&self) -> Result<()> {
        let (timeout, waiting) = (self.driver.options.timeout, "waiting to send");
        let write = self.driver.last_write();
        self.wait(timeout, waiting, |driver, core| driver.is_posted(core, write)).await
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

    async fn send_message(&self, message: SendData<'_>, immediate: Option<u32>) -> Result<(), SendError> {
        let outgoing = self.driver.prepare(message, immediate)?;
        self.send_outgoing(Some(outgoing), self.driver.options.timeout).await
    }

    async fn send_outgoing(
        &self,
        mut outgoing: Option<Outgoing<'_>>,
        timeout: Duration,
    ) -> Result<(), SendError> {
        let mut write = None;
        loop {
            let sent = self.wait(timeout, "waiting to send", |driver, core| {
                driver.send(core, &mut outgoing, &mut write)
            });
            match sent.await {
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
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no message.
    pub async fn recv(&self) -> Result<Option<Message>> {
        self.wait(self.driver.options.timeout, "waiting for a message", Driver::try_recv).await
    }

    /// Waits for a message, but no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`recv`](Connection::recv).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no message.
    pub async fn recv_timeout(&self, timeout: impl Into<Option<Duration>>) -> Result<Option<Message>> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        self.wait(timeout, "waiting for a message", Driver::try_recv).await
    }

    /// Waits until the connection has ended, and returns the reason: [`Error::Disconnected`], or [`Error::Verb`] if the
    /// runtime shuts down. Other tasks may use the connection meanwhile.
    ///
    /// While more than [`Options::recv_buffer_limit`] bytes of messages wait to be received, the connection does not
    /// notice that the peer has closed it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the connection.
    pub async fn closed(&self) -> Error {
        let waiting = "waiting for the end of the connection";
        self.wait(Duration::MAX, waiting, Driver::end).await.unwrap_or_else(|error| error)
    }

    /// Shuts down the sending direction: the peer's [`recv`](Connection::recv) returns `None` after all sent messages.
    /// This side can still receive.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Connection::send).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the direction may or may not be shut down. The method can be called again, and returns
    /// [`Error::Disconnected`] if the direction is already shut down.
    pub async fn shutdown(&self) -> Result<()> {
        self.driver.begin_shutdown()?;
        let (timeout, waiting) = (self.driver.options.timeout, "waiting to send");
        self.wait(timeout, waiting, |driver, core| driver.is_flushed(core)).await
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
    ///
    /// # Cancel safety
    ///
    /// Dropping the future aborts the connection.
    pub async fn close(self) -> Result<()> {
        self.driver.begin_close();
        // The connection has its own time limit.
        self.wait(Duration::MAX, "waiting for the peer to receive all messages", Driver::is_closed).await
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

    /// Breaks the lane, for tests.
    pub(super) fn break_lane(&self) -> Result<()> {
        self.driver.break_lane()
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

    /// Waits until `ready` returns a value.
    async fn wait<T>(
        &self,
        timeout: Duration,
        waiting: &'static str,
        mut ready: impl FnMut(&Driver, &mut Core) -> Result<Option<T>>,
    ) -> Result<T> {
        // A task that never has to wait yields now and then.
        tokio::task::coop::consume_budget().await;
        let driver = &self.driver;
        // A value that is available at once needs no timer.
        let value = loop {
            match driver.try_lock().map(|mut core| driver.try_now(&mut core, &mut ready)) {
                Some(value) => break value?,
                None => tokio::task::yield_now().await,
            }
        };
        if let Some(value) = value {
            return Ok(value);
        }
        if timeout.is_zero() {
            return Err(driver.timed_out(timeout, waiting));
        }
        let (mut wait, mut timer, mut limit) = (TaskWait::begin(driver), pin!(None), pin!(None));
        poll_fn(|cx| {
            let polled = wait.poll(cx, driver, &self.events, timer.as_mut(), &mut ready);
            // A spinning task is polled again at once, and setting a timer takes longer than most spins. So the time
            // limit counts from the end of the spin, at most a few dozen microseconds later.
            if polled.is_ready() || wait.is_spinning() || timeout == Duration::MAX {
                return polled;
            }
            if limit.is_none() {
                limit.set(Some(tokio::time::sleep(timeout)));
            }
            let expired = limit.as_mut().as_pin_mut().is_some_and(|limit| limit.poll(cx).is_ready());
            if expired { Poll::Ready(Err(driver.timed_out(timeout, waiting))) } else { polled }
        })
        .await
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.driver.is_owned() {
            // The runtime's epoll descriptor is the parent's, too: dropping the registration would end the parent's.
            std::mem::forget(Arc::clone(&self.events));
            return Driver::leak(&self.driver);
        }
        if self.driver.is_lingering() {
            let driver = Arc::clone(&self.driver);
            self.runtime.spawn(async move {
                let start = Instant::now();
                let is_lingering = || match driver.try_lock() {
                    Some(mut core) => matches!(driver.try_now(&mut core, &mut Driver::linger), Ok(None)),
                    None => true,
                };
                while start.elapsed() < LINGER && is_lingering() {
                    tokio::time::sleep(LINGER_POLL_INTERVAL).await;
                }
            });
        }
    }
}

/// Interval at which a dropped connection is polled for the peer's last write, the acknowledgement of the close.
const LINGER_POLL_INTERVAL: Duration = Duration::from_millis(1);

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer_addr()).finish_non_exhaustive()
    }
}
