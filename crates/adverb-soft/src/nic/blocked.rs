//! Packets to receivers that must read others first.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;

use adverb_wire::Qpn;

use crate::link::{Link, TxPacket};

/// The packets that the link refused because their receiver must read others first. The packets of a queue pair stay in
/// order: after one of them, all wait here, until the link accepts them. Packets of other queue pairs don't wait.
#[derive(Default)]
pub(super) struct BlockedPackets {
    by_qp: HashMap<Qpn, VecDeque<BlockedPacket>>,
    /// The queue pairs, in the order in which they are retried.
    order: VecDeque<Qpn>,
    /// The number of bytes of all packets.
    byte_count: usize,
    /// The queue pairs that were added since the last call of [`take_added`](BlockedPackets::take_added).
    added: Vec<Qpn>,
}

/// A packet that the link refused.
struct BlockedPacket {
    source: SocketAddr,
    destination: SocketAddr,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
    bytes: Vec<u8>,
}

/// The maximum number of bytes, up to the packets of a transmit queue. If more packets are refused, all packets of the NIC
/// wait.
const MAX_BYTES: usize = 16 << 20;

/// The maximum number of queue pairs whose packets the link refuses again before the others are retried later.
const MAX_REFUSALS: usize = 4;

/// The maximum number of packets that are passed to the link at once.
const MAX_BATCH: usize = 16;

impl BlockedPackets {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the queue pairs that were added since the last call.
    pub(super) fn take_added(&mut self) -> Vec<Qpn> {
        std::mem::take(&mut self.added)
    }

    /// Whether no further queue pair can be blocked.
    pub(super) const fn is_full(&self) -> bool {
        self.byte_count >= MAX_BYTES
    }

    /// Whether packets of a queue pair wait here.
    pub(super) fn contains(&self, qpn: Qpn) -> bool {
        self.by_qp.contains_key(&qpn)
    }

    /// Adds a packet of a queue pair.
    pub(super) fn push(&mut self, qpn: Qpn, packet: &TxPacket<'_>) {
        let packets = self.by_qp.entry(qpn).or_insert_with(|| {
            self.order.push_back(qpn);
            self.added.push(qpn);
            VecDeque::new()
        });
        self.byte_count += packet.bytes.len();
        packets.push_back(BlockedPacket {
            source: packet.source,
            destination: packet.destination,
            traffic_class: packet.traffic_class,
            hop_limit: packet.hop_limit,
            flow_label: packet.flow_label,
            bytes: packet.bytes.to_vec(),
        });
    }

    /// Passes packets to the link, and calls `resume` with each queue pair whose packets the link has accepted.
    ///
    /// # Errors
    ///
    /// Returns an error if the link no longer works.
    pub(super) fn retry(&mut self, link: &mut dyn Link, mut resume: impl FnMut(Qpn)) -> io::Result<()> {
        let mut refusal_count = 0;
        for _ in 0..self.order.len() {
            let Some(qpn) = self.order.pop_front() else { break };
            let Some(packets) = self.by_qp.get_mut(&qpn) else { continue };
            while !packets.is_empty() {
                let batch: Vec<TxPacket<'_>> =
                    packets.iter().take(MAX_BATCH).map(BlockedPacket::packet).collect();
                let count = link.send(&batch)?;
                if count == 0 {
                    break;
                }
                self.byte_count -= packets.drain(..count).map(|packet| packet.bytes.len()).sum::<usize>();
            }
            if packets.is_empty() {
                self.by_qp.remove(&qpn);
                resume(qpn);
                continue;
            }
            self.order.push_back(qpn);
            refusal_count += 1;
            if refusal_count >= MAX_REFUSALS {
                break;
            }
        }
        Ok(())
    }
}

impl BlockedPacket {
    fn packet(&self) -> TxPacket<'_> {
        TxPacket {
            source: self.source,
            destination: self.destination,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
            bytes: &self.bytes,
        }
    }
}
