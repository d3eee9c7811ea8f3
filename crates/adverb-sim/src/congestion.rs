//! Congestion control: several senders share a slow link and must reduce their rates to its capacity. After all but one
//! stop, the last one must use the whole link.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use adverb_proto::memory::{HeapMemory, Registration, RemoteInvalidate};
use adverb_proto::types::{Access, PathMtu, RemoteAddress, Segment, SendFlags, SendOperation, SendRequest};
use adverb_proto::{Congestion, Dcqcn, Init, Path, QpConfig, ReadyToReceive, ReadyToSend, Time, Transition};
use adverb_wire::cm::Timeout;
use adverb_wire::{Operation, Packet, Psn, Qpn, RnrTimer};

use crate::Random;
use crate::fabric::{Bottleneck, Delivery, Fabric, Faults, InFlight};
use crate::node::Node;
use crate::world::{Actors, World};

/// The result of a run of several senders over one slow link.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CongestionReport {
    /// The number of senders.
    pub sender_count: usize,
    /// The number of packets that the slow link ECN-marked.
    pub ecn_marked_count: u64,
    /// The number of packets that all devices sent.
    pub packet_count: u64,
    /// The number of congestion notification packets that the receiver sent.
    pub cnps_sent: u64,
    /// The number of congestion notification packets that the senders received.
    pub cnps_received: u64,
    /// The utilization of the link while all senders are active, from 0 to 1.
    pub all_senders_utilization: f64,
    /// The number of packets per thousand that the link's full queue dropped while all senders were active.
    pub dropped_per_mille: f64,
    /// The utilization of the link while one sender is active, after its recovery, from 0 to 1.
    pub one_sender_utilization: f64,
}

impl fmt::Display for CongestionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sender_count, ecn_marked_count, packet_count, cnps_sent, cnps_received, .. } = self;
        write!(
            f,
            "{sender_count} senders, {packet_count} packets, {ecn_marked_count} marked, {cnps_sent} CNPs sent, \
             {cnps_received} received; all senders: {:.0} % utilization, {:.2} ‰ dropped; single sender: {:.0} % \
             utilization",
            100.0 * self.all_senders_utilization,
            self.dropped_per_mille,
            100.0 * self.one_sender_utilization
        )
    }
}

/// Runs several senders over one slow link. The seed determines the run.
///
/// # Errors
///
/// Returns a description of the violation if the senders don't reduce their rates, reduce them too much or don't
/// recover, or if congestion notification packets are lost, unsolicited or too frequent.
pub fn run_congestion(seed: u64) -> Result<CongestionReport, String> {
    let mut run = CongestionRun::new(seed);
    let bounds = [0, 2, 3, 5, 6].map(|part| Time::ZERO + PHASE * part / 3);
    // The four parts of a run: all senders find their rates, all keep them, one sender recovers, and one keeps its
    // rate.
    let [_, shared, recovering, lone] = [0, 1, 2, 3].map(|part| {
        run.active = if part < 2 { run.world.nodes.len() - 1 } else { 1 };
        run.run_until(bounds[part + 1]);
        std::mem::take(&mut run.counts)
    });
    let capacity = |phase: Duration| run.rate as f64 / 8.0 * phase.as_secs_f64();
    let report = CongestionReport {
        sender_count: run.world.nodes.len() - 1,
        ecn_marked_count: run.world.fabric.counts.marked,
        packet_count: run.world.packet_count,
        cnps_sent: run.world.nodes[0].device.statistics().cnps_sent,
        cnps_received: run.world.nodes[1..].iter().map(|node| node.device.statistics().cnps_received).sum(),
        all_senders_utilization: shared.arrived_bytes as f64 / capacity(bounds[2] - bounds[1]),
        dropped_per_mille: 1000.0 * shared.lost as f64 / shared.sent.max(1) as f64,
        one_sender_utilization: lone.arrived_bytes as f64 / capacity(bounds[4] - bounds[3]),
    };
    let fail = |what: &str| Err(format!("{what}: {report}"));
    if let Some(gap) = run.early_notification {
        return fail(&format!("congestion notification packets only {gap:?} apart"));
    }
    // Some packets may still be in flight.
    let CongestionReport { cnps_sent: sent, cnps_received: received, .. } = report;
    if sent == 0 || received > sent || received + (report.sender_count as u64) < sent {
        return fail("congestion notification packets missing or unsolicited");
    }
    if report.dropped_per_mille > 0.5 {
        return fail("the senders do not reduce their rates");
    }
    if report.all_senders_utilization < 0.5 {
        return fail("the senders reduce their rates too much");
    }
    if report.one_sender_utilization < 0.9 || recovering.arrived_bytes == 0 {
        return fail("the last sender does not recover");
    }
    Ok(report)
}

