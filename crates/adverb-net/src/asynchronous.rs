//! Connections for tasks: what has to wait lets others run.

mod address_space;
mod remote;
mod stream;

pub use address_space::AddressSpace;
pub use remote::RemoteRegion;
pub use stream::{ReadHalf, Stream, WriteHalf};

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_verbs::internal::Deadline;
use adverb_verbs::memory::Pool;
use adverb_verbs::{Error, Result};
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpStream, ToSocketAddrs, lookup_host};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::bootstrap::{self, Accepted, Handshake, Listening, Way};
use super::link::{Link, Ready, State};
use super::session::{self, Bell, Origin, Paths};
use super::{Message, Options, SendData, SendError, UnacknowledgedMessage};
use crate::readiness::readable_by_tasks;

/// Connects to a [listener](Listener) with the default [options](Options).
///
/// # Errors
///
/// As [`Connector::connect`].
///
/// # Cancel safety
///
/// Dropped, it leaves nothing behind.
pub async fn connect(address: impl ToSocketAddrs) -> Result<Connection> {
    Connector::new().connect(address).await
}

/// Connects to listeners.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Connector {
    options: Options,
    alternate_addr: Vec<String>,
}

impl Connector {
    /// With the default options.
    pub fn new() -> Connector {
        Connector::default()
    }

    /// How its connections are to be.
    pub fn options(mut self, options: &Options) -> Connector {
        self.options = options.clone();
        self
    }

    /// Other addresses at which the same program listens, as `host:port`: tried when those that are named to
    /// [`connect`](Connector::connect) can't be reached, and when a connection is to [go on](Options::reconnect) over another
    /// path. Names are looked up each time. Which device of this machine is used follows from the route to the address, unless
    /// the options name one.
    pub fn alternate_addr(mut self, address: impl Into<String>) -> Connector {
        self.alternate_addr.push(address.into());
        self
    }

    /// Connects to a listener. If the name has several addresses, they are tried one after the other.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](Error::Unreachable) if nobody answers there, [`HandshakeRejected`](Error::HandshakeRejected) if
    /// who does doesn't want the connection, or isn't of the same protocol; if there is no device that reaches the
    /// peer; all within the options' [`connect_timeout`](Options::connect_timeout).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it leaves nothing behind.
    pub async fn connect(&self, address: impl ToSocketAddrs) -> Result<Connection> {
        let addresses = lookup_host(address).await.map_err(bootstrap::no_address)?.collect();
        let paths = Paths { addresses, names: self.alternate_addr.clone(), options: self.options.clone() };
        let mut peers = paths.addresses.clone();
        for name in &paths.names {
            // One that can't be looked up now may be later.
            peers.extend(lookup_host(name).await.into_iter().flatten());
        }
        let deadline = Deadline::new(self.options.connect_timeout);
        let mut failure = None;
        for peer in peers {
            match self.connect_one(peer, &deadline).await {
                Ok(link) => return Connection::new(link, Origin::Connected(paths)),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| bootstrap::no_address(io::Error::other("the name has no address"))))
    }

    async fn connect_one(&self, peer: SocketAddr, deadline: &Deadline) -> Result<Box<Link>> {
        let (options, ways) = bootstrap::ways(peer, &self.options)?;
        let mut failure = None;
        for way in ways {
            match connect_by(way, peer, &options, deadline).await {
                Err(error) if bootstrap::is_worth_another(&error) => failure = Some(error),
                connected => return connected,
            }
        }
        Err(failure.unwrap_or_else(|| bootstrap::no_address(io::Error::other("there is no way there"))))
    }
}

async fn connect_by(way: Way, peer: SocketAddr, options: &Options, deadline: &Deadline) -> Result<Box<Link>> {
    let mut handshake = match way {
        Way::ConnectionManager(from) => Handshake::by_manager(from, peer, options, *deadline)?,
        Way::Tcp => {
            let unreachable = |error| bootstrap::unreachable(peer, error);
            let connected = tokio::time::timeout(deadline.left(), TcpStream::connect(peer)).await;
            let stream = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            let stream = stream.and_then(TcpStream::into_std).map_err(unreachable)?;
            Handshake::over_tcp(stream, peer, options, *deadline)?
        }
    };
    loop {
        if let Some(link) = handshake.poll()? {
            return Ok(link);
        }
        wait(&handshake, handshake.left()).await?;
    }
}

