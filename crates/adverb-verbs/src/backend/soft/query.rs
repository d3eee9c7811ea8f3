//! Queries of queue pairs.

use adverb_proto::types::{DeviceEvent, PeerAttributes, QpState, QueuePairAttributes};
use adverb_soft::NicEvent;

use super::QueuePair;
use super::address_handle::OpenPath;
use crate::backend::{Address, Init, PeerEnd, ReadyToSend, StateChange};
use crate::error::{Error, Result};

/// The attributes that were set by state transitions of a queue pair.
#[derive(Default)]
pub(super) struct AppliedAttributes {
    port: u8,
    pkey_index: u16,
    qkey: u32,
    peer: Option<Peer>,
    /// The path to the peer, whose source port stays open.
    path: Option<OpenPath>,
    /// The timeout, `retry_count`, `rnr_retry` and `max_rd_atomic` of the transition to RTS.
    send_attributes: Option<(u8, u8, u8, u8)>,
}

/// The attributes of the peer.
#[derive(Clone, Copy)]
struct Peer {
    address: Address,
    mtu: adverb_proto::types::PathMtu,
    min_rnr_timer: u8,
    max_dest_rd_atomic: u8,
}

impl AppliedAttributes {
    /// Records a state transition and, if it connected the queue pair, the path to the peer.
    pub(super) fn record(&mut self, change: &StateChange, path: Option<OpenPath>) {
        match change {
            StateChange::Reset => *self = AppliedAttributes::default(),
            StateChange::Init(Init { port, pkey_index, qkey, .. }) => {
                (self.port, self.pkey_index, self.qkey) = (*port, *pkey_index, *qkey);
            }
            StateChange::ReadyToReceive(ready) => {
                let peer = |connection: &PeerEnd| Peer {
                    address: connection.address,
                    mtu: connection.mtu,
                    min_rnr_timer: connection.min_rnr_timer,
                    max_dest_rd_atomic: connection.max_dest_rd_atomic,
                };
                self.peer = ready.connection.as_ref().map(peer);
                self.path = path;
            }
            StateChange::ReadyToSend(ReadyToSend {
                timeout, retry_count, rnr_retry, max_rd_atomic, ..
            }) => {
                self.send_attributes = Some((*timeout, *retry_count, *rnr_retry, *max_rd_atomic));
            }
            StateChange::Access(_) | StateChange::Error => {}
        }
    }

    /// Closes the path, because the queue pair was destroyed.
    pub(super) fn close_path(&mut self) {
        self.path = None;
    }
}

impl QueuePair {
    pub(in crate::backend) fn state(&self) -> Result<QpState> {
        Ok(self.status()?.state)
    }

    pub(in crate::backend) fn error_event(&self) -> Option<DeviceEvent> {
        let event = self.status().ok()?.error_event?;
        Some(self.domain.device.convert_event(NicEvent::Queue(event)))
    }

    pub(in crate::backend) fn query(&self) -> Result<QueuePairAttributes> {
        let status = self.status()?;
        let applied = self.applied.lock();
        let (timeout, retry_count, rnr_retry, max_rd_atomic) = applied.send_attributes.unwrap_or_default();
        let mut attributes = QueuePairAttributes::new(status.state);
        attributes.port = applied.port;
        attributes.pkey_index = applied.pkey_index;
        attributes.qkey = applied.qkey;
        attributes.send_psn = status.next_psn;
        let source_port = applied.path.as_ref().map(|open| open.path.source_port());
        attributes.peer = applied.peer.map(|applied| {
            let mut peer = PeerAttributes::new(status.remote_qpn, applied.address.gid);
            peer.lid = applied.address.lid;
            peer.recv_psn = status.expected_psn;
            peer.mtu = applied.mtu;
            peer.traffic_class = applied.address.traffic_class;
            peer.flow_label = applied.address.flow_label;
            peer.source_port = source_port;
            peer.hop_limit = applied.address.hop_limit;
            peer.service_level = applied.address.service_level;
            peer.ack_timeout = timeout;
            peer.retry_count = retry_count;
            peer.rnr_retry = rnr_retry;
            peer.min_rnr_timer = applied.min_rnr_timer;
            peer.max_rd_atomic = max_rd_atomic;
            peer.max_dest_rd_atomic = applied.max_dest_rd_atomic;
            peer
        });
        Ok(attributes)
    }

    fn status(&self) -> Result<adverb_proto::QpStatus> {
        self.check_not_destroyed()?;
        let destroyed = || Error::InvalidRequest { reason: "the queue pair was destroyed".into() };
        self.domain.device.nic.query_qp(self.qpn).ok_or_else(destroyed)
    }
}
