//! The endpoints: they send messages, post receives, bind windows, and reconnect.

use std::collections::VecDeque;

use adverb_proto::types::{
    Access, Destination, Gid, PathMtu, Psn, Qpn, RecvRequest, RemoteAddress, Segment, SendFlags,
    SendOperation, SendRequest, Transport, WindowBind,
};
use adverb_proto::{Init, Path, PostError, QpConfig, ReadyToReceive, ReadyToSend, Transition};
use adverb_wire::cm::Timeout;
use adverb_wire::{GRH_LEN, RnrTimer};

use super::plan::{MAX_PACKETS, MessageAction, MessageStep};
use super::run::{BASE, Endpoint, Message, MessageRun, Phase, Receiver, Slot, Task, Window};
use crate::Random;
use crate::area::GUARD;
use crate::world::Actors;

/// The number of shared receives that a device keeps posted.
const SHARED_DEPTH: usize = 12;
/// The length of the memory before and after a window.
const MARGIN: u64 = 64;

impl MessageRun {
    /// Creates the endpoints, their windows and their first receives.
    pub(super) fn set_up(&mut self) {
        for index in 0..self.plan.endpoints.len() {
            let plan = &self.plan.endpoints[index];
            let (node, transport) = (plan.device, plan.transport);
            let qkey = self.random.u32() >> 1;
            let endpoint = Endpoint {
                node,
                transport,
                qpn: Qpn::GSI,
                // All endpoints that send to the group have the same Q_Key.
                qkey: if transport == Transport::Ud { GROUP_QKEY } else { qkey },
                epoch: 0,
                closed: true,
                failed: false,
                step: 0,
                receives: VecDeque::new(),
                outbox: Vec::new(),
                arrived: 0,
                delivered: 0,
                completed: None,
                faults: 0,
                window: None,
            };
            self.endpoints.push(endpoint);
            self.create_qp(index);
            if transport != Transport::Ud {
                self.create_window(index);
            }
        }
        for index in 0..self.endpoints.len() {
            if self.plan.endpoints[index].peer.is_none_or(|peer| index < peer) {
                self.connect(index);
            }
            let at = self.world.now + std::time::Duration::from_nanos(self.random.below(5000));
            self.world.plan(at, Task::RunSteps { endpoint: index });
        }
        for node in 0..self.world.nodes.len() {
            for _ in 0..SHARED_DEPTH {
                self.post_shared(node);
            }
        }
    }

    fn create_qp(&mut self, index: usize) {
        let plan = &self.plan.endpoints[index];
        let node = &mut self.world.nodes[plan.device];
        let mut config = QpConfig::new(plan.transport, node.pd, node.cq, node.cq);
        config.srq = plan.has_srq.then_some(node.actor.srq);
        config.max_recv_wr = 4096;
        config.max_send_wr = 16;
        config.credits = plan.seed_bit();
        let random = &mut self.random;
        let qpn = node.device.create_qp(config, || random.u32()).expect("a valid configuration");
        node.actor.endpoints.insert(qpn, index);
        if plan.transport == Transport::Ud {
            node.device.sink_mut().datagram_qps.insert(qpn);
        }
        self.endpoints[index].qpn = qpn;
        self.created_qp_count += 1;
    }

    fn create_window(&mut self, index: usize) {
        let node = self.endpoints[index].node;
        let length = 2 * MARGIN + 8 * 1024;
        let initial = self.random.bytes(length as usize);
        let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
        let (storage, region) = self.register(node, initial.clone(), length as usize, access);
        let (pd, random) = (self.world.nodes[node].pd, &mut self.random);
        let key =
            self.world.nodes[node].device.create_window(pd, || random.u32()).expect("the domain exists");
        self.endpoints[index].window = Some(Window {
            storage,
            initial,
            region,
            addr: BASE,
            start: MARGIN,
            length: length - 2 * MARGIN,
            key,
            phase: Phase::Free,
            writers: Vec::new(),
            snapshot: None,
        });
    }

