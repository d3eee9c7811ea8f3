//! One attack on a software NIC over real sockets.
//!
//! The attacked NIC has two IPv4 addresses, one at RoCE's port and one at another, and an IPv6 address. Hostile sockets
//! send it packets and connection manager messages that are derived from a seed, while a well-behaved peer communicates
//! with it and checks every byte. All traffic is on the loopback interface.
//!
//! An attacker that knows the numbers of a connection can do anything that its peer can. Attackers therefore know
//! everything about *targets*, queue pairs that exist to be attacked. Of the well-behaved pair, an attacker either
//! knows the numbers and has a wrong address, or has the right address and must guess the numbers. Neither may have an
//! effect.

mod end;
mod network;
mod pair;
mod report;
mod sender;
mod target;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use adverb_proto::cm::{AddrPair, BindAddr, Event, ListenParams, LocalQp};
use adverb_proto::types::{Gid, Transport};
use adverb_proto::{QueueEvent, ResourceCounts};
use adverb_sim::{
    AttackerState, CM_ATTACK_TCP_SERVICE_ID, CM_ATTACK_UDP_SERVICE_ID, CmMessageGenerator, DecisionSource,
    PacketGenerator, TargetInfo,
};
use adverb_soft::{CmEvent, CmEventChannel, Nic, NicEvent};
use adverb_wire::cm::{GSI_QKEY, Mad};
use adverb_wire::{Flow, Header, Operation, Packet, Psn, Qpn, Ud};

use network::Network;
use pair::Pair;
pub(crate) use report::{Kind, Report};
use sender::Sender;
use target::Target;

/// The result of a check. The error describes the NIC's behavior.
type Outcome<T> = Result<T, String>;

/// The maximum number of earlier packets that are kept to be replayed.
const MAX_HISTORY: usize = 32;

/// The queue key of attacked datagram queue pairs, which attackers know.
const QKEY: u32 = 0x1666_6666;

/// Attacks a NIC with at least `packets` packets, or until there are no more decisions.
///
/// # Errors
///
/// Returns an error if the NIC fails, leaks objects, or serves the well-behaved pair wrongly or not at all.
pub(crate) fn attack(decisions: DecisionSource<'_>, packets: u64, report: &mut Report) -> Outcome<()> {
    let network = Network::open().map_err(|error| format!("can't open the network: {error}"))?;
    let (victim, peer) = (Arc::clone(&network.victim), Arc::clone(&network.peer));
    let empty = leak_counts(&victim.resource_counts());
    let mut round = Round::new(decisions, network)?;
    let end = report.packets() + packets;
    let mut result = Ok(());
    while result.is_ok() && report.packets() < end && round.decisions.has_more() {
        result = round.run_burst(report);
    }
    report.rounds += 1;
    report.operations += round.pair.operations();
    report.connections += round.pair.connections;
    report.add(&victim.statistics());
    drop(round);
    result?;
    drop(peer);
    let left = leak_counts(&victim.resource_counts());
    if left == empty {
        Ok(())
    } else {
        Err(format!("after all objects were destroyed, {left:?} remain instead of {empty:?}"))
    }
}

/// Returns the counts that must be unchanged after all objects were destroyed.
fn leak_counts(resource_counts: &ResourceCounts) -> [usize; 6] {
    let ResourceCounts { queue_pairs, index_entries, regions, responses, multicast_groups, windows, .. } =
        *resource_counts;
    [queue_pairs, index_entries, regions, responses, multicast_groups, windows]
}

struct Round<'a> {
    decisions: DecisionSource<'a>,
    victim: Arc<Nic>,
    peer: Arc<Nic>,
    pair: Pair,
    targets: Vec<Target>,
    senders: Vec<Sender>,
    /// The sender that has the well-behaved peer's address.
    spoofer: Sender,
    /// The addresses of the attacked NIC.
    addresses: Vec<IpAddr>,
    groups: Vec<SocketAddr>,
    /// Earlier hostile packets.
    history: VecDeque<Vec<u8>>,
    /// Packets that the NIC sent to attackers.
    reflected: VecDeque<Vec<u8>>,
    cm: CmMessageGenerator,
    candidates: Vec<AddrPair>,
    request_channel: Arc<CmEventChannel>,
    connection_channel: Arc<CmEventChannel>,
    bursts: u64,
}

