//! Matches the packets and messages of two ends.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use adverb_proto::trace::Queue;
use adverb_proto::types::{Qpn, Transport};
use adverb_wire::{MAX_HEADER_LEN, Operation, Ud};

use super::Build;
use crate::model::{Connection, Direction, Packet, PacketId, PacketRole, PsnRange, RequestId, Trace};

/// Matches the queue pairs, packets and messages of the ends.
pub(super) fn match_ends(build: &mut Build) {
    let peers = pair_qps(build);
    match_packets(build, &peers);
    for index in 0..build.trace.packets.len() {
        complete_packet(build, &peers, PacketId(index));
    }
    match_messages(build);
}

/// Returns the peer of each queue pair.
fn pair_qps(build: &Build) -> Vec<Option<usize>> {
    let mut peers = vec![None; build.qps.len()];
    let mut groups: HashMap<(Qpn, Qpn), Vec<(usize, &Connection)>> = HashMap::new();
    for (index, qp) in build.qps.iter().enumerate() {
        let device = build.trace.devices.get(qp.device.0);
        let connection = qp.connection.and_then(|index| device?.connections.get(index));
        if let Some(connection) = connection.filter(|connection| connection.transport != Transport::Ud) {
            let (one, other) = (connection.qpn, connection.remote_qpn);
            groups.entry((one.min(other), one.max(other))).or_default().push((index, connection));
        }
    }
    for group in groups.values() {
        // Queue pair numbers are random, so a larger group is that of a forged recording, or of two queue pairs that
        // were connected many times. Their last connections are compared.
        let group = &group[group.len().saturating_sub(MAX_GROUP)..];
        let mut pairs = Vec::new();
        for (index, &(one, connection)) in group.iter().enumerate() {
            for &(other, opposite) in &group[index..] {
                if let Some(score) = similarity(connection, opposite, one == other) {
                    pairs.push((score, one, other));
                }
            }
        }
        // Among pairs with the same score, those of the latest connections are preferred.
        pairs.sort_unstable();
        for (_, one, other) in pairs.into_iter().rev() {
            if peers[one].is_none() && peers[other].is_none() {
                (peers[one], peers[other]) = (Some(other), Some(one));
            }
        }
    }
    peers
}

/// The maximum number of queue pairs that are compared with each other.
const MAX_GROUP: usize = 64;

/// Returns a score of two connections, which is higher the more likely they are the two ends of one connection, or
/// `None` if they can't be.
fn similarity(one: &Connection, other: &Connection, is_same: bool) -> Option<u32> {
    let are_opposite = one.qpn == other.remote_qpn && other.qpn == one.remote_qpn;
    if !are_opposite || one.transport != other.transport {
        return None;
    }
    let psns_match = |sender: &Connection, receiver: &Connection| {
        sender.send_psn.is_some_and(|psn| psn == receiver.recv_psn)
    };
    let addrs_match = |one: &Connection, other: &Connection| one.local.ip() == other.remote.ip();
    let similarity = 4 * u32::from(psns_match(one, other))
        + 4 * u32::from(psns_match(other, one))
        + u32::from(addrs_match(one, other))
        + u32::from(addrs_match(other, one));
    // A queue pair is its own peer only if its addresses are equal.
    (!is_same || addrs_match(one, other)).then_some(similarity)
}