/// The duration of each phase: all senders, then one.
const PHASE: Duration = Duration::from_millis(12);
/// The number of bytes that a sender keeps posted.
const OUTSTANDING: usize = 256 << 10;
const BASE: u64 = 0x10_0000;
const AREA: usize = 64 << 10;
const PORT: u16 = 0xc000;

/// A receiver (the first node), and senders with one connection to it each.
struct CongestionRun {
    world: World<Node<Sender>, Infallible>,
    rate: u64,
    length: u32,
    /// The number of active senders.
    active: usize,
    counts: Counts,
    /// The time of the last congestion notification packet to each queue pair.
    notified: HashMap<Qpn, Time>,
    /// An interval between two congestion notification packets to a queue pair, if one was too short.
    early_notification: Option<Duration>,
}

/// The state of a sender, or of the receiver, which posts no requests.
struct Sender {
    qpns: Vec<Qpn>,
    /// The number of outstanding requests.
    outstanding: usize,
}

/// The counts of one part of a run, for the packets to the receiver.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sent: u64,
    lost: u64,
    arrived_bytes: u64,
}

impl CongestionRun {
    fn new(seed: u64) -> CongestionRun {
        let mut random = Random::new(seed ^ 0x636f_6e67_6573_7400);
        let senders = random.between(2, 6) as usize;
        let rate = random.pick(&[10, 25, 40]) * 1_000_000_000;
        let latency = Duration::from_nanos(random.between(1000, 5000));
        let mark_threshold = random.between(20, 80) << 10;
        let bottleneck = Bottleneck { device: 0, rate, mark_threshold, queue_capacity: 10 * mark_threshold };
        let mtu = random.pick(&[PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096]);
        let length = random.between(1, 16) as u32 * 4096;
        let faults = Faults { bottleneck: Some(bottleneck), ..Faults::default() };
        let base_delay = Duration::from_millis(1);
        let fabric = Fabric::new(faults, Time::MAX, latency, base_delay, random.u64());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mut world = World::new(fabric, false);
        for index in 0..=senders {
            let address = IpAddr::V4(Ipv4Addr::new(10, 88, 0, index as u8 + 1));
            let sender = |_: &mut _, _| Sender { qpns: Vec::new(), outstanding: 0 };
            let mut node = Node::new(address, (), HeapMemory::default(), 1 << 16, sender);
            let storage = node.memory.add(vec![index as u8; AREA]);
            let remote_invalidate = RemoteInvalidate::Denied;
            let registration =
                Registration { addr: BASE, length: AREA as u64, access, storage, remote_invalidate };
            node.register(&mut random, node.pd, registration);
            let mut config = QpConfig::rc(node.pd, node.cq, node.cq);
            let mut dcqcn = Dcqcn::new(rate);
            // The parameters are tuned to the short latency and duration of this run.
            dcqcn.additive_increase = rate / 200;
            dcqcn.hyper_increase = rate / 50;
            dcqcn.byte_counter = rate / 8 / 10_000;
            config.congestion = Congestion::Dcqcn(dcqcn);
            let count = if index == 0 { senders } else { 1 };
            for _ in 0..count {
                node.actor.qpns.push(node.device.create_qp(config, || random.u32()).expect("valid"));
            }
            world.nodes.push(node);
        }
        let nodes = &mut world.nodes;
        for sender in 1..=senders {
            let ends = [(0, nodes[0].actor.qpns[sender - 1]), (sender, nodes[sender].actor.qpns[0])];
            for ((here, qpn), (there, remote_qpn)) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                let path = Path::new(nodes[here].address, nodes[there].address, PORT);
                let receiving = ReadyToReceive {
                    remote_qpn,
                    path: path.expect("addresses of one family"),
                    path_mtu: mtu,
                    psn: Psn::ZERO,
                    max_dest_rd_atomic: 1,
                    min_rnr_timer: RnrTimer::new(1).expect("below 32"),
                };
                let sending = ReadyToSend {
                    psn: Psn::ZERO,
                    timeout: Timeout::new(8).expect("below 32"),
                    retry_count: 7,
                    rnr_retry: 7,
                    max_rd_atomic: 1,
                };
                for transition in [
                    Transition::Init(Init::new(access)),
                    Transition::ReadyToReceive(receiving),
                    Transition::ReadyToSend(sending),
                ] {
                    nodes[here].device.modify_qp(Time::ZERO, qpn, &transition).expect("a valid transition");
                }
            }
        }
        CongestionRun {
            world,
            rate,
            length,
            active: senders,
            counts: Counts::default(),
            notified: HashMap::new(),
            early_notification: None,
        }
    }

    fn run_until(&mut self, end: Time) {
        loop {
            for node in 0..self.world.nodes.len() {
                self.pump(node);
            }
            let Some(next) = self.world.next_event().filter(|next| *next < end) else { break };
            self.advance(next);
        }
        self.world.now = end;
    }

    /// Posts the requests of a sender, and passes the packets of a device to the fabric.
    fn pump(&mut self, index: usize) {
        let rkey = self.world.nodes[0].keys[0];
        let now = self.world.now;
        let Node { device, cq, keys, actor, .. } = &mut self.world.nodes[index];
        while device.poll_completion(*cq).is_some() {
            actor.outstanding -= 1;
        }
        while (1..=self.active).contains(&index) && actor.outstanding * (self.length as usize) < OUTSTANDING {
            let segments = [Segment { addr: BASE, length: self.length, lkey: keys[0] }];
            let request = SendRequest::<()> {
                wr_id: 0,
                tag: 0,
                operation: SendOperation::Write(RemoteAddress { addr: BASE, rkey }),
                flags: SendFlags::SIGNALED,
                segments: &segments,
                destination: None,
            };
            if device.post_send(now, actor.qpns[0], &request).is_err() {
                break;
            }
            actor.outstanding += 1;
        }
        while let Some(packet) = self.world.nodes[index].poll_packet(now).expect("registered memory") {
            let to = self.world.node_at(packet.remote).expect("a node's address");
            let header = packet.header;
            if header.operation == Operation::Cnp {
                let before = self.notified.insert(header.dest_qp, now);
                if let Some(gap) = before.map(|before| now - before)
                    && gap < Duration::from_micros(50)
                {
                    self.early_notification = Some(gap);
                }
            }
            let delivery = self.world.fabric.send(now, packet.into_flight(index, to));
            self.world.packet_count += 1;
            if to == 0 {
                self.counts.sent += 1;
                self.counts.lost += u64::from(delivery == Delivery::Lost);
            }
        }
    }
}

impl Actors for CongestionRun {
    type Node = Node<Sender>;
    type Task = Infallible;

    fn world(&mut self) -> &mut World<Node<Sender>, Infallible> {
        &mut self.world
    }

    fn deliver(&mut self, packet: &InFlight) {
        if packet.to == 0 {
            self.counts.arrived_bytes += packet.bytes.len() as u64 + WIRE_OVERHEAD;
        }
        let nodes = &self.world.nodes;
        let rx_meta = packet.rx_meta(nodes[packet.from].address, nodes[packet.to].address);
        let parsed = Packet::parse(&packet.bytes).expect("this fabric corrupts no packets");
        let Node { device, memory, .. } = &mut self.world.nodes[packet.to];
        device.handle_packet(self.world.now, &rx_meta, &parsed, memory);
    }

    fn perform(&mut self, task: Infallible) {
        match task {}
    }
}

/// The overhead of a packet on a link: Ethernet, IP and UDP.
pub(crate) const WIRE_OVERHEAD: u64 = 66;
