//! The state of one connection, from the first message to the end of timewait.

use core::fmt;

use adverb_wire::cm::{Mad, ServiceId, Timeout};

use super::timers::Retransmission;
use super::{AddrPair, ListenerId, LocalQp, RdAtomicLimits};
use crate::Time;
use crate::path::Path;
use crate::qp::{ReadyToReceive, ReadyToSend};
use crate::types::{PathMtu, Psn, Qpn, Transport};

/// The state of a connection (vol. 1, 12.9.7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// This side sent a REQ and waits for the response.
    ReqSent,
    /// The peer accepted the connection. The application must establish or reject it.
    RepReceived,
    /// The peer sent a REQ. The application must accept or reject the connection. If the application requested the same
    /// peer-to-peer connection, it must establish or reject the connection instead.
    ReqReceived,
    /// This side accepted the connection with a REP and waits for the RTU.
    RepSent,
    /// The connection is established.
    Established,
    /// This side sent a DREQ and waits for the DREP.
    DreqSent,
    /// The connection has ended, but its packets may still be in the network.
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

/// The attributes that a queue pair needs to carry a connection, for the [`Transition`](crate::Transition)s to
/// ready-to-receive and ready-to-send.
///
/// Each limit on outstanding READs and atomics is the smaller one of the two sides' limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QpAttributes {
    /// The transport of the queue pair.
    pub transport: Transport,
    /// The partition key.
    pub pkey: u16,
    /// The attributes for ready-to-receive.
    pub ready_to_receive: ReadyToReceive,
    /// The attributes for ready-to-send.
    pub ready_to_send: ReadyToSend,
}

/// The manager's record of a connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// The state. Only the table changes it, because the table counts connections by state.
    pub(super) state: State,
    /// Whether this side is active: it sent a REQ, to which the peer responds with a REP. If both sides of a
    /// peer-to-peer connection send a REQ, one of them becomes passive.
    pub(super) active: bool,
    /// Whether both sides may send a REQ.
    pub(super) peer_to_peer: bool,
    pub(super) listener: Option<ListenerId>,
    pub(super) local_id: u32,
    pub(super) remote_id: Option<u32>,
    pub(super) addrs: AddrPair,
    /// The transaction ID of the REQ, which all messages up to the RTU repeat.
    pub(super) transaction_id: u64,
    pub(super) service: ServiceId,
    pub(super) remote_guid: u64,
    pub(super) remote_qpn: Option<Qpn>,
    pub(super) local_qp: Option<LocalQp>,
    /// The PSN of the first packet that the peer sends.
    pub(super) receive_psn: Psn,
    /// The PSN of the first packet that this side sends.
    pub(super) send_psn: Psn,
    pub(super) transport: Transport,
    pub(super) path_mtu: PathMtu,
    pub(super) pkey: u16,
    /// The peer's limits on outstanding READs and atomics, from this side's point of view.
    pub(super) remote_limits: RdAtomicLimits,
    pub(super) ack_timeout: Timeout,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    /// The message that is retransmitted until the peer responds.
    pub(super) retransmission: Option<Retransmission<Box<Mad>>>,
    /// The end of the current wait.
    pub(super) deadline: Option<Time>,
    /// The response to further REQs, REPs and RTUs from the peer in timewait.
    pub(super) timewait_response: Option<Box<Mad>>,
    /// The time of the last probe, a DREQ that tests whether the peer still has this connection.
    pub(super) last_probe: Option<Time>,
    /// The time of the connection's timer.
    pub(super) timer: Option<Time>,
}

impl Connection {
    /// Returns the time of the next retransmission or of the deadline, whichever is earlier.
    pub(super) fn next(&self) -> Option<Time> {
        let retransmission = self.retransmission.as_ref().and_then(Retransmission::next);
        [retransmission, self.deadline].into_iter().flatten().min()
    }

    /// Returns the limits on outstanding READs and atomics that both sides support.
    pub(super) fn rd_atomic_limits(&self, local_qp: &LocalQp) -> RdAtomicLimits {
        self.remote_limits.min(local_qp.rd_atomic_limits)
    }

    /// Returns the attributes for the queue pair, or `None` if the peer's queue pair is unknown.
    pub(super) fn qp_attributes(&self, local_qp: &LocalQp) -> Option<QpAttributes> {
        let remote_qpn = self.remote_qpn?;
        let rd_atomic_limits = self.rd_atomic_limits(local_qp);
        let source_port = Path::source_port_between(local_qp.qpn, remote_qpn);
        Some(QpAttributes {
            transport: self.transport,
            pkey: self.pkey,
            ready_to_receive: ReadyToReceive {
                remote_qpn,
                path: Path::new(self.addrs.local, self.addrs.remote, source_port)?,
                path_mtu: self.path_mtu,
                psn: self.receive_psn,
                max_dest_rd_atomic: rd_atomic_limits.max_dest_rd_atomic,
                min_rnr_timer: local_qp.min_rnr_timer,
            },
            ready_to_send: ReadyToSend {
                psn: self.send_psn,
                timeout: self.ack_timeout,
                retry_count: self.retry_count,
                rnr_retry: self.rnr_retry,
                max_rd_atomic: rd_atomic_limits.max_rd_atomic,
            },
        })
    }

    /// Whether a message with these addresses and this peer's communication ID belongs to this connection.
    pub(super) fn matches(&self, addrs: AddrPair, remote_id: u32) -> bool {
        self.addrs == addrs && self.remote_id == Some(remote_id)
    }
}