/// Matches the packets that were sent with those that were received.
fn match_packets(build: &mut Build, peers: &[Option<usize>]) {
    let mut flows: HashMap<DatagramFlow, u32> = HashMap::new();
    let mut keyed: Vec<((u64, u64), PacketId)> = Vec::with_capacity(build.trace.packets.len());
    for (index, (packet, &qp)) in build.trace.packets.iter().zip(&build.packet_qps).enumerate() {
        let flow = match packet.header.operation {
            Operation::Ud(Ud { source_qp, .. }) => {
                let (Some(source), Some(destination)) = (packet.source, packet.destination) else { continue };
                let dest_qp = packet.header.dest_qp;
                let [source, destination] = [source, destination].map(|addr| addr.ip().to_canonical());
                let count = flows.len() as u32;
                // Odd numbers are those of datagrams.
                *flows.entry((source_qp, dest_qp, source, destination)).or_insert(count) << 1 | 1
            }
            _ => {
                let Some(Some(peer)) = peers.get(qp) else { continue };
                let sender = if packet.direction == Direction::Out { qp } else { *peer };
                (sender as u32) << 1
            }
        };
        let (psn, opcode) = (u64::from(packet.header.psn.get()), u64::from(packet.header.opcode().byte()));
        let key = (u64::from(flow) << 32 | psn << 8 | opcode, header_hash(packet));
        keyed.push((key, PacketId(index)));
    }
    keyed.sort_unstable();
    let copies: Vec<Copies> = keyed
        .chunk_by(|one, other| one.0 == other.0)
        .flat_map(|group| Copies::of_group(build, group))
        .collect();
    let mut delays = HashMap::new();
    for copies in &copies {
        if let ([sent], [received]) = (&*copies.sent, &*copies.received)
            && let Some(delay) = delay(&build.trace, *sent, *received)
        {
            let min_delay = delays.entry(copies.path).or_insert(delay);
            *min_delay = delay.min(*min_delay);
        }
    }
    for copies in &copies {
        let min_delay = delays.get(&copies.path).copied();
        match_copies(&mut build.trace, copies, min_delay.unwrap_or(i64::MIN));
    }
}

/// The copies of a packet: those that were sent, first and retransmitted ones, and those that one queue pair received.
struct Copies {
    /// The flow, and the receiving queue pair.
    path: (u64, usize),
    sent: Vec<PacketId>,
    received: Vec<PacketId>,
}

impl Copies {
    /// Returns the copies for each receiver of packets with equal headers: a multicast datagram has several receivers.
    fn of_group(build: &Build, group: &[((u64, u64), PacketId)]) -> Vec<Copies> {
        let is_out =
            |id: &PacketId| build.packet(*id).is_some_and(|packet| packet.direction == Direction::Out);
        let flow = group.first().map_or(0, |((key, _), _)| *key >> 32);
        let ids = group.iter().map(|(_, id)| *id);
        let (sent, mut received): (Vec<PacketId>, Vec<PacketId>) = ids.partition(is_out);
        let receiver = |id: &PacketId| build.packet_qps.get(id.0).copied().unwrap_or(usize::MAX);
        received.sort_by_key(receiver);
        let copies_of = |received: &[PacketId]| Copies {
            path: (flow, received.first().map_or(usize::MAX, receiver)),
            sent: sent.clone(),
            received: received.to_vec(),
        };
        received.chunk_by(|one, other| receiver(one) == receiver(other)).map(copies_of).collect()
    }
}

/// Returns the difference between the times of a packet at its two ends, in nanoseconds. If the ends have different
/// clocks, the difference includes the unknown offset between them, which is nearly constant.
fn delay(trace: &Trace, sent: PacketId, received: PacketId) -> Option<i64> {
    let [sent, received] = [sent, received].map(|id| trace.packet(id).map(|packet| packet.time.as_nanos()));
    Some(received?.wrapping_sub(sent?).cast_signed())
}

/// The queue pairs and addresses of datagrams. Their source ports differ between the ends if a link chose another one.
type DatagramFlow = (Qpn, Qpn, IpAddr, IpAddr);

/// Returns a hash of a packet's headers and its length: several ACKs can have one sequence number.
fn header_hash(packet: &Packet) -> u64 {
    let mut bytes = [0; MAX_HEADER_LEN];
    packet.header.emit(packet.payload_len as usize, &mut bytes);
    let mut hasher = DefaultHasher::new();
    (bytes, packet.payload_len).hash(&mut hasher);
    hasher.finish()
}

