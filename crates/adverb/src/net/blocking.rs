//! Connections for threads: every call waits until it is done.

mod remote;
mod stream;

pub use remote::Remote;
pub use stream::{ReadHalf, Stream, WriteHalf};

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::bootstrap;
use super::link::{Link, Ready};
use super::protocol::handshake::{Flaw, Greeting, PREFIX_LEN, Prefix};
use super::{Message, Options, Outgoing, SendError};
use crate::error::Result;
use crate::memory::Pool;
use crate::verbs::Deadline;

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

    /// Connects to a listener. If the name has several addresses, they are tried one after the other.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](crate::Error::Unreachable) if nobody answers there, [`Refused`](crate::Error::Refused) if who does doesn't want the connection, or isn't
    /// of the same protocol; if there is no device that reaches the peer; all within the options'
    /// [`connect_timeout`](Options::connect_timeout).
    pub fn connect(&self, address: impl ToSocketAddrs) -> Result<Connection> {
        let deadline = Deadline::new(self.options.connect_timeout);
        let mut failure = None;
        for peer in address.to_socket_addrs().map_err(bootstrap::no_address)? {
            match self.connect_one(peer, &deadline) {
                Ok(connection) => return Ok(connection),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| bootstrap::no_address(io::Error::other("the name has no address"))))
    }

    fn connect_one(&self, peer: SocketAddr, deadline: &Deadline) -> Result<Connection> {
        let unreachable = |error| bootstrap::unreachable(peer, error);
        let stream = TcpStream::connect_timeout(&peer, at_least_a_moment(deadline)).map_err(unreachable)?;
        let local = stream.local_addr().map_err(unreachable)?;
        let link = bootstrap::link(local, peer, &self.options)?;
        let mut stream = Timed { stream, deadline: *deadline };
        stream.write_all(&Greeting::Endpoint(link.endpoint()).emit()).map_err(unreachable)?;
        let greeting = read_greeting(&mut stream).map_err(unreachable)?;
        link.connect(&bootstrap::accepted(peer, greeting)?, true)?;
        established(link, deadline)
    }
}

/// Accepts connections at an address.
///
/// It has a TCP port of that number, over which both sides tell each other of their queue pairs; all else is between those.
pub struct Listener {
    tcp: TcpListener,
    address: SocketAddr,
    options: Options,
}

impl Listener {
    /// Listens at this address, with the default options; at a free port if it is 0.
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
        let tcp = TcpListener::bind(address).map_err(bootstrap::not_bound)?;
        let address = tcp.local_addr().map_err(bootstrap::not_bound)?;
        Ok(Listener { tcp, address, options: bootstrap::listening(address, options)? })
    }

    /// Where it listens.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a connection. Several threads may.
    ///
    /// A peer that fails to become one, or doesn't in [time](Options::connect_timeout), is logged, and the wait goes on.
    ///
    /// # Errors
    ///
    /// If no more can be accepted: the system has too few descriptors, for one.
    pub fn accept(&self) -> Result<Connection> {
        loop {
            let (stream, peer) = self.tcp.accept().map_err(bootstrap::not_accepted)?;
            match self.answer(stream, peer) {
                Ok(connection) => return Ok(connection),
                Err(error) => tracing::warn!(%peer, %error, "a peer could not be connected"),
            }
        }
    }

    fn answer(&self, stream: TcpStream, peer: SocketAddr) -> Result<Connection> {
        let deadline = Deadline::new(self.options.connect_timeout);
        let unreachable = |error| bootstrap::unreachable(peer, error);
        let local = stream.local_addr().map_err(unreachable)?;
        let mut stream = Timed { stream, deadline };
        let greeting = read_greeting(&mut stream).map_err(unreachable)?;
        let answered = bootstrap::answer(local, peer, &self.options, greeting);
        stream.write_all(&bootstrap::answer_greeting(&answered).emit()).map_err(unreachable)?;
        established(answered?, &deadline)
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Waits for the peer's hello.
fn established(link: Link, deadline: &Deadline) -> Result<Connection> {
    link.wait(deadline.left(), "waiting for the peer's hello", |link, state| link.is_established(state))?;
    Ok(Connection { link })
}

/// Reads what a peer says over TCP.
fn read_greeting(stream: &mut impl Read) -> io::Result<Result<Greeting, Flaw>> {
    let mut prefix = [0; PREFIX_LEN];
    stream.read_exact(&mut prefix)?;
    let prefix = match Prefix::parse(&prefix) {
        Ok(prefix) => prefix,
        Err(flaw) => return Ok(Err(flaw)),
    };
    let mut body = vec![0; prefix.len];
    stream.read_exact(&mut body)?;
    Ok(Greeting::parse(prefix, &body))
}

/// A stream whose every byte has to come before a deadline.
struct Timed {
    stream: TcpStream,
    deadline: Deadline,
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(at_least_a_moment(&self.deadline)))?;
        self.stream.read(bytes)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(at_least_a_moment(&self.deadline)))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// What is left, in a form that sockets take: they don't know zero, nor for ever.
fn at_least_a_moment(deadline: &Deadline) -> Duration {
    deadline.left().clamp(Duration::from_millis(1), Duration::from_secs(1 << 20))
}

/// A connection to a peer: messages of any length from 0 to 1 GiB, in order, both ways. May be used by many threads.
///
/// Sending waits while the peer has no room; so a receiver that is slow slows the sender, and memory stays bounded. Dropping
/// it ends it at once; [`close`](Connection::close) first sees to it that the peer has all.
///
/// ```
/// use adverb::net::blocking::{Listener, connect};
///
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let address = listener.local_address();
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
    link: Link,
}

impl Connection {
    /// Sends a message. Returns when it is on its way, which doesn't mean that the peer has it.
    ///
    /// Bytes are copied. A [`RegisteredBuf`](crate::memory::RegisteredBuf) (from this connection's [`pool`](Connection::pool),
    /// say, or a [`Message`] that came) isn't, if it is long: the peer reads it from where it is.
    ///
    /// # Errors
    ///
    /// If the connection has ended, or there is no room within the options' [`timeout`](Options::timeout), or no memory. A
    /// buffer comes back with the error, unless the message was taken: after a timeout it may have been, and is then sent once
    /// there is room.
    pub fn send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        self.send_timeout(message.into(), None, self.link.options.timeout)
    }

    /// Sends a message with 32 bits beside it.
    ///
    /// # Errors
    ///
    /// As [`send`](Connection::send).
    pub fn send_with_imm<'a>(
        &self,
        message: impl Into<Outgoing<'a>>,
        immediate: u32,
    ) -> Result<(), SendError> {
        self.send_timeout(message.into(), Some(immediate), self.link.options.timeout)
    }

    /// Sends a message, if there is room for it now.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](crate::Error::WouldBlock) if there is none; if the connection has ended.
    pub fn try_send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        let ready = self.link.ready(message.into(), None)?;
        let mut state = self.link.lock();
        self.link.drive_unless_led(&mut state);
        self.link.try_send_now(&mut state, ready)
    }

    fn send_timeout(
        &self,
        message: Outgoing<'_>,
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
    pub fn pool(&self) -> &Pool {
        self.link.pool()
    }

    /// The peer's address.
    pub fn peer_address(&self) -> SocketAddr {
        self.link.peer()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer_address()).finish_non_exhaustive()
    }
}