/// Waits until a descriptor can be read, but not longer than this.
async fn wait(descriptor: &impl AsFd, timeout: Duration) -> Result<()> {
    let descriptor = readable_by_tasks(descriptor.as_fd()).map_err(bootstrap::not_watched)?;
    match tokio::time::timeout(timeout, descriptor.readable()).await {
        Ok(readable) => readable.map(drop).map_err(bootstrap::not_watched),
        Err(_) => Ok(()),
    }
}

/// Accepts connections at an address.
///
/// It has a TCP port of that number, over which both sides tell each other of their queue pairs, and where its device has a
/// connection manager, a port of that too: see [`Bootstrap`](super::Bootstrap). All else is between the queue pairs.
///
/// It listens from the beginning, until it is [stopped](Listener::stop) or dropped, and can be [started](Listener::start)
/// again. Connections don't need it any more.
pub struct Listener {
    listening: Arc<Listening>,
}

impl Listener {
    /// Listens at this address, with the default options; at a free port if it is 0.
    ///
    /// The listener opens its devices now, and no others later. At a wildcard address (`0.0.0.0`, `[::]`) it serves all RDMA
    /// hardware, the software devices that this process has open, and the software device `soft` for loopback addresses. It
    /// opens no software device at a routable address: to serve one, bind to that address, or
    /// [open](adverb_verbs::Device::open) `soft:ADDRESS` first. A connector that dials an address without a device is refused
    /// with an error that says so. Addresses and devices that appear after the call are not served.
    ///
    /// # Errors
    ///
    /// If the address isn't of this machine, or no device has it, or the port is taken.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it leaves nothing behind.
    pub async fn bind(address: impl ToSocketAddrs) -> Result<Listener> {
        Listener::bind_with(address, &Options::new()).await
    }

    /// Listens at this address.
    ///
    /// # Errors
    ///
    /// As [`bind`](Listener::bind).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it leaves nothing behind.
    pub async fn bind_with(address: impl ToSocketAddrs, options: &Options) -> Result<Listener> {
        let addresses: Vec<SocketAddr> = lookup_host(address).await.map_err(bootstrap::not_bound)?.collect();
        let options = options.clone();
        // Opening devices takes a while, hardware above all.
        let bound = tokio::task::spawn_blocking(move || Listening::bind(&addresses, &options)).await;
        let listening = bound.map_err(|error| bootstrap::not_bound(io::Error::other(error)))??;
        Ok(Listener { listening: Arc::new(listening) })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.listening.address()
    }

    /// Waits for a connection. Several tasks may.
    ///
    /// A peer that fails to become one, or doesn't in [time](Options::connect_timeout), is logged, and the wait goes on;
    /// others needn't wait for it. (If very many come, or descriptors are short, who does nothing for a second is given up.)
    ///
    /// # Errors
    ///
    /// If the listener is stopped, also while this waits; if no more can be accepted: the system has too few descriptors, for
    /// one.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it loses no connection: the next call goes on where this one was.
    pub async fn accept(&self) -> Result<Connection> {
        let accepting = self.listening.accepting();
        loop {
            match self.listening.poll(&accepting)? {
                Accepted::Connection(link) => {
                    return Connection::new(link, Origin::Accepted(Arc::downgrade(&self.listening)));
                }
                Accepted::Wait(bell, left) => wait(&*bell, left).await?,
            }
        }
    }

    /// Stops listening: the port is free, who [waits](Listener::accept) for a connection gets an error, and peers that weren't
    /// accepted are refused. Connections that were live on.
    pub fn stop(&self) {
        self.listening.stop();
    }

