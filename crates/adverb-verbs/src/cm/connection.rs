//! An established connection and its events.

use std::fmt;
use std::os::fd::BorrowedFd;
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
    identifier: Arc<Identifier>,
    path: Path,
    /// The peer's queue pair, if this side is the connector; a listener gets it when it accepts.
    peer: Option<Endpoint>,
    private_data: Vec<u8>,
    /// Whether neither side has disconnected.
    connected: AtomicBool,
    /// Whether the peer has disconnected, or has replied to this side's disconnect request.
    ended: AtomicBool,
}

/// A change of a connection's state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// The peer disconnected, or replied to this side's disconnect request. The queue pair is in the error state, and
    /// its outstanding requests are flushed.
    Disconnected,
    /// The device is being removed. The removal waits until all objects that were created from the device have been
    /// dropped.
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
        Connection { queue_pair, identifier, path, peer, private_data, connected, ended }
    }

    /// Splits the connection into its queue pair, the handle that keeps it connected, the peer's queue pair if it is
    /// known, and the peer's private data.
    pub(crate) fn into_parts(self) -> (QueuePair, CmHandle, Option<Endpoint>, Vec<u8>) {
        (self.queue_pair, CmHandle(self.identifier), self.peer, self.private_data)
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
        self.connected.load(Ordering::Acquire)
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
        while let Some(event) = self.identifier.try_event()? {
            return Ok(Some(match event {
                Event::Disconnected => {
                    // This replies to the peer. It has no effect if this side disconnected first.
                    let _ = self.identifier.disconnect();
                    self.ended.store(true, Ordering::Release);
                    if self.connected.swap(false, Ordering::AcqRel)
                        && let Err(error) = self.queue_pair.move_to_error()
                    {
                        tracing::warn!(error = %WithCauses(&error), "moving the queue pair of an ended connection to the error state failed");
                    }
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
            self.identifier.wait(Some(left))?;
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
        if !self.connected.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let moved = self.queue_pair.move_to_error();
        self.identifier.disconnect()?;
        moved
    }

    /// Disconnects, and waits until the peer has replied or has disconnected too.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Timeout`] if the peer doesn't reply in time, and the same errors as
    /// [`disconnect`](Connection::disconnect). The connection is dropped in any case.
    pub fn close(self, timeout: impl Into<Option<Duration>>) -> Result<()> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        self.disconnect()?;
        let deadline = Deadline::new(timeout);
        while !self.ended.load(Ordering::Acquire) {
            if self.wait_event(deadline.left())?.is_none() {
                return Err(Error::Timeout { timeout, action: "waiting for the peer to disconnect".into() });
            }
        }
        Ok(())
    }
}

event_source!(Connection);

/// A handle that keeps a connection established whose queue pair has another owner. Dropping the handle, after the
/// queue pair, sends the peer one disconnect request.
pub struct CmHandle(Arc<Identifier>);

impl CmHandle {
    /// Returns a file descriptor that is readable when the connection may have an event.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.0.event_fd()
    }

    /// Whether the peer has disconnected, or the device is being removed.
    pub fn has_ended(&self) -> Result<bool> {
        while let Some(event) = self.0.try_event()? {
            if let Event::Disconnected | Event::DeviceRemoved = event {
                return Ok(true);
            }
        }
        Ok(false)
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
