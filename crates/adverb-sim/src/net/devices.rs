//! Two devices (adverb-proto) in place of modeled queue pairs.
//!
//! The drivers post to the queues of the modeled connection. The devices take the requests from these queues, transfer
//! the data in packets, and decide when a request completes or a queue pair fails.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use adverb_proto::memory::{Registration, RemoteInvalidate, StorageId};
use adverb_proto::types::{
    Access, PathMtu, RecvRequest, RemoteAddress, Segment, SendOperation, SendRequest, Status,
};
use adverb_proto::{Cq, Init, Path, QpConfig, ReadyToReceive, ReadyToSend, Time, Transition};
use adverb_wire::cm::Timeout;
use adverb_wire::{Packet, Psn, Qpn, RnrTimer};

use super::log;
use super::memory::{LOCAL_STORAGE, ProcessMemory, REGION_BASE, local_address};
use super::pair::{Pair, Process};
use crate::Random;
use crate::fabric::{Fabric, Faults, InFlight};
use crate::node::{Node, UnregisteredPayload};
use crate::rc_model::{ModelRequest, RcConnection};
use crate::world::{Actors, World};

/// The exponent of the ACK timeout: 131 µs. With seven retries, a queue pair fails after about a millisecond.
const ACK_TIMEOUT_EXPONENT: u8 = 5;
const PORT: u16 = 0xc000;

/// Two devices, and the fabric between them.
pub(super) struct Devices {
    network: World<LaneNode, Infallible>,
    random: Random,
    lanes: Vec<Lane>,
    /// The lane of each queue pair.
    qp_lanes: [HashMap<Qpn, usize>; 2],
    lost_until: Time,
}

/// A device. The memory is that of its process in the model.
type LaneNode = Node<Registrations, (), ()>;

