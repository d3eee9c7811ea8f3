//! Packets between the protocol engine and the link.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Instant;

use adverb_wire::Qpn;

use super::blocked::BlockedPackets;
use crate::link::{Link, TimedSend, TxPacket};

/// Packets that the link has not accepted yet.
#[derive(Default)]
pub(super) struct TransmitQueue {
    pub(super) bytes: Vec<u8>,
    packets: VecDeque<QueuedPacket>,
    /// Whether the packets have several source ports.
    is_mixed: bool,
    /// The packets whose receivers must read others first, if there are any.
    blocked: Option<Box<BlockedPackets>>,
}

/// A packet that the link has not accepted yet.
pub(super) struct QueuedPacket {
    /// The queue pair that sends the packet.
    pub(super) qpn: Qpn,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    pub(super) flow_label: u32,
    /// The range of its bytes in the queue.
    pub(super) bytes: Range<usize>,
}

impl QueuedPacket {
    /// Returns the packet, whose bytes are a range of `bytes`.
    #[inline]
    fn to_send<'a>(&self, bytes: &'a [u8]) -> TxPacket<'a> {
        TxPacket {
            source: self.source,
            destination: self.destination,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
            bytes: &bytes[self.bytes.clone()],
        }
    }
}

impl TransmitQueue {
    fn len(&self) -> usize {
        self.packets.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether the link must accept packets before more are queued.
    pub(super) fn is_full(&self) -> bool {
        self.packets.len() >= MAX_LEN || self.bytes.len() >= MAX_BYTES
    }

    pub(super) fn push(&mut self, packet: QueuedPacket) {
        self.is_mixed |= self.packets.back().is_some_and(|last| last.source != packet.source);
        self.packets.push_back(packet);
        if self.has_blocked() {
            self.move_behind_blocked();
        }
    }

    /// Moves the last packet behind blocked packets of its queue pair, if there are any.
    #[cold]
    fn move_behind_blocked(&mut self) {
        let TransmitQueue { bytes, packets, blocked: Some(blocked), .. } = self else { return };
        if packets.back().is_some_and(|packet| blocked.contains(packet.qpn))
            && let Some(packet) = packets.pop_back()
        {
            blocked.push(packet.qpn, &packet.to_send(bytes));
        }
    }

    /// Moves the first packet, and all others of its queue pair, to the blocked packets, if only their receiver prevents the
    /// link from accepting them. Returns whether it does.
    #[cold]
    fn block_first(&mut self, link: &dyn Link) -> bool {
        let TransmitQueue { bytes, packets, blocked, .. } = self;
        let is_full = blocked.as_ref().is_some_and(|blocked| blocked.is_full());
        let Some(first) = packets.front().filter(|_| !is_full) else { return false };
        if !link.is_receiver_full(&first.to_send(bytes)) {
            return false;
        }
        let (qpn, blocked) = (first.qpn, blocked.get_or_insert_default());
        packets.retain(|packet| {
            let is_kept = packet.qpn != qpn;
            if !is_kept {
                blocked.push(qpn, &packet.to_send(bytes));
            }
            is_kept
        });
        self.remove(0);
        true
    }

    /// Whether packets wait whose receivers must read others first.
    #[inline]
    pub(super) const fn has_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Returns the queue pairs whose packets were blocked since the last call.
    #[cold]
    pub(super) fn take_newly_blocked(&mut self) -> Vec<Qpn> {
        self.blocked.as_mut().map(|blocked| blocked.take_added()).unwrap_or_default()
    }

    /// Passes blocked packets to the link, and calls `resume` with each queue pair whose packets the link has accepted.
    #[cold]
    pub(super) fn retry_blocked(&mut self, link: &mut dyn Link, resume: impl FnMut(Qpn)) -> io::Result<()> {
        // Packets that were moved behind blocked ones have left their bytes.
        self.remove(0);
        let Some(blocked) = &mut self.blocked else { return Ok(()) };
        blocked.retry(link, resume)?;
        self.blocked.take_if(|blocked| blocked.is_empty());
        Ok(())
    }

    /// Sorts packets by source port, so that the link can send them as GSO batches. A connection has one port, and so has
    /// an address handle: their packets stay in order.
    fn sort(&mut self) {
        if self.is_mixed {
            let packets = self.packets.make_contiguous();
            packets.sort_unstable_by_key(|packet| (packet.source.port(), packet.bytes.start));
        }
    }

    fn packet(&self, index: usize) -> TxPacket<'_> {
        self.packets[index].to_send(&self.bytes)
    }

