//! A hostile peer: it sends forged, truncated, replayed and mutated packets in every state of a queue pair, while the
//! queue pair's owner posts, polls, waits, changes states and deregisters memory.
//!
//! An attack fails if the engine accesses memory without a right from the current packet, completes requests twice or
//! out of order, leaks state, or exceeds the bounds of its queues. The caller must catch panics.

pub(crate) mod decisions;
pub(crate) mod generator;
mod guard;
mod owner;
mod report;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use adverb_proto::memory::{Pd, Registration};
use adverb_proto::types::{Access, CompletedOperation, QpState, Transport};
use adverb_proto::{Cq, Device, IcrcCheck, ResourceCounts, RxMeta, Time};
use adverb_wire::{Flow, Header, Operation, Packet, Psn, Qpn, ROCE_PORT, Rc};

use crate::Random;
use decisions::DecisionSource;
use generator::{AttackerState, ForgedPacket, MemoryRange, PacketGenerator, TargetInfo};
use guard::{AccessKind, Area, Guard, PacketRights};
pub use report::AttackReport;

/// Attacks a device with `packet_count` packets. The seed determines the packets.
///
/// ```
/// let report = adverb_sim::attack(7, 2000).unwrap();
/// assert_eq!(report.attacker_packet_count, 2000);
/// ```
///
/// # Errors
///
/// Returns a description of the violation if the device accesses memory without permission, completes a request twice
/// or out of order, exceeds the limits of its queues, or leaks resources.
pub fn attack(seed: u64, packet_count: u64) -> Result<AttackReport, String> {
    Attack::new(DecisionSource::Random(Random::new(seed ^ 0x686f_7374_696c_6500))).run(packet_count)
}

/// Attacks a device with packets that `bytes` determine, for fuzzers.
///
/// # Errors
///
/// Returns a description of the violation if the device accesses memory without permission, completes a request twice
/// or out of order, exceeds the limits of its queues, or leaks resources.
pub fn attack_from_bytes(bytes: &[u8]) -> Result<AttackReport, String> {
    Attack::new(DecisionSource::Bytes(bytes)).run(u64::MAX)
}

/// A device under attack.
#[derive(Debug)]
struct Attack<'a> {
    decisions: DecisionSource<'a>,
    device: Device,
    memory: Guard,
    pds: [Pd; 2],
    cqs: [Cq; 2],
    /// The capacity of the second completion queue.
    cq_capacity: u32,
    targets: Vec<Target>,
    /// The number of created queue pairs.
    created_qp_count: u64,
    now: Time,
    /// Earlier packets, for replays.
    history: VecDeque<Vec<u8>>,
    /// The requests that invalidate a key, with the key.
    invalidating: VecDeque<(u64, u32)>,
    flow: Flow,
    report: AttackReport,
}

/// A queue pair under attack, with its parameters and the requests that its owner has posted.
#[derive(Debug)]
struct Target {
    qpn: Qpn,
    transport: Transport,
    pd: Pd,
    access: Access,
    mtu: u32,
    /// The destination queue pair number of its packets. Each queue pair has its own, so that a packet identifies the
    /// queue pair that sent it.
    peer: Qpn,
    max_wr: u32,
    /// The number of READs and atomics that the queue pair can hold as a responder.
    slots: u32,
    /// The state of the attack on the queue pair.
    attacker_state: AttackerState,
    /// The number of requests that were posted to the send queue and to the receive queue.
    posted: [u64; 2],
    /// The number of the last completed request of each queue.
    completed: [u64; 2],
    id: u64,
}

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 6, 6, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 6, 6, 2));
const PORT: u16 = 0xc666;
const QKEY: u32 = 0x1666_6666;
const MAX_TARGETS: usize = 6;
const MAX_REGIONS: usize = 10;

