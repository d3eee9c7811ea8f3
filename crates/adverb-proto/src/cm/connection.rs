//! A connection, from the first message to the end of its timewait.

use core::fmt;

use adverb_wire::cm::{Mad, ServiceId, Timeout};

use super::agenda::Repetition;
use super::{Depths, Ends, ListenerId, Offer};
use crate::Time;
use crate::path::Path;
use crate::qp::{ReadyToReceive, ReadyToSend};
use crate::types::{PathMtu, Psn, Qpn, Transport};

/// How far a connection has come (vol. 1, 12.9.7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// This side has asked, and waits for an answer.
    ReqSent,
    /// The peer has accepted; the application is to establish the connection.
    RepReceived,
    /// The peer has asked; the application is to accept or reject.
    ReqReceived,
    /// This side has accepted, and waits to hear that the peer knows.
    RepSent,
    /// It stands.
    Established,
    /// This side has ended it, and waits to hear that the peer knows.
    DreqSent,
    /// It is over, but packets of it may still be under way.
    TimeWait,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::ReqSent => "requested",
            State::RepReceived => "accepted by the peer",
            State::ReqReceived => "requested by the peer",
            State::RepSent => "accepted",
            State::Established => "established",
            State::DreqSent => "disconnecting",
            State::TimeWait => "in timewait",
        })
    }
}

/// What a queue pair must be told to carry a connection, in the words of [`Transition`](crate::Transition).
///
/// Where the two sides offered different numbers, these are what both can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Ready {
    /// The kind of queue pair.
    pub transport: Transport,
    /// The partition.
    pub pkey: u16,
    /// For ready-to-receive.
    pub ready_to_receive: ReadyToReceive,
    /// For ready-to-send.
    pub ready_to_send: ReadyToSend,
}

/// A connection as the manager knows it.
#[derive(Debug)]
pub(super) struct Connection {
    /// Changed by the table only, which counts.
    pub(super) state: State,
    /// Whether this side sent the REQ.
    pub(super) active: bool,
    /// Whether both sides may send it.
    pub(super) peer_to_peer: bool,
    pub(super) listener: Option<ListenerId>,
    pub(super) local_id: u32,
    pub(super) remote_id: Option<u32>,
    pub(super) ends: Ends,
    /// Of the REQ, which the messages up to the RTU repeat.
    pub(super) transaction_id: u64,
    pub(super) service: ServiceId,
    pub(super) remote_guid: u64,
    pub(super) remote_qpn: Option<Qpn>,
    pub(super) offer: Option<Offer>,
    /// The first packet that the peer is asked to send.
    pub(super) receive_psn: Psn,
    /// The first packet that the peer asks for.
    pub(super) send_psn: Psn,
    pub(super) transport: Transport,
    pub(super) path_mtu: PathMtu,
    pub(super) pkey: u16,
    /// As many as the peer would use and offers, seen from this side.
    pub(super) remote_depths: Depths,
    pub(super) ack_timeout: Timeout,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    /// What is repeated until it is answered.
    pub(super) repetition: Option<Repetition<Box<Mad>>>,
    /// When this wait ends, at the latest.
    pub(super) deadline: Option<Time>,
    /// In timewait: the last word, for a peer that repeats itself.
    pub(super) farewell: Option<Box<Mad>>,
    /// The time of the last DREQ that asked whether the peer still has this connection.
    pub(super) last_probe: Option<Time>,
    /// Its place in the agenda.
    pub(super) timer: Option<Time>,
}

impl Connection {
    /// When it wants to be looked at again.
    pub(super) fn next(&self) -> Option<Time> {
        let repetition = self.repetition.as_ref().and_then(Repetition::next);
        [repetition, self.deadline].into_iter().flatten().min()
    }

    /// How many READs and atomics both sides can have, given what this side can.
    pub(super) fn depths(&self, offer: &Offer) -> Depths {
        self.remote_depths.min(offer.depths)
    }

    /// What the queue pair must be told, if the peer is known.
    pub(super) fn ready(&self, offer: &Offer) -> Option<Ready> {
        let remote_qpn = self.remote_qpn?;
        let depths = self.depths(offer);
        let source_port = Path::source_port_between(offer.qpn, remote_qpn);
        Some(Ready {
            transport: self.transport,
            pkey: self.pkey,
            ready_to_receive: ReadyToReceive {
                remote_qpn,
                path: Path::new(self.ends.local, self.ends.remote, source_port)?,
                path_mtu: self.path_mtu,
                psn: self.receive_psn,
                max_dest_rd_atomic: depths.max_dest_rd_atomic,
                min_rnr_timer: offer.min_rnr_timer,
            },
            ready_to_send: ReadyToSend {
                psn: self.send_psn,
                timeout: self.ack_timeout,
                retry_count: self.retry_count,
                rnr_retry: self.rnr_retry,
                max_rd_atomic: depths.max_rd_atomic,
            },
        })
    }

    /// Whether the peer's half of an exchange names this connection: both IDs, and the right address.
    pub(super) fn is_with(&self, ends: Ends, remote_id: u32) -> bool {
        self.ends == ends && self.remote_id == Some(remote_id)
    }
}
