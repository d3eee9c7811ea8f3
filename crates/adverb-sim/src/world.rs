//! A run: devices, their consumers, the fabric between them, and virtual time.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use adverb_proto::memory::{HeapMemory, Pd};
use adverb_proto::types::QpState;
use adverb_proto::{Cq, Device, EventSink, IcrcCheck, RxMeta, Time, TraceEvent};
use adverb_wire::{Header, Operation, Packet, Qpn, ROCE_PORT};

use crate::area::Area;
use crate::fabric::{Delivery, Fabric, FaultCounts, InFlight};
use crate::model::Direction;
use crate::scenario::Scenario;
use crate::schedule::{Log, Schedule};
use crate::{Random, messages, setup};

/// The result of a run of a scenario.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed of the scenario.
    pub seed: u64,
    /// The number of posted send requests.
    pub send_request_count: u64,
    /// The number of sent packets.
    pub packet_count: u64,
    /// The number of queue pairs.
    pub queue_pair_count: u64,
    /// The number of queue pairs that failed because of an injected fault or an action of the scenario.
    pub failed_qp_count: u64,
    /// The numbers of injected faults.
    pub fault_counts: FaultCounts,
    /// The virtual time at the end of the run.
    pub end_time: Time,
    /// A hash of all packets and their times. The scenario determines the hash.
    pub digest: u64,
    /// A description of the first violation, if any.
    pub violation: Option<String>,
    /// The lines of the trace. The list is empty unless a trace was requested.
    pub trace: Vec<String>,
}

/// Runs a scenario, and records a trace if `trace` is `true`.
pub fn run(scenario: &Scenario, trace: bool) -> Outcome {
    let mut world = setup::world(scenario.clone(), trace);
    world.run();
    world.finish();
    let mut outcome = Outcome {
        seed: scenario.seed,
        send_request_count: world.operations,
        packet_count: world.packets,
        queue_pair_count: 2 * scenario.connections.len() as u64,
        failed_qp_count: world.connections.iter().flat_map(|c| &c.sides).filter(|side| side.failed).count()
            as u64,
        fault_counts: world.fabric.counts,
        end_time: world.now,
        digest: world.digest,
        violation: world.log.violation,
        trace: world.log.trace.unwrap_or_default(),
    };
    if outcome.violation.is_none() {
        messages::run(&scenario.message_run, trace, &mut outcome);
    }
    outcome
}

/// The state of a run.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) now: Time,
    pub(crate) nodes: Vec<Node>,
    pub(crate) memories: Vec<HeapMemory>,
    /// The words for atomics of all connections, per device.
    pub(crate) shared: Vec<Area>,
    pub(crate) connections: Vec<ConnectionState>,
    pub(crate) fabric: Fabric,
    pub(crate) schedule: Schedule<Task>,
    pub(crate) random: Random,
    pub(crate) operations: u64,
    packets: u64,
    digest: u64,
    /// The time of the last congestion notification packet to a queue pair, per device.
    notified: HashMap<(usize, Qpn), Time>,
    pub(crate) log: Log,
}

/// A device and its resources.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) device: Device<Trace>,
    pub(crate) address: IpAddr,
    pub(crate) pd: Pd,
    pub(crate) other_pd: Pd,
    pub(crate) cq: Cq,
    /// All memory keys, to be deregistered at the end.
    pub(crate) keys: Vec<u32>,
    /// The connection and side of each queue pair.
    pub(crate) ends: HashMap<Qpn, (usize, usize)>,
    ip_id: u16,
    pump_planned: bool,
}

impl Node {
    pub(crate) fn new(index: usize, v6: bool, trace: bool) -> Node {
        let mut device = Device::new(Trace { on: trace, events: Vec::new() });
        let (pd, other_pd) = (device.create_domain(), device.create_domain());
        let cq = device.create_cq(1 << 20);
        let host = index as u16 + 1;
        let address = if v6 {
            IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host))
        } else {
            IpAddr::V4(Ipv4Addr::new(10, 77, 0, host as u8))
        };
        let (keys, ends) = (Vec::new(), HashMap::new());
        Node { device, address, pd, other_pd, cq, keys, ends, ip_id: 0, pump_planned: false }
    }
}