impl<'a> Attack<'a> {
    fn new(mut decisions: DecisionSource<'a>) -> Attack<'a> {
        let mut device = Device::new(());
        let pds = [device.create_domain(), device.create_domain()];
        // Sometimes the second queue is so small that it overflows.
        let cq_capacity = if decisions.one_in(4) { 8 } else { 1 << 16 };
        let cqs = [device.create_cq(1 << 16), device.create_cq(cq_capacity)];
        let flow = Flow::new(SocketAddr::new(PEER, PORT), SocketAddr::new(LOCAL, ROCE_PORT));
        Attack {
            decisions,
            device,
            memory: Guard::default(),
            pds,
            cqs,
            cq_capacity,
            targets: Vec::new(),
            created_qp_count: 0,
            now: Time::ZERO,
            history: VecDeque::new(),
            invalidating: VecDeque::new(),
            flow: flow.expect("two IPv4 addresses"),
            report: AttackReport::default(),
        }
    }

    fn run(mut self, packets: u64) -> Result<AttackReport, String> {
        for _ in 0..4 {
            self.register();
            self.register();
            self.create_target();
        }
        for step in 0u64.. {
            if self.report.attacker_packet_count >= packets || !self.decisions.has_more() {
                break;
            }
            match self.decisions.below(64) {
                0..34 => self.send_packet(),
                34..42 => self.poll_transmits(),
                42..46 => self.post_send(),
                46..51 => self.post_recv(),
                51..53 => self.advance_time(),
                53..62 => self.change_state(),
                62 if self.decisions.one_in(2) => self.register(),
                62 => self.deregister(),
                _ if self.decisions.one_in(4) => self.destroy_target(),
                _ => self.create_target(),
            }
            self.poll_completions()?;
            if let Some(violation) = self.memory.violation() {
                return Err(format!("step {step}: {violation}"));
            }
            if step % 64 == 0 {
                self.check_resource_counts().map_err(|what| format!("step {step}: {what}"))?;
            }
        }
        self.finish()
    }

    fn send_packet(&mut self) {
        let Some(index) = self.any_target() else { return };
        let (qpn, attacker_state) = (self.targets[index].qpn, self.targets[index].attacker_state.clone());
        let before = self.device.query_qp(qpn);
        self.report.packets_per_state[self.state(index) as usize] += 1;
        self.report.attacker_packet_count += 1;
        let rx_meta = self.rx_meta();
        self.memory.is_failing = self.decisions.one_in(200);
        match self.generate_packet(index) {
            ForgedPacket::Bytes(bytes) => {
                match Packet::parse(&bytes) {
                    Ok(packet) => {
                        self.memory.rights = self.rights(packet.header());
                        self.device.handle_packet(self.now, &rx_meta, &packet, &mut self.memory);
                    }
                    Err(_) => self.report.malformed_count += 1,
                }
                self.record_packet(bytes);
            }
            ForgedPacket::Parts(header, payload) => {
                self.memory.rights = self.rights(&header);
                self.device.handle_split_packet(self.now, &rx_meta, &header, &payload, &mut self.memory);
            }
        }
        self.memory.rights = None;
        self.memory.is_failing = false;
        // A request that wasn't executed doesn't advance its message.
        let expected = |status: adverb_proto::QpStatus| status.expected_psn;
        if self.device.query_qp(qpn).map(expected) == before.map(expected) {
            self.targets[index].attacker_state.restore_message(&attacker_state);
        }
    }

    /// Creates a packet for a queue pair.
    fn generate_packet(&mut self, index: usize) -> ForgedPacket {
        let memory = self.any_region(self.targets[index].pd);
        let Attack { decisions, device, history, targets, flow, .. } = self;
        let target = &mut targets[index];
        let status = device.query_qp(target.qpn);
        let (expected, next) = status.map_or_else(Default::default, |s| (s.expected_psn, s.next_psn));
        let target_info = TargetInfo {
            qpn: target.qpn,
            remote_qpn: target.peer,
            transport: target.transport,
            mtu: target.mtu,
            qkey: QKEY,
            expected_psn: expected,
            next_psn: next,
            memory: memory.map(|(region, rkey)| MemoryRange {
                addr: region.addr,
                length: region.length,
                rkey,
            }),
            flow: *flow,
            attacker_state: &mut target.attacker_state,
        };
        PacketGenerator { decisions, history, target_info }.next_packet()
    }

    /// Returns the rights of a packet, by its destination queue pair.
    fn rights(&self, header: &Header) -> Option<PacketRights> {
        let target = self.targets.iter().find(|target| target.qpn == header.dest_qp)?;
        let access_kind = AccessKind::of(&header.operation)?;
        Some(PacketRights { pd: target.pd, access: target.access, access_kind })
    }

    fn rx_meta(&mut self) -> RxMeta {
        let mut rx_meta = RxMeta {
            source: SocketAddr::new(PEER, PORT),
            destination: SocketAddr::new(LOCAL, ROCE_PORT),
            icrc: match self.decisions.below(8) {
                0 => IcrcCheck::Trusted,
                1 => IcrcCheck::AnyIpId,
                _ => IcrcCheck::IpId(0),
            },
            is_ecn_marked: self.decisions.one_in(8),
            route: Default::default(),
            received_at: None,
        };
        match self.decisions.below(64) {
            0 => rx_meta.source.set_ip(LOCAL),
            1 => rx_meta.destination.set_ip(PEER),
            2 => rx_meta.source.set_port(4791),
            _ => {}
        }
        rx_meta
    }

    fn record_packet(&mut self, bytes: Vec<u8>) {
        if self.history.len() >= 32 {
            self.history.pop_front();
        }
        self.history.push_back(bytes);
    }

    /// Polls some of the device's packets, and records them.
    fn poll_transmits(&mut self) {
        for _ in 0..self.decisions.below(24) {
            let Some(transmit) = self.device.poll_transmit(self.now) else { break };
            let header = transmit.header;
            self.report.device_packet_count += 1;
            let Some(target) = self.targets.iter_mut().find(|target| target.peer == header.dest_qp) else {
                continue;
            };
            let access_kind = AccessKind::of_sent(&header.operation);
            self.memory.rights = Some(PacketRights { pd: target.pd, access: target.access, access_kind });
            let mut bytes = Vec::new();
            // If the memory can't be read, the guard has reported it.
            let _ = transmit.write_to(&self.memory, 0, &mut bytes);
            self.memory.rights = None;
            target.attacker_state.record_target_packet(&header);
            if let Operation::Rc(Rc::Acknowledge(aeth)) = header.operation
                && !matches!(aeth.syndrome, adverb_wire::Syndrome::Ack(_))
            {
                self.report.nak_count += 1;
            }
            if self.decisions.one_in(8) {
                self.record_packet(bytes);
            }
        }
    }

    /// Checks that each posted request completes at most once, in the order of posting.
    fn poll_completions(&mut self) -> Result<(), String> {
        // A small completion queue is polled rarely, so that it overflows.
        let is_skipped = self.cq_capacity < 100 && !self.decisions.one_in(16);
        for cq in self.cqs.into_iter().take(if is_skipped { 1 } else { 2 }) {
            while let Some(completion) = self.device.poll_completion(cq) {
                self.report.completion_count += 1;
                let (id, number) = (completion.wr_id >> 32, completion.wr_id & 0xffff_ffff);
                let (queue, number) = ((number & 1) as usize, number >> 1);
                if let Ok(success) = completion.outcome {
                    match success.operation {
                        CompletedOperation::Recv { invalidated: Some(key), .. } => {
                            self.memory.invalidate(key);
                        }
                        CompletedOperation::LocalInvalidate => {
                            let known = |(wr_id, _): &&(u64, u32)| *wr_id == completion.wr_id;
                            if let Some((_, key)) = self.invalidating.iter().find(known) {
                                self.memory.invalidate(*key);
                                self.report.invalidation_count += 1;
                            }
                        }
                        _ => {}
                    }
                }
                let Some(target) = self.targets.iter_mut().find(|target| target.id == id) else { continue };
                if number <= target.completed[queue] || number > target.posted[queue] {
                    let last = target.completed[queue];
                    return Err(format!("request {number} of queue {queue} completed after {last}"));
                }
                target.completed[queue] = number;
            }
        }
        while self.device.poll_queue_event().is_some() {}
        Ok(())
    }

    /// Checks that the device's resource counts match the created objects, or are bounded by them.
    fn check_resource_counts(&self) -> Result<(), String> {
        let resource_counts = self.device.resource_counts();
        let queue_pairs = self.targets.len();
        let regions = self.memory.areas().iter().filter(|area| area.key != 0).count();
        // Each slot has at most two queued replays, one first response after them, and one saved response.
        let max_responses: u32 = self.targets.iter().map(|target| 4 * target.slots).sum();
        let is_correct = resource_counts.queue_pairs == queue_pairs
            && resource_counts.index_entries == queue_pairs
            && resource_counts.ready_queue_pairs <= queue_pairs
            && resource_counts.timers <= queue_pairs
            && resource_counts.regions == regions
            && resource_counts.domain_users as usize == regions + queue_pairs
            && resource_counts.responses <= max_responses as usize
            && resource_counts.events == 0;
        if !is_correct {
            return Err(format!(
                "expected {queue_pairs} queue pairs and {regions} regions, but the device has {resource_counts}"
            ));
        }
        for target in &self.targets {
            let status = self.device.query_qp(target.qpn).ok_or("a queue pair does not exist")?;
            if status.send_queue_len.max(status.recv_queue_len) > target.max_wr as usize {
                return Err(format!("{status:?} has more than {} requests", target.max_wr));
            }
        }
        Ok(())
    }

    /// Destroys all objects, and checks that no resources remain.
    fn finish(mut self) -> Result<AttackReport, String> {
        self.poll_completions()?;
        self.check_resource_counts()?;
        while let Some(target) = self.targets.pop() {
            self.device.destroy_qp(target.qpn);
        }
        while self.device.poll_transmit(self.now).is_some() {}
        for area in self.memory.areas() {
            let _ = self.device.deregister(area.key);
        }
        for cq in self.cqs {
            while self.device.poll_completion(cq).is_some() {}
        }
        let resource_counts = self.device.resource_counts();
        let empty = self.pds.into_iter().all(|pd| self.device.destroy_domain(pd).is_ok())
            && self.cqs.into_iter().all(|cq| self.device.destroy_cq(cq));
        if resource_counts != ResourceCounts::default() || !empty {
            return Err(format!("after destruction of all objects, the device has {resource_counts}"));
        }
        self.report.delivered_count = self.device.statistics().packets_received;
        self.report.dropped_count = self.device.statistics().packets_dropped;
        self.report.memory_access_count = self.memory.access_count;
        self.report.attack_count = 1;
        Ok(self.report)
    }

    fn any_target(&mut self) -> Option<usize> {
        if self.targets.is_empty() {
            None
        } else {
            Some(self.decisions.below(self.targets.len() as u64) as usize)
        }
    }

    /// Returns the registration and key of some region: usually of this domain with all rights, sometimes another, and
    /// occasionally a deregistered one.
    fn any_region(&mut self, pd: Pd) -> Option<(Registration, u32)> {
        let exact = !self.decisions.one_in(30);
        let allows_deregistered = self.decisions.one_in(100);
        let start = self.decisions.below(self.memory.areas().len().max(1) as u64) as usize;
        let areas = self.memory.areas();
        let fits = |area: &&Area| {
            let all =
                area.pd == pd && area.registration.access.contains(Access::LOCAL_WRITE | Access::REMOTE);
            allows_deregistered || (area.valid && (all || !exact))
        };
        let found = areas[start..].iter().chain(&areas[..start]).find(fits);
        found.map(|area| (area.registration, area.key))
    }

    fn state(&self, index: usize) -> QpState {
        self.device.query_qp(self.targets[index].qpn).map_or(QpState::Reset, |status| status.state)
    }

    fn any_psn(&mut self) -> Psn {
        Psn::wrapping(self.decisions.bits(24) as u32)
    }
}
