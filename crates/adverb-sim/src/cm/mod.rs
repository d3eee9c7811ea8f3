//! Connection managers over a fabric with faults.
//!
//! Each node has a [`Manager`] and an application, which reacts to the manager's events immediately, later or never:
//! it connects, accepts, rejects, abandons and disconnects. Established connections exchange pings in place of queue
//! pairs' packets, so that a side notices that its peer has disappeared. Every run checks that
//!
//! - each call (connect, accept or resolve) ends by its deadline with exactly one outcome;
//! - each established connection ends;
//! - the parameters of both ends' queue pairs match;
//! - the manager reports each connection request to the application once;
//! - after the fabric recovers, no reachable peer is reported as unreachable;
//! - queue pair numbers aren't reused before time-wait ends;
//! - tables stay within their bounds, retransmissions end, and no state remains at the end.

mod application;
mod attack;
mod generator;
mod packet;
mod register;

use std::net::IpAddr;
use std::time::Duration;

use adverb_proto::Time;
use adverb_proto::cm::{AddrPair, BindAddr, Config, ListenParams, Manager};
use adverb_proto::types::Transport;
use adverb_wire::cm::{ServiceId, Timeout};
use adverb_wire::{Psn, Qpn};

use crate::Random;
use crate::fabric::{Delivery, Fabric, FaultCounts, Faults, InFlight, Partition};
use crate::world::{Actors, Host, Limit, World};
use application::{Application, Task};
pub use attack::{CmAttackReport, attack_cm, attack_cm_from_bytes};
pub use generator::{CM_ATTACK_TCP_SERVICE_ID, CM_ATTACK_UDP_SERVICE_ID, CmMessageGenerator};
use packet::Content;
use register::Register;

/// The result of a run of connection managers.
#[derive(Clone, Debug)]
pub struct CmOutcome {
    /// The seed of the run.
    pub seed: u64,
    /// The number of connections and service ID resolutions that the applications requested.
    pub cm_request_count: u64,
    /// The number of connections that both sides established.
    pub established_connection_count: u64,
    /// The number of sent packets, including connection manager messages and pings.
    pub packet_count: u64,
    /// The numbers of injected faults.
    pub fault_counts: FaultCounts,
    /// The virtual time at the end of the run.
    pub end_time: Time,
    /// A hash of all packets and their times. The seed determines the hash.
    pub digest: u64,
    /// A description of the first violation, if any.
    pub violation: Option<String>,
    /// The lines of the trace. The list is empty unless a trace was requested.
    pub trace: Vec<String>,
}

/// Runs connection managers over a fabric with faults, and records a trace if `trace` is `true`. The seed determines
/// the run.
pub fn run_cm(seed: u64, trace: bool) -> CmOutcome {
    let mut run = CmRun::new(seed, trace);
    run.run(Limit::Steps(MAX_STEPS));
    run.finish();
    let CmRun { world, register, .. } = run;
    CmOutcome {
        seed,
        cm_request_count: register.call_count(),
        established_connection_count: register.established_count(),
        packet_count: world.packet_count,
        fault_counts: world.fabric.counts,
        end_time: world.now,
        digest: world.digest,
        violation: register.violation,
        trace: world.log.trace.unwrap_or_default(),
    }
}

/// A connection manager and its application.
struct ManagerNode {
    address: IpAddr,
    manager: Manager,
    application: Application,
    random: Random,
}

impl Host for ManagerNode {
    fn address(&self) -> IpAddr {
        self.address
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.manager.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Time) {
        self.manager.handle_timeout(now);
    }
}

struct CmRun {
    /// The nodes, with the tasks of their applications.
    world: World<ManagerNode, (usize, Task)>,
    register: Register,
    rules: Rules,
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// The initial response timeout of a manager.
    response_timeout: Duration,
    /// The duration of time-wait, which exceeds the lifetime of packets.
    timewait: Duration,
    /// The time limit for an application's decision.
    request_timeout: Duration,
    /// The time at which the faults end.
    faults_end_at: Time,
    /// The service ID of the listeners for connections.
    service: ServiceId,
    /// The service ID of the listeners for service ID resolution.
    resolution_service: ServiceId,
}

/// The maximum number of steps. Runs that end take far fewer.
const MAX_STEPS: u64 = 200_000;
const MAX_HALF_OPEN: usize = 64;

impl Actors for CmRun {
    type Node = ManagerNode;
    type Task = (usize, Task);