    /// Connects an endpoint and its peer, or activates a datagram endpoint.
    pub(super) fn connect(&mut self, index: usize) {
        let peer = self.plan.endpoints[index].peer;
        let psns = [self.random.u32() & 0xff_ffff, 0x100_0000 - 1 - self.random.below(300) as u32];
        let exponent = self.plan.ack_timeout_exponent;
        for (side, here) in [Some(index), peer].into_iter().flatten().enumerate() {
            let Endpoint { node, transport, qkey, qpn, .. } = self.endpoints[here];
            let port = 0xc000 | (self.random.u32() & 0x3fff) as u16;
            let there = peer.map(|peer| if side == 0 { peer } else { index });
            let init = match transport {
                Transport::Ud => Init::datagrams(qkey),
                Transport::Rc | Transport::Uc => Init::new(Access::LOCAL_WRITE | Access::REMOTE),
            };
            let receiving = match there {
                None => Transition::ReadyToReceiveUd,
                Some(there) => {
                    let remote = self.world.nodes[self.endpoints[there].node].address;
                    let path = Path::new(self.world.nodes[node].address, remote, port).expect("one family");
                    Transition::ReadyToReceive(ReadyToReceive {
                        remote_qpn: self.endpoints[there].qpn,
                        path,
                        path_mtu: self.plan.endpoints[here].mtu,
                        psn: Psn::wrapping(psns[1 - side]),
                        max_dest_rd_atomic: 4,
                        min_rnr_timer: RnrTimer::new(1).expect("below 32"),
                    })
                }
            };
            let sending = ReadyToSend {
                psn: Psn::wrapping(psns[side]),
                timeout: Timeout::new(exponent).expect("below 32"),
                retry_count: 7,
                rnr_retry: 7,
                max_rd_atomic: 4,
            };
            for transition in [Transition::Init(init), receiving, Transition::ReadyToSend(sending)] {
                let modified = self.world.nodes[node].device.modify_qp(self.world.now, qpn, &transition);
                if let Err(error) = modified {
                    return self.report_violation(format!("endpoint {here} cannot connect: {error}"));
                }
            }
            if transport == Transport::Ud {
                let group = Gid::from(self.group());
                // The queue pair may already be attached.
                let _ = self.world.nodes[node].device.attach_multicast(qpn, group);
            }
            let endpoint = &mut self.endpoints[here];
            endpoint.closed = false;
            endpoint.failed = false;
            let epoch = endpoint.epoch;
            if !self.plan.endpoints[here].has_srq {
                for _ in 0..self.plan.endpoints[here].recv_depth {
                    self.post_receive(here, epoch);
                }
            }
            self.world.plan(self.world.now, Task::RunSteps { endpoint: here });
        }
    }

    /// Closes an endpoint and its peer, and plans their new connection.
    pub(super) fn reconnect(&mut self, index: usize, recreate: bool) {
        let pair: Vec<usize> = [Some(index), self.plan.endpoints[index].peer].into_iter().flatten().collect();
        // Completions from before the close are processed first.
        for here in &pair {
            self.observe(self.endpoints[*here].node);
        }
        for here in pair {
            let Endpoint { node, qpn, .. } = self.endpoints[here];
            if recreate {
                self.world.nodes[node].device.destroy_qp(qpn);
                self.world.nodes[node].device.sink_mut().datagram_qps.remove(&qpn);
                self.world.note(|| format!("dev {node} destroys qp {qpn}"));
                self.create_qp(here);
            } else if self.world.nodes[node]
                .device
                .modify_qp(self.world.now, qpn, &Transition::Reset)
                .is_err()
            {
                return self.report_violation(format!("endpoint {here} cannot be reset"));
            }
            let endpoint = &mut self.endpoints[here];
            endpoint.epoch += 1;
            endpoint.closed = true;
            endpoint.receives.clear();
            endpoint.outbox.clear();
            endpoint.arrived = 0;
            endpoint.delivered = 0;
            endpoint.completed = None;
            self.close_window(here);
        }
        // If the queue pairs stay the same, the new connection could accept packets of the old one. So all packets,
        // including delayed and stalled ones, must first leave the fabric, as in time-wait (vol. 1, 12.9).
        let wait = if recreate { self.plan.latency } else { self.ack_timeout * 12 };
        let at = self.world.now + wait;
        self.world.plan(at, Task::Connect { endpoint: index });
    }

    /// Records that an endpoint's memory window is no longer bound.
    pub(super) fn close_window(&mut self, index: usize) {
        let node = self.endpoints[index].node;
        let Some(window) = &mut self.endpoints[index].window else { return };
        if window.phase != Phase::Free {
            window.phase = Phase::Free;
            window.snapshot = Some(self.world.nodes[node].memory.bytes(window.storage).to_vec());
        }
    }

