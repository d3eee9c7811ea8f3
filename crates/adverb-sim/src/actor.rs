//! The consumers of the devices: they post requests and receives, and modify their queue pairs.

use adverb_proto::memory::RemoteInvalidate;
use adverb_proto::types::{
    Access, FlushRange, RecvRequest, RemoteAddress, Segment, SendFlags, SendOperation, SendRequest, Status,
};
use adverb_proto::{PostError, Transition};

use crate::Random;
use crate::model::{Change, Direction, Posted, Slot, concat_ranges};
use crate::scenario::{Action, InvalidRequest, Step};
use crate::scenario_run::{ConnectionState, ScenarioRun, Task};
use crate::world::Actors;

/// A request to be posted, and its expected result in the model.
struct Draft {
    operation: SendOperation,
    segments: Vec<Segment>,
    inline: bool,
    posted: Posted,
    changed: Option<Vec<u8>>,
    fence: bool,
}

impl ScenarioRun {
    /// Continues the program of a side.
    pub(crate) fn run_steps(&mut self, connection: usize, side: usize) {
        loop {
            let state = &self.connections[connection].sides[side];
            if state.stopped || state.destroyed || state.draining {
                return;
            }
            let program = &self.scenario.connections[connection].programs[side];
            let Some(mut step) = program.steps.get(state.step).copied() else { return };
            let direction = &self.connections[connection].directions[side];
            let outstanding = direction.posted.len() - direction.done;
            if step.action.is_request() && outstanding >= program.send_depth {
                self.connections[connection].sides[side].waiting = true;
                return;
            }
            // A side that waits for a free entry of the send queue needs a completion.
            step.is_signaled |= outstanding + 1 >= program.send_depth;
            let node = state.node;
            if !self.step(connection, side, &step) {
                return;
            }
            self.connections[connection].sides[side].step += 1;
            self.plan_pump(node);
            if !step.pause.is_zero() {
                let at = self.world.now + step.pause;
                return self.world.plan(at, Task::RunSteps { connection, side });
            }
        }
    }

    /// Executes one step. Returns whether the step is finished.
    fn step(&mut self, connection: usize, side: usize, step: &Step) -> bool {
        let (node, qpn) = {
            let state = &self.connections[connection].sides[side];
            (state.node, state.qpn)
        };
        match step.action {
            Action::Drain => {
                let drained =
                    self.world.nodes[node].device.modify_qp(self.world.now, qpn, &Transition::Drain);
                self.connections[connection].sides[side].draining = drained.is_ok();
            }
            Action::Destroy => {
                self.world.note(|| format!("dev {node} destroys qp {qpn}"));
                self.pump(node);
                self.world.nodes[node].device.destroy_qp(qpn);
                let state = &mut self.connections[connection].sides[side];
                state.destroyed = true;
                state.failed = true;
            }
            Action::MoveToError => {
                self.connections[connection].sides[side].failed = true;
                let _ = self.world.nodes[node].device.modify_qp(self.world.now, qpn, &Transition::Error);
            }
            _ => return self.post(connection, side, step),
        }
        true
    }

