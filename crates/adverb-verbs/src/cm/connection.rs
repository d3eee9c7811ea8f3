//! An established connection and its events.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adverb_proto::types::Endpoint;

use super::{Deadline, Path};
use crate::backend::connection_manager::{Event, Identifier};
use crate::error::{Error, Result, WithCauses};
use crate::queue_pair::QueuePair;

/// A queue pair that the connection manager has connected to a peer's queue pair.
///
/// Dropping a connection disconnects: it destroys the queue pair, discards the outstanding requests, and sends the peer
/// one disconnect request, without retransmission. [`close`](Connection::close) retransmits the disconnect request
/// until the peer replies.
///
/// The connection manager doesn't detect a peer that crashed. Requests to such a peer fail.
pub struct Connection {
    // Fields are dropped in this order: the queue pair is destroyed before the connection ends.
    queue_pair: QueuePair,
    handle: CmHandle,
    path: Path,
    peer: Option<Endpoint>,
    private_data: Vec<u8>,
}

/// The parts of a [`Connection`], returned by [`Connection::into_parts`].
///
/// The parts can be dropped in any order. Dropping the handle disconnects, and dropping the queue pair ends its
/// communication.
#[derive(Debug)]
#[non_exhaustive]
pub struct ConnectionParts {
    // The queue pair is dropped before the handle, as in a connection.
    /// The queue pair, which is ready to send unless the connection has ended.
    pub queue_pair: QueuePair,
    /// The handle that keeps the queue pair connected.
    pub handle: CmHandle,
    /// The addresses and the device of the connection.
    pub path: Path,
    /// The peer's queue pair, if this side is the connector.
    pub peer: Option<Endpoint>,
    /// The private data that the peer sent when it connected or accepted, padded with zeros.
    pub private_data: Vec<u8>,
}

/// A change of a connection's state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// The peer disconnected, or replied to this side's disconnect request. The queue pair of a [`Connection`] is in the
    /// error state, and its outstanding requests are flushed.
    Disconnected,
    /// The device is being removed. What happens next depends on its driver. A driver may take the device away at once:
    /// calls that use it then return [`Error::DeviceFailed`]. Another driver, such as that of Linux soft-RoCE (rxe), cannot
    /// do that: the device works, and its removal waits, until all handles to the device and all objects that were created
    /// from them have been dropped. No device of the software NIC is removed.
    DeviceRemoved,
    /// The local address moved to another network interface, for example in a failover of a bond. The connection may or
    /// may not still work.
    AddressChanged,
    /// The connection has left the timewait state: no more packets of the connection can arrive.
    TimewaitExit,
}

impl Connection {
    pub(super) fn new(
        queue_pair: QueuePair,
        identifier: Arc<Identifier>,
        path: Path,
        peer: Option<Endpoint>,
        private_data: Vec<u8>,
    ) -> Connection {
        let (connected, ended) = (AtomicBool::new(true), AtomicBool::new(false));
        let handle = CmHandle { identifier, connected, ended };
        Connection { queue_pair, handle, path, peer, private_data }
    }