    /// Continues the steps of an endpoint.
    pub(super) fn run_steps(&mut self, index: usize) {
        loop {
            let endpoint = &self.endpoints[index];
            if endpoint.closed || endpoint.failed || self.world.log.violation.is_some() {
                return;
            }
            let Some(step) = self.plan.endpoints[index].steps.get(endpoint.step).copied() else { return };
            let node = endpoint.node;
            if !self.step(index, &step) {
                return;
            }
            self.endpoints[index].step += 1;
            self.plan_pump(node);
            if !step.pause.is_zero() {
                let at = self.world.now + step.pause;
                return self.world.plan(at, Task::RunSteps { endpoint: index });
            }
        }
    }

    /// Executes one step, and returns whether it is done.
    fn step(&mut self, index: usize, step: &MessageStep) -> bool {
        use MessageAction as A;
        let mut random = Random::new(step.seed);
        let random = &mut random;
        let endpoint = &self.endpoints[index];
        let (node, transport) = (endpoint.node, endpoint.transport);
        let peer = self.plan.endpoints[index].peer;
        match step.action {
            A::Recreate | A::Reset => {
                self.reconnect(index, step.action == A::Recreate);
                true
            }
            A::ArmSrqLimit => {
                // The event of an earlier arming may be pending.
                self.observe(node);
                let srq = self.world.nodes[node].actor.srq;
                let limit = random.between(1, SHARED_DEPTH as u64) as u32;
                let left =
                    self.world.nodes[node].device.query_srq(srq).map_or(0, |status| status.request_count);
                if left >= limit as usize && self.world.nodes[node].device.arm_srq(srq, limit).is_ok() {
                    self.world.nodes[node].actor.armed = Some(limit);
                }
                true
            }
            A::Bind => self.bind(index),
            A::Invalidate => {
                let Some(window) = self.endpoints[index].window.as_ref() else { return true };
                if window.phase != Phase::Bound {
                    return true;
                }
                let operation = SendOperation::LocalInvalidate(window.key);
                let posted = self.post_without_data(index, operation);
                if posted && let Some(window) = &mut self.endpoints[index].window {
                    window.phase = Phase::Invalidating;
                }
                posted
            }
            A::WriteThroughWindow
            | A::WriteBeyondWindow
            | A::WriteWithStaleKey
            | A::WriteThroughForeignWindow => {
                let Some(peer) = peer else { return true };
                self.write_through(index, peer, step, random)
            }
            A::SendInvalidate => {
                let Some(peer) = peer else { return true };
                let Some(window) = self.endpoints[peer].window.as_ref() else { return true };
                if window.phase != Phase::Bound {
                    return true;
                }
                let operation = SendOperation::SendInvalidate(window.key);
                let posted =
                    self.post_message(index, Receiver::Endpoint(peer), operation, step.length, false, None);
                if posted && let Some(window) = &mut self.endpoints[peer].window {
                    window.phase = Phase::Invalidating;
                }
                posted
            }
            A::Write | A::WriteWithImm => {
                let Some(peer) = peer else { return true };
                let there = self.endpoints[peer].node;
                let initial = random.bytes(step.length as usize + GUARD);
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
                let (storage, rkey) = self.register(there, initial.clone(), step.length as usize, access);
                let remote = RemoteAddress { addr: BASE, rkey };
                let operation = if step.action == A::Write {
                    SendOperation::Write(remote)
                } else {
                    SendOperation::WriteWithImm(remote, self.messages.len() as u32)
                };
                let target = Some((there, storage, initial));
                self.post_message(index, Receiver::Endpoint(peer), operation, step.length, false, target)
            }
            A::Send | A::SendWithImm | A::Multicast | A::SendWithWrongQkey | A::SendToUnknownQp => {
                let to = match (peer, step.action) {
                    (Some(peer), _) => Receiver::Endpoint(peer),
                    (None, A::Multicast) => Receiver::Group,
                    (None, A::SendToUnknownQp) => Receiver::NoEndpoint,
                    _ => {
                        let candidates: Vec<usize> = (0..self.endpoints.len())
                            .filter(|index| self.endpoints[*index].transport == transport)
                            .collect();
                        Receiver::Endpoint(random.pick(&candidates))
                    }
                };
                let operation = if step.action == A::SendWithImm || random.chance_per_million(100_000) {
                    SendOperation::SendWithImm(random.u32())
                } else {
                    SendOperation::Send
                };
                self.post_message(
                    index,
                    to,
                    operation,
                    step.length,
                    step.action == A::SendWithWrongQkey,
                    None,
                )
            }
        }
    }