    /// Posts a request. If the queue is full, the step is retried after a completion.
    fn post(&mut self, connection: usize, side: usize, step: &Step) -> bool {
        let (node, qpn) = {
            let state = &self.connections[connection].sides[side];
            (state.node, state.qpn)
        };
        let draft = self.draft(connection, side, step);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, step.is_signaled);
        flags.set(SendFlags::FENCE, draft.fence);
        flags.set(SendFlags::INLINE, draft.inline);
        flags.set(SendFlags::SOLICITED, step.seed & 1 == 1);
        let direction = &self.connections[connection].directions[side];
        let number = direction.posted.len();
        let wr_id = (connection as u64) << 33 | (side as u64) << 32 | number as u64;
        let request = SendRequest::<()> {
            wr_id,
            tag: 0,
            operation: draft.operation,
            flags,
            segments: if draft.inline { &[] } else { &draft.segments },
            destination: None,
        };
        let device = &mut self.world.nodes[node].device;
        let posted = if draft.inline {
            device.post_send_inline(self.world.now, qpn, &request, &draft.posted.payload)
        } else {
            device.post_send(self.world.now, qpn, &request)
        };
        match posted {
            Ok(()) => {}
            Err(PostError::QueueFull) => {
                self.connections[connection].sides[side].waiting = true;
                return false;
            }
            Err(error) => {
                self.report_violation(format!(
                    "connection {connection} side {side} cannot post {:?}: {error}",
                    step.action
                ));
                return false;
            }
        }
        self.operations += 1;
        let spec = &self.scenario.connections[connection];
        let (mtu, read_part) = (u32::from(spec.mtu.bytes()), spec.read_part());
        let ConnectionState { sides, directions, .. } = &mut self.connections[connection];
        // Requests that are posted to a queue pair in the error state are never executed.
        if sides[side].failed && directions[side].must_fail_from.is_none() {
            directions[side].must_fail_from = Some(number);
        }
        directions[side].record(draft, number, mtu, read_part);
        // The memory is deregistered while packets to it are in flight.
        if step.action == Action::WriteToRevocableMemory
            && !directions[side].revocation_planned
            && step.seed & 6 == 0
        {
            directions[side].revocation_planned = true;
            let span = self.scenario.latency.as_nanos() as u64 * 4 + 1;
            let at = self.world.now + std::time::Duration::from_nanos((step.seed >> 8) % span);
            self.world.plan(at, Task::Revoke { connection, side });
        }
        true
    }

    /// Creates the request of a step.
    fn draft(&mut self, connection: usize, side: usize, step: &Step) -> Draft {
        let mut random = Random::new(step.seed);
        let random = &mut random;
        let (here, there) = [side, 1 - side].map(|side| self.connections[connection].sides[side].node).into();
        let key = self.register_key(connection, side, step.action, here, there);
        let shared = &self.shared[there];
        let now = self.world.now;
        let direction = &mut self.connections[connection].directions[side];
        let mtu = direction.read_only.length;
        let mut length = step.length;
        let garbage = RemoteAddress { addr: random.u64(), rkey: random.u32() | 1 };
        let plain = |operation| (operation, None, None);
        let mut response = None;
        let mut shared_word = None;
        // The operation, the offset at which it changes the target, and the status that it must fail with.
        let (operation, change, must_fail): (SendOperation, Option<u32>, Option<Status>) = match step.action {
            Action::Send => plain(SendOperation::Send),
            Action::SendInline => {
                length = length.min(256);
                plain(SendOperation::Send)
            }
            Action::SendWithImm => plain(SendOperation::SendWithImm(random.u32())),
            Action::SendInvalidate => plain(SendOperation::SendInvalidate(key)),
            Action::Write => {
                let offset = random.below(u64::from(direction.target.length - length) + 1) as u32;
                (SendOperation::Write(direction.target.remote_address(offset)), Some(offset), None)
            }
            Action::WriteWithImm => {
                let offset = random.below(u64::from(direction.target.length - length) + 1) as u32;
                let remote = direction.target.remote_address(offset);
                (SendOperation::WriteWithImm(remote, random.u32()), Some(offset), None)
            }
            Action::ZeroLengthWrite => {
                length = 0;
                plain(SendOperation::Write(garbage))
            }
            Action::WriteToRevocableMemory => {
                length = length.min(direction.revocable.length);
                let offset = random.below(u64::from(direction.revocable.length - length) + 1) as u32;
                plain(SendOperation::Write(direction.revocable.remote_address(offset)))
            }
            Action::Read | Action::ReadAndRelease => {
                let offset = random.below(u64::from(direction.target.length - length) + 1) as u32;
                let range = offset as usize..(offset + length) as usize;
                response = Some(Some(direction.image[range].to_vec()));
                direction.reads.push((offset, length));
                let mut remote = direction.target.remote_address(offset);
                if step.action == Action::ReadAndRelease {
                    remote.rkey = key;
                }
                plain(SendOperation::Read(remote))
            }
            Action::ZeroLengthRead => {
                length = 0;
                response = Some(Some(Vec::new()));
                plain(SendOperation::Read(garbage))
            }
            Action::CompareSwap | Action::FetchAdd => {
                length = 8;
                let offset = random.below(u64::from(direction.target.length / 8)) as u32 * 8;
                let old = direction.word(offset);
                response = Some(Some(old.to_ne_bytes().to_vec()));
                let remote = direction.target.remote_address(offset);
                let operation = match step.action {
                    Action::FetchAdd => SendOperation::FetchAdd { remote, add: random.u64() },
                    _ => {
                        let compare = if random.chance_per_million(700_000) { old } else { random.u64() };
                        SendOperation::CompareSwap { remote, compare, swap: random.u64() }
                    }
                };
                (operation, Some(offset), None)
            }
            Action::SharedCompareSwap | Action::SharedFetchAdd => {
                length = 8;
                let word = random.below(u64::from(shared.length / 8)) as usize;
                shared_word = Some(word);
                response = Some(None);
                let remote = shared.remote_address(word as u32 * 8);
                let seen = &self.world.nodes[there].memory.bytes(shared.storage)[word * 8..word * 8 + 8];
                let operation = match step.action {
                    Action::SharedFetchAdd => SendOperation::FetchAdd { remote, add: random.u64() },
                    // The compared value is the current one, which may have changed when the request is executed.
                    _ => SendOperation::CompareSwap {
                        remote,
                        compare: u64::from_ne_bytes(seen.try_into().unwrap_or_default()),
                        swap: random.u64(),
                    },
                };
                plain(operation)
            }
            Action::AtomicWrite => {
                length = 0;
                let offset = random.below(u64::from(direction.target.length / 8)) as u32 * 8;
                let remote = direction.target.remote_address(offset);
                (SendOperation::AtomicWrite { remote, bytes: random.u64().to_le_bytes() }, Some(offset), None)
            }
            Action::Flush => {
                length = 0;
                plain(SendOperation::Flush(FlushRange {
                    remote: direction.target.remote_address(0),
                    length: random.below(u64::from(direction.target.length)) as u32,
                    whole_region: random.chance_per_million(300_000),
                    global: true,
                    persistent: random.chance_per_million(500_000),
                }))
            }
            Action::LocalInvalidate => {
                length = 0;
                plain(SendOperation::LocalInvalidate(key))
            }
            Action::Invalid(invalid) => {
                let (operation, status) =
                    direction.invalid_request(invalid, random, &mut length, garbage, mtu);
                if matches!(operation, SendOperation::Read(_) | SendOperation::FetchAdd { .. }) {
                    response = Some(None);
                }
                (operation, None, Some(status))
            }
            Action::Drain | Action::Destroy | Action::MoveToError => unreachable!("not a request"),
        };
        let moves_out = response.is_none();
        let inline = step.action == Action::SendInline;
        let places = match (&response, moves_out) {
            (Some(_), _) => direction.response_ranges(random, length),
            (None, _) => split_anywhere(random, direction.source.length, length),
        };
        let area = if moves_out { &direction.source } else { &direction.response };
        let mut segments: Vec<Segment> = places.iter().map(|(at, len)| area.segment(*at, *len)).collect();
        if matches!(step.action, Action::AtomicWrite | Action::Flush | Action::LocalInvalidate) {
            segments.clear();
        }
        if step.action == Action::Invalid(InvalidRequest::UnknownLocalKey) {
            segments.iter_mut().for_each(|segment| segment.lkey ^= 0x5555_5555);
        }
        let payload = if moves_out { concat_ranges(&direction.source.initial, &places) } else { Vec::new() };
        let changed = change.map(|offset| direction.effect(&operation, offset, &payload));
        let change = change.zip(changed.as_ref().map(|bytes| bytes.len() as u32));
        // A request that overlaps an outstanding READ must wait for it, because the READ may be retransmitted.
        let overlaps = |(at, len): &(u32, u32)| {
            change.is_some_and(|(offset, length)| offset < at + len && *at < offset + length)
        };
        let fence = direction.reads.iter().any(overlaps) || random.chance_per_million(30_000);
        if fence {
            direction.reads.clear();
            if step.action.is_read()
                && let SendOperation::Read(remote) = operation
            {
                direction.reads.push(((remote.addr - direction.target.addr) as u32, length));
            }
        }
        let posted = Posted {
            action: step.action,
            operation,
            signaled: step.is_signaled,
            length,
            at: now,
            must_fail,
            consumes: None,
            payload,
            response: if moves_out { Vec::new() } else { places },
            expected_response: response.flatten(),
            change,
            shared: shared_word,
            outcome: None,
        };
        Draft { operation, segments, inline, posted, changed, fence }
    }

    /// Registers the key that a request invalidates, or that the peer deregisters after the request.
    fn register_key(
        &mut self,
        connection: usize,
        side: usize,
        action: Action,
        here: usize,
        there: usize,
    ) -> u32 {
        let direction = &self.connections[connection].directions[side];
        let (node, area, remote) = match action {
            Action::SendInvalidate => (there, direction.invalidated.clone(), RemoteInvalidate::Allowed),
            Action::LocalInvalidate => (here, direction.source.clone(), RemoteInvalidate::Denied),
            Action::ReadAndRelease => (there, direction.target.clone(), RemoteInvalidate::Denied),
            _ => return 0,
        };
        let pd = self.world.nodes[node].pd;
        let access = if node == there { Access::LOCAL_WRITE | Access::REMOTE } else { Access::empty() };
        let key = self.world.nodes[node].register_area(&mut self.random, pd, &area, access, remote);
        if action == Action::SendInvalidate {
            self.connections[connection].directions[side].invalidated_key = Some(key);
        }
        key
    }

    /// Posts a side's next receive.
    pub(crate) fn post_receive(&mut self, connection: usize, side: usize) {
        let ConnectionState { sides, directions, .. } = &mut self.connections[connection];
        let state = &mut sides[side];
        let direction = &mut directions[1 - side];
        let number = direction.slots.len();
        if state.destroyed || state.failed {
            return;
        }
        let Some(size) = state.recv_sizes.get(number).copied() else { return };
        let mut random =
            Random::new(self.scenario.seed ^ ((connection << 20 | side << 19 | number) as u64) << 24);
        let peer_steps = self.scenario.connections[connection].programs[1 - side].steps.iter();
        let too_long = peer_steps
            .filter(|step| step.action.consumes_receive())
            .nth(number)
            .is_some_and(|step| step.action == Action::Invalid(InvalidRequest::SendTooLong));
        let length = size + if too_long { 0 } else { random.below(64) as u32 };
        let start = direction.receives_len;
        direction.receives_len += length;
        let places = split(&mut random, start, length);
        let segments: Vec<Segment> =
            places.iter().map(|(at, length)| direction.receives.segment(*at, *length)).collect();
        let wr_id = 1 << 63 | (connection as u64) << 33 | (side as u64) << 32 | number as u64;
        direction.slots.push(Slot { places, outcome: None });
        let request = RecvRequest { wr_id, tag: 0, segments: &segments };
        let (node, qpn) = (state.node, state.qpn);
        if let Err(error) = self.world.nodes[node].device.post_recv(self.world.now, qpn, &request) {
            return self.report_violation(format!(
                "connection {connection} side {side} cannot post a receive: {error}"
            ));
        }
        self.plan_pump(node);
    }

    /// Deregisters memory that may be in use.
    pub(crate) fn revoke(&mut self, connection: usize, side: usize) {
        let direction = &mut self.connections[connection].directions[side];
        let (node, key) = (direction.revocable.device, direction.revocable.key);
        direction.revoked = Some(self.world.nodes[node].memory.bytes(direction.revocable.storage).to_vec());
        self.release(node, key);
    }

    /// Deregisters a key.
    pub(crate) fn release(&mut self, node: usize, key: u32) {
        let _ = self.world.nodes[node].device.deregister(key);
        self.world.nodes[node].keys.retain(|other| *other != key);
        self.world.note(|| format!("dev {node} deregisters {key:#x}"));
    }
}

