//! The attributes of a queue pair, as a device reports them.

use super::{Gid, PathMtu, Psn, QpState, Qpn};

/// The attributes of a queue pair, as its device reports them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueuePairAttributes {
    /// The state.
    pub state: QpState,
    /// The number of the device's port.
    pub port: u8,
    /// The index into the port's partition-key table.
    pub pkey_index: u16,
    /// The queue key of a datagram queue pair.
    pub qkey: u32,
    /// The PSN of the next packet to send. Some devices report the PSN of the first packet instead.
    pub send_psn: Psn,
    /// The attributes of the connection, if the queue pair is connected.
    pub peer: Option<PeerAttributes>,
}

impl QueuePairAttributes {
    /// Creates the attributes of an unconnected queue pair, with every number 0. The caller sets the other fields.
    pub const fn new(state: QpState) -> QueuePairAttributes {
        QueuePairAttributes { state, port: 0, pkey_index: 0, qkey: 0, send_psn: Psn::wrapping(0), peer: None }
    }
}

/// The attributes of a queue pair's connection to its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PeerAttributes {
    /// The number of the peer's queue pair.
    pub qpn: Qpn,
    /// The GID of the peer's port, or [`Gid::ZERO`] if packets carry no global route header (GRH).
    pub gid: Gid,
    /// The local identifier (LID) of the peer's port, on InfiniBand.
    pub lid: u16,
    /// The PSN of the peer's next packet. Some devices report the PSN of the peer's first packet instead.
    pub recv_psn: Psn,
    /// The path MTU.
    pub mtu: PathMtu,
    /// The traffic class of sent packets.
    pub traffic_class: u8,
    /// The flow label of sent packets.
    pub flow_label: u32,
    /// The UDP source port of sent packets, or `None` if the device doesn't report it, as devices of rdma-core don't.
    pub source_port: Option<u16>,
    /// The hop limit of sent packets.
    pub hop_limit: u8,
    /// The service level of sent packets.
    pub service_level: u8,
    /// The acknowledgement timeout as a code *n*: 4.096 µs × 2ⁿ. 0 means no timeout.
    pub ack_timeout: u8,
    /// The maximum number of retransmissions after a timeout or a lost packet.
    pub retry_count: u8,
    /// The maximum number of retransmissions after an RNR NAK; 7 means no limit.
    pub rnr_retry: u8,
    /// The RNR backoff that this side demands of the peer while no receive is posted, as the code in the RNR NAK.
    pub min_rnr_timer: u8,
    /// The maximum number of outstanding READs and atomics to the peer.
    pub max_rd_atomic: u8,
    /// The maximum number of outstanding READs and atomics of the peer.
    pub max_dest_rd_atomic: u8,
}

impl PeerAttributes {
    /// Creates the attributes of a connection with an MTU of 256 bytes and every other number 0. The caller sets the
    /// other fields.
    pub const fn new(qpn: Qpn, gid: Gid) -> PeerAttributes {
        PeerAttributes {
            qpn,
            gid,
            lid: 0,
            recv_psn: Psn::wrapping(0),
            mtu: PathMtu::Mtu256,
            traffic_class: 0,
            flow_label: 0,
            source_port: None,
            hop_limit: 0,
            service_level: 0,
            ack_timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
        }
    }
}
