//! Congestion control: several senders share a slow link and must reduce their rates to its capacity. After all but one
//! stop, the last one must use the whole link.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use adverb_proto::memory::{HeapMemory, Registration, RemoteInvalidate};
use adverb_proto::types::{Access, PathMtu, RemoteAddress, Segment, SendFlags, SendOperation, SendRequest};
use adverb_proto::{
    Congestion, Cq, Dcqcn, Device, IcrcCheck, Init, Path, QpConfig, ReadyToReceive, ReadyToSend, RxMeta,
    Time, Transition,
};
use adverb_wire::cm::Timeout;
use adverb_wire::{Operation, Packet, Psn, Qpn, ROCE_PORT, RnrTimer};

use crate::Random;
use crate::fabric::{Bottleneck, Delivery, Fabric, Faults, InFlight};

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
    let mut run = Run::new(seed);
    let bounds = [0, 2, 3, 5, 6].map(|part| Time::ZERO + PHASE * part / 3);
    // The four parts of a run: all senders find their rates, all keep them, one sender recovers, and one keeps its
    // rate.
    let [_, shared, recovering, lone] = [0, 1, 2, 3].map(|part| {
        run.active = if part < 2 { run.nodes.len() - 1 } else { 1 };
        run.run_until(bounds[part + 1]);
        std::mem::take(&mut run.counts)
    });
    let capacity = |phase: Duration| run.rate as f64 / 8.0 * phase.as_secs_f64();
    let report = CongestionReport {
        sender_count: run.nodes.len() - 1,
        ecn_marked_count: run.fabric.counts.marked,
        packet_count: run.packets,
        cnps_sent: run.nodes[0].device.statistics().cnps_sent,
        cnps_received: run.nodes[1..].iter().map(|node| node.device.statistics().cnps_received).sum(),
        all_senders_utilization: shared.arrived as f64 / capacity(bounds[2] - bounds[1]),
        dropped_per_mille: 1000.0 * shared.lost as f64 / shared.sent.max(1) as f64,
        one_sender_utilization: lone.arrived as f64 / capacity(bounds[4] - bounds[3]),
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
    if report.one_sender_utilization < 0.9 || recovering.arrived == 0 {
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
struct Run {
    nodes: Vec<Node>,
    fabric: Fabric,
    now: Time,
    rate: u64,
    length: u32,
    /// The number of active senders.
    active: usize,
    counts: Counts,
    packets: u64,
    /// The time of the last congestion notification packet to each queue pair.
    notified: HashMap<Qpn, Time>,
    early_notification: Option<Duration>,
}

struct Node {
    device: Device,
    memory: HeapMemory,
    address: IpAddr,
    key: u32,
    cq: Cq,
    qpns: Vec<Qpn>,
    outstanding: usize,
}

/// The counts of a phase at the receiver's end of the link.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sent: u64,
    lost: u64,
    arrived: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = Random::new(seed ^ 0x636f_6e67_6573_7400);
        let senders = random.between(2, 6) as usize;
        let rate = random.pick(&[10, 25, 40]) * 1_000_000_000;
        let latency = Duration::from_nanos(random.between(1000, 5000));
        let mark_threshold = random.between(20, 80) << 10;
        let bottleneck = Bottleneck { device: 0, rate, mark_threshold, queue_capacity: 10 * mark_threshold };
        let mtu = random.pick(&[PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096]);
        let length = random.between(1, 16) as u32 * 4096;
        let faults = Faults { bottleneck: Some(bottleneck), ..Faults::default() };
        let long = Duration::from_millis(1);
        let fabric = Fabric::new(faults, Time::MAX, latency, long, random.u64());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mut nodes: Vec<Node> = (0..=senders)
            .map(|index| {
                let mut device = Device::new(());
                let mut memory = HeapMemory::default();
                let (pd, cq) = (device.create_domain(), device.create_cq(1 << 16));
                let storage = memory.add(vec![index as u8; AREA]);
                let remote_invalidate = RemoteInvalidate::Denied;
                let registration =
                    Registration { addr: BASE, length: AREA as u64, access, storage, remote_invalidate };
                let key = device.register(pd, registration, || random.u32()).expect("a valid region");
                let mut config = QpConfig::rc(pd, cq, cq);
                let mut dcqcn = Dcqcn::new(rate);
                // The parameters are tuned to the short latency and duration of this run.
                dcqcn.additive_increase = rate / 200;
                dcqcn.hyper_increase = rate / 50;
                dcqcn.byte_counter = rate / 8 / 10_000;
                config.congestion = Congestion::Dcqcn(dcqcn);
                let count = if index == 0 { senders } else { 1 };
                let qpns =
                    (0..count).map(|_| device.create_qp(config, || random.u32()).expect("valid")).collect();
                let address = IpAddr::V4(Ipv4Addr::new(10, 88, 0, index as u8 + 1));
                Node { device, memory, address, key, cq, qpns, outstanding: 0 }
            })
            .collect();
        for sender in 1..=senders {
            let ends = [(0, nodes[0].qpns[sender - 1]), (sender, nodes[sender].qpns[0])];
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
        Run {
            nodes,
            fabric,
            now: Time::ZERO,
            rate,
            length,
            active: senders,
            counts: Counts::default(),
            packets: 0,
            notified: HashMap::new(),
            early_notification: None,
        }
    }

    fn run_until(&mut self, end: Time) {
        loop {
            for node in 0..self.nodes.len() {
                self.pump(node);
            }
            let timeouts = self.nodes.iter().filter_map(|node| node.device.poll_timeout());
            let Some(next) = timeouts.chain(self.fabric.next()).min().filter(|next| *next < end) else {
                break;
            };
            self.now = next.max(self.now);
            while let Some(packet) = self.fabric.receive(self.now) {
                self.deliver(&packet);
            }
            for node in &mut self.nodes {
                if node.device.poll_timeout().is_some_and(|at| at <= self.now) {
                    node.device.handle_timeout(self.now);
                }
            }
        }
        self.now = end;
    }

    fn deliver(&mut self, packet: &InFlight) {
        if packet.to == 0 {
            self.counts.arrived += packet.bytes.len() as u64 + WIRE_OVERHEAD;
        }
        let source = SocketAddr::new(self.nodes[packet.from].address, packet.source_port);
        let node = &mut self.nodes[packet.to];
        let icrc = IcrcCheck::IpId(0);
        let rx_meta = RxMeta {
            source,
            destination: SocketAddr::new(node.address, ROCE_PORT),
            icrc,
            is_ecn_marked: packet.is_ecn_marked,
            route: Default::default(),
            received_at: None,
        };
        let parsed = Packet::parse(&packet.bytes).expect("this fabric corrupts no packets");
        node.device.handle_packet(self.now, &rx_meta, &parsed, &mut node.memory);
    }

    /// Posts the requests of a sender, and carries the packets of a device.
    fn pump(&mut self, index: usize) {
        let rkey = self.nodes[0].key;
        let node = &mut self.nodes[index];
        while node.device.poll_completion(node.cq).is_some() {
            node.outstanding -= 1;
        }
        while (1..=self.active).contains(&index) && node.outstanding * (self.length as usize) < OUTSTANDING {
            let segments = [Segment { addr: BASE, length: self.length, lkey: node.key }];
            let request = SendRequest::<()> {
                wr_id: 0,
                tag: 0,
                operation: SendOperation::Write(RemoteAddress { addr: BASE, rkey }),
                flags: SendFlags::SIGNALED,
                segments: &segments,
                destination: None,
            };
            if node.device.post_send(self.now, node.qpns[0], &request).is_err() {
                break;
            }
            node.outstanding += 1;
        }
        loop {
            let node = &mut self.nodes[index];
            let Some(transmit) = node.device.poll_transmit(self.now) else { break };
            let mut bytes = Vec::with_capacity(transmit.payload.len() + 48);
            transmit.write_to(&node.memory, 0, &mut bytes).expect("registered memory");
            let header = transmit.header;
            let (remote, ecn_capable) = (transmit.path.remote(), transmit.ecn_capable);
            let to = self.nodes.iter().position(|node| node.address == remote).expect("a node's address");
            if header.operation == Operation::Cnp {
                let before = self.notified.insert(header.dest_qp, self.now);
                if let Some(gap) = before.map(|before| self.now - before)
                    && gap < Duration::from_micros(50)
                {
                    self.early_notification = Some(gap);
                }
            }
            let source_port = PORT;
            let packet =
                InFlight { from: index, to, source_port, ip_id: 0, bytes, ecn_capable, is_ecn_marked: false };
            let delivery = self.fabric.send(self.now, packet);
            self.packets += 1;
            if to == 0 {
                self.counts.sent += 1;
                self.counts.lost += u64::from(delivery == Delivery::Lost);
            }
        }
    }
}

/// The overhead of a packet on a link: Ethernet, IP and UDP.
pub(crate) const WIRE_OVERHEAD: u64 = 66;