impl<'a> Round<'a> {
    fn new(decisions: DecisionSource<'a>, network: Network) -> Outcome<Round<'a>> {
        let Network { victim, peer, address_pairs, senders, spoofer, groups } = network;
        let pair = Pair::new(&victim, &peer, address_pairs)?;
        let addresses = victim.addresses().to_vec();
        let channel = || CmEventChannel::new().map(Arc::new).map_err(|error| error.to_string());
        let (request_channel, connection_channel) = (channel()?, channel()?);
        for (service, transport) in
            [(CM_ATTACK_TCP_SERVICE_ID, Transport::Rc), (CM_ATTACK_UDP_SERVICE_ID, Transport::Ud)]
        {
            let listen = ListenParams { service, bind: BindAddr::Any, transport, backlog: 12 };
            victim.cm().listen(listen, &request_channel).map_err(|error| format!("can't listen: {error}"))?;
        }
        let is_ipv4 = |address: IpAddr| Gid::from(address).udp_addr().is_ipv4();
        let gids = senders.iter().chain([&spoofer]).map(Sender::gid);
        let pairs_with = |remote: IpAddr| {
            let locals = addresses.iter().filter(move |local| is_ipv4(**local) == is_ipv4(remote));
            locals.map(move |local| AddrPair { local: *local, remote })
        };
        let candidates = gids.flat_map(pairs_with).collect();
        let mut targets = Vec::new();
        for (index, local) in addresses.iter().enumerate() {
            let sender = senders.iter().rposition(|sender| is_ipv4(sender.gid()) == is_ipv4(*local));
            let Some(sender) = sender else { continue };
            for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
                let peer = Qpn::truncate(0x600 + targets.len() as u32);
                let target = Target::new(&victim, transport, *local, senders[sender].gid(), sender, peer)?;
                if transport == Transport::Ud && index == 0 {
                    for group in &groups {
                        // The machine may not support multicast on its loopback interface.
                        _ = victim.attach_multicast(target.end.qpn, Gid::from(group.ip()));
                    }
                }
                targets.push(target);
            }
        }
        Ok(Round {
            decisions,
            victim,
            peer,
            pair,
            targets,
            senders,
            spoofer,
            addresses,
            groups,
            history: VecDeque::new(),
            reflected: VecDeque::new(),
            cm: CmMessageGenerator::default(),
            candidates,
            request_channel,
            connection_channel,
            bursts: 0,
        })
    }

    /// Sends some hostile packets, handles their effects, and lets the well-behaved pair do one operation.
    fn run_burst(&mut self, report: &mut Report) -> Outcome<()> {
        self.bursts += 1;
        for _ in 0..=self.decisions.below(24) {
            self.send_hostile_packet(report);
        }
        self.serve_application(report)?;
        self.receive_responses();
        self.check()?;
        self.pair.step().map_err(|error| format!("the well-behaved pair: {error}"))?;
        self.check()
    }

    /// Sends a hostile packet, or a batch of them.
    fn send_hostile_packet(&mut self, report: &mut Report) {
        let (kind, forged) = match self.decisions.below(32) {
            0..14 => (Kind::KnownQueuePair, self.target_packet()),
            14..17 => (Kind::Group, self.group_packet()),
            17..24 => (Kind::Message, self.cm_packet(None)),
            24..26 => {
                let group = self.decisions.pick(&self.groups);
                (Kind::GroupMessage, self.cm_packet(Some(group)))
            }
            26..29 => (Kind::WrongAddress, self.misaddressed_packet()),
            29..31 => (Kind::Spoofed, self.spoofed_packet()),
            _ => (Kind::Reflected, self.reflected_packet()),
        };
        let Some(HostilePacket { bytes, sender, destination }) = forged else { return };
        let count = if self.decisions.one_in(24) { 2 + self.decisions.below(63) as usize } else { 1 };
        let socket = sender.map_or(&self.spoofer, |index| &self.senders[index]);
        let sent = socket.send(&bytes, count, destination);
        report.sent[kind as usize] += sent as u64;
        report.batches += u64::from(sent > 1);
        report.rejected += u64::from(sent == 0);
        // Packets for the pair aren't replayed: from another address, they might be valid.
        if matches!(kind, Kind::KnownQueuePair | Kind::Group | Kind::Message | Kind::GroupMessage) {
            push_bounded(&mut self.history, bytes);
        }
    }

