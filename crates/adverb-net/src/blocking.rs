//! Connections for threads: every call waits until it is done.

mod address_space;
mod remote;
mod stream;

pub use address_space::AddressSpace;
pub use remote::RemoteRegion;
pub use stream::{ReadHalf, Stream, WriteHalf};

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use adverb_verbs::Result;
use adverb_verbs::internal::{Deadline, wait_either};
use adverb_verbs::memory::Pool;

use super::bootstrap::{self, Accepted, Handshake, Listening, Way};
use super::link::{Link, Ready};
use super::session::{self, Origin, Paths};
use super::{Message, Options, SendData, SendError, UnacknowledgedMessage};

/// Connects to a [listener](Listener) with the default [options](Options).
///
/// # Errors
///
/// As [`Connector::connect`].
pub fn connect(address: impl ToSocketAddrs) -> Result<Connection> {
    Connector::new().connect(address)
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
    /// [`Unreachable`](adverb_verbs::Error::Unreachable) if nobody answers there,
    /// [`HandshakeRejected`](adverb_verbs::Error::HandshakeRejected) if who does doesn't want the connection, or isn't
    /// of the same protocol; if there is no device that reaches the peer; all within the options'
    /// [`connect_timeout`](Options::connect_timeout).
    pub fn connect(&self, address: impl ToSocketAddrs) -> Result<Connection> {
        let addresses = address.to_socket_addrs().map_err(bootstrap::no_address)?.collect();
        let paths = Paths { addresses, names: self.alternate_addr.clone(), options: self.options.clone() };
        let deadline = Deadline::new(self.options.connect_timeout);
        let mut failure = None;
        for peer in paths.resolve() {
            match connect_link(peer, &self.options, &deadline) {
                Ok(link) => return Ok(Connection { link: session::settle(link, Origin::Connected(paths)) }),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| bootstrap::no_address(io::Error::other("the name has no address"))))
    }
}

/// Connects to a listener, by whichever way leads there.
pub(super) fn connect_link(peer: SocketAddr, options: &Options, deadline: &Deadline) -> Result<Box<Link>> {
    let (options, ways) = bootstrap::ways(peer, options)?;
    let mut failure = None;
    for way in ways {
        match connect_by(way, peer, &options, deadline) {
            Err(error) if bootstrap::is_worth_another(&error) => failure = Some(error),
            connected => return connected,
        }
    }
    Err(failure.unwrap_or_else(|| bootstrap::no_address(io::Error::other("there is no way there"))))
}

fn connect_by(way: Way, peer: SocketAddr, options: &Options, deadline: &Deadline) -> Result<Box<Link>> {
    let mut handshake = match way {
        Way::ConnectionManager(from) => Handshake::by_manager(from, peer, options, *deadline)?,
        Way::Tcp => {
            // Sockets know neither zero nor for ever.
            let left = deadline.left().clamp(Duration::from_millis(1), Duration::from_secs(1 << 20));
            let stream = TcpStream::connect_timeout(&peer, left);
            let stream = stream.map_err(|error| bootstrap::unreachable(peer, error))?;
            Handshake::over_tcp(stream, peer, options, *deadline)?
        }
    };
    loop {
        if let Some(link) = handshake.poll()? {
            return Ok(link);
        }
        wait(&handshake, handshake.left())?;
    }
}

