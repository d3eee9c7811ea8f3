//! A run: devices, their consumers, the fabric between them, and virtual time.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use adverb_proto::Time;
use adverb_proto::memory::{HeapMemory, Pd};
use adverb_proto::types::QpState;
use adverb_wire::{Operation, Packet, Qpn};

use crate::area::Area;
use crate::fabric::{Delivery, Fabric, FaultCounts, InFlight};
use crate::model::Direction;
use crate::node::{Node, Outgoing, Trace, UNREGISTERED_PAYLOAD, UnregisteredPayload};
use crate::scenario::Scenario;
use crate::world::{Actors, Limit, World};
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
    /// The number of queue pairs that failed because of an injected fault or an action of the scenario. A failed
    /// connection of [`Scenario::message_run`] counts once.
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
    let mut run = setup::scenario_run(scenario.clone(), trace);
    run.run(Limit::Time(scenario.faults_end_at + COMPLETION_TIMEOUT));
    run.finish();
    let ScenarioRun { world, connections, operations, .. } = run;
    let mut outcome = Outcome {
        seed: scenario.seed,
        send_request_count: operations,
        packet_count: world.packet_count,
        queue_pair_count: 2 * scenario.connections.len() as u64,
        failed_qp_count: connections.iter().flat_map(|c| &c.sides).filter(|side| side.failed).count() as u64,
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
pub(crate) struct ScenarioRun {
    pub(crate) scenario: Scenario,
    pub(crate) world: World<ScenarioNode, Task>,
    /// The words for atomics of all connections, per device.
    pub(crate) shared: Vec<Area>,
    pub(crate) connections: Vec<ConnectionState>,
    pub(crate) random: Random,
    pub(crate) operations: u64,
    /// The time of the last congestion notification packet, by the sending device and the destination queue pair.
    notified: HashMap<(usize, Qpn), Time>,
}

pub(crate) type ScenarioNode = Node<Consumers, Trace>;

/// The consumers of a device.
#[derive(Debug)]
pub(crate) struct Consumers {
    pub(crate) other_pd: Pd,
    /// The connection and side of each queue pair.
    pub(crate) ends: HashMap<Qpn, (usize, usize)>,
}

/// Creates a device and its resources.
pub(crate) fn create_node(index: usize, v6: bool, trace: bool) -> ScenarioNode {
    let host = index as u16 + 1;
    let address = if v6 {
        IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 77, 0, host as u8))
    };
    Node::new(address, Trace::new(trace), HeapMemory::default(), 1 << 20, |device, _| Consumers {
        other_pd: device.create_domain(),
        ends: HashMap::new(),
    })
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
    /// Sends a device's packets, and checks its completions.
    Pump { node: usize },
    /// Deregisters memory of the peer to which a side's requests write.
    Revoke { connection: usize, side: usize },
}

/// The time limit after the faults end. It exceeds all retries, timeouts and pauses.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(5);

impl Actors for ScenarioRun {
    type Node = ScenarioNode;
    type Task = Task;

    fn world(&mut self) -> &mut World<ScenarioNode, Task> {
        &mut self.world
    }

    fn deliver(&mut self, packet: &InFlight) {
        let nodes = &self.world.nodes;
        let rx_meta = packet.rx_meta(nodes[packet.from].address, nodes[packet.to].address);
        match Packet::parse(&packet.bytes) {
            Ok(parsed) => {
                let Node { device, memory, .. } = &mut self.world.nodes[packet.to];
                device.handle_packet(self.world.now, &rx_meta, &parsed, memory);
                self.plan_pump(packet.to);
            }
            Err(error) => {
                self.world.note(|| format!("dev {} dropped a malformed packet: {error}", packet.to));
            }
        }
    }

    fn after_timeout(&mut self, node: usize) {
        self.plan_pump(node);
    }

    fn perform(&mut self, task: Task) {
        match task {
            Task::RunSteps { connection, side } => self.run_steps(connection, side),
            Task::Receive { connection, side } => self.post_receive(connection, side),
            Task::Pump { node } => {
                self.world.nodes[node].pump_planned = false;
                self.pump(node);
            }
            Task::Revoke { connection, side } => self.revoke(connection, side),
        }
    }
}

impl ScenarioRun {
    pub(crate) fn new(scenario: Scenario, fabric: Fabric, trace: bool) -> ScenarioRun {
        ScenarioRun {
            world: World::new(fabric, trace),
            shared: Vec::new(),
            connections: Vec::new(),
            random: Random::new(scenario.seed ^ 0x776f_726c_6400),
            operations: 0,
            notified: HashMap::new(),
            scenario,
        }
    }

    pub(crate) fn plan_pump(&mut self, node: usize) {
        if !self.world.nodes[node].pump_planned {
            self.world.nodes[node].pump_planned = true;
            let at = self.world.now + self.scenario.batch_delay;
            self.world.plan(at, Task::Pump { node });
        }
    }

    /// Sends a device's packets, and checks its completions.
    pub(crate) fn pump(&mut self, index: usize) {
        loop {
            let packet = match self.world.nodes[index].poll_packet(self.world.now) {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(UnregisteredPayload) => return self.report_violation(UNREGISTERED_PAYLOAD.to_owned()),
            };
            let header = packet.header;
            let to = self.world.node_at(packet.remote).unwrap_or(index);
            self.record_sent(index, to, &packet);
            let end = self.world.nodes[to].actor.ends.get(&header.dest_qp).copied();
            let delivery = self.world.fabric.send(self.world.now, packet.into_flight(index, to));
            if let Some((connection, _)) = end
                && delivery != Delivery::Carried
            {
                self.connections[connection].faults.push(self.world.now);
                self.world.note(|| format!("dev {index} -> dev {to}: {header}: {delivery:?}"));
            }
        }
        self.observe(index);
        self.take_trace(index);
    }

    /// Records a packet that a device sends, and checks its header.
    fn record_sent(&mut self, from: usize, to: usize, packet: &Outgoing) {
        let header = &packet.header;
        self.world.count_packet(&[u64::from(packet.icrc()), packet.bytes.len() as u64]);
        self.take_trace(from);
        if header.operation == Operation::Cnp {
            let before = self.notified.insert((from, header.dest_qp), self.world.now);
            if let Some(gap) = before.map(|before| self.world.now - before)
                && gap < Duration::from_micros(50)
            {
                self.report_violation(format!(
                    "two congestion notification packets for qp {} within {gap:?}",
                    header.dest_qp
                ));
            }
        }
        if let Some((connection, side)) = self.world.nodes[to].actor.ends.get(&header.dest_qp).copied() {
            self.check_msn(connection, side, header);
        }
    }

    fn take_trace(&mut self, node: usize) {
        let lines = self.world.nodes[node].device.sink_mut().take_lines(node);
        self.world.log.add_lines(lines);
    }

    pub(crate) fn state(&self, connection: usize, side: usize) -> Option<QpState> {
        let Side { node, qpn, .. } = self.connections[connection].sides[side];
        self.world.nodes[node].device.query_qp(qpn).map(|status| status.state)
    }
}