    /// Returns a packet for a target, from the address of its peer.
    fn target_packet(&mut self) -> Option<HostilePacket> {
        let index = self.decisions.below(self.targets.len() as u64) as usize;
        let target = &mut self.targets[index];
        let status = self.victim.query_qp(target.end.qpn)?;
        let destination = Gid::from(target.local).udp_addr();
        let flow = Flow::new(self.senders[target.sender].address, destination)?;
        let target_info = TargetInfo {
            qpn: target.end.qpn,
            remote_qpn: target.peer,
            transport: target.end.transport,
            mtu: 1024,
            qkey: QKEY,
            expected_psn: status.expected_psn,
            next_psn: status.next_psn,
            memory: Some(target.end.memory_range()),
            flow,
            attacker_state: &mut target.attacker_state,
        };
        let bytes = PacketGenerator { decisions: &mut self.decisions, history: &self.history, target_info }
            .next_packet()
            .into_bytes(&flow)?;
        Some(HostilePacket { bytes, sender: Some(target.sender), destination })
    }

    /// Returns a packet for the members of a group.
    fn group_packet(&mut self) -> Option<HostilePacket> {
        let destination = self.decisions.pick(&self.groups);
        let (sender, flow) = self.sender_to(destination)?;
        let attacker_state = &mut AttackerState::default();
        let peer = Qpn::truncate(0x600);
        let mut target_info = partial_target_info(Qpn::MULTICAST, peer, Transport::Ud, flow, attacker_state);
        if self.decisions.one_in(3) {
            // The packet is for a single queue pair, but has a group's address.
            let target = &self.targets[self.decisions.below(self.targets.len() as u64) as usize].end;
            (target_info.qpn, target_info.transport) = (target.qpn, target.transport);
        }
        let bytes = PacketGenerator { decisions: &mut self.decisions, history: &self.history, target_info }
            .next_packet()
            .into_bytes(&flow)?;
        Some(HostilePacket { bytes, sender: Some(sender), destination })
    }

    /// Returns a connection manager message to an address of the NIC or to a group.
    fn cm_packet(&mut self, group: Option<SocketAddr>) -> Option<HostilePacket> {
        let (addrs, mad) = self.cm.next_message(&mut self.decisions, &self.candidates);
        let destination = group.unwrap_or_else(|| Gid::from(addrs.local).udp_addr());
        let named = self.senders.iter().position(|sender| sender.gid() == addrs.remote);
        let sender = match group {
            Some(group) => Some(self.sender_to(group)?.0),
            None => named,
        };
        let source = sender.map_or(&self.spoofer, |index| &self.senders[index]).address;
        let mut mad = mad.emit().to_vec();
        if self.decisions.one_in(6) {
            for _ in 0..=self.decisions.below(4) {
                let index = self.decisions.below(mad.len() as u64) as usize;
                mad[index] = self.decisions.bits(8) as u8;
            }
        }
        if self.decisions.one_in(40) {
            mad.truncate(self.decisions.below(mad.len() as u64) as usize);
        }
        let source_qp = if self.decisions.one_in(40) { Qpn::truncate(7) } else { Qpn::GSI };
        let ud = Ud { qkey: GSI_QKEY, source_qp, immediate: None };
        let header = Header::new(Qpn::GSI, Psn::ZERO, Operation::Ud(ud));
        let flow = Flow::new(source, destination)?;
        let bytes = adverb_sim::ForgedPacket::Parts(header, mad).into_bytes(&flow)?;
        Some(HostilePacket { bytes, sender, destination })
    }