/// Waits until a descriptor can be read, but not longer than this.
fn wait(descriptor: &impl AsFd, timeout: Duration) -> Result<()> {
    let waited = wait_either(descriptor.as_fd(), None, Some(timeout));
    waited.map(drop).map_err(bootstrap::not_watched)
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
    pub fn bind(address: impl ToSocketAddrs) -> Result<Listener> {
        Listener::bind_with(address, &Options::new())
    }

    /// Listens at this address.
    ///
    /// # Errors
    ///
    /// As [`bind`](Listener::bind).
    pub fn bind_with(address: impl ToSocketAddrs, options: &Options) -> Result<Listener> {
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(bootstrap::not_bound)?.collect();
        Ok(Listener { listening: Arc::new(Listening::bind(&addresses, options)?) })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.listening.address()
    }

    /// Waits for a connection. Several threads may.
    ///
    /// A peer that fails to become one, or doesn't in [time](Options::connect_timeout), is logged, and the wait goes on;
    /// others needn't wait for it. (If very many come, or descriptors are short, who does nothing for a second is given up.)
    ///
    /// # Errors
    ///
    /// If the listener is stopped, also while this waits; if no more can be accepted: the system has too few descriptors, for
    /// one.
    pub fn accept(&self) -> Result<Connection> {
        let accepting = self.listening.accepting();
        loop {
            match self.listening.poll(&accepting)? {
                Accepted::Connection(link) => {
                    return Ok(Connection {
                        link: session::settle(link, Origin::Accepted(Arc::downgrade(&self.listening))),
                    });
                }
                Accepted::Wait(bell, left) => wait(&*bell, left)?,
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
/// order, both ways. May be used by many threads.
///
/// Sending waits while the peer has no room; so a receiver that is slow slows the sender, and memory stays bounded. Dropping
/// it ends it at once; [`close`](Connection::close) first sees to it that the peer has all. (If the peer has closed it, dropping
/// waits until the peer has heard that all has come, which takes no time unless packets are lost, and two seconds at
/// most.)
///
/// ```
/// use adverb::net::blocking::{Listener, connect};
///
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr();
/// std::thread::spawn(move || {
///     let connection = listener.accept()?;
///     // The buffer goes back as it came.
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
    link: Arc<Link>,
}

impl Connection {
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
    pub fn send<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendError> {
        self.send_timeout(message.into(), None, self.link.options.timeout)
    }

    /// Sends a message with 32 bits beside it.
    ///
    /// # Errors
    ///
    /// As [`send`](Connection::send).
    pub fn send_with_imm<'a>(
        &self,
        message: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<(), SendError> {
        self.send_timeout(message.into(), Some(immediate), self.link.options.timeout)
    }

    /// Takes a message that is to go together with others: for many short ones in a row, which cost far less so.
    ///
    /// They go when enough have gathered, with the next [`send`](Connection::send), or when this connection is waited for or
    /// [flushed](Connection::flush); until then the peer doesn't see them.
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
    /// As [`send`](Connection::send).
    pub fn feed<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendError> {
        let mut ready = Some(self.link.ready(message.into(), None)?);
        let (timeout, waiting) = (self.link.options.timeout, "waiting for room to send");
        let fed = self.link.wait(timeout, waiting, |link, state| link.feed(state, &mut ready));
        fed.map_err(|error| Ready::refused(ready, error))
    }

    /// Returns when all that was [fed](Connection::feed) is on its way.
    ///
    /// # Errors
    ///
    /// As [`send`](Connection::send).
    pub fn flush(&self) -> Result<()> {
        let (timeout, waiting) = (self.link.options.timeout, "waiting for room to send");
        self.link.wait(timeout, waiting, |link, state| link.is_flushed(state))
    }

    /// Sends a message, if there is room for it now.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](adverb_verbs::Error::WouldBlock) if there is none; if the connection has ended.
    pub fn try_send<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendError> {
        let ready = self.link.ready(message.into(), None)?;
        let mut state = self.link.lock();
        self.link.drive_unless_led(&mut state);
        self.link.try_send_now(&mut state, ready)
    }

    fn send_timeout(
        &self,
        message: SendData<'_>,
        immediate: Option<u32>,
        timeout: Duration,
    ) -> Result<(), SendError> {
        let mut ready = Some(self.link.ready(message, immediate)?);
        self.send_ready(&mut ready, timeout).map_err(|error| Ready::refused(ready, error))
    }

    fn send_ready(&self, ready: &mut Option<Ready<'_>>, timeout: Duration) -> Result<()> {
        let mut number = None;
        self.link
            .wait(timeout, "waiting for room to send", |link, state| link.send(state, ready, &mut number))
    }

    /// Waits for a message; `None` when the peer has sent its last.
    ///
    /// # Errors
    ///
    /// If the connection has ended otherwise, or nothing came within the options' [`timeout`](Options::timeout).
    pub fn recv(&self) -> Result<Option<Message>> {
        self.recv_timeout(self.link.options.timeout)
    }

    /// Waits for a message, but not longer than this.
    ///
    /// # Errors
    ///
    /// As [`recv`](Connection::recv).
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<Message>> {
        self.link.wait(timeout, "waiting for a message", |link, state| link.try_recv(state))
    }

    /// Says that nothing more is sent: the peer's [`recv`](Connection::recv) returns `None` after all that was. Messages can
    /// still come.
    ///
    /// # Errors
    ///
    /// As [`send`](Connection::send).
    pub fn shutdown(&self) -> Result<()> {
        self.send_ready(&mut Some(Link::end_frame()), self.link.options.timeout)
    }

    /// Ends the connection when the peer has all that was sent: in its memory, though its program needn't have looked at it;
    /// except for long messages, which it must have asked for.
    ///
    /// # Errors
    ///
    /// If that isn't so within the options' [`connect_timeout`](Options::connect_timeout), or the connection had ended.
    pub fn close(self) -> Result<()> {
        let (mut gone, timeout) = (Some(Link::gone_frame()), self.link.options.connect_timeout);
        self.link
            .wait(timeout, "waiting for the peer to have all", |link, state| link.close(state, &mut gone))
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
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(time) = self.link.lingers() {
            // Whether they have parted or time is over, it is done.
            let _ = self.link.wait(time, "waiting for the peer's farewell", Link::has_parted);
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer_addr()).finish_non_exhaustive()
    }
}
