//! The run itself: devices, the fabric between them, and virtual time.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use adverb_proto::memory::{HeapMemory, Pd, Registration, RemoteInvalidate, StorageId};
use adverb_proto::types::{Access, Qpn, SendOperation, Status, Transport};
use adverb_proto::{Cq, Device, DropReason, EventSink, IcrcCheck, RxMeta, Srq, Time, TraceEvent};
use adverb_wire::{Header, Operation, Packet, ROCE_PORT};

use super::plan::MessagePlan;
use crate::Random;
use crate::fabric::{Delivery, Fabric, InFlight};
use crate::schedule::{Log, Schedule};

/// The state of a run of messages.
#[derive(Debug)]
pub(super) struct MessageWorld {
    pub(super) plan: MessagePlan,
    pub(super) now: Time,
    pub(super) nodes: Vec<Node>,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) messages: Vec<Message>,
    pub(super) slots: Vec<Slot>,
    pub(super) fabric: Fabric,
    schedule: Schedule<Task>,
    pub(super) random: Random,
    /// The maximum delay of a packet.
    pub(super) long: Duration,
    pub(super) operations: u64,
    pub(super) packets: u64,
    pub(super) created_qp_count: u64,
    pub(super) failures: u64,
    pub(super) digest: u64,
    pub(super) log: Log,
}

/// A device and its resources.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) device: Device<DatagramCounter>,
    pub(super) memory: HeapMemory,
    pub(super) address: IpAddr,
    pub(super) pd: Pd,
    pub(super) cq: Cq,
    pub(super) srq: Srq,
    /// The outstanding receives of the shared receive queue.
    pub(super) shared: BTreeSet<usize>,
    /// The armed limit of the shared receive queue.
    pub(super) armed: Option<u32>,
    pub(super) keys: Vec<u32>,
    /// The endpoint of each queue pair, including destroyed ones.
    pub(super) endpoints: HashMap<Qpn, usize>,
    /// The number of datagrams that completed a receive.
    pub(super) datagrams: u64,
    ip_id: u16,
    pump_planned: bool,
}

/// A queue pair and its messages.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) node: usize,
    pub(super) transport: Transport,
    pub(super) qpn: Qpn,
    pub(super) qkey: u32,
    /// The number of recreations and reconnections. Messages of earlier epochs are discarded.
    pub(super) epoch: u32,
    /// Whether the endpoint is closed until it reconnects.
    pub(super) closed: bool,
    /// Whether the queue pair failed.
    pub(super) failed: bool,
    pub(super) step: usize,
    /// The endpoint's outstanding receives, in order.
    pub(super) receives: VecDeque<usize>,
    /// The messages of this epoch that consume receives, in order, and the number that the peer received or skipped.
    pub(super) outbox: Vec<usize>,
    pub(super) arrived: usize,
    /// The number of messages of this epoch that the peer received.
    pub(super) delivered: usize,
    /// The last completed message.
    pub(super) completed: Option<usize>,
    pub(super) faults: u64,
    pub(super) window: Option<Window>,
}

/// An endpoint's memory window, and the memory that it exposes in part.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) storage: StorageId,
    pub(super) initial: Vec<u8>,
    pub(super) region: u32,
    pub(super) addr: u64,
    /// The exposed range: offset in the region, and length.
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) key: u32,
    pub(super) phase: Phase,
    /// The messages that may write through the window.
    pub(super) writers: Vec<usize>,
    /// The content of the memory when the window was invalidated.
    pub(super) snapshot: Option<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Free,
    Binding,
    Bound,
    Invalidating,
}

/// A message, or a request about a window.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) from: usize,
    pub(super) to: To,
    pub(super) epoch: u32,
    pub(super) source_qpn: Qpn,
    pub(super) operation: SendOperation,
    pub(super) bytes: Vec<u8>,
    /// Whether the message must not arrive.
    pub(super) forbidden: bool,
    /// Whether the message uses a window, which may be invalidated before its arrival.
    pub(super) through_window: bool,
    /// The target of a WRITE: the node, the memory, and its initial content.
    pub(super) target: Option<(usize, StorageId, Vec<u8>)>,
    pub(super) delivered: u64,
    pub(super) outcome: Option<Status>,
}

/// The destination of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum To {
    Endpoint(usize),
    Group,
    NoEndpoint,
}

/// A receive.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) node: usize,
    /// The endpoint that posted it; `None` for a shared receive.
    pub(super) endpoint: Option<usize>,
    pub(super) storage: StorageId,
    pub(super) done: bool,
}