    /// Returns a packet for the well-behaved pair that is correct except for its source address.
    fn misaddressed_packet(&mut self) -> Option<HostilePacket> {
        // The IPv6 senders have the peer's address, because the loopback interface has only one.
        let sender = self.senders.iter().position(|sender| sender.address.is_ipv4())?;
        let end = &self.pair.rc_pairs[self.decisions.below(2) as usize].victim;
        let status = self.victim.query_qp(end.qpn)?;
        let destination = Gid::from(self.addresses[self.decisions.below(2) as usize]).udp_addr();
        let flow = Flow::new(self.senders[sender].address, destination)?;
        let attacker_state = &mut AttackerState::default();
        let mut target_info =
            partial_target_info(end.qpn, status.remote_qpn, Transport::Rc, flow, attacker_state);
        (target_info.expected_psn, target_info.next_psn, target_info.memory) =
            (status.expected_psn, status.next_psn, Some(end.memory_range()));
        let history = VecDeque::new();
        let bytes = PacketGenerator { decisions: &mut self.decisions, history: &history, target_info }
            .next_packet()
            .into_bytes(&flow)?;
        Some(HostilePacket { bytes, sender: Some(sender), destination })
    }

    /// Returns a packet from the address of the well-behaved peer, with guessed numbers.
    fn spoofed_packet(&mut self) -> Option<HostilePacket> {
        let destination = Gid::from(self.addresses[0]).udp_addr();
        let flow = Flow::new(self.spoofer.address, destination)?;
        let [qpn, peer] = [(); 2].map(|()| Qpn::truncate(self.decisions.bits(24) as u32));
        let transport = self.decisions.pick(&[Transport::Rc, Transport::Uc, Transport::Ud]);
        let attacker_state = &mut AttackerState::default();
        let mut target_info = partial_target_info(qpn, peer, transport, flow, attacker_state);
        (target_info.expected_psn, target_info.next_psn) =
            (Psn::wrapping(self.decisions.bits(24) as u32), Psn::wrapping(self.decisions.bits(24) as u32));
        target_info.qkey = self.decisions.bits(32) as u32;
        let history = VecDeque::new();
        let bytes = PacketGenerator { decisions: &mut self.decisions, history: &history, target_info }
            .next_packet()
            .into_bytes(&flow)?;
        Some(HostilePacket { bytes, sender: None, destination })
    }

    /// Returns a packet that the NIC sent, to send it back.
    fn reflected_packet(&mut self) -> Option<HostilePacket> {
        let count = self.reflected.len() as u64;
        let bytes = self.reflected.get(self.decisions.below(count.max(1)) as usize)?.clone();
        let destination = Gid::from(self.decisions.pick(&self.addresses)).udp_addr();
        let (sender, _) = self.sender_to(destination)?;
        Some(HostilePacket { bytes, sender: Some(sender), destination })
    }

    /// Returns a sender of the destination's address family, and the flow from it.
    fn sender_to(&mut self, destination: SocketAddr) -> Option<(usize, Flow)> {
        let start = self.decisions.below(self.senders.len() as u64) as usize;
        let mut order = (0..self.senders.len()).map(|offset| (start + offset) % self.senders.len());
        order.find_map(|index| Some((index, Flow::new(self.senders[index].address, destination)?)))
    }

    /// Acts as the application of the attacked NIC: restores the targets, and responds to connection requests.
    fn serve_application(&mut self, report: &mut Report) -> Outcome<()> {
        for target in &mut self.targets {
            target.restore_and_post(&mut self.decisions)?;
        }
        while let Some(event) = self.request_channel.take() {
            let CmEvent::Event(event) = event else {
                return Err(format!("unexpected connection manager event: {event:?}"));
            };
            match event {
                Event::Request(request) => {
                    report.requests += 1;
                    // These calls fail if the peer has abandoned the request, or if the queue pair already has a
                    // connection.
                    let qpn = self.targets[self.decisions.below(self.targets.len() as u64) as usize].end.qpn;
                    let timeout = std::time::Duration::from_millis(100);
                    let cm = self.victim.cm();
                    match self.decisions.below(4) {
                        0 => _ = cm.reject(request.id, b"no"),
                        1 => {}
                        _ => {
                            if cm.subscribe(request.id, &self.connection_channel).is_ok() {
                                _ = cm.qp_attributes(request.id, &LocalQp::new(qpn));
                                _ = cm.accept(request.id, &LocalQp::new(qpn), b"yes", timeout);
                            }
                        }
                    }
                }
                Event::Query(query) => {
                    let qpn = self.targets[0].end.qpn;
                    _ = self.victim.cm().accept_query(query.id, qpn, QKEY, b"here");
                }
                _ => {}
            }
        }
        while let Some(event) = self.connection_channel.take() {
            let CmEvent::Event(event) = event else {
                return Err(format!("unexpected connection manager event: {event:?}"));
            };
            if let Event::Established(id) = event
                && self.decisions.one_in(2)
            {
                _ = self.victim.cm().disconnect(id, std::time::Duration::from_millis(100));
            }
        }
        Ok(())
    }

