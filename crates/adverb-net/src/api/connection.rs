//! The methods of a connection: messages, and its end.

macro_rules! connection {
    ($(tasks $async:tt $await:tt #[$tasks:meta])? $(threads #[$threads:meta])?) => { mod connection {

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use adverb_verbs::memory::Pool;

use super::Connection;
use crate::driver::{Driver, Outgoing, Sent};
use crate::error::{ConnectionError, RecvError, SendError};
#[allow(unused_imports, reason = "for links")]
use crate::error::SendErrorKind;
use crate::message::{Message, SendData, UnacknowledgedMessage};
#[allow(unused_imports, reason = "for links")]
use crate::options::Options;

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
    /// - Returns [`SendErrorKind::ConnectionLost`] if the connection has ended.
    /// - Returns [`SendErrorKind::ShutDown`] if this side has [shut down](Connection::shutdown) sending.
    /// - Returns [`SendErrorKind::TimedOut`] if the peer grants no credits within [`Options::timeout`].
    /// - Returns [`SendErrorKind::TooLong`] if the message is longer than the peer's [`Options::max_message_size`]. The
    ///   connection remains usable.
    /// - Returns [`SendErrorKind::Memory`] if memory for the message cannot be allocated or registered.
    ///
    /// The error contains the pool buffer, unless the connection has queued the message or could not register the
    /// buffer. After a timeout, the message may be queued: the connection then sends it when the peer grants credits.
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, either the whole message is sent, or none of it. A message that the connection has
    /// queued is sent when the peer has granted credits and a call uses the connection.
    )?
    pub $($async)? fn send<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendError> {
        self.send_message(message.into(), None, self.driver.options.timeout)$(.$await)?
    }

    /// Sends a message with 32 bits of immediate data.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Connection::send).
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// Dropping the future has the same effect as for [`send`](Connection::send).
    )?
    pub $($async)? fn send_with_imm<'a>(
        &self,
        message: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<(), SendError> {
        self.send_message(message.into(), Some(immediate), self.driver.options.timeout)$(.$await)?
    }

    /// Sends a message like [`send`](Connection::send), but waits no longer than `timeout` for credits. The time counts
    /// again if the connection [reconnects](Options::reconnect) meanwhile.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Connection::send).
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// Dropping the future has the same effect as for [`send`](Connection::send).
    )?
    pub $($async)? fn send_timeout<'a>(
        &self,
        message: impl Into<SendData<'a>>,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<(), SendError> {
        self.send_message(message.into(), None, timeout.into().unwrap_or(Duration::MAX))$(.$await)?
    }

    /// Queues a message for coalescing with others. For many consecutive short messages, this method uses far less CPU
    /// time than [`send`](Connection::send).
    ///
    /// Queued messages are sent when enough are queued, with the next [`send`](Connection::send), when a call waits on
    /// this connection, or by [`flush`](Connection::flush). Until then the peer does not receive them.
    $(#[$threads]
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
    )?
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Connection::send).
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the message may or may not be queued.
    )?
    pub $($async)? fn feed<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendError> {
        let mut outgoing = Some(self.driver.prepare(message.into(), None)?);
        loop {
            let fed = self.wait(self.driver.options.timeout, |driver, core| driver.feed(core, &mut outgoing));
            match fed$(.$await)? {
                Ok(Sent::Posted) => return Ok(()),
                Ok(Sent::Stale) => outgoing = self.driver.prepare_again(outgoing)?,
                Err(kind) => return Err(Outgoing::into_error(outgoing, kind)),
            }
        }
    }

    /// Waits until all messages queued by [`feed`](Connection::feed) are in flight.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Connection::send).
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// Dropping the future loses no message.
    )?
    pub $($async)? fn flush(&self) -> Result<(), SendError> {
        let write = self.driver.last_write();
        let posted = self.wait(self.driver.options.timeout, |driver, core| driver.is_posted(core, write));
        Ok(posted$(.$await)??)
    }

    /// Sends a message without waiting, if the peer has granted credits for it.
    ///
    /// # Errors
    ///
    /// Returns [`SendErrorKind::WouldBlock`] if there are no credits, and the other errors of [`send`](Connection::send)
    /// except [`SendErrorKind::TimedOut`].
    pub fn try_send<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendError> {
        let outgoing = self.driver.prepare(message.into(), None)?;
        let mut core = self.driver.lock();
        self.driver.drive(&mut core);
        self.driver.try_send(&mut core, outgoing)
    }

    $($async)? fn send_message(
        &self,
        message: SendData<'_>,
        immediate: Option<u32>,
        timeout: Duration,
    ) -> Result<(), SendError> {
        let mut outgoing = Some(self.driver.prepare(message, immediate)?);
        let mut write = None;
        loop {
            let sent = self.wait(timeout, |driver, core| driver.send(core, &mut outgoing, &mut write));
            match sent$(.$await)? {
                Ok(Sent::Posted) => return Ok(()),
                Ok(Sent::Stale) => outgoing = self.driver.prepare_again(outgoing)?,
                Err(kind) => return Err(Outgoing::into_error(outgoing, kind)),
            }
        }
    }

    /// Waits for a message, and returns it. Returns `None` after the last message, when the peer has shut down or
    /// closed the connection.
    ///
    /// # Errors
    ///
    /// - Returns [`RecvError::ConnectionLost`] if the connection has ended in any other way.
    /// - Returns [`RecvError::TimedOut`] if no message arrives within [`Options::timeout`].
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// Dropping the future loses no message.
    )?
    pub $($async)? fn recv(&self) -> Result<Option<Message>, RecvError> {
        self.wait(self.driver.options.timeout, Driver::try_recv)$(.$await)?
    }

    /// Waits for a message, but no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`recv`](Connection::recv).
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// Dropping the future loses no message.
    )?
    pub $($async)? fn recv_timeout(
        &self,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Option<Message>, RecvError> {
        self.wait(timeout.into().unwrap_or(Duration::MAX), Driver::try_recv)$(.$await)?
    }

    /// Waits until the connection has ended, and returns the reason. Other callers may use the connection
    /// meanwhile.
    ///
    /// While more than [`Options::recv_buffer_limit`] bytes of messages wait to be received, the connection does not
    /// notice that the peer has closed it.
    $(#[$tasks]
    /// If the runtime shuts down, the method returns [`ConnectionError::System`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the connection.
    )?
    pub $($async)? fn closed(&self) -> ConnectionError {
        self.wait(Duration::MAX, Driver::end)$(.$await)?.unwrap_or_else(|error| error)
    }

    /// Shuts down the sending direction: the peer's [`recv`](Connection::recv) returns `None` after all sent messages.
    /// This side can still receive.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Connection::send).
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the direction may or may not be shut down. The method can be called again, and returns
    /// [`SendErrorKind::ShutDown`] if the direction is already shut down.
    )?
    pub $($async)? fn shutdown(&self) -> Result<(), SendError> {
        self.driver.begin_shutdown()?;
        let flushed = self.wait(self.driver.options.timeout, |driver, core| driver.is_flushed(core));
        Ok(flushed$(.$await)??)
    }

    /// Waits until the peer has received all sent messages, and closes the connection for all clones. Messages that this
    /// side has not received yet are discarded, and other calls fail from now on, also those that wait.
    ///
    /// Eager messages count as received when they are in the peer's memory, even if its program has not read them yet.
    /// A rendezvous message counts as received when the peer has read it. The peer's program can receive these messages
    /// after the close, until it closes or drops the connection itself. A peer whose handshake has exceeded
    /// [`Options::connect_timeout`] discards them. Let the peer reply if you need to know that it has processed a message.
    ///
    /// # Errors
    ///
    /// - Returns [`ConnectionError::CloseTimedOut`] if the peer does not receive everything within
    ///   [`Options::connect_timeout`].
    /// - Returns [`ConnectionError::PeerClosed`] if the peer closes the connection without some of the messages.
    /// - Returns the reason of the end if the connection has already ended in another way, or ends in another way.
    ///
    /// A further call waits for the same close.
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the connection is closing, and another call can wait for the close. Dropping the last
    /// clone aborts the connection.
    )?
    pub $($async)? fn close(&self) -> Result<(), ConnectionError> {
        self.driver.begin_close();
        // The connection has its own time limit.
        self.wait(Duration::MAX, Driver::is_closed)$(.$await)?
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

    /// Returns the address of this side's device: its IP address, and the UDP port of its RoCE packets. It changes if
    /// the connection [reconnects](Options::reconnect) over another device.
    pub fn local_addr(&self) -> SocketAddr {
        self.driver.lane().local_addr()
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.driver.peer()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer_addr()).finish_non_exhaustive()
    }
}

    } };
}
pub(crate) use connection;