    fn world(&mut self) -> &mut World<ManagerNode, (usize, Task)> {
        &mut self.world
    }

    fn deliver(&mut self, packet: &InFlight) {
        let addrs = AddrPair {
            local: self.world.nodes[packet.to].address,
            remote: self.world.nodes[packet.from].address,
        };
        // Corrupt packets are dropped, as a NIC does.
        let Some(content) = packet::read(addrs, packet) else { return };
        match content {
            Content::Mad(mad) => {
                let ManagerNode { manager, random, .. } = &mut self.world.nodes[packet.to];
                manager.handle(self.world.now, addrs, &mad.emit(), &mut || random.u32());
            }
            Content::Ping { to, from, psn, reply } => {
                self.act(packet.to, |application, cx| {
                    application.handle_ping(cx, addrs, Ping { to, from, psn, reply });
                });
            }
        }
        self.drain();
    }

    fn after_timeouts(&mut self) {
        self.drain();
    }

    fn perform(&mut self, (node, task): (usize, Task)) {
        self.world.note(|| format!("node {node}: {task:?}"));
        self.act(node, |application, cx| application.run(cx, task));
        self.drain();
    }

    fn has_violation(&mut self) -> bool {
        self.register.violation.is_some()
    }

    fn report_violation(&mut self, what: String) {
        self.register.report_violation(self.world.now, what);
    }
}

impl CmRun {
    fn new(seed: u64, trace: bool) -> CmRun {
        let mut random = Random::new(seed ^ 0x0063_6d63_6d63_6d63);
        let latency = Duration::from_micros(random.between(5, 200));
        let code = random.between(10, 13) as u8;
        let response = Timeout::new(code).unwrap_or(Timeout::MAX);
        let base_delay = response.duration().mul_f64(0.3 + random.below(100) as f64 / 40.0);
        let count = random.between(2, 4) as usize;
        let busy_time = response.duration() * 100;
        let mut faults = Faults::default();
        for chance in [
            &mut faults.loss_per_million,
            &mut faults.duplication_per_million,
            &mut faults.reordering_per_million,
            &mut faults.delay_per_million,
        ] {
            *chance = random.pick(&[0, 10_000, 100_000, 300_000]);
        }
        faults.corruption_per_million = random.pick(&[0, 0, 20_000]);
        let faults_end_at = Time::ZERO + busy_time.mul_f64(random.below(100) as f64 / 80.0);
        for _ in 0..random.below(3) {
            let start = Time::ZERO + busy_time.mul_f64(random.below(100) as f64 / 100.0);
            let between = [random.below(count as u64) as usize, random.below(count as u64) as usize];
            let end = start + response.duration() * random.between(1, 60) as u32;
            faults.partitions.push(Partition { devices: between, start, end });
        }
        let rules = Rules {
            response_timeout: response.duration(),
            timewait: base_delay * 4 + latency * 16,
            request_timeout: response.duration() * 40,
            faults_end_at,
            service: ServiceId::tcp_port(7471),
            resolution_service: ServiceId::udp_port(7471),
        };
        let fabric = Fabric::new(faults, faults_end_at, latency, base_delay, random.u64());
        let mut run = CmRun { world: World::new(fabric, trace), register: Register::new(rules), rules };
        for index in 0..count {
            run.add_node(index, response, &mut random);
        }
        for _ in 0..random.between(4, 16) {
            run.plan(busy_time, &mut random);
        }
        run
    }

    fn add_node(&mut self, index: usize, response: Timeout, random: &mut Random) {
        let mut config = Config::new(random.u64());
        config.response_timeout = response;
        config.timewait = self.rules.timewait;
        config.request_timeout = self.rules.request_timeout;
        config.max_half_open = MAX_HALF_OPEN;
        let mut manager = Manager::new(config);
        // Some nodes have no listeners and reject requests, but the first node always has them.
        if index == 0 || random.below(4) > 0 {
            for (service, transport) in
                [(self.rules.service, Transport::Rc), (self.rules.resolution_service, Transport::Ud)]
            {
                let _ = manager.listen(ListenParams { service, bind: BindAddr::Any, transport, backlog: 32 });
            }
        }
        self.world.nodes.push(ManagerNode {
            address: [10, 0, 0, 1 + index as u8].into(),
            manager,
            application: Application::default(),
            random: Random::new(random.u64()),
        });
    }

