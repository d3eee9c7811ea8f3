//! A queue pair that is connected, and what becomes of the connection.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Deadline, Path};
use crate::backend::connection_manager::{Event, Identifier};
use crate::error::{Error, Result};
use crate::{Endpoint, QueuePair};

/// A queue pair that is connected to a peer's, by the connection manager.
///
/// Dropping it ends the connection: the queue pair is destroyed, and the peer is told, once and without waiting. What
/// was posted and isn't complete is lost then. [`close`](Connection::close) waits for the peer's answer, and repeats
/// itself until there is one.
///
/// A peer that dies says nothing: only requests that fail tell of that.
pub struct Connection {
    // Dropped in this order: nobody uses a queue pair of a connection that is over.
    queue_pair: QueuePair,
    identifier: Arc<Identifier>,
    path: Path,
    /// The peer's queue pair, if this side asked for the connection: who accepted knew it before.
    peer: Option<Endpoint>,
    private_data: Vec<u8>,
    /// Neither side has asked for its end.
    connected: AtomicBool,
    /// The other side has asked for its end, or agreed to it.
    ended: AtomicBool,
}

/// What became of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// It has ended: the peer ended it, or agreed to its end. The queue pair is in the error state, and its requests come
    /// back flushed.
    Disconnected,
    /// The device is going away, and waits until all that was made from it is dropped.
    DeviceRemoved,
    /// The address moved to another network interface, as with a bond that fails over. The connection may still work, or
    /// not any more.
    AddressChanged,
    /// Packets of the ended connection can't come any more.
    TimewaitOver,
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

    /// Its parts, for who looks after the queue pair otherwise: that, what holds the connection up, what is known of the peer's
    /// queue pair, and what the peer sent along.
    pub(crate) fn into_parts(self) -> (QueuePair, CmHandle, Option<Endpoint>, Vec<u8>) {
        (self.queue_pair, CmHandle(self.identifier), self.peer, self.private_data)
    }

    /// The queue pair: ready to send.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Between which addresses, and over which device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the peer sent along when it asked or accepted; zeros follow it.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Whether neither side has ended it, as far as was [seen](Connection::try_event).
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    /// Takes an event, if there is one. Call it when the descriptor is readable.
    ///
    /// Taking [`Disconnected`](ConnectionEvent::Disconnected) answers the peer, and moves the queue pair to the error
    /// state.
    ///
    /// # Errors
    ///
    /// If the connection manager can't be asked.
    pub fn try_event(&self) -> Result<Option<ConnectionEvent>> {
        while let Some(event) = self.identifier.try_event()? {
            return Ok(Some(match event {
                Event::Disconnected => {
                    // Answers the peer; without effect if this side began.
                    let _ = self.identifier.disconnect();
                    self.ended.store(true, Ordering::Release);
                    if self.connected.swap(false, Ordering::AcqRel)
                        && let Err(error) = self.queue_pair.move_to_error()
                    {
                        tracing::warn!(%error, "the queue pair of an ended connection couldn't be stopped");
                    }
                    ConnectionEvent::Disconnected
                }
                Event::DeviceRemoved => ConnectionEvent::DeviceRemoved,
                Event::AddressChanged => ConnectionEvent::AddressChanged,
                Event::TimewaitOver => ConnectionEvent::TimewaitOver,
                // A second response, say, of a peer that missed our answer: the kernel has dealt with it.
                _ => continue,
            }));
        }
        Ok(None)
    }

    /// Waits for an event; `None` if none came in time.
    ///
    /// # Errors
    ///
    /// As [`try_event`](Connection::try_event).
    pub fn wait_event(&self, timeout: Duration) -> Result<Option<ConnectionEvent>> {
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

    /// Ends the connection: moves the queue pair to the error state, in which its requests come back flushed, and tells
    /// the peer, without waiting for its answer: that comes as
    /// [`Disconnected`](ConnectionEvent::Disconnected). Ending it again does nothing.
    ///
    /// # Errors
    ///
    /// If the queue pair or the connection manager refuses.
    pub fn disconnect(&self) -> Result<()> {
        if !self.connected.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let failed = self.queue_pair.move_to_error();
        self.identifier.disconnect()?;
        failed
    }

    /// Ends the connection, and waits until the peer has answered, or has ended it itself.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if there is no answer in time, and as [`disconnect`](Connection::disconnect). The connection is
    /// gone in any case.
    pub fn close(self, timeout: Duration) -> Result<()> {
        self.disconnect()?;
        let deadline = Deadline::new(timeout);
        while !self.ended.load(Ordering::Acquire) {
            if self.wait_event(deadline.left())?.is_none() {
                return Err(Error::Timeout { timeout, waiting: "waiting for a peer to disconnect" });
            }
        }
        Ok(())
    }
}

event_source!(Connection);

/// Holds a connection up whose queue pair somebody else has. Dropping it, after the queue pair, ends it: the peer is told,
/// once.
pub struct CmHandle(Arc<Identifier>);

impl CmHandle {
    /// Readable when there may be something to know of the connection.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.0.event_fd()
    }

    /// Whether the peer has ended the connection, or the device is going away.
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
