//! The ends of connections: queue pairs, and the queue pairs that they exchange packets with.

use std::collections::{BTreeMap, HashMap};

use adverb_proto::trace::{DropReason, TraceEvent};
use adverb_proto::types::Qpn;

use crate::clock::Clocks;
use crate::model::{Connection, DeviceId, Direction, Packet, PacketId, TimedEvent, Trace};

/// A queue pair of a device.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) device: DeviceId,
    pub(super) qpn: Qpn,
    /// The last connection of the queue pair.
    pub(super) connection: Option<Connection>,
    /// The queue pair at the other end, if it was recorded: an index in [`Ends::list`].
    pub(super) peer: Option<usize>,
}

/// The queue pairs of a trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends {
    pub(super) list: Vec<End>,
    indices: BTreeMap<(usize, u32), usize>,
}

impl Ends {
    pub(super) fn new(trace: &Trace) -> Ends {
        let mut ends = Ends::default();
        for (device, recorded) in trace.devices.iter().enumerate() {
            for connection in &recorded.connections {
                let index = ends.add(DeviceId(device), connection.qpn);
                ends.list[index].connection = Some(*connection);
            }
        }
        for request in &trace.requests {
            request.qpn.map(|qpn| ends.add(request.device, qpn));
        }
        for packet in &trace.packets {
            ends.add(packet.device, packet.qpn);
        }
        for timed in &trace.other_events {
            timed.event.qpn().map(|qpn| ends.add(timed.device, qpn));
        }
        ends.match_peers(trace);
        ends
    }

    /// Returns the index of a queue pair.
    pub(super) fn index(&self, device: DeviceId, qpn: Qpn) -> Option<usize> {
        self.indices.get(&(device.0, qpn.get())).copied()
    }

    fn add(&mut self, device: DeviceId, qpn: Qpn) -> usize {
        *self.indices.entry((device.0, qpn.get())).or_insert_with(|| {
            self.list.push(End { device, qpn, connection: None, peer: None });
            self.list.len() - 1
        })
    }

    /// Finds the other end of each queue pair: the one that most packets were exchanged with, or the one that has the
    /// connection's numbers and addresses.
    fn match_peers(&mut self, trace: &Trace) {
        let mut counts: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for packet in &trace.packets {
            let peer = packet.peer_packet.and_then(|peer| trace.packet(peer));
            let ends =
                peer.map(|peer| (self.index(packet.device, packet.qpn), self.index(peer.device, peer.qpn)));
            if let Some((Some(end), Some(peer))) = ends {
                *counts.entry((end, peer)).or_default() += 1;
            }
        }
        let mut best: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for ((end, peer), count) in counts {
            let entry = best.entry(end).or_insert((peer, count));
            if count > entry.1 {
                *entry = (peer, count);
            }
        }
        for end in 0..self.list.len() {
            let connected_peer = || self.connected_peer(end);
            self.list[end].peer = best.get(&end).map(|(peer, _)| *peer).or_else(connected_peer);
        }
    }

    fn connected_peer(&self, end: usize) -> Option<usize> {
        let connection = self.list[end].connection?;
        self.list.iter().position(|other| {
            other.qpn == connection.remote_qpn
                && other.connection.is_some_and(|other| {
                    other.remote_qpn == connection.qpn
                        && other.local.ip() == connection.remote.ip()
                        && other.remote.ip() == connection.local.ip()
                })
        })
    }
}

/// The delivery of a packet, as far as the recordings show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Delivery {
    /// The packet was recorded at both ends.
    Arrived,
    /// The packet that was sent is matched with another received packet: the network made a copy, or a multicast
    /// datagram has several receivers.
    Duplicate,
    /// The other end was not recorded.
    Unrecorded,
    /// The other end was recorded at that time, and did not receive the packet.
    Lost,
    /// The receiving device dropped the packet before it reached a queue pair.
    Dropped(DropReason),
    /// The other end was recorded, but maybe not at that time.
    Unknown,
}

impl Delivery {
    /// Returns the reason why the receiving device dropped the packet, if it did.
    pub(super) fn drop_reason(self) -> Option<DropReason> {
        match self {
            Delivery::Dropped(reason) => Some(reason),
            _ => None,
        }
    }
}