/// The completion queue of receives, and the keys of a device.
struct Registrations {
    recv_cq: Cq,
    /// The local key of the buffers of requests.
    local_key: u32,
    /// The keys of regions, by their keys in the model.
    keys: BTreeMap<u32, u32>,
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
        let base_delay = Duration::from_nanos(4096 << ACK_TIMEOUT_EXPONENT);
        let fabric = Fabric::new(faults, Time::MAX, Duration::from_micros(2), base_delay, random.u64());
        let mut network = World::new(fabric, false);
        network.nodes = [1, 2].map(|host| create_node(host, &mut random)).into();
        Devices {
            network,
            random,
            lanes: Vec::new(),
            qp_lanes: [HashMap::new(), HashMap::new()],
            lost_until: Time::ZERO,
        }
    }

    /// Returns the number of packets that the devices have sent.
    pub(super) fn packet_count(&self) -> u64 {
        self.network.packet_count
    }

    /// Drops all packets until `time`. A long loss exhausts the retries of queue pairs.
    pub(super) fn lose_packets_until(&mut self, time: Time) {
        self.lost_until = time;
    }

    /// Passes new requests to the devices, and advances the time until the next packet arrives or the next timer
    /// expires. Returns whether there was a packet or a timer.
    pub(super) fn step(&mut self, pair: &mut Pair) -> bool {
        self.apply_actions(pair);
        self.transmit(pair);
        self.network.now = pair.now;
        let next = self.network.next_event();
        if let Some(next) = next {
            DeviceStep { devices: self, pair }.advance(next);
            pair.now = self.network.now;
            self.transmit(pair);
        }
        self.complete(pair);
        next.is_some()
    }

    /// Applies the drivers' actions in the model since the last step to the devices.
    fn apply_actions(&mut self, pair: &mut Pair) {
        for side in 0..2 {
            let is_running = pair.sides[side].process == Process::Running;
            update_registrations(
                &mut self.network.nodes[side],
                &pair.sides[side].memory,
                is_running,
                &mut self.random,
            );
        }
        while self.lanes.len() < pair.lanes.len() {
            self.connect(pair.now);
        }
        for (lane, rc) in pair.lanes.iter().enumerate() {
            for side in 0..2 {
                self.apply_end_actions(pair.now, lane, side, rc.as_ref());
            }
        }
    }

    /// Creates the queue pairs of a lane.
    fn connect(&mut self, now: Time) {
        let lane = self.lanes.len();
        let random = &mut self.random;
        let qpns = [0, 1].map(|side| {
            let Node { device, pd, cq, actor, .. } = &mut self.network.nodes[side];
            let config = QpConfig::rc(*pd, *cq, actor.recv_cq);
            device.create_qp(config, || random.u32()).expect("a valid configuration")
        });
        for side in 0..2 {
            let remote = self.network.nodes[1 - side].address;
            let Node { device, address, .. } = &mut self.network.nodes[side];
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
                timeout: Timeout::new(ACK_TIMEOUT_EXPONENT).expect("below 32"),
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
            self.qp_lanes[side].insert(qpns[side], lane);
        }
        let ends =
            qpns.map(|qpn| LaneEnd { qpn: Some(qpn), is_stopped: false, last_posted: None, receives: 0 });
        self.lanes.push(Lane { ends });
    }

    /// Posts the requests of one end of a lane, or stops or destroys its queue pair.
    fn apply_end_actions(&mut self, now: Time, lane: usize, side: usize, rc: Option<&RcConnection>) {
        let end = &mut self.lanes[lane].ends[side];
        let Some(qpn) = end.qpn else { return };
        let [first, second] = &mut self.network.nodes[..] else { return };
        let (node, peer) = if side == 0 { (first, &*second) } else { (second, &*first) };
        let Some(rc) = rc.filter(|rc| !rc.is_end_destroyed(side)) else {
            end.qpn = None;
            self.qp_lanes[side].remove(&qpn);
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
            let segments = [node.actor.segment(segment)];
            let segments = &segments[..usize::from(segment.length > 0)];
            let request = RecvRequest { wr_id, tag: 0, segments };
            node.device.post_recv(now, qpn, &request).expect("the model has checked the queue's depth");
            end.receives += 1;
        }
        let last_posted = end.last_posted;
        for request in rc.posted(side).filter(|request| last_posted.is_none_or(|last| request.wr_id > last)) {
            end.last_posted = Some(request.wr_id);
            post_send(node, now, qpn, request, peer);
        }
    }

    /// Passes the packets of both devices to the fabric.
    fn transmit(&mut self, pair: &mut Pair) {
        for side in 0..2 {
            loop {
                let memory = &pair.sides[side].memory;
                let packet = match self.network.nodes[side].poll_packet_from(pair.now, memory) {
                    Ok(Some(packet)) => packet,
                    Ok(None) => break,
                    Err(UnregisteredPayload) => {
                        return pair.report_violation("the NIC read a buffer that was not in flight");
                    }
                };
                self.network.packet_count += 1;
                if pair.now >= self.lost_until && !self.is_cut(pair, 1 - side, packet.header.dest_qp) {
                    self.network.fabric.send(pair.now, packet.into_flight(side, 1 - side));
                }
            }
        }
    }

    /// Whether the lane of a side's queue pair is cut.
    fn is_cut(&self, pair: &Pair, side: usize, qpn: Qpn) -> bool {
        let lane = self.qp_lanes[side].get(&qpn).and_then(|lane| pair.lanes[*lane].as_ref());
        lane.is_some_and(RcConnection::is_cut)
    }

    /// Passes the completions of both devices to the model.
    fn complete(&mut self, pair: &mut Pair) {
        for side in 0..2 {
            let (send_cq, recv_cq) = (self.network.nodes[side].cq, self.network.nodes[side].actor.recv_cq);
            // Messages that arrived before a failure must be passed on first.
            let mut flushed = Vec::new();
            while let Some(completion) = self.network.nodes[side].device.poll_completion(recv_cq) {
                let Some(lane) = self.qp_lanes[side].get(&completion.qpn).copied() else { continue };
                let Some(rc) = pair.lanes[lane].as_mut() else { continue };
                if completion.outcome.is_ok() {
                    self.lanes[lane].ends[side].receives -= 1;
                    rc.consume_receive(side, completion);
                } else {
                    flushed.push(lane);
                }
            }
            while let Some(completion) = self.network.nodes[side].device.poll_completion(send_cq) {
                let Some(lane) = self.qp_lanes[side].get(&completion.qpn).copied() else { continue };
                let Some(rc) = pair.lanes[lane].as_mut() else { continue };
                match completion.outcome {
                    Ok(_) => rc.complete_through(side, completion),
                    Err(failure) if rc.is_end_working(side) => {
                        rc.complete_before(side, completion.wr_id);
                        rc.fail(side, failure.status);
                        Devices::check_status(pair, side, failure.status);
                    }
                    Err(_) => {}
                }
            }
            for lane in flushed {
                if let Some(rc) = pair.lanes[lane].as_mut() {
                    rc.fail(side, Status::Flushed);
                }
            }
        }
    }

    /// Checks that a request failed because of lost packets.
    fn check_status(pair: &mut Pair, side: usize, status: Status) {
        pair.note(|| format!("NIC of the {}: {status}", log::name(side)));
        match status {
            Status::RetryExceeded | Status::Flushed => {}
            Status::RnrRetryExceeded => {
                pair.report_violation("a message found no receive: credits were exceeded");
            }
            status => pair.report_violation(&format!("a request failed: {status}")),
        }
    }
}