/// An event sink that records a device's events, if enabled.
#[derive(Debug)]
pub(crate) struct Trace {
    on: bool,
    events: Vec<(Time, TraceEvent)>,
}

impl EventSink for Trace {
    fn event(&mut self, now: Time, event: TraceEvent) {
        if self.on {
            self.events.push((now, event));
        }
    }
}

/// A connection during a run.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    pub(crate) sides: [Side; 2],
    /// The requests of each side.
    pub(crate) directions: [Direction; 2],
    /// The times of injected faults.
    pub(crate) faults: Vec<Time>,
}

/// One side of a connection during a run.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) node: usize,
    pub(crate) qpn: Qpn,
    /// The next step of the program.
    pub(crate) step: usize,
    /// Whether the side waits for completions.
    pub(crate) waiting: bool,
    /// Whether the side waits until its send queue is drained.
    pub(crate) draining: bool,
    /// Whether the program has stopped.
    pub(crate) stopped: bool,
    pub(crate) destroyed: bool,
    /// Whether the queue pair failed because of a fault or an action.
    pub(crate) failed: bool,
    /// The buffer sizes for the messages that the peer will send.
    pub(crate) recv_sizes: Vec<u32>,
}

/// A planned task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Task {
    /// Continues the program of a side.
    RunSteps { connection: usize, side: usize },
    /// Posts a receive of a side.
    Receive { connection: usize, side: usize },
    /// Processes a device's packets and completions.
    Pump { node: usize },
    /// Deregisters memory to which the other side's requests write.
    Revoke { connection: usize, side: usize },
}

/// The time limit after the faults end. It exceeds all retries, timeouts and pauses.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(5);

impl World {
    pub(crate) fn new(scenario: Scenario, fabric: Fabric, trace: bool) -> World {
        World {
            now: Time::ZERO,
            nodes: Vec::new(),
            memories: Vec::new(),
            shared: Vec::new(),
            connections: Vec::new(),
            fabric,
            schedule: Schedule::new(),
            random: Random::new(scenario.seed ^ 0x776f_726c_6400),
            operations: 0,
            packets: 0,
            digest: 0xcbf2_9ce4_8422_2325,
            notified: HashMap::new(),
            log: Log::new(trace),
            scenario,
        }
    }

    /// Plans a task.
    pub(crate) fn plan(&mut self, at: Time, task: Task) {
        self.schedule.plan(at, task);
    }