impl Direction {
    fn word(&self, offset: u32) -> u64 {
        let bytes = &self.image[offset as usize..offset as usize + 8];
        u64::from_ne_bytes(bytes.try_into().unwrap_or_default())
    }

    /// Returns the expected bytes in the target after an operation.
    fn effect(&self, operation: &SendOperation, offset: u32, payload: &[u8]) -> Vec<u8> {
        match operation {
            SendOperation::CompareSwap { compare, swap, .. } => {
                let old = self.word(offset);
                if old == *compare { swap.to_ne_bytes() } else { old.to_ne_bytes() }.to_vec()
            }
            SendOperation::FetchAdd { add, .. } => {
                self.word(offset).wrapping_add(*add).to_ne_bytes().to_vec()
            }
            SendOperation::AtomicWrite { bytes, .. } => bytes.to_vec(),
            _ => payload.to_vec(),
        }
    }

    /// Creates an invalid request with its expected error status.
    fn invalid_request(
        &self,
        invalid: InvalidRequest,
        random: &mut Random,
        length: &mut u32,
        garbage: RemoteAddress,
        mtu: u32,
    ) -> (SendOperation, Status) {
        let target = &self.target;
        *length = (*length).max(2);
        match invalid {
            InvalidRequest::UnknownKey => {
                let remote = RemoteAddress { addr: target.addr, ..garbage };
                (SendOperation::Write(remote), Status::RemoteAccess)
            }
            InvalidRequest::WriteBeyondEnd => {
                let remote = target.remote_address(target.length - *length + 1);
                (SendOperation::Write(remote), Status::RemoteAccess)
            }
            InvalidRequest::ReadBeyondEnd => {
                *length = (*length).min(8);
                let remote = target.remote_address(target.length - *length + 1);
                (SendOperation::Read(remote), Status::RemoteAccess)
            }
            InvalidRequest::WriteBeforeStart => {
                let remote = RemoteAddress { addr: target.addr - 1, rkey: target.key };
                (SendOperation::Write(remote), Status::RemoteAccess)
            }
            InvalidRequest::WriteToReadOnlyMemory => {
                *length = (*length).min(mtu);
                (SendOperation::Write(self.read_only.remote_address(0)), Status::RemoteAccess)
            }
            InvalidRequest::ReadOfWriteOnlyMemory => {
                *length = (*length).min(8);
                (SendOperation::Read(self.write_only.remote_address(0)), Status::RemoteAccess)
            }
            InvalidRequest::AtomicOnWriteOnlyMemory => {
                *length = 8;
                let remote = self.write_only.remote_address(0);
                (SendOperation::FetchAdd { remote, add: random.u64() }, Status::RemoteAccess)
            }
            InvalidRequest::OtherDomain => {
                *length = (*length).min(mtu);
                (SendOperation::Write(self.other_domain.remote_address(0)), Status::RemoteAccess)
            }
            InvalidRequest::MisalignedAtomic => {
                *length = 8;
                let remote = target.remote_address(4);
                (SendOperation::FetchAdd { remote, add: random.u64() }, Status::RemoteInvalidRequest)
            }
            InvalidRequest::SendTooLong => (SendOperation::Send, Status::RemoteInvalidRequest),
            InvalidRequest::InvalidatedKey => {
                *length = (*length).min(mtu);
                let rkey = self.invalidated_key.unwrap_or(garbage.rkey);
                let remote = RemoteAddress { addr: self.invalidated.addr, rkey };
                (SendOperation::Write(remote), Status::RemoteAccess)
            }
            InvalidRequest::UnknownLocalKey => {
                let remote = target.remote_address(0);
                (SendOperation::Write(remote), Status::LocalProtection)
            }
            InvalidRequest::ForbiddenInvalidate => {
                (SendOperation::SendInvalidate(target.key), Status::RemoteAccess)
            }
        }
    }

