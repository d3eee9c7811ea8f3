//! Between request and connection, at either side.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::failure::{self, Stage};
use super::{Connection, Deadline, Path};
use crate::backend::connection_manager::{Depths, Event, Identifier};
use crate::backend::{ReadyToReceive, StateChange};
use crate::error::{Error, Result};
use crate::{ConnectOptions, Endpoint, QueuePair};

/// On the way to a connection: the peer was asked, or accepted.
///
/// Dropping it gives up: the peer is told, and the queue pair is destroyed.
#[must_use = "nothing comes of it unless it is polled or waited for"]
pub struct PendingConnection {
    // Dropped in this order: nobody uses a queue pair of a connection that is over.
    queue_pair: Option<QueuePair>,
    identifier: Arc<Identifier>,
    path: Option<Path>,
    /// The peer's queue pair, once it is known.
    peer: Option<Endpoint>,
    role: Role,
    deadline: Deadline,
}

/// Which side this is.
pub(super) enum Role {
    /// It asked: the queue pair becomes ready when the peer accepts.
    Active { options: ConnectOptions, depths: Depths },
    /// It accepted, with a queue pair that is ready; the request came with private data.
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

    /// The connection, if it is there by now. Call it when the descriptor is readable, and at the latest at the
    /// [deadline](PendingConnection::deadline); and drop this once it has given the connection.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if there is no answer and the deadline has passed, [`Error::Rejected`] if the peer says
    /// no, and if the queue pair can't be connected. The queue pair is gone then.
    pub fn poll(&mut self) -> Result<Option<Connection>> {
        let Some((queue_pair, path)) = self.queue_pair.take().zip(self.path.take()) else {
            let reason = "the connection was given already, or there is none";
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

    /// The peer's private data, once there is a connection.
    fn advance(&mut self, queue_pair: &QueuePair, path: &Path) -> Result<Option<Vec<u8>>> {
        let peer = path.peer_addr();
        let stage = match self.role {
            Role::Active { .. } => Stage::Request,
            Role::Passive { .. } => Stage::Acceptance,
        };
        while let Some(event) = self.identifier.try_event()? {
            match (event, &mut self.role) {
                (Event::Response { private_data }, Role::Active { options, depths }) => {
                    let ready = make_ready(queue_pair, &self.identifier, options, *depths);
                    match ready.and_then(|peer| self.identifier.establish().map(|()| peer)) {
                        Ok(peer) => self.peer = Some(peer),
                        Err(error) => {
                            // The peer believes that it is connected.
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
                (Event::Disconnected | Event::DeviceRemoved, _) => return Err(failure::cut_off(peer, stage)),
                _ => {}
            }
        }
        if self.deadline.left().is_zero() {
            return Err(failure::too_late(peer, stage, &self.deadline));
        }
        Ok(None)
    }

    /// Waits for the connection.
    ///
    /// # Errors
    ///
    /// As [`poll`](PendingConnection::poll).
    pub fn wait(mut self) -> Result<Connection> {
        loop {
            if let Some(connection) = self.poll()? {
                return Ok(connection);
            }
            self.identifier.wait(Some(self.deadline.left()))?;
        }
    }

    /// Until when the connection has to be there.
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

/// How many READs and atomics a queue pair may have outstanding, and the peer's at its side.
pub(super) fn depths(queue_pair: &QueuePair, options: &ConnectOptions) -> Depths {
    let attributes = queue_pair.protection_domain().device().attributes();
    let wanted = options.max_rd_atomic.unwrap_or(16);
    Depths {
        max_dest_rd_atomic: wanted.min(attributes.max_dest_rd_atomic),
        max_rd_atomic: wanted.min(attributes.max_rd_atomic),
    }
}

/// Brings a queue pair to ready-to-send, with what both sides have said; returns what is known of the peer's.
pub(super) fn make_ready(
    queue_pair: &QueuePair,
    identifier: &Identifier,
    options: &ConnectOptions,
    depths: Depths,
) -> Result<Endpoint> {
    let (mut remote, mut send) = identifier.ready(queue_pair.transport())?;
    // What the other side says is never more than what this side can.
    remote.max_dest_rd_atomic = remote.max_dest_rd_atomic.min(depths.max_dest_rd_atomic);
    send.max_rd_atomic = send.max_rd_atomic.min(depths.max_rd_atomic);
    remote.mtu = remote.mtu.min(queue_pair.port.active_mtu).min(options.mtu.unwrap_or(remote.mtu));
    // The connection manager's own are an RNR timer of 655 ms, and an ACK timeout of 2 s for want of a better one.
    remote.min_rnr_timer = options.min_rnr_timer;
    send.timeout = options.timeout;
    send.retry_count = options.retry_count;
    send.rnr_retry = options.rnr_retry;
    queue_pair.traffic(options.traffic).apply(&mut remote.address);
    queue_pair.psn.store(send.psn.get(), Ordering::Relaxed);
    let peer = Endpoint {
        gid: remote.address.gid,
        lid: remote.address.lid,
        qpn: remote.qpn,
        psn: remote.psn,
        mtu: remote.mtu.bytes(),
    };
    let (transport, connection) = (queue_pair.transport(), Some(remote));
    queue_pair.change(&StateChange::ReadyToReceive(ReadyToReceive { transport, connection }))?;
    queue_pair.change(&StateChange::ReadyToSend(send))?;
    Ok(peer)
}
