//! Two devices (adverb-proto) in place of modeled queue pairs.
//!
//! The drivers post to the queues of the modeled connection. The devices take the requests from these queues, transfer
//! the data in packets, and decide when a request completes or a queue pair fails.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use adverb_proto::memory::{Pd, Registration, RemoteInvalidate, StorageId};
use adverb_proto::types::{
    Access, PathMtu, RecvRequest, RemoteAddress, Segment, SendOperation, SendRequest, Status,
};
use adverb_proto::{
    Cq, Device, IcrcCheck, Init, Path, QpConfig, ReadyToReceive, ReadyToSend, RxMeta, Time, Transition,
};
use adverb_wire::cm::Timeout;
use adverb_wire::{Packet, Psn, Qpn, ROCE_PORT, RnrTimer};

use super::log;
use super::memory::{LOCAL_STORAGE, ProcessMemory, REGION_BASE, local_address};
use super::world::{Process, World};
use crate::Random;
use crate::fabric::{Fabric, Faults, InFlight};
use crate::rc_model::{ModelRequest, RcConnection};

/// The exponent of the ACK timeout: 131 µs. With seven retries, a queue pair fails after about a millisecond.
const ACK_TIMEOUT: u8 = 5;
const PORT: u16 = 0xc000;

/// Two devices, and the fabric between them.
pub(super) struct Devices {
    nodes: [Node; 2],
    fabric: Fabric,
    random: Random,
    lanes: Vec<Lane>,
    /// The lane of each queue pair.
    ends: [HashMap<Qpn, usize>; 2],
    lost_until: Time,
    packet_count: u64,
}

struct Node {
    device: Device,
    address: IpAddr,
    pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
    /// The key of the memory of requests.
    local_key: u32,
    /// The keys of regions, by their keys in the model.
    keys: BTreeMap<u32, u32>,
    ip_id: u16,
}

/// The queue pairs of a lane.
struct Lane {
    ends: [LaneEnd; 2],
}

struct LaneEnd {
    qpn: Option<Qpn>,
    is_stopped: bool,
    /// The `wr_id` of the last request that was posted to the device.
    last_posted: Option<u64>,
    /// The number of receives that the device has.
    receives: usize,
}

impl Devices {
    /// Creates the devices. The fabric loses, duplicates and reorders packets, and the devices must recover.
    pub(super) fn new(seed: u64) -> Devices {
        let mut random = Random::new(seed);
        let mut chance = |max| random.below(max) as u32;
        let faults = Faults {
            loss_per_million: chance(30_000),
            duplication_per_million: chance(30_000),
            reordering_per_million: chance(30_000),
            ..Faults::default()
        };
        let long = Duration::from_nanos(4096 << ACK_TIMEOUT);
        let fabric = Fabric::new(faults, Time::MAX, Duration::from_micros(2), long, random.u64());
        let nodes = [1, 2].map(|host| Node::new(host, &mut random));
        Devices {
            nodes,
            fabric,
            random,
            lanes: Vec::new(),
            ends: [HashMap::new(), HashMap::new()],
            lost_until: Time::ZERO,
            packet_count: 0,
        }
    }

    /// Returns the number of packets that the devices have sent.
    pub(super) fn packet_count(&self) -> u64 {
        self.packet_count
    }

    /// Drops all packets until `time`. A long loss exhausts the retries of queue pairs.
    pub(super) fn lose_packets_until(&mut self, time: Time) {
        self.lost_until = time;
    }

    /// Passes new requests to the devices, and advances the time until the next packet arrives or the next timer
    /// expires. Returns whether there was a packet or a timer.
    pub(super) fn step(&mut self, world: &mut World) -> bool {
        self.apply_actions(world);
        self.transmit(world);
        let timeouts = self.nodes.iter().filter_map(|node| node.device.poll_timeout());
        let next = timeouts.chain(self.fabric.next()).min();
        if let Some(next) = next {
            world.now = world.now.max(next);
            while let Some(packet) = self.fabric.receive(world.now) {
                self.deliver(world, &packet);
            }
            for node in &mut self.nodes {
                if node.device.poll_timeout().is_some_and(|time| time <= world.now) {
                    node.device.handle_timeout(world.now);
                }
            }
            self.transmit(world);
        }
        self.complete(world);
        next.is_some()
    }

    /// Applies the drivers' actions in the model since the last step to the devices.
    fn apply_actions(&mut self, world: &mut World) {
        for side in 0..2 {
            let is_running = world.sides[side].process == Process::Running;
            self.nodes[side].register_new(&world.sides[side].memory, is_running, &mut self.random);
        }
        while self.lanes.len() < world.lanes.len() {
            self.connect(world.now);
        }
        for (lane, rc) in world.lanes.iter().enumerate() {
            for side in 0..2 {
                self.apply_end_actions(world.now, lane, side, rc.as_ref());
            }
        }
    }

