//! The memory and the requests of a peer.

use std::collections::VecDeque;
use std::sync::Arc;

use adverb_cluster_proto::BrokerConfig;
use adverb_verbs::internal::WithCauses;
use adverb_verbs::memory::{Buffer, Payload};
use adverb_verbs::{ProtectionDomain, QueuePair, ReclaimedRequest, Result};

use super::event::QueuedEvent;

/// A peer: the queue pair of its session, its message buffers, and the payloads of its requests.
///
/// A slot of the state machine (`adverb_cluster_proto::Broker`) is only a number. All send buffers have the same size,
/// and so have all receive buffers, so a slot takes any free one.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) link: Option<Link>,
    is_allocated: bool,
    pub(super) free_send_buffers: Vec<Buffer>,
    pub(super) free_recv_buffers: Vec<Buffer>,
    /// The buffers of messages that wait to be posted, by send slot.
    pub(super) waiting_messages: Vec<Option<Buffer>>,
    /// The payloads of transfers that wait to be posted, in order.
    pub(super) waiting_transfers: VecDeque<Payload>,
    /// The send requests that were posted, in order.
    pub(super) in_flight: VecDeque<InFlight>,
    /// The ids of the posted receives, by receive slot.
    pub(super) recv_ids: Vec<u64>,
    pub(super) posted_recv_count: usize,
    /// The payloads of transfers that completed or failed, in order, until their ticket's event is delivered.
    pub(super) finished_transfers: VecDeque<Payload>,
    /// The payloads of the last requests in flight, if posting them failed.
    pub(super) unposted: Vec<Payload>,
    /// The number of transfers of each ticket, in order.
    pub(super) ticket_sizes: VecDeque<usize>,
    /// The events of a session that is not open yet. They are delivered after `SessionOpened`.
    pub(super) early_events: Vec<QueuedEvent>,
    /// Whether a change of the peer's segments was not delivered yet.
    pub(super) has_changed_segments: bool,
    /// The number of events of sessions that were not delivered yet.
    pub(super) session_event_count: usize,
    /// Whether an `Unblocked` was not delivered yet.
    pub(super) is_unblocked: bool,
    /// The numbers of buffers that a failed device did not return.
    lost_send_buffers: usize,
    lost_recv_buffers: usize,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("attempt", &self.attempt).finish_non_exhaustive()
    }
}

/// The connection of a session.
pub(super) struct Link {
    pub(super) queue_pair: Arc<QueuePair>,
    /// The number of the attempt to connect, which distinguishes it from earlier and later ones.
    pub(super) attempt: u64,
}

/// A posted send request.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) wr_id: u64,
    pub(super) kind: RequestKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestKind {
    Message,
    Transfer,
    /// A request of the state machine, without memory.
    Control,
}

/// The tag of a posted request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tag {
    /// A send request to this peer. Sends complete in order.
    Send { peer: u16 },
    /// A receive in this slot.
    Recv { peer: u16, slot: u16 },
}

impl Tag {
    pub(super) fn encode(self) -> u64 {
        match self {
            Tag::Send { peer } => u64::from(peer),
            Tag::Recv { peer, slot } => 1 << 32 | u64::from(slot) << 16 | u64::from(peer),
        }
    }

    pub(super) fn decode(tag: u64) -> Tag {
        let peer = tag as u16;
        if tag >> 32 == 0 { Tag::Send { peer } } else { Tag::Recv { peer, slot: (tag >> 16) as u16 } }
    }
}

impl Peer {
    /// Allocates the buffers that the next session needs.
    pub(super) fn allocate(&mut self, domain: &ProtectionDomain, config: &BrokerConfig) -> Result<()> {
        let size = config.slot_size as usize;
        if !self.is_allocated {
            let (send, recv) = (usize::from(config.send_slots), usize::from(config.recv_queue_depth()));
            let mut memory = domain.allocate_buffer((send + recv) * size)?;
            let mut buffers = Vec::with_capacity(send + recv);
            while memory.capacity() > size {
                let rest = memory.split_off(size)?;
                buffers.push(std::mem::replace(&mut memory, rest));
            }
            buffers.push(memory);
            self.free_recv_buffers = buffers.split_off(send);
            self.free_send_buffers = buffers;
            self.waiting_messages.resize_with(send, || None);
            self.recv_ids = vec![0; recv];
            self.in_flight.reserve(usize::from(config.send_queue_depth));
            for list in [&mut self.waiting_transfers, &mut self.finished_transfers] {
                list.reserve(usize::from(config.queue_depth));
            }
            self.is_allocated = true;
        }
        while self.lost_send_buffers > 0 {
            self.free_send_buffers.push(domain.allocate_buffer(size)?);
            self.lost_send_buffers -= 1;
        }
        while self.lost_recv_buffers > 0 {
            self.free_recv_buffers.push(domain.allocate_buffer(size)?);
            self.lost_recv_buffers -= 1;
        }
        Ok(())
    }

    /// Takes the payload of the first send request in flight, and returns the request's id.
    pub(super) fn finish_send(&mut self, payload: Payload) -> Option<u64> {
        let InFlight { wr_id, kind } = self.in_flight.pop_front()?;
        match kind {
            RequestKind::Message => match payload.into_buffer() {
                Some(buffer) => self.free_send_buffers.push(buffer),
                None => self.lost_send_buffers += 1,
            },
            RequestKind::Transfer => self.finished_transfers.push_back(payload),
            RequestKind::Control => {}
        }
        Some(wr_id)
    }

    /// Takes the buffer of a receive that completed without a message, or was not executed.
    pub(super) fn finish_recv(&mut self, buffer: Option<Buffer>) {
        match buffer {
            Some(buffer) => self.free_recv_buffers.push(buffer),
            None => self.lost_recv_buffers += 1,
        }
    }

    /// Destroys the queue pair and takes the memory of all requests.
    pub(super) fn close(&mut self) {
        if let Some(Link { queue_pair, .. }) = self.link.take() {
            // A queue pair that was reset accesses no memory.
            match queue_pair.reset() {
                Ok(requests) => {
                    for ReclaimedRequest { tag, payload, .. } in requests {
                        match Tag::decode(tag) {
                            Tag::Send { .. } => {
                                self.finish_send(payload);
                            }
                            Tag::Recv { .. } => {
                                self.posted_recv_count -= 1;
                                self.finish_recv(payload.into_buffer());
                            }
                        }
                    }
                }
                Err(error) => {
                    let error = WithCauses(&error);
                    tracing::error!(%error, "resetting a queue pair failed: its memory is lost");
                }
            }
        }
        // The device returned no memory of these.
        while self.in_flight.len() > self.unposted.len() {
            self.finish_send(Payload::Empty);
        }
        for payload in std::mem::take(&mut self.unposted) {
            self.finish_send(payload);
        }
        for _ in 0..std::mem::take(&mut self.posted_recv_count) {
            self.finish_recv(None);
        }
        let messages = self.waiting_messages.iter_mut().filter_map(Option::take);
        self.free_send_buffers.extend(messages);
        self.finished_transfers.append(&mut self.waiting_transfers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_round_trip() {
        for tag in [
            Tag::Send { peer: 0 },
            Tag::Send { peer: u16::MAX },
            Tag::Recv { peer: 0, slot: 0 },
            Tag::Recv { peer: u16::MAX, slot: u16::MAX },
        ] {
            assert_eq!(Tag::decode(tag.encode()), tag);
        }
    }
}