    /// Records a violation. Only the first is kept.
    pub(crate) fn report_violation(&mut self, what: String) {
        self.log.report_violation(self.now, &what);
    }

    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        self.log.note(self.now, what);
    }

    /// Advances the virtual time until no tasks remain.
    fn run(&mut self) {
        let end = self.scenario.faults_end_at + COMPLETION_TIMEOUT;
        while self.log.violation.is_none() {
            let timeouts = self.nodes.iter().filter_map(|node| node.device.poll_timeout());
            let Some(next) = timeouts.chain(self.schedule.next()).chain(self.fabric.next()).min() else {
                break;
            };
            self.now = next.max(self.now);
            if self.now > end {
                return self.report_violation("the run does not end".to_owned());
            }
            while let Some(packet) = self.fabric.receive(self.now) {
                self.deliver(&packet);
            }
            for node in 0..self.nodes.len() {
                if self.nodes[node].device.poll_timeout().is_some_and(|at| at <= self.now) {
                    self.nodes[node].device.handle_timeout(self.now);
                    self.plan_pump(node);
                }
            }
            while let Some(task) = self.schedule.due(self.now) {
                self.perform(task);
            }
        }
    }

    fn perform(&mut self, task: Task) {
        match task {
            Task::RunSteps { connection, side } => self.run_steps(connection, side),
            Task::Receive { connection, side } => self.post_receive(connection, side),
            Task::Pump { node } => {
                self.nodes[node].pump_planned = false;
                self.pump(node);
            }
            Task::Revoke { connection, side } => self.revoke(connection, side),
        }
    }

    pub(crate) fn plan_pump(&mut self, node: usize) {
        if !self.nodes[node].pump_planned {
            self.nodes[node].pump_planned = true;
            let at = self.now + self.scenario.batch_delay;
            self.plan(at, Task::Pump { node });
        }
    }

    /// Delivers a packet to a device.
    fn deliver(&mut self, packet: &InFlight) {
        let (source, destination) = (self.nodes[packet.from].address, self.nodes[packet.to].address);
        let rx_meta = RxMeta {
            source: SocketAddr::new(source, packet.source_port),
            destination: SocketAddr::new(destination, ROCE_PORT),
            icrc: IcrcCheck::IpId(packet.ip_id),
            is_ecn_marked: packet.is_ecn_marked,
            route: Default::default(),
            received_at: None,
        };
        match Packet::parse(&packet.bytes) {
            Ok(parsed) => {
                let node = &mut self.nodes[packet.to];
                node.device.handle_packet(self.now, &rx_meta, &parsed, &mut self.memories[packet.to]);
                self.plan_pump(packet.to);
            }
            Err(error) => self.note(|| format!("dev {} dropped a malformed packet: {error}", packet.to)),
        }
    }

    /// Sends a device's packets, and checks its completions.
    pub(crate) fn pump(&mut self, index: usize) {
        loop {
            let node = &mut self.nodes[index];
            node.ip_id = node.ip_id.wrapping_add(1);
            let ip_id = node.ip_id;
            let Some(transmit) = node.device.poll_transmit(self.now) else { break };
            let header = transmit.header;
            let mut bytes = Vec::with_capacity(header.len() + transmit.payload.len() + 8);
            if transmit.write_to(&self.memories[index], ip_id, &mut bytes).is_err() {
                return self
                    .report_violation("the payload of a packet is not in registered memory".to_owned());
            }
            let (remote, source_port) = (transmit.path.remote(), transmit.path.source_port());
            let ecn_capable = transmit.ecn_capable;
            let to = self.nodes.iter().position(|node| node.address == remote).unwrap_or(index);
            self.sent(index, to, &header, &bytes);
            let end = self.nodes[to].ends.get(&header.dest_qp).copied();
            let packet =
                InFlight { from: index, to, source_port, ip_id, bytes, ecn_capable, is_ecn_marked: false };
            let delivery = self.fabric.send(self.now, packet);
            if let Some((connection, _)) = end
                && delivery != Delivery::Carried
            {
                self.connections[connection].faults.push(self.now);
                self.note(|| format!("dev {index} -> dev {to}: {header}: {delivery:?}"));
            }
        }
        self.observe(index);
        self.take_trace(index);
    }

    /// Records a packet that a device sends, and checks its header.
    fn sent(&mut self, from: usize, to: usize, header: &Header, bytes: &[u8]) {
        self.packets += 1;
        let icrc = bytes.last_chunk::<4>().map_or(0, |icrc| u32::from_le_bytes(*icrc));
        for number in [self.now.as_nanos(), u64::from(icrc), bytes.len() as u64] {
            self.digest = (self.digest ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
        self.take_trace(from);
        if header.operation == Operation::Cnp {
            let before = self.notified.insert((from, header.dest_qp), self.now);
            if let Some(gap) = before.map(|before| self.now - before)
                && gap < Duration::from_micros(50)
            {
                self.report_violation(format!(
                    "two congestion notification packets for qp {} within {gap:?}",
                    header.dest_qp
                ));
            }
        }
        if let Some((connection, side)) = self.nodes[to].ends.get(&header.dest_qp).copied() {
            self.check_msn(connection, side, header);
        }
    }

    fn take_trace(&mut self, node: usize) {
        let events = std::mem::take(&mut self.nodes[node].device.sink_mut().events);
        if let Some(trace) = &mut self.log.trace {
            trace.extend(events.iter().map(|(time, event)| format!("{time} dev {node} {event}")));
        }
    }

    pub(crate) fn state(&self, connection: usize, side: usize) -> Option<QpState> {
        let Side { node, qpn, .. } = self.connections[connection].sides[side];
        self.nodes[node].device.query_qp(qpn).map(|status| status.state)
    }
}
