//! A connection that is being established, on either side.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use adverb_proto::types::Endpoint;

use super::failure;
use super::{Connection, Deadline, Path};
use crate::backend::connection_manager::{Depths, Event, Identifier};
use crate::backend::{ReadyToReceive, StateChange};
use crate::error::{ConnectStage, Error, Result};
use crate::queue_pair::{ConnectOptions, QueuePair};

/// A connection that is being established.
///
/// [`Route::begin_connect`](super::Route::begin_connect) and
/// [`ConnectRequest::begin_accept`](super::ConnectRequest::begin_accept) return a pending connection. Its file
/// descriptor is readable when [`poll`](PendingConnection::poll) may make progress. Dropping a pending connection
/// cancels it: the peer is notified, and the queue pair is destroyed.
#[must_use = "a pending connection makes progress only when it is polled or waited for"]
pub struct PendingConnection {
    // Fields are dropped in this order: the queue pair is destroyed before the connection ends.
    queue_pair: Option<QueuePair>,
    identifier: Arc<Identifier>,
    path: Option<Path>,
    /// The peer's queue pair, once it is known.
    peer: Option<Endpoint>,
    role: Role,
    deadline: Deadline,
}

/// The side of the connection.
pub(super) enum Role {
    /// The connector: its queue pair becomes ready when the peer accepts.
    Active { options: ConnectOptions, depths: Depths },
    /// The listener: its queue pair is ready. The private data is that of the request.
    Passive { private_data: Vec<u8> },
}

impl PendingConnection {
    pub(super) fn new(
        queue_pair: QueuePair,
        identifier: Arc<Identifier>,
        path: Path,
        role: Role,
        deadline: Deadline,
    ) -> PendingConnection {
        let (queue_pair, path) = (Some(queue_pair), Some(path));
        PendingConnection { queue_pair, identifier, path, peer: None, role, deadline }
    }

    /// Returns the connection if it is established, without blocking.
    ///
    /// Call this method when the file descriptor is readable, and at the [deadline](PendingConnection::deadline). Drop
    /// this value after `poll` has returned the connection.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unreachable`] if the peer has not replied by the deadline, [`Error::CmRejected`] if the peer
    /// rejected the request, and the device's error if the queue pair can't be connected. After an error the queue pair
    /// is destroyed.
    pub fn poll(&mut self) -> Result<Option<Connection>> {
        let Some((queue_pair, path)) = self.queue_pair.take().zip(self.path.take()) else {
            let reason = "the pending connection has already returned its result";
            return Err(Error::InvalidRequest { reason: reason.into() });
        };
        match self.advance(&queue_pair, &path)? {
            Some(private_data) => {
                let identifier = Arc::clone(&self.identifier);
                Ok(Some(Connection::new(queue_pair, identifier, path, self.peer, private_data)))
            }
            None => {
                (self.queue_pair, self.path) = (Some(queue_pair), Some(path));
                Ok(None)
            }
        }
    }

    /// Handles the events that have arrived. Returns the peer's private data once the connection is established.
    fn advance(&mut self, queue_pair: &QueuePair, path: &Path) -> Result<Option<Vec<u8>>> {
        let peer = path.peer_addr();
        let stage = match self.role {
            Role::Active { .. } => ConnectStage::Request,
            Role::Passive { .. } => ConnectStage::Acceptance,
        };
        while let Some(event) = self.identifier.try_event()? {
            match (event, &mut self.role) {
                (Event::Response { private_data }, Role::Active { options, depths }) => {
                    let ready = make_ready(queue_pair, &self.identifier, options, *depths);
                    match ready.and_then(|peer| self.identifier.establish().map(|()| peer)) {
                        Ok(peer) => self.peer = Some(peer),
                        Err(error) => {
                            // The peer has accepted the connection, and waits for this side.
                            let _ = self.identifier.reject(&[]);
                            return Err(error);
                        }
                    }
                    return Ok(Some(private_data));
                }
                (Event::Established, Role::Passive { private_data }) => {
                    return Ok(Some(std::mem::take(private_data)));
                }
                (Event::Rejected { reason, private_data }, _) => {
                    return Err(failure::rejected(peer, reason, private_data));
                }
                (Event::Failed(error), _) => return Err(failure::unreachable(peer, stage, error)),
                (Event::Disconnected, _) => return Err(failure::connection_reset(peer, stage)),
                (Event::DeviceRemoved, _) => {
                    return Err(failure::device_removed(format!("connecting to {peer}")));
                }
                _ => {}
            }
        }
        if self.deadline.left().is_zero() {
            return Err(failure::timed_out(peer, stage, &self.deadline));
        }
        Ok(None)
    }

    /// Waits until the connection is established.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`poll`](PendingConnection::poll).
    pub fn wait(mut self) -> Result<Connection> {
        loop {
            if let Some(connection) = self.poll()? {
                return Ok(connection);
            }
            self.identifier.wait(Some(self.deadline.left()))?;
        }
    }

    /// Returns the time at which the attempt to connect fails.
    pub fn deadline(&self) -> Instant {
        self.deadline.at()
    }
}

event_source!(PendingConnection);

impl fmt::Debug for PendingConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PendingConnection").field(&self.path).finish()
    }
}

/// Returns the maximum numbers of READs and atomics that this side and the peer may have outstanding.
pub(super) fn depths(queue_pair: &QueuePair, options: &ConnectOptions) -> Depths {
    let attributes = queue_pair.protection_domain().device().attributes();
    let requested = options.max_rd_atomic.unwrap_or(16);
    Depths {
        max_dest_rd_atomic: requested.min(attributes.max_dest_rd_atomic),
        max_rd_atomic: requested.min(attributes.max_rd_atomic),
    }
}

/// Moves a queue pair to RTS with the attributes that both sides agreed on. Returns the peer's endpoint.
pub(super) fn make_ready(
    queue_pair: &QueuePair,
    identifier: &Identifier,
    options: &ConnectOptions,
    depths: Depths,
) -> Result<Endpoint> {
    let (mut remote, mut send) = identifier.qp_attributes(queue_pair.transport())?;
    // The peer's values are limited to the values that this side supports.
    remote.max_dest_rd_atomic = remote.max_dest_rd_atomic.min(depths.max_dest_rd_atomic);
    send.max_rd_atomic = send.max_rd_atomic.min(depths.max_rd_atomic);
    remote.mtu = remote.mtu.min(queue_pair.source.port.active_mtu).min(options.mtu.unwrap_or(remote.mtu));
    // The connection manager's defaults are an RNR timer of 655 ms, and an ACK timeout of 2 s if it has no better
    // value.
    remote.min_rnr_timer = options.min_rnr_timer;
    send.timeout = options.ack_timeout;
    send.retry_count = options.retry_count;
    send.rnr_retry = options.rnr_retry;
    queue_pair.source.traffic(options.traffic).apply(&mut remote.address);
    queue_pair.psn.store(send.psn.get(), Ordering::Relaxed);
    let mut peer = Endpoint::new(remote.address.gid, remote.qpn, remote.psn);
    peer.lid = remote.address.lid;
    peer.mtu = remote.mtu.bytes();
    let (transport, connection) = (queue_pair.transport(), Some(remote));
    queue_pair.change(&StateChange::ReadyToReceive(ReadyToReceive { transport, connection }))?;
    queue_pair.change(&StateChange::ReadyToSend(send))?;
    Ok(peer)
}
