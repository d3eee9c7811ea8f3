//! The run itself: devices, the fabric between them, and virtual time.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use adverb_proto::memory::{HeapMemory, Registration, RemoteInvalidate, StorageId};
use adverb_proto::types::{Access, Qpn, SendOperation, Status, Transport};
use adverb_proto::{DropReason, EventSink, Srq, SrqConfig, Time, TraceEvent};
use adverb_wire::{Header, Operation, Packet};

use super::plan::MessagePlan;
use crate::Random;
use crate::fabric::{Delivery, Fabric, InFlight};
use crate::node::{Node, Trace, UNREGISTERED_PAYLOAD, UnregisteredPayload};
use crate::world::{Actors, World};

/// The state of a run of messages.
#[derive(Debug)]
pub(super) struct MessageRun {
    pub(super) plan: MessagePlan,
    pub(super) world: World<MessageNode, Task>,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) messages: Vec<Message>,
    pub(super) slots: Vec<Slot>,
    pub(super) random: Random,
    /// The ACK timeout of the connections.
    pub(super) ack_timeout: Duration,
    pub(super) operations: u64,
    pub(super) created_qp_count: u64,
    pub(super) failures: u64,
}

pub(super) type MessageNode = Node<NodeEndpoints, DatagramCounter>;

/// The endpoints of a device.
#[derive(Debug)]
pub(super) struct NodeEndpoints {
    pub(super) srq: Srq,
    /// The outstanding receives of the shared receive queue.
    pub(super) shared: BTreeSet<usize>,
    /// The armed limit of the shared receive queue.
    pub(super) armed: Option<u32>,
    /// The endpoint of each queue pair, including destroyed ones.
    pub(super) endpoints: HashMap<Qpn, usize>,
    /// The number of datagrams that completed a receive.
    pub(super) datagrams: u64,
}

/// A queue pair and its messages.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) node: usize,
    pub(super) transport: Transport,
    pub(super) qpn: Qpn,
    pub(super) qkey: u32,
    /// The number of recreations and reconnections. On a connection, messages of earlier epochs must not arrive.
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
    /// The local key of the memory region.
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
    pub(super) to: Receiver,
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Receiver {
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
    /// Connects a closed pair of endpoints.
    Connect { endpoint: usize },
    /// Closes a failed pair of endpoints, and connects them later.
    Reconnect { endpoint: usize, epoch: u32 },
    /// Sends a device's packets, and checks its completions.
    Pump { node: usize },
}

/// An event sink that counts datagrams, and records all events if its trace is enabled.
#[derive(Debug, Default)]
pub(super) struct DatagramCounter {
    trace: Trace,
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
        self.trace.event(now, event);
    }
}

/// The time within which all requests must complete after the faults end.
pub(super) const COMPLETION_TIMEOUT: Duration = Duration::from_secs(5);

impl Actors for MessageRun {
    type Node = MessageNode;
    type Task = Task;

    fn world(&mut self) -> &mut World<MessageNode, Task> {
        &mut self.world
    }

    fn deliver(&mut self, packet: &InFlight) {
        let Ok(parsed) = Packet::parse(&packet.bytes) else { return };
        let to_group = parsed.header().dest_qp == Qpn::MULTICAST;
        let destination = if to_group { self.group() } else { self.world.nodes[packet.to].address };
        let rx_meta = packet.rx_meta(self.world.nodes[packet.from].address, destination);
        let members = |endpoint: &&Endpoint| {
            endpoint.node == packet.to && endpoint.transport == Transport::Ud && !endpoint.closed
        };
        let members = self.endpoints.iter().filter(members).count() as u64;
        let Node { device, memory, .. } = &mut self.world.nodes[packet.to];
        let before = device.sink().datagrams_in;
        device.handle_packet(self.world.now, &rx_meta, &parsed, memory);
        let received = device.sink().datagrams_in - before;
        // A datagram is delivered to all members of a group or, if it is corrupt, to none.
        if to_group && received != 0 && received != members {
            self.report_violation(format!("a datagram reached {received} of {members} members of the group"));
        }
        self.plan_pump(packet.to);
    }