/// Matches the copies of a packet. Copies that were sent first are more likely to be lost, so the last copies are
/// matched first. `min_delay` is the minimum delay of the packets that were sent and received only once: copies with a
/// smaller delay can't match.
fn match_copies(trace: &mut Trace, Copies { sent, received, .. }: &Copies, min_delay: i64) {
    let mut remaining = &sent[..];
    for &arrived in received.iter().rev() {
        let is_too_late = |id: &PacketId| delay(trace, *id, arrived).is_some_and(|delay| delay < min_delay);
        while let Some((_, rest)) = remaining.split_last().filter(|(last, _)| is_too_late(last)) {
            remaining = rest;
        }
        // A network can duplicate packets, so that fewer copies were sent than received.
        let (Some(&copy), rest) = (match remaining.split_last() {
            Some((copy, rest)) => (Some(copy), rest),
            None => (sent.first(), remaining),
        }) else {
            continue;
        };
        remaining = rest;
        let Some(copy_packet) = trace.packets.get_mut(copy.0) else { continue };
        copy_packet.peer_packet = Some(arrived);
        let (is_retransmission, retry_cause) = (copy_packet.is_retransmission, copy_packet.retry_cause);
        let (source, destination) = (copy_packet.source, copy_packet.destination);
        if let Some(packet) = trace.packets.get_mut(arrived.0) {
            packet.peer_packet = Some(copy);
            packet.is_retransmission = is_retransmission;
            packet.retry_cause = retry_cause;
            // The receiver of a connection's packet does not know the source port.
            if packet.source.is_none_or(|source| source.port() == 0) {
                (packet.source, packet.destination) = (source, destination);
            }
        }
    }
}

/// Sets the requests of a packet at the responder.
fn complete_packet(build: &mut Build, peers: &[Option<usize>], id: PacketId) {
    let Some(packet) = build.packet(id) else { return };
    let sent_for = packet.peer_packet.and_then(|peer| build.packet_requests.get(peer.0).copied().flatten());
    let peer = build.packet_qps.get(id.0).and_then(|qp| peers.get(*qp).copied().flatten());
    let requester = peer.and_then(|peer| build.qps.get(peer)).map(|qp| &qp.sequence);
    let psn = packet.header.psn;
    let find = || requester.and_then(|sequence| sequence.find(psn));
    let find_range = |range: Option<PsnRange>| match (range, requester) {
        (Some(PsnRange { first, last }), Some(sequence)) => sequence.find_range(first, last),
        _ => Vec::new(),
    };
    let role = match (&packet.role, packet.direction) {
        (PacketRole::Request(None), Direction::In) => PacketRole::Request(sent_for.or_else(find)),
        (PacketRole::Response(None), Direction::Out) => PacketRole::Response(find()),
        (&PacketRole::Ack { acked_psns, .. }, Direction::Out) => {
            PacketRole::Ack { acked_psns, acked_requests: find_range(acked_psns) }
        }
        (&PacketRole::Nak { syndrome, acked_psns, .. }, Direction::Out) => PacketRole::Nak {
            syndrome,
            acked_psns,
            acked_requests: find_range(acked_psns),
            nacked_request: find(),
        },
        _ => return,
    };
    if let Some(packet) = build.packet_mut(id) {
        packet.role = role;
    }
}

/// Matches each receive request with the send request whose message it received.
fn match_messages(build: &mut Build) {
    for index in 0..build.trace.requests.len() {
        let Some(request) = build.trace.requests.get(index) else { continue };
        let last = request.packets.last().filter(|_| request.queue == Queue::Recv);
        let Some(packet) = last.and_then(|id| build.packet(*id)) else { continue };
        let sender = match packet.role {
            PacketRole::Request(sender) => sender,
            _ => packet.peer_packet.and_then(|peer| build.packet_requests.get(peer.0).copied().flatten()),
        };
        let Some(sender) = sender else { continue };
        if let Some(request) = build.trace.requests.get_mut(index) {
            request.peer_request = Some(sender);
        }
        // A multicast datagram has several receivers.
        if let Some(sender) = build.request_mut(sender) {
            sender.peer_request.get_or_insert(RequestId(index));
        }
    }
}