    /// Listens again, at the same address and port, after it was [stopped](Listener::stop); otherwise does nothing.
    ///
    /// # Errors
    ///
    /// If the port was taken by somebody else meanwhile.
    pub fn start(&self) -> Result<()> {
        self.listening.start()
    }

    /// Whether it listens.
    pub fn is_listening(&self) -> bool {
        self.listening.is_listening()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A connection that is to go on may look after it just now.
        self.stop();
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.local_addr()).finish_non_exhaustive()
    }
}

/// A connection to a peer: messages of any length up to the peer's [`max_message_size`](Options::max_message_size), in
/// order, both ways. May be used by many tasks.
///
/// Sending waits while the peer has no room; so a receiver that is slow slows the sender, and memory stays bounded. Dropping
/// it ends it at once; [`close`](Connection::close) first sees to it that the peer has all. (If the peer has closed it, a task of
/// the runtime stays until the peer has heard that all has come, which takes no time unless packets are lost, and two seconds at
/// most.)
///
/// ```
/// use adverb::net::{Listener, connect};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let address = listener.local_addr();
/// tokio::spawn(async move {
///     let connection = listener.accept().await?;
///     // The buffer goes back as it came.
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
/// # Cancelling
///
/// A future that is dropped takes nothing with it that the device has: buffers stay until their requests are done, and the
/// connection goes on. What else happens is said of each method.
pub struct Connection {
    link: Arc<Link>,
    /// Readable when the completion queue has an event.
    events: AsyncFd<OwnedFd>,
    /// Told when a task took something in that others may wait for.
    news: Notify,
    /// Where it was made, for what is left to do when it is dropped, wherever that is.
    runtime: Handle,
}

impl Connection {
    /// For tasks, a connection whose peer has said hello.
    fn new(link: Box<Link>, origin: Origin) -> Result<Connection> {
        let broken = |error| {
            bootstrap::verb("watching a completion queue", error, "is this a tokio runtime with I/O?")
        };
        let lane = link.lane();
        let events = lane.completions.event_fd().ok_or_else(|| broken(io::ErrorKind::Unsupported.into()))?;
        let events = match (link.session(), lane.manager_events()) {
            (None, None) => readable_by_tasks(events),
            // Which completion queue it has may change, or there is more to watch.
            (_, manager) => {
                let bell = Bell::new(events, manager).map_err(broken)?;
                readable_by_tasks(link.bell.get_or_init(|| bell).as_fd())
            }
        };
        let events = events.map_err(broken)?;
        let link = session::settle(link, origin);
        Ok(Connection { link, events, news: Notify::new(), runtime: Handle::current() })
    }

    /// Sends a message. Returns when it is on its way, which doesn't mean that the peer has it.
    ///
    /// Bytes are copied. A [`RegisteredBuf`](adverb_verbs::memory::RegisteredBuf) (from this connection's [`pool`](Connection::pool),
    /// say, or a [`Message`] that came) isn't, if it is long: the peer reads it from where it is.
    ///
    /// # Errors
    ///
    /// If the connection has ended, or there is no room within the options' [`timeout`](Options::timeout), or no memory. A
    /// buffer comes back with the error, unless the message was taken: after a timeout it may have been, and is then sent once
    /// there is room.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the message is sent or not, but never in part; one that was taken already is sent when there is room and this
    /// connection is used again.
    pub async fn send<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendError> {
        self.send_message(message.into(), None).await
    }

    /// Sends a message with 32 bits beside it.
    ///
    /// # Errors
    ///
    /// As [`send`](Connection::send).
    ///
    /// # Cancel safety
    ///
    /// As [`send`](Connection::send).
    pub async fn send_with_imm<'a>(
        &self,
        message: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<(), SendError> {
        self.send_message(message.into(), Some(immediate)).await
    }