    /// Receives the packets that the NIC sent to the attackers.
    fn receive_responses(&mut self) {
        for sender in &self.senders {
            for _ in 0..64 {
                let Some((bytes, source)) = sender.receive() else { break };
                if let Ok(packet) = Packet::parse(&bytes) {
                    let header = packet.header();
                    if header.dest_qp == Qpn::GSI
                        && let Ok(mad) = Mad::parse(packet.payload())
                    {
                        let addrs = AddrPair { local: Gid::from(source).ip(), remote: sender.gid() };
                        if self.candidates.contains(&addrs) {
                            self.cm.record_manager_message(addrs, mad);
                        }
                    }
                    if let Some(target) = self.targets.iter_mut().find(|target| target.peer == header.dest_qp)
                    {
                        target.attacker_state.record_target_packet(header);
                    }
                }
                push_bounded(&mut self.reflected, bytes);
            }
        }
    }

    /// Checks that both NICs work, and that the attacked one doesn't hold too many objects.
    fn check(&self) -> Outcome<()> {
        for (name, nic) in [("attacked", &self.victim), ("well-behaved", &self.peer)] {
            if nic.has_failed() {
                return Err(format!("the {name} NIC has failed"));
            }
            while let Some(event) = nic.next_event() {
                match event {
                    NicEvent::Failed => return Err(format!("the {name} NIC has failed")),
                    NicEvent::Queue(
                        QueueEvent::Fatal(qpn) | QueueEvent::RequestError(qpn) | QueueEvent::AccessError(qpn),
                    ) if self.pair.has(qpn) => {
                        return Err(format!("a queue pair of the well-behaved pair: {event:?}"));
                    }
                    _ => {}
                }
            }
        }
        let resource_counts = self.victim.resource_counts();
        // Each queue pair has at most four responses for each of its at most four READs and atomics.
        if resource_counts.responses > 16 * resource_counts.queue_pairs || resource_counts.events > 1024 {
            return Err(format!("the attacked NIC holds too much: {resource_counts}"));
        }
        let cm = self.victim.cm().resource_counts();
        if cm.half_open > 1024 || cm.connections > 1 << 16 || cm.datagrams > 4096 {
            return Err(format!("the attacked connection manager holds too much: {cm:?}"));
        }
        Ok(())
    }
}

/// A hostile packet, the index of its sender (`None` for the sender with the peer's address), and its destination.
struct HostilePacket {
    bytes: Vec<u8>,
    sender: Option<usize>,
    destination: SocketAddr,
}

/// Returns the target information of an attacker that knows neither the sequence numbers nor the memory.
fn partial_target_info(
    qpn: Qpn,
    peer: Qpn,
    transport: Transport,
    flow: Flow,
    attacker_state: &mut AttackerState,
) -> TargetInfo<'_> {
    let (expected, next) = (Psn::ZERO, Psn::ZERO);
    TargetInfo {
        qpn,
        remote_qpn: peer,
        transport,
        mtu: 1024,
        qkey: QKEY,
        expected_psn: expected,
        next_psn: next,
        memory: None,
        flow,
        attacker_state,
    }
}

fn push_bounded(packets: &mut VecDeque<Vec<u8>>, bytes: Vec<u8>) {
    if packets.len() >= MAX_HISTORY {
        packets.pop_front();
    }
    packets.push_back(bytes);
}