/// A planned task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Task {
    /// Continues the steps of an endpoint.
    RunSteps { endpoint: usize },
    /// Posts a receive of an endpoint.
    Receive { endpoint: usize, epoch: u32 },
    /// Posts a shared receive.
    ReceiveShared { node: usize },
    /// Reconnects a pair of endpoints.
    Connect { endpoint: usize },
    /// Recreates a failed pair of endpoints, which are reconnected later.
    Reconnect { endpoint: usize, epoch: u32 },
    /// Processes a device's packets and completions.
    Pump { node: usize },
}

/// An event sink that counts datagrams, and records all events if it is switched on.
#[derive(Debug, Default)]
pub(super) struct DatagramCounter {
    on: bool,
    events: Vec<(Time, TraceEvent)>,
    /// The queue pairs for datagrams.
    pub(super) datagram_qps: HashSet<Qpn>,
    pub(super) datagrams_in: u64,
    pub(super) datagrams_dropped: u64,
    pub(super) wrong_keys: u64,
}

impl EventSink for DatagramCounter {
    fn event(&mut self, now: Time, event: TraceEvent) {
        match event {
            TraceEvent::PacketReceived { header: Header { operation: Operation::Ud(_), .. }, .. } => {
                self.datagrams_in += 1;
            }
            TraceEvent::Dropped { reason: DropReason::WrongQkey, .. } => self.wrong_keys += 1,
            TraceEvent::Dropped {
                qpn,
                reason: DropReason::NoReceivePosted | DropReason::MessageTooLong,
                ..
            } if self.datagram_qps.contains(&qpn) => {
                self.datagrams_dropped += 1;
            }
            _ => {}
        }
        if self.on {
            self.events.push((now, event));
        }
    }
}

/// The time within which all requests must complete after the faults end.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(5);

impl MessageWorld {
    pub(super) fn new(plan: MessagePlan, trace: bool) -> MessageWorld {
        let long = Duration::from_nanos(4096 << plan.ack_timeout_exponent);
        let faults = plan.faults.clone();
        let mut random = Random::new(plan.seed ^ 0x6c65_7474_6572_7300);
        let nodes = (0..plan.device_count).map(|index| Node::new(index, plan.has_ipv6, trace)).collect();
        let fabric = Fabric::new(faults, plan.faults_end_at, plan.latency, long, random.u64());
        let mut world = MessageWorld {
            now: Time::ZERO,
            nodes,
            endpoints: Vec::new(),
            messages: Vec::new(),
            slots: Vec::new(),
            fabric,
            schedule: Schedule::new(),
            random,
            long,
            operations: 0,
            packets: 0,
            created_qp_count: 0,
            failures: 0,
            digest: 0xcbf2_9ce4_8422_2325,
            log: Log::new(trace),
            plan,
        };
        world.set_up();
        world
    }

    pub(super) fn plan_task(&mut self, at: Time, task: Task) {
        self.schedule.plan(at, task);
    }

    /// Records a violation. Only the first is kept.
    pub(super) fn report_violation(&mut self, what: String) {
        self.log.report_violation(self.now, &format!("messages: {what}"));
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        self.log.note(self.now, what);
    }

    /// Registers memory at a node, and returns its storage and key. Each region starts at [`BASE`].
    pub(super) fn register(
        &mut self,
        node: usize,
        bytes: Vec<u8>,
        length: usize,
        access: Access,
    ) -> (StorageId, u32) {
        let Node { device, memory, keys, pd, .. } = &mut self.nodes[node];
        let storage = memory.add(bytes);
        let remote_invalidate = RemoteInvalidate::Denied;
        let registration =
            Registration { addr: BASE, length: length as u64, access, storage, remote_invalidate };
        let random = &mut self.random;
        let key = device.register(*pd, registration, || random.u32()).expect("a valid registration");
        keys.push(key);
        (storage, key)
    }