/// Returns the delivery of each packet, and for each other event whether it is the drop of one of these packets.
pub(super) fn deliveries(trace: &Trace, ends: &Ends, clocks: &Clocks) -> (Vec<Delivery>, Vec<bool>) {
    // For each queue pair, the first and the last of its packets that arrived. Between them, the peer was recorded.
    let mut arrived: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    let end_of = |packet: &Packet| ends.index(packet.device, packet.qpn);
    for (index, packet) in trace.packets.iter().enumerate() {
        if let (Direction::Out, Some(_), Some(end)) = (packet.direction, packet.peer_packet, end_of(packet)) {
            arrived.entry(end).or_insert((index, index)).1 = index;
        }
    }
    let mut drops = Drops::new(trace);
    let spans = spans(trace);
    let is_lost = |index: usize, packet: &Packet, end: usize, peer: DeviceId| {
        let is_between = arrived.get(&end).is_some_and(|(first, last)| (*first..*last).contains(&index));
        let nanos = trace.host_nanos(packet.device, packet.time);
        let is_within = spans.get(peer.0).is_some_and(|&(first, last)| (first..last).contains(&nanos));
        is_between || clocks.of(packet.device) == clocks.of(peer) && is_within
    };
    let delivery = |(index, packet): (usize, &Packet)| {
        let Some(end) = end_of(packet) else { return Delivery::Unrecorded };
        let peer = packet.peer_packet.and_then(|peer| trace.packet(peer));
        match (peer, ends.list[end].peer, packet.direction) {
            (Some(peer), _, Direction::In) if peer.peer_packet != Some(PacketId(index)) => {
                Delivery::Duplicate
            }
            (Some(_), ..) => Delivery::Arrived,
            (None, None, _) | (None, _, Direction::In) => Delivery::Unrecorded,
            (None, Some(peer), Direction::Out) => {
                let peer = ends.list[peer].device;
                match drops.take(packet, peer) {
                    Some(reason) => Delivery::Dropped(reason),
                    None if is_lost(index, packet, end, peer) => Delivery::Lost,
                    None => Delivery::Unknown,
                }
            }
        }
    };
    let deliveries = trace.packets.iter().enumerate().map(delivery).collect();
    (deliveries, drops.is_taken)
}

/// The packets that devices dropped before they reached a queue pair.
struct Drops<'a> {
    other_events: &'a [TimedEvent],
    /// The drops by device, queue pair, sequence number and opcode: indices in `other_events`, the latest first.
    by_packet: HashMap<(DeviceId, u32, u32, u8), Vec<usize>>,
    is_taken: Vec<bool>,
}

impl<'a> Drops<'a> {
    fn new(trace: &'a Trace) -> Drops<'a> {
        let mut by_packet: HashMap<_, Vec<usize>> = HashMap::new();
        for (index, timed) in trace.other_events.iter().enumerate().rev() {
            if let TraceEvent::Dropped { qpn, psn, opcode, .. } = timed.event {
                let key = (timed.device, qpn.get(), psn.get(), opcode.byte());
                by_packet.entry(key).or_default().push(index);
            }
        }
        Drops {
            other_events: &trace.other_events,
            by_packet,
            is_taken: vec![false; trace.other_events.len()],
        }
    }

    /// Returns the reason why a device dropped a packet, if it did.
    fn take(&mut self, packet: &Packet, receiver: DeviceId) -> Option<DropReason> {
        let header = &packet.header;
        let key = (receiver, header.dest_qp.get(), header.psn.get(), header.opcode().byte());
        let index = self.by_packet.get_mut(&key)?.pop()?;
        self.is_taken[index] = true;
        match self.other_events.get(index)?.event {
            TraceEvent::Dropped { reason, .. } => Some(reason),
            _ => None,
        }
    }
}

/// Returns the times of each device's first and last step, in nanoseconds of its host's monotonic clock.
fn spans(trace: &Trace) -> Vec<(u64, u64)> {
    let mut spans = vec![(u64::MAX, 0); trace.devices.len()];
    let times = trace.packets.iter().map(|packet| (packet.device, packet.time));
    let times = times.chain(trace.requests.iter().flat_map(|request| {
        let times = request.times;
        [times.posted, times.completed, times.polled].into_iter().flatten().map(|time| (request.device, time))
    }));
    for (device, time) in times.chain(trace.other_events.iter().map(|timed| (timed.device, timed.time))) {
        let nanos = trace.host_nanos(device, time);
        if let Some((first, last)) = spans.get_mut(device.0) {
            *first = nanos.min(*first);
            *last = nanos.max(*last);
        }
    }
    spans
}