    /// Passes packets to the link until the queue is empty or the link accepts no more.
    pub(super) fn send_to(&mut self, link: &mut Box<dyn Link>) -> io::Result<()> {
        self.sort();
        while !self.is_empty() {
            let count = self.len().min(MAX_BATCH);
            let packet = |index: usize| self.packet(index.min(count - 1));
            // An array for a whole batch would cost more than sending the one packet of a small message.
            let sent = if count <= SMALL_BATCH {
                link.send(&std::array::from_fn::<_, SMALL_BATCH, _>(packet)[..count])?
            } else {
                link.send(&std::array::from_fn::<_, MAX_BATCH, _>(packet)[..count])?
            };
            self.remove(sent);
            if sent < count && !self.block_first(link) {
                break;
            }
        }
        Ok(())
    }

    /// Passes packets to the link like [`send_to`](TransmitQueue::send_to). If there is one packet and the link accepts
    /// it, returns the time at which the kernel sent it, if the link knows the time.
    pub(super) fn send_timed_to(&mut self, link: &mut Box<dyn Link>) -> io::Result<Option<Instant>> {
        if self.len() != 1 {
            return self.send_to(link).map(|()| None);
        }
        match link.send_timed(&self.packet(0))? {
            TimedSend::Refused => {
                self.block_first(link);
                Ok(None)
            }
            TimedSend::Accepted(sent_at) => {
                self.remove(1);
                Ok(sent_at)
            }
        }
    }

    fn remove(&mut self, count: usize) {
        self.packets.drain(..count);
        // The bytes are removed only when the queue is empty. A queue that has reached the limit of bytes accepts no
        // packets before that.
        if self.packets.is_empty() {
            self.bytes.clear();
            self.is_mixed = false;
        }
    }
}

/// The maximum number of packets that are passed to the link at once.
const MAX_BATCH: usize = 64;

/// The maximum number of packets in the queue.
const MAX_LEN: usize = 256;

/// The maximum number of bytes in the queue: they should still be in the CPU's cache when the link reads them.
const MAX_BYTES: usize = 128 << 10;

/// The maximum number of packets that are passed to the link in a small array.
const SMALL_BATCH: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_one_port_are_contiguous_and_in_order() {
        let mut queue = TransmitQueue::default();
        for number in 0..6u8 {
            let source = SocketAddr::new([10, 0, 0, 1].into(), 0xc000 + u16::from(number % 2));
            let destination = SocketAddr::new([10, 0, 0, 2].into(), 4791);
            queue.bytes.push(number);
            let bytes = usize::from(number)..usize::from(number) + 1;
            queue.push(QueuedPacket {
                qpn: Qpn::truncate(2),
                source,
                destination,
                traffic_class: 0,
                hop_limit: 0,
                flow_label: 0,
                bytes,
            });
        }
        queue.sort();
        let numbers: Vec<u8> = (0..6).map(|index| queue.packet(index).bytes[0]).collect();
        assert_eq!(numbers, [0, 2, 4, 1, 3, 5]);
        queue.remove(4);
        assert_eq!(queue.packet(0).bytes, [3], "bytes stay while there are packets");
        queue.remove(2);
        assert!(queue.bytes.is_empty() && !queue.is_mixed);
    }
}