    /// Advances the virtual time until no tasks remain.
    pub(super) fn run(&mut self) {
        let end = self.plan.faults_end_at + COMPLETION_TIMEOUT;
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
            Task::RunSteps { endpoint } => self.run_steps(endpoint),
            Task::Receive { endpoint, epoch } => self.post_receive(endpoint, epoch),
            Task::ReceiveShared { node } => self.post_shared(node),
            Task::Connect { endpoint } => self.connect(endpoint),
            Task::Reconnect { endpoint, epoch } => {
                if self.endpoints[endpoint].epoch == epoch {
                    self.reconnect(endpoint, epoch.is_multiple_of(2));
                }
            }
            Task::Pump { node } => {
                self.nodes[node].pump_planned = false;
                self.pump(node);
            }
        }
    }

    pub(super) fn plan_pump(&mut self, node: usize) {
        if !self.nodes[node].pump_planned {
            self.nodes[node].pump_planned = true;
            self.plan_task(self.now, Task::Pump { node });
        }
    }

    /// Returns the address of the group.
    pub(super) fn group(&self) -> IpAddr {
        if self.plan.has_ipv6 {
            IpAddr::V6(Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 0x77))
        } else {
            IpAddr::V4(Ipv4Addr::new(239, 77, 0, 1))
        }
    }

    fn deliver(&mut self, packet: &InFlight) {
        let source = SocketAddr::new(self.nodes[packet.from].address, packet.source_port);
        let icrc = IcrcCheck::IpId(packet.ip_id);
        let Ok(parsed) = Packet::parse(&packet.bytes) else { return };
        let to_group = parsed.header().dest_qp == Qpn::MULTICAST;
        let destination = if to_group { self.group() } else { self.nodes[packet.to].address };
        let destination = SocketAddr::new(destination, ROCE_PORT);
        let rx_meta = RxMeta {
            source,
            destination,
            icrc,
            is_ecn_marked: packet.is_ecn_marked,
            route: Default::default(),
            received_at: None,
        };
        let members = |endpoint: &&Endpoint| {
            endpoint.node == packet.to && endpoint.transport == Transport::Ud && !endpoint.closed
        };
        let members = self.endpoints.iter().filter(members).count() as u64;
        let Node { device, memory, .. } = &mut self.nodes[packet.to];
        let before = device.sink().datagrams_in;
        device.handle_packet(self.now, &rx_meta, &parsed, memory);
        let received = device.sink().datagrams_in - before;
        // A datagram is delivered to all members of a group or, if it is corrupt, to none.
        if to_group && received != 0 && received != members {
            self.report_violation(format!("a datagram reached {received} of {members} members of the group"));
        }
        self.plan_pump(packet.to);
    }

    /// Sends a device's packets, and checks its completions.
    pub(super) fn pump(&mut self, index: usize) {
        loop {
            let group = self.group();
            let node = &mut self.nodes[index];
            node.ip_id = node.ip_id.wrapping_add(1);
            let ip_id = node.ip_id;
            let Some(transmit) = node.device.poll_transmit(self.now) else { break };
            let mut bytes = Vec::with_capacity(transmit.payload.len() + 64);
            if transmit.write_to(&node.memory, ip_id, &mut bytes).is_err() {
                return self
                    .report_violation("the payload of a packet is not in registered memory".to_owned());
            }
            let (header, remote) = (transmit.header, transmit.path.remote());
            let (source_port, ecn_capable) = (transmit.path.source_port(), transmit.ecn_capable);
            self.packets += 1;
            let icrc = bytes.last_chunk::<4>().map_or(0, |icrc| u32::from_le_bytes(*icrc));
            for number in [self.now.as_nanos(), u64::from(icrc)] {
                self.digest = (self.digest ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
            }
            let receivers: Vec<usize> = (0..self.nodes.len())
                .filter(|to| remote == group || self.nodes[*to].address == remote)
                .collect();
            for to in receivers {
                let bytes = bytes.clone();
                let is_ecn_marked = false;
                let packet =
                    InFlight { from: index, to, source_port, ip_id, bytes, ecn_capable, is_ecn_marked };
                let delivery = self.fabric.send(self.now, packet);
                if delivery != Delivery::Carried {
                    self.note(|| format!("dev {index} -> dev {to}: {header}: {delivery:?}"));
                    if let Some(endpoint) = self.nodes[to].endpoints.get(&header.dest_qp).copied() {
                        self.endpoints[endpoint].faults += 1;
                    }
                }
            }
        }
        self.observe(index);
        let events = std::mem::take(&mut self.nodes[index].device.sink_mut().events);
        if let Some(trace) = &mut self.log.trace {
            trace.extend(events.iter().map(|(time, event)| format!("{time} dev {index} {event}")));
        }
    }
}

/// The first address of each region.
pub(super) const BASE: u64 = 0x10_0000;

impl Node {
    fn new(index: usize, v6: bool, trace: bool) -> Node {
        let mut device = Device::new(DatagramCounter { on: trace, ..DatagramCounter::default() });
        let pd = device.create_domain();
        let cq = device.create_cq(1 << 20);
        let srq = device.create_srq(adverb_proto::SrqConfig::new(pd)).expect("the domain exists");
        let host = index as u16 + 1;
        let address = if v6 {
            IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 1, host))
        } else {
            IpAddr::V4(Ipv4Addr::new(10, 77, 1, host as u8))
        };
        Node {
            device,
            memory: HeapMemory::default(),
            address,
            pd,
            cq,
            srq,
            shared: BTreeSet::new(),
            armed: None,
            keys: Vec::new(),
            endpoints: HashMap::new(),
            datagrams: 0,
            ip_id: 0,
            pump_planned: false,
        }
    }
}