    fn after_timeout(&mut self, node: usize) {
        self.plan_pump(node);
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
                self.world.nodes[node].pump_planned = false;
                self.pump(node);
            }
        }
    }

    fn report_violation(&mut self, what: String) {
        self.world.report_violation(&format!("messages: {what}"));
    }
}

impl MessageRun {
    pub(super) fn new(plan: MessagePlan, trace: bool) -> MessageRun {
        let ack_timeout = Duration::from_nanos(4096 << plan.ack_timeout_exponent);
        let faults = plan.faults.clone();
        let mut random = Random::new(plan.seed ^ 0x6c65_7474_6572_7300);
        let fabric = Fabric::new(faults, plan.faults_end_at, plan.latency, ack_timeout, random.u64());
        let mut world = World::new(fabric, trace);
        world.nodes = (0..plan.device_count).map(|index| create_node(index, plan.has_ipv6, trace)).collect();
        let mut run = MessageRun {
            world,
            endpoints: Vec::new(),
            messages: Vec::new(),
            slots: Vec::new(),
            random,
            ack_timeout,
            operations: 0,
            created_qp_count: 0,
            failures: 0,
            plan,
        };
        run.set_up();
        run
    }

    /// Registers memory at a node, and returns its storage and key. Each region starts at [`BASE`].
    pub(super) fn register(
        &mut self,
        node: usize,
        bytes: Vec<u8>,
        length: usize,
        access: Access,
    ) -> (StorageId, u32) {
        let node = &mut self.world.nodes[node];
        let storage = node.memory.add(bytes);
        let remote_invalidate = RemoteInvalidate::Denied;
        let registration =
            Registration { addr: BASE, length: length as u64, access, storage, remote_invalidate };
        let key = node.register(&mut self.random, node.pd, registration);
        (storage, key)
    }

    pub(super) fn plan_pump(&mut self, node: usize) {
        if !self.world.nodes[node].pump_planned {
            self.world.nodes[node].pump_planned = true;
            self.world.plan(self.world.now, Task::Pump { node });
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

    /// Sends a device's packets, and checks its completions.
    pub(super) fn pump(&mut self, index: usize) {
        loop {
            let packet = match self.world.nodes[index].poll_packet(self.world.now) {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(UnregisteredPayload) => return self.report_violation(UNREGISTERED_PAYLOAD.to_owned()),
            };
            let (header, remote) = (packet.header, packet.remote);
            self.world.count_packet(&[u64::from(packet.icrc())]);
            let is_to_group = remote == self.group();
            let receivers: Vec<usize> = (0..self.world.nodes.len())
                .filter(|to| is_to_group || self.world.nodes[*to].address == remote)
                .collect();
            for to in receivers {
                let delivery = self.world.fabric.send(self.world.now, packet.clone().into_flight(index, to));
                if delivery != Delivery::Carried {
                    self.world.note(|| format!("dev {index} -> dev {to}: {header}: {delivery:?}"));
                    if let Some(endpoint) = self.world.nodes[to].actor.endpoints.get(&header.dest_qp).copied()
                    {
                        self.endpoints[endpoint].faults += 1;
                    }
                }
            }
        }
        self.observe(index);
        let lines = self.world.nodes[index].device.sink_mut().trace.take_lines(index);
        self.world.log.add_lines(lines);
    }
}

/// The first address of each region.
pub(super) const BASE: u64 = 0x10_0000;

/// Creates a device and its resources.
fn create_node(index: usize, v6: bool, trace: bool) -> MessageNode {
    let host = index as u16 + 1;
    let address = if v6 {
        IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 1, host))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 77, 1, host as u8))
    };
    let sink = DatagramCounter { trace: Trace::new(trace), ..DatagramCounter::default() };
    Node::new(address, sink, HeapMemory::default(), 1 << 20, |device, pd| NodeEndpoints {
        srq: device.create_srq(SrqConfig::new(pd)).expect("the domain exists"),
        shared: BTreeSet::new(),
        armed: None,
        endpoints: HashMap::new(),
        datagrams: 0,
    })
}