    /// Splits the connection into its parts, for programs that keep the queue pair in a structure of their own.
    ///
    /// The caller then handles the events: when the handle's [`try_event`](CmHandle::try_event) returns
    /// [`Disconnected`](ConnectionEvent::Disconnected), the queue pair is still ready to send, but the peer no longer
    /// answers.
    ///
    /// ```no_run
    /// # use adverb::verbs::cm::{Connection, ConnectionEvent, ConnectionParts};
    /// # fn example(connection: Connection) -> adverb::verbs::Result<()> {
    /// let ConnectionParts { queue_pair, handle, .. } = connection.into_parts();
    /// // … when the handle's descriptor is readable:
    /// while let Some(event) = handle.try_event()? {
    ///     if event == ConnectionEvent::Disconnected {
    ///         queue_pair.move_to_error()?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_parts(self) -> ConnectionParts {
        let Connection { queue_pair, handle, path, peer, private_data } = self;
        ConnectionParts { queue_pair, handle, path, peer, private_data }
    }

    /// Returns the queue pair, which is ready to send.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Returns the addresses and the device of the connection.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the private data that the peer sent when it connected or accepted, padded with zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Whether neither side has disconnected. The method ignores a disconnect by the peer until
    /// [`try_event`](Connection::try_event) or [`wait_event`](Connection::wait_event) has returned that event.
    pub fn is_connected(&self) -> bool {
        self.handle.is_connected()
    }

    /// Returns the next event, if there is one, without blocking. Call this method when the file descriptor is
    /// readable.
    ///
    /// If the event is [`Disconnected`](ConnectionEvent::Disconnected), the call replies to the peer and moves the
    /// queue pair to the error state.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the connection manager's events can't be read.
    pub fn try_event(&self) -> Result<Option<ConnectionEvent>> {
        let was_connected = self.handle.is_connected();
        let event = self.handle.try_event()?;
        if event == Some(ConnectionEvent::Disconnected)
            && was_connected
            && let Err(error) = self.queue_pair.move_to_error()
        {
            tracing::warn!(error = %WithCauses(&error), "moving the queue pair of an ended connection to the error state failed");
        }
        Ok(event)
    }

    /// Waits for the next event. Returns `None` if the timeout expires first.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`try_event`](Connection::try_event).
    pub fn wait_event(&self, timeout: impl Into<Option<Duration>>) -> Result<Option<ConnectionEvent>> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        let deadline = Deadline::new(timeout);
        loop {
            if let Some(event) = self.try_event()? {
                return Ok(Some(event));
            }
            let left = deadline.left();
            if left.is_zero() {
                return Ok(None);
            }
            self.handle.identifier.wait(Some(left))?;
        }
    }

    /// Disconnects: moves the queue pair to the error state, which flushes its outstanding requests, and sends the peer
    /// a disconnect request.
    ///
    /// The call doesn't wait for the peer's reply, which the event [`Disconnected`](ConnectionEvent::Disconnected)
    /// reports. Further calls have no effect.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the queue pair can't be moved to the error state, or the disconnect request can't be
    /// sent.
    pub fn disconnect(&self) -> Result<()> {
        if !self.handle.connected.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let moved = self.queue_pair.move_to_error();
        self.handle.identifier.disconnect()?;
        moved
    }

    /// Disconnects, and waits until the peer has replied or has disconnected too.
    ///
    /// # Errors
    ///
    /// Returns [`Error::TimedOut`] if the peer doesn't reply in time, and the same errors as
    /// [`disconnect`](Connection::disconnect). The connection is dropped in any case.
    pub fn close(self, timeout: impl Into<Option<Duration>>) -> Result<()> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        self.disconnect()?;
        let deadline = Deadline::new(timeout);
        while !self.handle.ended.load(Ordering::Acquire) {
            if self.wait_event(deadline.left())?.is_none() {
                return Err(Error::TimedOut { timeout, action: "waiting for the peer to disconnect".into() });
            }
        }
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.handle.as_raw_fd()
    }
}

/// A handle that keeps a queue pair connected which has another owner, returned by [`Connection::into_parts`]. Its file
/// descriptor is readable when there is an event.
///
/// Dropping the handle disconnects: it sends the peer one disconnect request, without retransmission, and does not change
/// the queue pair.
pub struct CmHandle {
    identifier: Arc<Identifier>,
    /// Whether neither side has disconnected.
    connected: AtomicBool,
    /// Whether the peer has disconnected, or has replied to this side's disconnect request.
    ended: AtomicBool,
}

impl CmHandle {
    /// Whether neither side has disconnected. The method ignores a disconnect by the peer until
    /// [`try_event`](CmHandle::try_event) has returned that event.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    /// Returns the next event, if there is one, without blocking. Call this method when the file descriptor is
    /// readable.
    ///
    /// If the event is [`Disconnected`](ConnectionEvent::Disconnected), the call replies to the peer. It does not move
    /// the queue pair to the error state.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the connection manager's events can't be read.
    pub fn try_event(&self) -> Result<Option<ConnectionEvent>> {
        while let Some(event) = self.identifier.try_event()? {
            return Ok(Some(match event {
                Event::Disconnected => {
                    // This replies to the peer. It has no effect if this side disconnected first.
                    let _ = self.identifier.disconnect();
                    self.ended.store(true, Ordering::Release);
                    self.connected.store(false, Ordering::Release);
                    ConnectionEvent::Disconnected
                }
                Event::DeviceRemoved => ConnectionEvent::DeviceRemoved,
                Event::AddressChanged => ConnectionEvent::AddressChanged,
                Event::TimewaitExit => ConnectionEvent::TimewaitExit,
                // For example, the peer missed this side's RTU and retransmitted its reply, which the kernel handles.
                _ => continue,
            }));
        }
        Ok(None)
    }
}

event_source!(CmHandle);

impl fmt::Debug for CmHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmHandle").field("connected", &self.is_connected()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("path", &self.path)
            .field("queue_pair", &self.queue_pair)
            .field("connected", &self.is_connected())
            .finish_non_exhaustive()
    }
}
