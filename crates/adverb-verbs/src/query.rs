//! What a device knows of a queue pair.

use adverb_proto::types::{Gid, PathMtu, Psn, QpState, Qpn};

use super::QueuePair;
use crate::error::Result;

/// What a device knows of a queue pair: see [`QueuePair::query`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueuePairAttributes {
    /// Its state.
    pub state: QpState,
    /// The device's port.
    pub port: u8,
    /// The index in the port's table of partition keys.
    pub pkey_index: u16,
    /// The queue key, of a datagram queue pair.
    pub qkey: u32,
    /// The sequence number of its next packet, or of its first: devices differ.
    pub send_psn: Psn,
    /// What it knows of its peer, if it is connected.
    pub peer: Option<PeerAttributes>,
}

/// What a queue pair knows of its peer, and how it treats it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PeerAttributes {
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The address of its port: zero if packets carry no route header.
    pub gid: Gid,
    /// The local identifier of its port, on InfiniBand.
    pub lid: u16,
    /// The sequence number of its next packet, or of its first: devices differ.
    pub recv_psn: Psn,
    /// How many bytes a packet has at most.
    pub mtu: PathMtu,
    /// The traffic class of packets to it.
    pub traffic_class: u8,
    /// Their flow label.
    pub flow_label: u32,
    /// Their hop limit.
    pub hop_limit: u8,
    /// Their service level.
    pub service_level: u8,
    /// How long it has to acknowledge, as a code.
    pub timeout: u8,
    /// How often to send again when it doesn't.
    pub retry_count: u8,
    /// How often to send again when it has no receive.
    pub rnr_retry: u8,
    /// How long it is to wait when this side has no receive, as a code.
    pub min_rnr_timer: u8,
    /// How many READs and atomics to it may be outstanding.
    pub max_rd_atomic: u8,
    /// How many of its may be.
    pub max_dest_rd_atomic: u8,
}

impl QueuePair {
    /// Asks the device what it knows of the queue pair.
    ///
    /// # Errors
    ///
    /// If it can't be asked.
    pub fn query(&self) -> Result<QueuePairAttributes> {
        let mut attributes = self.backend.query()?;
        if self.transport == adverb_proto::types::Transport::Ud {
            attributes.peer = None;
        }
        Ok(attributes)
    }
}