    fn bind(&mut self, index: usize) -> bool {
        let node = self.endpoints[index].node;
        let Some(window) = &self.endpoints[index].window else { return true };
        if window.phase != Phase::Free {
            return true;
        }
        // Nothing may have been written since the window was closed.
        let found = self.world.nodes[node].memory.bytes(window.storage);
        if window.snapshot.as_ref().is_some_and(|snapshot| snapshot != found) {
            self.report_violation(format!(
                "endpoint {index}: memory was written after the invalidation of its window"
            ));
            return false;
        }
        let rkey = window.key & !0xff | window.key.wrapping_add(1) & 0xff;
        let bind = WindowBind {
            rkey,
            lkey: window.region,
            addr: window.addr + window.start,
            length: window.length,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        };
        let posted = self.post_without_data(index, SendOperation::BindWindow(bind));
        if posted && let Some(window) = &mut self.endpoints[index].window {
            window.key = rkey;
            window.phase = Phase::Binding;
            window.snapshot = None;
        }
        posted
    }

    /// Writes through a window, with or without permission.
    fn write_through(&mut self, index: usize, peer: usize, step: &MessageStep, random: &mut Random) -> bool {
        let there = self.endpoints[peer].node;
        let owner = match step.action {
            MessageAction::WriteThroughForeignWindow => {
                let bound = |other: &usize| {
                    let endpoint = &self.endpoints[*other];
                    *other != peer
                        && endpoint.node == there
                        && endpoint.window.as_ref().is_some_and(|window| window.phase == Phase::Bound)
                };
                match (0..self.endpoints.len()).find(bound) {
                    Some(owner) => owner,
                    None => return true,
                }
            }
            _ => peer,
        };
        let Some(window) =
            self.endpoints[owner].window.as_ref().filter(|window| window.phase == Phase::Bound)
        else {
            return true;
        };
        let length = step.length.min(window.length as u32);
        let mut offset = random.below(window.length - u64::from(length) + 1);
        let mut key = window.key;
        match step.action {
            MessageAction::WriteBeyondWindow => offset = window.length - u64::from(length) + 1,
            MessageAction::WriteWithStaleKey => key = key & !0xff | key.wrapping_sub(1) & 0xff,
            _ => {}
        }
        let forbidden = step.action != MessageAction::WriteThroughWindow;
        let remote = RemoteAddress { addr: window.addr + window.start + offset, rkey: key };
        let number = self.messages.len();
        let posted = self.post_message(
            index,
            Receiver::Endpoint(peer),
            SendOperation::Write(remote),
            length,
            forbidden,
            None,
        );
        if posted {
            self.messages[number].through_window = true;
            if !forbidden && let Some(window) = &mut self.endpoints[owner].window {
                window.writers.push(number);
            }
        }
        posted
    }

    /// Posts a request without data.
    fn post_without_data(&mut self, index: usize, operation: SendOperation) -> bool {
        self.post_message(index, Receiver::NoEndpoint, operation, 0, false, None)
    }