    /// Creates the queue pairs of a lane.
    fn connect(&mut self, now: Time) {
        let lane = self.lanes.len();
        let random = &mut self.random;
        let qpns = [0, 1].map(|side| {
            let Node { device, pd, send_cq, recv_cq, .. } = &mut self.nodes[side];
            let config = QpConfig::rc(*pd, *send_cq, *recv_cq);
            device.create_qp(config, || random.u32()).expect("a valid configuration")
        });
        for side in 0..2 {
            let remote = self.nodes[1 - side].address;
            let Node { device, address, .. } = &mut self.nodes[side];
            let receiving = ReadyToReceive {
                remote_qpn: qpns[1 - side],
                path: Path::new(*address, remote, PORT).expect("addresses of one family"),
                path_mtu: PathMtu::Mtu256,
                psn: Psn::ZERO,
                max_dest_rd_atomic: 4,
                min_rnr_timer: RnrTimer::new(1).expect("below 32"),
            };
            let sending = ReadyToSend {
                psn: Psn::ZERO,
                timeout: Timeout::new(ACK_TIMEOUT).expect("below 32"),
                retry_count: 7,
                // A message that finds no receive is a violation.
                rnr_retry: 0,
                max_rd_atomic: 4,
            };
            for transition in [
                Transition::Init(Init::new(Access::LOCAL_WRITE | Access::REMOTE)),
                Transition::ReadyToReceive(receiving),
                Transition::ReadyToSend(sending),
            ] {
                device.modify_qp(now, qpns[side], &transition).expect("transitions in order");
            }
            self.ends[side].insert(qpns[side], lane);
        }
        let ends =
            qpns.map(|qpn| LaneEnd { qpn: Some(qpn), is_stopped: false, last_posted: None, receives: 0 });
        self.lanes.push(Lane { ends });
    }

    /// Posts the requests of one end of a lane, or stops or destroys its queue pair.
    fn apply_end_actions(&mut self, now: Time, lane: usize, side: usize, rc: Option<&RcConnection>) {
        let end = &mut self.lanes[lane].ends[side];
        let Some(qpn) = end.qpn else { return };
        let [first, second] = &mut self.nodes;
        let (node, peer) = if side == 0 { (first, &*second) } else { (second, &*first) };
        let Some(rc) = rc.filter(|rc| !rc.is_end_destroyed(side)) else {
            end.qpn = None;
            self.ends[side].remove(&qpn);
            node.device.destroy_qp(qpn);
            return;
        };
        if !rc.is_end_working(side) {
            if !std::mem::replace(&mut end.is_stopped, true) {
                let _stopped = node.device.modify_qp(now, qpn, &Transition::Error);
            }
            return;
        }
        for (wr_id, segment) in rc.receives(side).skip(end.receives) {
            let segments = [node.segment(segment)];
            let segments = &segments[..usize::from(segment.length > 0)];
            let request = RecvRequest { wr_id, tag: 0, segments };
            node.device.post_recv(now, qpn, &request).expect("the model has checked the queue's depth");
            end.receives += 1;
        }
        let last_posted = end.last_posted;
        for request in rc.posted(side).filter(|request| last_posted.is_none_or(|last| request.wr_id > last)) {
            end.last_posted = Some(request.wr_id);
            node.post_send(now, qpn, request, peer);
        }
    }

    /// Passes the packets of both devices to the fabric.
    fn transmit(&mut self, world: &mut World) {
        for side in 0..2 {
            loop {
                let node = &mut self.nodes[side];
                node.ip_id = node.ip_id.wrapping_add(1);
                let ip_id = node.ip_id;
                let Some(transmit) = node.device.poll_transmit(world.now) else { break };
                let dest_qp = transmit.header.dest_qp;
                let mut bytes = Vec::with_capacity(transmit.payload.len() + 64);
                if transmit.write_to(&world.sides[side].memory, ip_id, &mut bytes).is_err() {
                    return world.report_violation("the NIC read a buffer that was not in flight");
                }
                self.packet_count += 1;
                let packet = InFlight {
                    from: side,
                    to: 1 - side,
                    source_port: PORT,
                    ip_id,
                    bytes,
                    ecn_capable: false,
                    is_ecn_marked: false,
                };
                if world.now >= self.lost_until && !self.is_cut(world, 1 - side, dest_qp) {
                    self.fabric.send(world.now, packet);
                }
            }
        }
    }

    /// Whether the lane of a side's queue pair is cut.
    fn is_cut(&self, world: &World, side: usize, qpn: Qpn) -> bool {
        let lane = self.ends[side].get(&qpn).and_then(|lane| world.lanes[*lane].as_ref());
        lane.is_some_and(RcConnection::is_cut)
    }

    fn deliver(&mut self, world: &mut World, packet: &InFlight) {
        let Ok(parsed) = Packet::parse(&packet.bytes) else { return };
        let header: adverb_wire::Header = *parsed.header();
        if self.is_cut(world, packet.to, header.dest_qp) {
            return;
        }
        let source = SocketAddr::new(self.nodes[packet.from].address, packet.source_port);
        let node = &mut self.nodes[packet.to];
        let rx_meta = RxMeta {
            source,
            destination: SocketAddr::new(node.address, ROCE_PORT),
            icrc: IcrcCheck::IpId(packet.ip_id),
            is_ecn_marked: false,
            route: Default::default(),
            received_at: None,
        };
        node.device.handle_packet(world.now, &rx_meta, &parsed, &mut world.sides[packet.to].memory);
    }