/// A step of the devices, which access the memory of the processes.
struct DeviceStep<'a> {
    devices: &'a mut Devices,
    pair: &'a mut Pair,
}

impl Actors for DeviceStep<'_> {
    type Node = LaneNode;
    type Task = Infallible;

    fn world(&mut self) -> &mut World<LaneNode, Infallible> {
        &mut self.devices.network
    }

    fn deliver(&mut self, packet: &InFlight) {
        let Ok(parsed) = Packet::parse(&packet.bytes) else { return };
        if self.devices.is_cut(self.pair, packet.to, parsed.header().dest_qp) {
            return;
        }
        let network = &mut self.devices.network;
        let rx_meta = packet.rx_meta(network.nodes[packet.from].address, network.nodes[packet.to].address);
        let memory = &mut self.pair.sides[packet.to].memory;
        network.nodes[packet.to].device.handle_packet(network.now, &rx_meta, &parsed, memory);
    }

    fn perform(&mut self, task: Infallible) {
        match task {}
    }
}

fn create_node(host: u8, random: &mut Random) -> LaneNode {
    let address = IpAddr::V4(Ipv4Addr::new(10, 99, 0, host));
    Node::new(address, (), (), 1 << 16, |device, pd| {
        let registration = Registration {
            addr: 0,
            length: 1 << 60,
            access: Access::LOCAL_WRITE,
            storage: LOCAL_STORAGE,
            remote_invalidate: RemoteInvalidate::Denied,
        };
        let local_key = device.register(pd, registration, || random.u32()).expect("a valid region");
        Registrations { recv_cq: device.create_cq(1 << 16), local_key, keys: BTreeMap::new() }
    })
}

/// Registers the new regions of the process, and deregisters the released ones.
fn update_registrations(node: &mut LaneNode, memory: &ProcessMemory, is_running: bool, random: &mut Random) {
    let Node { device, pd, actor, .. } = node;
    actor.keys.retain(|rkey, key| {
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
        actor
            .keys
            .entry(rkey)
            .or_insert_with(|| device.register(*pd, registration, || random.u32()).expect("a valid region"));
    }
}

impl Registrations {
    /// Returns local memory as the device addresses it.
    fn segment(&self, segment: Segment) -> Segment {
        Segment { addr: local_address(segment.addr), lkey: self.local_key, ..segment }
    }
}

/// Posts a request, with the peer's key if it accesses the peer's memory.
fn post_send(node: &mut LaneNode, now: Time, qpn: Qpn, request: &ModelRequest, peer: &LaneNode) {
    // A key that the peer has deregistered is invalid.
    let translate = |remote: RemoteAddress| {
        let rkey = peer.actor.keys.get(&remote.rkey).copied().unwrap_or(0);
        RemoteAddress { rkey, ..remote }
    };
    let operation = match request.operation {
        SendOperation::Write(remote) => SendOperation::Write(translate(remote)),
        SendOperation::WriteWithImm(remote, immediate) => {
            SendOperation::WriteWithImm(translate(remote), immediate)
        }
        SendOperation::Read(remote) => SendOperation::Read(translate(remote)),
        operation => {
            assert_eq!(operation.remote(), None, "connections don't post {}", operation.name());
            operation
        }
    };
    let local = request.local.filter(|local| local.length > 0).map(|local| node.actor.segment(local));
    let request = SendRequest::<()> {
        wr_id: request.wr_id,
        tag: 0,
        operation,
        flags: request.flags,
        segments: local.as_slice(),
        destination: None,
    };
    node.device.post_send(now, qpn, &request).expect("the model has checked the queue's depth");
}