    /// Takes a message that is to go together with others: for many short ones in a row, which cost far less so.
    ///
    /// They go when enough have gathered, with the next [`send`](Connection::send), or when this connection is waited for or
    /// [flushed](Connection::flush); until then the peer doesn't see them.
    ///
    /// # Errors
    ///
    /// As [`send`](Connection::send).
    ///
    /// # Cancel safety
    ///
    /// Dropped, the message was taken or not.
    pub async fn feed<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendError> {
        let mut ready = Some(self.link.ready(message.into(), None)?);
        let (timeout, waiting) = (self.link.options.timeout, "waiting for room to send");
        let fed = self.wait(timeout, waiting, |link, state| link.feed(state, &mut ready)).await;
        fed.map_err(|error| Ready::refused(ready, error))
    }

    /// Returns when all that was [fed](Connection::feed) is on its way.
    ///
    /// # Errors
    ///
    /// As [`send`](Connection::send).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it has lost nothing.
    pub async fn flush(&self) -> Result<()> {
        let (timeout, waiting) = (self.link.options.timeout, "waiting for room to send");
        self.wait(timeout, waiting, |link, state| link.is_flushed(state)).await
    }

    /// Sends a message, if there is room for it now.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](Error::WouldBlock) if there is none; if the connection has ended.
    pub fn try_send<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendError> {
        let ready = self.link.ready(message.into(), None)?;
        let mut state = self.link.lock();
        let has_news = self.link.drive(&mut state);
        let sent = self.link.try_send_now(&mut state, ready);
        drop(state);
        if has_news {
            self.news.notify_waiters();
        }
        sent
    }

    async fn send_message(&self, message: SendData<'_>, immediate: Option<u32>) -> Result<(), SendError> {
        let mut ready = Some(self.link.ready(message, immediate)?);
        let sent = self.send_ready(&mut ready, self.link.options.timeout).await;
        sent.map_err(|error| Ready::refused(ready, error))
    }

    async fn send_ready(&self, ready: &mut Option<Ready<'_>>, timeout: Duration) -> Result<()> {
        let mut number = None;
        self.wait(timeout, "waiting for room to send", |link, state| link.send(state, ready, &mut number))
            .await
    }

    /// Waits for a message; `None` when the peer has sent its last.
    ///
    /// # Errors
    ///
    /// If the connection has ended otherwise, or nothing came within the options' [`timeout`](Options::timeout).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it loses no message.
    pub async fn recv(&self) -> Result<Option<Message>> {
        self.recv_timeout(self.link.options.timeout).await
    }

    /// Waits for a message, but not longer than this.
    ///
    /// # Errors
    ///
    /// As [`recv`](Connection::recv).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it loses no message.
    pub async fn recv_timeout(&self, timeout: Duration) -> Result<Option<Message>> {
        self.wait(timeout, "waiting for a message", |link, state| link.try_recv(state)).await
    }

    /// Says that nothing more is sent: the peer's [`recv`](Connection::recv) returns `None` after all that was. Messages can
    /// still come.
    ///
    /// # Errors
    ///
    /// As [`send`](Connection::send).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it was said or not; it can be called again, and then is an error if it was.
    pub async fn shutdown(&self) -> Result<()> {
        self.send_ready(&mut Some(Link::end_frame()), self.link.options.timeout).await
    }

    /// Ends the connection when the peer has all that was sent: in its memory, though its program needn't have looked at it;
    /// except for long messages, which it must have asked for.
    ///
    /// # Errors
    ///
    /// If that isn't so within the options' [`connect_timeout`](Options::connect_timeout), or the connection had ended.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it ends the connection at once.
    pub async fn close(self) -> Result<()> {
        let (mut gone, timeout) = (Some(Link::gone_frame()), self.link.options.connect_timeout);
        let closed = self
            .wait(timeout, "waiting for the peer to have all", |link, state| link.close(state, &mut gone));
        closed.await?;
        if let Some(time) = self.link.lingers() {
            // Whether they have parted or time is over, it is done.
            let _ = self.wait(time, "waiting for the peer's farewell", Link::has_parted).await;
        }
        Ok(())
    }

    /// Where buffers for its messages come from.
    pub fn pool(&self) -> Pool {
        self.link.pool()
    }