    /// Plans a connection, a peer-to-peer connection or a service ID resolution.
    fn plan(&mut self, busy_time: Duration, random: &mut Random) {
        let count = self.world.nodes.len() as u64;
        let (from, to) = (random.below(count) as usize, random.below(count) as usize);
        let at = Time::ZERO + busy_time.mul_f64(random.below(1000) as f64 / 1000.0);
        let timeout = self.rules.response_timeout * random.between(2, 80) as u32;
        match random.below(10) {
            0..=6 => self.world.plan(at, (from, Task::Connect { to, timeout })),
            7 if from != to => {
                let token = random.u64() | 1;
                let connect_to = |to| Task::ConnectPeerToPeer { to, timeout, token };
                self.world.plan(at, (from, connect_to(to)));
                self.world.plan(at + self.rules.response_timeout.mul_f64(0.01), (to, connect_to(from)));
            }
            _ => self.world.plan(at, (from, Task::Resolve { to, timeout })),
        }
    }

    /// Checks the end of a run without a violation.
    fn finish(&mut self) {
        if self.has_violation() {
            return;
        }
        for node in &self.world.nodes {
            self.register.check_end(self.world.now, &node.manager, &node.application);
        }
        self.register.check_calls(self.world.now);
    }

    fn act(&mut self, node: usize, act: impl FnOnce(&mut Application, &mut CallContext<'_>)) {
        let addresses: Vec<IpAddr> = self.world.nodes.iter().map(|node| node.address).collect();
        let ManagerNode { manager, application, random, .. } = &mut self.world.nodes[node];
        let mut cx = CallContext {
            now: self.world.now,
            node,
            addresses: &addresses,
            manager,
            random,
            rules: self.rules,
            register: &mut self.register,
            tasks: Vec::new(),
            pings: Vec::new(),
        };
        act(application, &mut cx);
        let CallContext { tasks, pings, .. } = cx;
        for (after, task) in tasks {
            self.world.plan(self.world.now + after, (node, task));
        }
        for (addrs, content) in pings {
            self.send(node, addrs, content);
        }
    }

    /// Sends the managers' messages, and delivers their events to the applications.
    fn drain(&mut self) {
        loop {
            let mut quiet = true;
            for node in 0..self.world.nodes.len() {
                while let Some(datagram) = self.world.nodes[node].manager.poll_transmit() {
                    quiet = false;
                    self.world.note(|| format!("node {node} sends {}", datagram.mad.message));
                    self.send(node, datagram.addrs, Content::Mad(Box::new(datagram.mad)));
                }
                while let Some(event) = self.world.nodes[node].manager.poll_event() {
                    quiet = false;
                    self.world.note(|| format!("node {node} event {event:?}"));
                    self.act(node, |application, cx| application.handle_event(cx, event));
                }
                let resource_counts = self.world.nodes[node].manager.resource_counts();
                self.register.check_bounds(self.world.now, &resource_counts, MAX_HALF_OPEN);
            }
            if quiet {
                return;
            }
        }
    }

    fn send(&mut self, from: usize, addrs: AddrPair, content: Content) {
        let Some(to) = self.world.node_at(addrs.remote) else { return };
        self.world.packet_count += 1;
        let ip_id = self.world.packet_count as u16;
        let bytes = packet::write(addrs, &content, ip_id);
        for byte in self.world.now.as_nanos().to_le_bytes().iter().chain(&bytes) {
            self.world.digest = (self.world.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let in_flight = InFlight {
            from,
            to,
            source_port: packet::SOURCE_PORT,
            ip_id,
            bytes,
            ecn_capable: false,
            is_ecn_marked: false,
        };
        let delivery = self.world.fabric.send(self.world.now, in_flight);
        if delivery != Delivery::Carried {
            self.world.note(|| format!("  {delivery:?}"));
        }
    }
}

struct Ping {
    to: Qpn,
    from: Qpn,
    psn: Psn,
    reply: bool,
}

/// The context of an application's calls.
struct CallContext<'a> {
    now: Time,
    node: usize,
    addresses: &'a [IpAddr],
    manager: &'a mut Manager,
    random: &'a mut Random,
    rules: Rules,
    register: &'a mut Register,
    /// The tasks to plan, with their delays.
    tasks: Vec<(Duration, Task)>,
    pings: Vec<(AddrPair, Content)>,
}

impl CallContext<'_> {
    fn addrs(&self, to: usize) -> AddrPair {
        AddrPair { local: self.addresses[self.node], remote: self.addresses[to] }
    }

    fn report_violation(&mut self, what: impl Into<String>) {
        self.register.report_violation(self.now, what);
    }
}