    /// Passes the completions of both devices to the model.
    fn complete(&mut self, world: &mut World) {
        for side in 0..2 {
            let (send_cq, recv_cq) = (self.nodes[side].send_cq, self.nodes[side].recv_cq);
            // Messages that arrived before a failure must be passed on first.
            let mut flushed = Vec::new();
            while let Some(completion) = self.nodes[side].device.poll_completion(recv_cq) {
                let Some(lane) = self.ends[side].get(&completion.qpn).copied() else { continue };
                let Some(rc) = world.lanes[lane].as_mut() else { continue };
                if completion.outcome.is_ok() {
                    self.lanes[lane].ends[side].receives -= 1;
                    rc.consume_receive(side, completion);
                } else {
                    flushed.push(lane);
                }
            }
            while let Some(completion) = self.nodes[side].device.poll_completion(send_cq) {
                let Some(lane) = self.ends[side].get(&completion.qpn).copied() else { continue };
                let Some(rc) = world.lanes[lane].as_mut() else { continue };
                match completion.outcome {
                    Ok(_) => rc.complete_through(side, completion),
                    Err(failure) if rc.is_end_working(side) => {
                        rc.complete_before(side, completion.wr_id);
                        rc.fail(side, failure.status);
                        Devices::check_status(world, side, failure.status);
                    }
                    Err(_) => {}
                }
            }
            for lane in flushed {
                if let Some(rc) = world.lanes[lane].as_mut() {
                    rc.fail(side, Status::Flushed);
                }
            }
        }
    }

    /// Checks that a request failed because of lost packets.
    fn check_status(world: &mut World, side: usize, status: Status) {
        world.note(|| format!("NIC of the {}: {status}", log::name(side)));
        match status {
            Status::RetryExceeded | Status::Flushed => {}
            Status::RnrRetryExceeded => {
                world.report_violation("a message found no receive: credits were exceeded");
            }
            status => world.report_violation(&format!("a request failed: {status}")),
        }
    }
}

impl Node {
    fn new(host: u8, random: &mut Random) -> Node {
        let mut device = Device::new(());
        let pd = device.create_domain();
        let (send_cq, recv_cq) = (device.create_cq(1 << 16), device.create_cq(1 << 16));
        let registration = Registration {
            addr: 0,
            length: 1 << 60,
            access: Access::LOCAL_WRITE,
            storage: LOCAL_STORAGE,
            remote_invalidate: RemoteInvalidate::Denied,
        };
        let local_key = device.register(pd, registration, || random.u32()).expect("a valid region");
        let address = IpAddr::V4(Ipv4Addr::new(10, 99, 0, host));
        let keys = BTreeMap::new();
        Node { device, address, pd, send_cq, recv_cq, local_key, keys, ip_id: 0 }
    }

    /// Registers the new regions of the process, and deregisters the released ones.
    fn register_new(&mut self, memory: &ProcessMemory, is_running: bool, random: &mut Random) {
        let device = &mut self.device;
        self.keys.retain(|rkey, key| {
            let is_kept = is_running && memory.registered_len(*rkey).is_some();
            if !is_kept {
                device.deregister(*key).expect("a registered key");
            }
            is_kept
        });
        for (rkey, len) in memory.registered() {
            let registration = Registration {
                addr: REGION_BASE,
                length: len as u64,
                access: Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
                storage: StorageId(rkey.into()),
                remote_invalidate: RemoteInvalidate::Denied,
            };
            self.keys.entry(rkey).or_insert_with(|| {
                device.register(self.pd, registration, || random.u32()).expect("a valid region")
            });
        }
    }

    /// Returns local memory as the device addresses it.
    fn segment(&self, segment: Segment) -> Segment {
        Segment { addr: local_address(segment.addr), lkey: self.local_key, ..segment }
    }

    /// Posts a request that accesses the peer's memory.
    fn post_send(&mut self, now: Time, qpn: Qpn, request: &ModelRequest, peer: &Node) {
        // A key that the peer has deregistered is invalid.
        let translate = |remote: RemoteAddress| {
            let rkey = peer.keys.get(&remote.rkey).copied().unwrap_or(0);
            RemoteAddress { rkey, ..remote }
        };
        let operation = match request.operation {
            SendOperation::Write(remote) => SendOperation::Write(translate(remote)),
            SendOperation::WriteWithImm(remote, immediate) => {
                SendOperation::WriteWithImm(translate(remote), immediate)
            }
            SendOperation::Read(remote) => SendOperation::Read(translate(remote)),
            operation => operation,
        };
        let local = request.local.filter(|local| local.length > 0).map(|local| self.segment(local));
        let request = SendRequest::<()> {
            wr_id: request.wr_id,
            tag: 0,
            operation,
            flags: request.flags,
            segments: local.as_slice(),
            destination: None,
        };
        self.device.post_send(now, qpn, &request).expect("the model has checked the queue's depth");
    }
}