    /// The messages that were sent and that the peer may not have, once a connection that was to
    /// [go on](Options::reconnect) has ended; taken from it, so that the next call has none. Without that option, none are kept.
    pub fn take_unacknowledged(&self) -> Vec<UnacknowledgedMessage> {
        self.link.take_unacknowledged()
    }

    #[cfg(all(test, feature = "soft"))]
    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.link.peer()
    }

    /// Waits until `ready` has something to return.
    async fn wait<T>(
        &self,
        timeout: Duration,
        waiting: &'static str,
        mut ready: impl FnMut(&Link, &mut State) -> Result<Option<T>>,
    ) -> Result<T> {
        // Who always finds something leaves others their turn.
        tokio::task::coop::consume_budget().await;
        // What is there already needs no clock.
        if let Some(value) = self.look(&mut ready)? {
            return Ok(value);
        }
        if let Some(value) = self.look_for_a_while(timeout, &mut ready).await? {
            return Ok(value);
        }
        within(timeout, waiting, async {
            let mut is_driven = true;
            loop {
                let news = self.news.notified();
                tokio::pin!(news);
                // What others take in from here on isn't missed.
                news.as_mut().enable();
                if let Some(value) = self.step(is_driven, &mut ready)? {
                    return Ok(value);
                }
                is_driven = false;
                tokio::select! {
                    () = news => {}
                    event = self.events.readable() => {
                        let broken = |error| bootstrap::verb("waiting for an event", error, "");
                        let mut event = event.map_err(broken)?;
                        self.link.woken()?;
                        event.clear_ready();
                        self.news.notify_waiters();
                    }
                    () = tokio::time::sleep(self.link.options.keepalive) => {
                        self.link.ask(&mut self.link.lock());
                    }
                }
            }
        })
        .await
    }

    /// Looks whether `ready` has something, again and again for as long as that is better than to sleep, while other tasks
    /// run.
    async fn look_for_a_while<T>(
        &self,
        timeout: Duration,
        ready: &mut impl FnMut(&Link, &mut State) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let patience = self.link.lock().waiting.patience.begin().min(timeout);
        if patience.is_zero() {
            return Ok(None);
        }
        let (start, mut value) = (Instant::now(), Ok(None));
        while let Ok(None) = value
            && start.elapsed() < patience
        {
            tokio::task::yield_now().await;
            value = self.look(ready);
        }
        self.link.lock().waiting.patience.end(!matches!(value, Ok(None)));
        value
    }

    /// Looks whether `ready` has something.
    fn look<T>(&self, ready: &mut impl FnMut(&Link, &mut State) -> Result<Option<T>>) -> Result<Option<T>> {
        let (value, has_news) = self.link.look_once(ready);
        if has_news {
            self.news.notify_waiters();
        }
        value
    }

    /// Looks whether `ready` has something, and drives the connection if it needs that; if not, an event is made when it may
    /// have.
    fn step<T>(
        &self,
        is_driven: bool,
        ready: &mut impl FnMut(&Link, &mut State) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let (value, has_news) = self.link.step(is_driven, ready);
        if has_news {
            self.news.notify_waiters();
        }
        value
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(time) = self.link.lingers() {
            let link = Arc::clone(&self.link);
            let has_parted = move || !matches!(link.look_once(&mut Link::has_parted).0, Ok(None));
            self.runtime.spawn(async move {
                let start = Instant::now();
                while !has_parted() && start.elapsed() < time {
                    tokio::time::sleep(A_MOMENT).await;
                }
            });
        }
    }
}

/// How often to look whether the peer has parted from a connection that was dropped.
const A_MOMENT: Duration = Duration::from_millis(1);

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer_addr()).finish_non_exhaustive()
    }
}

/// What the work gives, or an error if it takes longer than it may.
async fn within<T>(
    timeout: Duration,
    waiting: &'static str,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    if timeout == Duration::MAX {
        return work.await;
    }
    tokio::time::timeout(timeout, work).await.unwrap_or(Err(Error::Timeout { timeout, action: waiting }))
}
