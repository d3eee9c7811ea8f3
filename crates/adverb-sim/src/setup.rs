//! Builds the devices, connections and memory of a run.

use std::time::Duration;

use adverb_proto::memory::Pd;
use adverb_proto::types::Access;
use adverb_proto::{Congestion, Dcqcn, Init, Path, QpConfig, ReadyToReceive, ReadyToSend, Time, Transition};
use adverb_wire::cm::Timeout;
use adverb_wire::{Psn, RnrTimer};

use crate::area::Area;
use crate::fabric::Fabric;
use crate::model::Direction;
use crate::node::Node;
use crate::scenario::{Action, Connection, InvalidRequest, Scenario};
use crate::scenario_run::{ConnectionState, ScenarioRun, Side, Task, create_node};

/// Creates the initial state of a scenario.
pub(crate) fn scenario_run(scenario: Scenario, trace: bool) -> ScenarioRun {
    let exponent = scenario.connections.first().map_or(5, |connection| connection.ack_timeout_exponent);
    let ack_timeout = Duration::from_nanos(4096 << exponent);
    let faults = scenario.faults.clone();
    let fabric = Fabric::new(
        faults,
        scenario.faults_end_at,
        scenario.latency,
        ack_timeout,
        scenario.seed ^ 0x6661_6272_6963,
    );
    let mut run = ScenarioRun::new(scenario, fabric, trace);
    let specs = run.scenario.connections.clone();
    for (index, v6) in run.scenario.device_has_ipv6.clone().into_iter().enumerate() {
        run.world.nodes.push(create_node(index, v6, trace));
        let length = run.scenario.shared_words_per_device as u32 * 8;
        let pd = run.world.nodes[index].pd;
        let shared = run.create_area(index, pd, length, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC);
        run.shared.push(shared);
    }
    for spec in &specs {
        run.connect(spec);
    }
    run
}

impl ScenarioRun {
    fn create_area(&mut self, node: usize, pd: Pd, length: u32, access: Access) -> Area {
        self.world.nodes[node].create_area(node, &mut self.random, pd, length.max(8), access)
    }

    /// Creates a connection, its memory and its first tasks.
    fn connect(&mut self, spec: &Connection) {
        let index = self.connections.len();
        let directions = [0, 1].map(|side| self.create_direction(spec, side));
        let sides = [0, 1].map(|side| self.create_side(spec, side));
        for side in 0..2 {
            self.move_to_rts(spec, &sides, side);
        }
        for (side, state) in sides.iter().enumerate() {
            self.world.nodes[state.node].actor.ends.insert(state.qpn, (index, side));
        }
        self.connections.push(ConnectionState { sides, directions, faults: Vec::new() });
        for side in 0..2 {
            for _ in 0..spec.programs[side].recv_depth {
                self.post_receive(index, side);
            }
            let start = Time::from_nanos(self.random.below(10_000));
            self.world.plan(start, Task::RunSteps { connection: index, side });
        }
    }

    fn create_side(&mut self, spec: &Connection, side: usize) -> Side {
        let node = spec.devices[side];
        let Node { device, pd, cq, .. } = &mut self.world.nodes[node];
        let mut config = QpConfig::rc(*pd, *cq, *cq);
        config.credits = spec.has_credits;
        config.window = spec.window;
        config.read_window = spec.read_window();
        config.coalesce_limit = spec.coalesce_limit();
        config.max_recv_wr = 4096;
        if spec.has_congestion_control {
            let mut dcqcn = Dcqcn::new(10_000_000_000);
            dcqcn.min_rate = 500_000_000;
            config.congestion = Congestion::Dcqcn(dcqcn);
        }
        let random = &mut self.random;
        let qpn = device.create_qp(config, || random.u32()).expect("a valid configuration");
        let steps = &spec.programs[1 - side].steps;
        let recv_sizes =
            steps.iter().filter(|step| step.action.consumes_receive()).map(|step| match step.action {
                Action::Invalid(InvalidRequest::SendTooLong) => step.length.max(2) - 1,
                Action::Invalid(_) => step.length.max(2),
                Action::SendInline => step.length.min(256),
                _ => step.length,
            });
        Side {
            node,
            qpn,
            step: 0,
            waiting: false,
            draining: false,
            stopped: false,
            destroyed: false,
            failed: false,
            recv_sizes: recv_sizes.collect(),
        }
    }