    /// Posts a message, and returns whether the queue accepted it. The first eight bytes of a message are its number.
    fn post_message(
        &mut self,
        index: usize,
        to: Receiver,
        operation: SendOperation,
        length: u32,
        forbidden: bool,
        target: Option<(usize, adverb_proto::memory::StorageId, Vec<u8>)>,
    ) -> bool {
        let number = self.messages.len();
        let Endpoint { node, transport, qpn, epoch, .. } = self.endpoints[index];
        let mut bytes = self.random.bytes(length as usize);
        if let Some(head) = bytes.first_chunk_mut::<8>() {
            *head = (number as u64).to_le_bytes();
        }
        let segments = if length == 0 {
            Vec::new()
        } else {
            let (_, lkey) = self.register(node, bytes.clone(), length as usize, Access::empty());
            let cut = self.random.below(u64::from(length)) as u32;
            vec![
                Segment { addr: BASE, length: cut, lkey },
                Segment { addr: BASE + u64::from(cut), length: length - cut, lkey },
            ]
        };
        let destination = (transport == Transport::Ud).then(|| self.destination(node, to, forbidden));
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::SOLICITED, length & 1 == 1);
        let request =
            SendRequest { wr_id: number as u64, tag: 0, operation, flags, segments: &segments, destination };
        match self.world.nodes[node].device.post_send(self.world.now, qpn, &request) {
            Ok(()) => {}
            // The step is repeated when a request completes.
            Err(PostError::QueueFull) => return false,
            Err(error) => {
                self.report_violation(format!("endpoint {index} cannot post {operation:?}: {error}"));
                return false;
            }
        }
        self.operations += 1;
        let consumes = matches!(
            operation,
            SendOperation::Send
                | SendOperation::SendWithImm(_)
                | SendOperation::SendInvalidate(_)
                | SendOperation::WriteWithImm(..)
        );
        if consumes && !forbidden {
            self.endpoints[index].outbox.push(number);
        }
        self.messages.push(Message {
            from: index,
            to,
            epoch,
            source_qpn: qpn,
            operation,
            bytes,
            forbidden,
            through_window: false,
            target,
            delivered: 0,
            outcome: None,
        });
        true
    }

    fn destination(&mut self, node: usize, to: Receiver, wrong_key: bool) -> Destination<Path> {
        let (remote, qpn) = match to {
            Receiver::Endpoint(other) => {
                (self.world.nodes[self.endpoints[other].node].address, self.endpoints[other].qpn)
            }
            Receiver::Group => (self.group(), Qpn::MULTICAST),
            Receiver::NoEndpoint => (self.world.nodes[0].address, Qpn::truncate(2)),
        };
        let local = self.world.nodes[node].address;
        let path = Path::new(local, remote, 0xc000 | (self.random.u32() & 0x3fff) as u16);
        let qkey = if wrong_key { GROUP_QKEY ^ 1 << self.random.below(31) } else { GROUP_QKEY };
        Destination { handle: path.expect("addresses of one family"), qpn, qkey }
    }

    /// Posts a receive of an endpoint.
    pub(super) fn post_receive(&mut self, index: usize, epoch: u32) {
        let endpoint = &self.endpoints[index];
        if endpoint.epoch != epoch || endpoint.closed || endpoint.failed {
            return;
        }
        let (node, qpn, number) = (endpoint.node, endpoint.qpn, self.slots.len());
        let segments = self.create_slot(node, Some(index));
        let request = RecvRequest { wr_id: RECEIVE | number as u64, tag: 0, segments: &segments };
        if let Err(error) = self.world.nodes[node].device.post_recv(self.world.now, qpn, &request) {
            return self.report_violation(format!("endpoint {index} cannot post a receive: {error}"));
        }
        self.endpoints[index].receives.push_back(number);
        self.plan_pump(node);
    }

    /// Posts a receive to a device's shared queue.
    pub(super) fn post_shared(&mut self, node: usize) {
        let number = self.slots.len();
        let segments = self.create_slot(node, None);
        let srq = self.world.nodes[node].actor.srq;
        let request = RecvRequest { wr_id: RECEIVE | number as u64, tag: 0, segments: &segments };
        if let Err(error) = self.world.nodes[node].device.post_srq_recv(self.world.now, srq, &request) {
            return self.report_violation(format!("dev {node} cannot post a shared receive: {error}"));
        }
        self.world.nodes[node].actor.shared.insert(number);
    }

    /// Registers memory for a receive that fits any message.
    fn create_slot(&mut self, node: usize, endpoint: Option<usize>) -> [Segment; 2] {
        let size = GRH_LEN + (MAX_PACKETS * u64::from(PathMtu::Mtu1024.bytes())) as usize + 64;
        let (storage, lkey) = self.register(node, vec![0xee; size + GUARD], size, Access::LOCAL_WRITE);
        self.slots.push(Slot { node, endpoint, storage, done: false });
        let cut = self.random.below(200) as u32;
        [
            Segment { addr: BASE, length: cut, lkey },
            Segment { addr: BASE + u64::from(cut), length: size as u32 - cut, lkey },
        ]
    }
}

impl super::EndpointPlan {
    /// Returns a bit that the plan determines.
    fn seed_bit(&self) -> bool {
        self.steps.first().is_some_and(|step| step.seed & 1 == 1)
    }
}

/// The bit of a `wr_id` that distinguishes receives from messages.
pub(super) const RECEIVE: u64 = 1 << 63;
/// The Q_Key of all datagram endpoints.
const GROUP_QKEY: u32 = 0x1357_9bdf;