    /// Returns a new range for a response, in up to three segments.
    fn response_ranges(&mut self, random: &mut Random, length: u32) -> Vec<(u32, u32)> {
        let start = self.response_len;
        self.response_len += length;
        split(random, start, length)
    }

    /// Records a posted request.
    fn record(&mut self, draft: Draft, number: usize, mtu: u32, read_part: u32) {
        let mut posted = draft.posted;
        if let Some((bytes, (offset, _))) = draft.changed.zip(posted.change) {
            let start = offset as usize;
            if self.must_fail_from.is_none() {
                self.image[start..start + bytes.len()].copy_from_slice(&bytes);
                self.changes.push(Change { request: number, offset, bytes });
            }
        }
        if posted.must_fail.is_some() && self.must_fail_from.is_none() {
            self.must_fail_from = Some(number);
        }
        if posted.action.consumes_receive() {
            posted.consumes = Some(self.consumed);
            self.consumed += 1;
        }
        let packets = match posted.operation {
            SendOperation::LocalInvalidate(_) => 0,
            _ => posted.length.div_ceil(mtu).max(1),
        };
        // To the peer every part of a READ is a message.
        let part = if matches!(posted.operation, SendOperation::Read(_)) { read_part } else { packets };
        let start = self.message_ends.last().copied().unwrap_or(0);
        let parts = (1..=packets.div_ceil(part.max(1))).map(|count| start + (count * part).min(packets));
        self.message_ends.extend(parts);
        self.posted.push(posted);
    }
}

/// Splits a range into one to three segments.
fn split(random: &mut Random, start: u32, length: u32) -> Vec<(u32, u32)> {
    let mut cuts = [0, 0].map(|_| random.below(u64::from(length) + 1) as u32);
    cuts.sort_unstable();
    match random.below(3) {
        0 => vec![(start, length)],
        1 => vec![(start, cuts[0]), (start + cuts[0], length - cuts[0])],
        _ => {
            vec![(start, cuts[0]), (start + cuts[0], cuts[1] - cuts[0]), (start + cuts[1], length - cuts[1])]
        }
    }
}

/// Returns one to three random segments of an area.
fn split_anywhere(random: &mut Random, area: u32, length: u32) -> Vec<(u32, u32)> {
    let pieces = split(random, 0, length);
    pieces
        .into_iter()
        .map(|(_, length)| (random.below(u64::from(area - length) + 1) as u32, length))
        .collect()
}