    fn move_to_rts(&mut self, spec: &Connection, sides: &[Side; 2], side: usize) {
        let (here, there) = (&sides[side], &sides[1 - side]);
        let remote = self.world.nodes[there.node].address;
        let Node { device, address, .. } = &mut self.world.nodes[here.node];
        let port = 0xc000 | (self.random.u32() & 0x3fff) as u16;
        let path = Path::new(*address, remote, port).expect("addresses of one family");
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let receiving = ReadyToReceive {
            remote_qpn: there.qpn,
            path,
            path_mtu: spec.mtu,
            psn: Psn::wrapping(spec.first_psns[1 - side]),
            max_dest_rd_atomic: spec.max_outstanding_reads,
            min_rnr_timer: RnrTimer::new(spec.rnr_timer).expect("below 32"),
        };
        let sending = ReadyToSend {
            psn: Psn::wrapping(spec.first_psns[side]),
            timeout: Timeout::new(spec.ack_timeout_exponent).expect("below 32"),
            retry_count: spec.retry_count,
            rnr_retry: spec.rnr_retry,
            max_rd_atomic: spec.max_outstanding_reads,
        };
        for transition in [
            Transition::Init(Init::new(access)),
            Transition::ReadyToReceive(receiving),
            Transition::ReadyToSend(sending),
        ] {
            device.modify_qp(Time::ZERO, here.qpn, &transition).expect("a valid transition");
        }
    }

    fn create_direction(&mut self, spec: &Connection, side: usize) -> Direction {
        let (here, there) = (spec.devices[side], spec.devices[1 - side]);
        let (pd, remote_pd) = (self.world.nodes[here].pd, self.world.nodes[there].pd);
        let other_pd = self.world.nodes[there].actor.other_pd;
        let steps = &spec.programs[side].steps;
        let mtu = u32::from(spec.mtu.bytes());
        let response_bytes: u32 =
            steps.iter().map(|step| if step.action.is_read() { step.length } else { 8 }).sum();
        let message_bytes: u32 =
            steps.iter().filter(|step| step.action.consumes_receive()).map(|step| step.length + 64).sum();
        let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let everything = Access::LOCAL_WRITE | Access::REMOTE;
        let target = self.create_area(there, remote_pd, 10 * mtu, everything);
        Direction {
            source: self.create_area(here, pd, 16 * mtu, Access::empty()),
            response: self.create_area(here, pd, response_bytes, Access::LOCAL_WRITE),
            receives: self.create_area(there, remote_pd, message_bytes, Access::LOCAL_WRITE),
            read_only: self.create_area(there, remote_pd, mtu, Access::REMOTE_READ),
            write_only: self.create_area(there, remote_pd, mtu, write),
            other_domain: self.create_area(there, other_pd, mtu, everything),
            invalidated: self.create_area(there, remote_pd, mtu, Access::empty()),
            revocable: self.create_area(there, remote_pd, 8 * mtu, everything),
            revoked: None,
            revocation_planned: false,
            invalidated_key: None,
            image: target.initial.clone(),
            target,
            changes: Vec::new(),
            reads: Vec::new(),
            posted: Vec::new(),
            done: 0,
            failed: None,
            must_fail_from: None,
            response_len: 0,
            slots: Vec::new(),
            slots_done: 0,
            receives_len: 0,
            consumed: 0,
            message_ends: Vec::new(),
            starved: false,
            ended: std::collections::HashMap::new(),
        }
    }
}
