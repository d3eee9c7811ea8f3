//! The application of a member: it calls its broker at random, and checks the broker's events.

use std::collections::{BTreeMap, VecDeque};

use adverb_cluster_proto::{
    EndReason, Event, LocalMemory, PeerId, Phase, PostError, RecvSlot, RemoteRange, SendPost, SendSlot,
    Transfer, TransferOperation,
};
use adverb_proto::types::{RemoteMemory, Segment, SendOperation};

use super::memory::{AREA, BUFFER};
use super::run::{ClusterRun, key};
use crate::Random;

/// A member's view of a peer.
#[derive(Debug, Default)]
pub(super) struct PeerView {
    pub(super) session: Option<SessionView>,
    /// The messages that the application holds, with their content.
    pub(super) held: Vec<(RecvSlot, Vec<u8>)>,
    /// The maximum number of messages that the application still holds after it released others.
    pub(super) hold_limit: usize,
    /// The send slots that the application holds, with their session.
    pub(super) slots: Vec<(SendSlot, u64)>,
    pub(super) tickets: BTreeMap<u64, Vec<Check>>,
    /// Whether a message or a transfer was rejected with `WouldBlock`, and no `Unblocked` event has followed.
    pub(super) message_blocked: bool,
    pub(super) transfer_blocked: bool,
    /// The numbers of messages and transfers that must still succeed after the faults end.
    pub(super) messages_left: usize,
    pub(super) transfers_left: usize,
    /// The content of this member's area in the peer's memory, after all posted transfers.
    pub(super) shadow: Vec<u8>,
    /// The expected content of this member's area in each of the peer's segments that it has used, by number.
    pub(super) segment_shadows: BTreeMap<u32, Vec<u8>>,
    /// The messages of calls that arrived before the session was opened, with their lengths.
    pub(super) early: Vec<(RecvSlot, u32)>,
}

/// A session, as the application sees it.
#[derive(Debug)]
pub(super) struct SessionView {
    /// The number of the session, and of its connection.
    pub(super) id: u64,
    next_sent: u32,
    next_received: u32,
    /// The requests that the broker has not posted yet, in order.
    expected: VecDeque<ExpectedPost>,
    /// The number of requests that the application passed to the broker.
    posted: u64,
    /// The number of these requests that the broker has posted.
    emitted: u64,
    /// The number of these requests that the broker may post, and must post if the send queue accepts them.
    flushed: u64,
    unsignaled: u16,
    /// Whether the member has left the session.
    has_left: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ExpectedPost {
    Message { slot: u16, length: u32 },
    Transfer { operation: SendOperation, local: Segment },
}

/// A transfer of a ticket: its buffer, and the expected content if the transfer reads.
#[derive(Debug)]
pub(super) struct Check {
    local: Segment,
    expected: Option<Vec<u8>>,
}

impl SessionView {
    pub(super) fn new(id: u64) -> SessionView {
        SessionView {
            id,
            next_sent: 0,
            next_received: 0,
            expected: VecDeque::new(),
            posted: 0,
            emitted: 0,
            flushed: 0,
            unsignaled: 0,
            has_left: false,
        }
    }

    /// Records that the member leaves the session, which flushes its requests.
    pub(super) fn leave(&mut self) {
        self.flush();
        self.has_left = true;
    }

    /// Records a request of the application.
    fn post(&mut self, request: ExpectedPost, batch: u64) {
        self.expected.push_back(request);
        self.posted += 1;
        if self.posted - self.emitted >= batch {
            self.flushed = self.posted;
        }
    }

    pub(super) fn flush(&mut self) {
        self.flushed = self.posted;
    }

    /// Whether the broker has posted all requests that it must post.
    pub(super) fn is_flushed(&self) -> bool {
        self.emitted >= self.flushed
    }

    /// Checks a list of requests that the broker posts, and returns the number of control requests in it.
    pub(super) fn check_list(&mut self, requests: &[SendPost], interval: u16) -> Result<u64, String> {
        let before = usize::from(self.unsignaled);
        let mut signaled = 0;
        let mut control = 0;
        for request in requests {
            let posted = match (request.operation, request.local) {
                (_, LocalMemory::None) => None,
                (_, LocalMemory::Slot { index, length }) => {
                    Some(ExpectedPost::Message { slot: index, length })
                }
                (operation, LocalMemory::Segment(local)) => Some(ExpectedPost::Transfer { operation, local }),
            };
            match posted {
                None => control += 1,
                Some(posted) => {
                    let expected = self.expected.pop_front();
                    if expected != Some(posted) {
                        return Err(format!("posted {posted:?} instead of {expected:?}"));
                    }
                    self.emitted += 1;
                }
            }
            self.unsignaled += 1;
            if request.flags.contains(adverb_proto::types::SendFlags::SIGNALED) {
                self.unsignaled = 0;
                signaled += 1;
            }
        }
        if self.emitted > self.flushed {
            return Err("requests were posted without a full batch, a flush or a poll".to_owned());
        }
        if signaled > 1 + (before + requests.len()) / usize::from(interval) {
            return Err(format!("{signaled} of {} requests were signaled", requests.len()));
        }
        Ok(control)
    }
}

/// Returns the content of a message.
fn message(session: u64, from: usize, sequence: u32, max: u32) -> Vec<u8> {
    let mut random = Random::new(session << 40 | (from as u64) << 32 | u64::from(sequence));
    let length = random.below(u64::from(max) + 1) as usize;
    random.bytes(length)
}

impl ClusterRun {
    /// Performs a random action of member `from`'s application towards a peer.
    pub(super) fn act(&mut self, from: usize, to: usize) {
        if self.members[from].broker.phase(PeerId(to as u16)) != Phase::Open {
            return self.post_or_discard_slots(from, to);
        }
        match self.random.below(17) {
            0..=5 => self.act_message(from, to),
            6..=8 => self.act_transfers(from, to, 1),
            9..=11 => {
                let count = self.random.between(1, 6) as usize;
                self.act_transfers(from, to, count);
            }
            12 => self.act_stale(from, to),
            16 => self.act_invalid_pointers(from, to),
            13 => {
                self.members[from].broker.flush(PeerId(to as u16));
                if let Some(session) = &mut self.members[from].peers[to].session {
                    session.flush();
                }
            }
            _ => self.post_or_discard_slots(from, to),
        }
    }

    /// Takes a send slot, and sends a message or keeps the slot. If the messages are calls, acts on calls instead.
    pub(super) fn act_message(&mut self, from: usize, to: usize) {
        if self.has_calls {
            return self.act_calls(from, to);
        }
        if self.members[from].peers[to].message_blocked {
            return self.post_or_discard_slots(from, to);
        }
        let view = &mut self.members[from].peers[to];
        let Some(session) = view.session.as_ref().map(|session| session.id) else { return };
        match self.take_slot(from, to) {
            Ok(slot) => {
                self.members[from].peers[to].slots.push((slot, session));
                if !self.random.chance_per_million(200_000) {
                    self.post_or_discard_slots(from, to);
                }
            }
            Err(PostError::WouldBlock { .. }) => {
                self.members[from].peers[to].message_blocked = true;
                self.post_or_discard_slots(from, to);
            }
            Err(error) => self.report_violation(&format!("no send slot: {error}")),
        }
    }

    /// Takes a send slot, and checks that it is not in use.
    pub(super) fn take_slot(&mut self, from: usize, to: usize) -> Result<SendSlot, PostError> {
        let member = &mut self.members[from];
        let slot = member.broker.allocate_send_buf(PeerId(to as u16))?;
        let local = member.memory.send_slot(to, slot.index(), 0);
        let is_held = member.peers[to].slots.iter().any(|(held, _)| held.index() == slot.index());
        let is_in_use =
            self.link(from, to).is_some_and(|link| link.connection.uses(end_of(from, to), local.addr));
        if is_held || is_in_use {
            self.report_violation("a send slot in use was given to the application");
        }
        Ok(slot)
    }

    /// Records a request that the broker accepted.
    pub(super) fn expect_post(&mut self, from: usize, to: usize, request: ExpectedPost) {
        let batch = self.batch();
        if let Some(session) = &mut self.members[from].peers[to].session {
            session.post(request, batch);
        }
    }

    /// Posts or discards the send slots that the application holds.
    pub(super) fn post_or_discard_slots(&mut self, from: usize, to: usize) {
        let batch = self.batch();
        let max = self.config.slot_size;
        while let Some((slot, session)) = self.members[from].peers[to].slots.pop() {
            if self.random.chance_per_million(100_000) {
                self.members[from].broker.discard(slot);
                continue;
            }
            let index = slot.index();
            let member = &mut self.members[from];
            let is_open = member.broker.phase(PeerId(to as u16)) == Phase::Open;
            let current = member.peers[to].session.as_mut().filter(|view| view.id == session && is_open);
            let Some(view) = current else {
                if member.broker.post_send(slot, 0).is_ok() {
                    self.report_violation("a send slot of an earlier session was posted");
                }
                continue;
            };
            let bytes = message(session, from, view.next_sent, max);
            let length = bytes.len() as u32;
            member.memory.write(member.memory.send_slot(to, index, length), &bytes);
            match member.broker.post_send(slot, length) {
                Ok(()) => {
                    view.next_sent += 1;
                    view.post(ExpectedPost::Message { slot: index, length }, batch);
                    let left = &mut member.peers[to].messages_left;
                    *left = left.saturating_sub(1);
                }
                Err(error) => self.report_violation(&format!("a send slot was not posted: {error}")),
            }
        }
    }

    /// Posts transfers under one ticket.
    pub(super) fn act_transfers(&mut self, from: usize, to: usize, count: usize) {
        if self.members[from].peers[to].transfer_blocked {
            return;
        }
        let count = count.min(usize::from(self.config.queue_depth));
        let batch = self.batch();
        let peer = PeerId(to as u16);
        let (Some(epoch), Some(view)) =
            (self.members[from].broker.epoch(peer), self.members[from].peers[to].session.as_ref())
        else {
            return;
        };
        let mut sequence = view.next_sent;
        // The transfers access a segment, or the area whose key both members know.
        let segment = if self.random.below(3) > 0 { self.choose_segment(from, to) } else { None };
        let view = &self.members[from].peers[to];
        let mut shadow = match segment {
            None => view.shadow.clone(),
            Some((number, _)) => match view.segment_shadows.get(&number) {
                Some(shadow) => shadow.clone(),
                None => self.members[to].memory.segment_area(number, from).map_or(Vec::new(), <[u8]>::to_vec),
            },
        };
        if shadow.len() != AREA {
            return;
        }
        let (mut transfers, mut checks) = (Vec::new(), Vec::new());
        let mut immediates = 0;
        for _ in 0..count {
            let kind = self.random.below(5);
            let (offset, length) = match kind {
                0..=2 => {
                    let offset = self.random.below(BUFFER as u64);
                    (offset as usize, self.random.between(1, BUFFER as u64 - offset) as usize)
                }
                word => (BUFFER + 8 * (word as usize - 3), 8),
            };
            let Some(local) = self.members[from].memory.take_buffer(length) else { break };
            let area = &mut shadow[offset..offset + length];
            let old = area.to_vec();
            let mut expected = Some(old.clone());
            let word = || u64::from_le_bytes(<[u8; 8]>::try_from(&old[..8]).unwrap_or_default());
            let operation = match kind {
                0 | 1 => {
                    let bytes = self.random.bytes(length);
                    self.members[from].memory.write(local, &bytes);
                    area.copy_from_slice(&bytes);
                    expected = None;
                    if kind == 1 && immediates < self.config.recv_slots && self.random.below(2) == 0 {
                        immediates += 1;
                        sequence += 1;
                        TransferOperation::WriteWithImm(sequence - 1)
                    } else {
                        TransferOperation::Write
                    }
                }
                2 => TransferOperation::Read,
                3 => {
                    let compare = if self.random.below(3) == 0 { self.random.u64() } else { word() };
                    let swap = self.random.u64();
                    if compare == word() {
                        area.copy_from_slice(&swap.to_le_bytes());
                    }
                    TransferOperation::CompareSwap { compare, swap }
                }
                _ => {
                    let add = self.random.u64();
                    area.copy_from_slice(&word().wrapping_add(add).to_le_bytes());
                    TransferOperation::FetchAdd { add }
                }
            };
            let memory = match segment {
                None => RemoteMemory {
                    rkey: key(to, epoch),
                    ..self.members[to].memory.remote_range(from, offset, length)
                },
                Some((_, range)) => RemoteMemory {
                    addr: range.memory.addr + offset as u64,
                    len: length as u64,
                    ..range.memory
                },
            };
            let remote = RemoteRange { epoch, memory };
            transfers.push(Transfer { operation, local, remote });
            checks.push(Check { local, expected });
        }
        let member = &mut self.members[from];
        let result = match transfers.as_slice() {
            [] => return,
            [Transfer { operation: TransferOperation::Read, local, remote }] => {
                member.broker.post_read(peer, *local, *remote)
            }
            [Transfer { operation: TransferOperation::FetchAdd { add }, local, remote }] => {
                member.broker.post_fetch_add(peer, *local, *remote, *add)
            }
            many => member.broker.post_batch(peer, many),
        };
        match result {
            Ok(ticket) => {
                let view = &mut member.peers[to];
                match segment {
                    None => view.shadow = shadow,
                    Some((number, _)) => {
                        view.segment_shadows.insert(number, shadow);
                        self.layers.pointer_transfers += 1;
                    }
                }
                view.transfers_left = view.transfers_left.saturating_sub(1);
                if let Some(session) = &mut view.session {
                    session.next_sent = sequence;
                    for transfer in &transfers {
                        session.post(expected_transfer(transfer), batch);
                    }
                }
                if view.tickets.insert(ticket.number(), checks).is_some() {
                    self.report_violation("two transfers have the same ticket");
                }
            }
            Err(PostError::WouldBlock { .. }) => {
                // A batch with immediates may need more credits than the peer ever grants at once.
                member.peers[to].transfer_blocked = immediates == 0;
                for check in checks {
                    member.memory.put_buffer(check.local);
                }
            }
            Err(error) => self.report_violation(&format!("a transfer was rejected: {error}")),
        }
    }

    /// Tries to replace the session with one of an earlier epoch, and to access memory of that epoch.
    fn act_stale(&mut self, from: usize, to: usize) {
        let peer = PeerId(to as u16);
        let Some(epoch) = self.members[from].broker.epoch(peer) else { return };
        let session = self.members[from].peers[to].session.as_ref();
        let has_received = session.is_some_and(|session| session.next_received > 0);
        let is_accepted = self.members[from].broker.check_epoch(peer, epoch - 1).is_ok();
        if is_accepted && has_received {
            self.report_violation("an earlier epoch may replace the session with a member that lives");
        }
        let Some(local) = self.members[from].memory.take_buffer(8) else { return };
        let memory = self.members[to].memory.remote_range(from, 0, 8);
        let memory = RemoteMemory { rkey: key(to, epoch - 1), ..memory };
        let remote = RemoteRange { epoch: epoch - 1, memory };
        match self.members[from].broker.post_write(peer, local, remote) {
            Err(PostError::StaleEpoch { .. }) => self.stale_epochs += 1,
            other => self.report_violation(&format!("a transfer with a stale epoch resulted in {other:?}")),
        }
        self.members[from].memory.put_buffer(local);
    }

    /// Releases random messages of a peer until at most `keep` are held.
    pub(super) fn release(&mut self, member: usize, from: usize, keep: usize) {
        while self.members[member].peers[from].held.len() > keep {
            let count = self.members[member].peers[from].held.len();
            let index = self.random.below(count as u64) as usize;
            let state = &mut self.members[member];
            let (slot, bytes) = state.peers[from].held.swap_remove(index);
            let segment =
                Segment { length: bytes.len() as u32, ..state.memory.recv_slot(from, slot.index()) };
            let is_unaltered = state.memory.bytes(segment) == bytes;
            state.broker.release(slot);
            if !is_unaltered {
                self.report_violation("a message was overwritten before the application released it");
            }
        }
    }

    /// Checks an event of a member's broker.
    pub(super) fn handle_event(&mut self, member: usize, event: Event) {
        let now = self.now;
        self.log.note(now, || format!("member {member}: {event:?}"));
        match event {
            Event::Message { from, slot, length } => {
                let peer = usize::from(from.0);
                // Messages of calls are processed only after the session is opened.
                if self.has_calls && self.members[member].broker.phase(from) == Phase::Preparing {
                    return self.members[member].peers[peer].early.push((slot, length));
                }
                self.handle_message(member, peer, slot, length);
            }
            Event::Control { from, slot, length } => {
                let from = usize::from(from.0);
                let state = &mut self.members[member];
                let segment = Segment { length, ..state.memory.recv_slot(from, slot.index()) };
                let bytes = state.memory.bytes(segment).to_vec();
                self.handle_control(member, from, &bytes);
                self.members[member].broker.release(slot);
            }
            Event::Immediate { from, slot, immediate, .. } => {
                let from = usize::from(from.0);
                self.mix(&[2, member as u64, from as u64, u64::from(immediate)]);
                let view = &mut self.members[member].peers[from];
                let Some(session) = &mut view.session else {
                    return self.report_violation("immediate data arrived without a session");
                };
                let is_expected = immediate == session.next_received;
                session.next_received += 1;
                view.held.push((slot, Vec::new()));
                self.messages += 1;
                self.check_held(member, from);
                if !is_expected {
                    self.report_violation("immediate data arrived out of order");
                }
            }
            Event::Completed { peer, ticket, result } => {
                let peer = usize::from(peer.0);
                self.mix(&[3, member as u64, ticket.number(), u64::from(result.is_ok())]);
                self.tickets += 1;
                self.failed_tickets += u64::from(result.is_err());
                let state = &mut self.members[member];
                let Some(checks) = state.peers[peer].tickets.remove(&ticket.number()) else {
                    return self.report_violation("a ticket ended that was not outstanding");
                };
                let mut is_correct = true;
                for Check { local, expected } in checks {
                    let expected = expected.filter(|_| result.is_ok());
                    is_correct &= expected.is_none_or(|expected| state.memory.bytes(local) == expected);
                    state.memory.put_buffer(local);
                }
                state.keys.end_ticket(PeerId(peer as u16));
                if !is_correct {
                    self.report_violation("a READ or an atomic returned wrong data");
                }
                if result.is_err() && !self.is_faulted(member, peer) {
                    self.report_violation("a ticket failed without a fault");
                }
            }
            Event::Unblocked { peer } => {
                let peer = usize::from(peer.0);
                let view = &mut self.members[member].peers[peer];
                (view.message_blocked, view.transfer_blocked) = (false, false);
                self.send_queued(member, peer);
            }
            Event::SessionEnded { peer, reason, .. } => {
                let peer = usize::from(peer.0);
                self.mix(&[4, member as u64, peer as u64]);
                let view = &mut self.members[member].peers[peer];
                let session = view.session.take();
                (view.message_blocked, view.transfer_blocked) = (false, false);
                let has_tickets = !view.tickets.is_empty();
                for (slot, _) in std::mem::take(&mut view.early) {
                    self.members[member].broker.release(slot);
                }
                if has_tickets {
                    self.report_violation("a ticket did not end with its session");
                }
                if reason == EndReason::Left {
                    self.check_left(member, peer, session.as_ref());
                }
                self.members[member].keys.end(PeerId(peer as u16));
                self.release_segments(member);
                self.end_calls(member, peer);
                if matches!(reason, EndReason::ProtocolViolation { .. }) || !self.is_faulted(member, peer) {
                    self.report_violation(&format!("a session ended without a fault: {reason}"));
                }
            }
            other => self.report_violation(&format!("unknown event {other:?}")),
        }
    }

    /// Checks that a member has received all messages of a peer that left.
    fn check_left(&mut self, member: usize, peer: usize, session: Option<&SessionView>) {
        let Some(session) = session else { return };
        // If the session has ended at the peer, too, the peer has no record of it.
        let Some(left) = &self.members[peer].peers[member].session else { return };
        if left.id == session.id && (!left.has_left || left.next_sent != session.next_received) {
            self.report_violation("a session ended because the peer left, but messages are missing");
        }
    }

    /// Checks a message.
    pub(super) fn handle_message(&mut self, member: usize, from: usize, slot: RecvSlot, length: u32) {
        self.mix(&[1, member as u64, from as u64, u64::from(length)]);
        let max = self.config.slot_size;
        let state = &mut self.members[member];
        let segment = Segment { length, ..state.memory.recv_slot(from, slot.index()) };
        let bytes = state.memory.bytes(segment).to_vec();
        self.messages += 1;
        if self.has_calls {
            self.handle_call_message(member, from, &bytes);
            self.members[member].peers[from].held.push((slot, bytes));
            return self.check_held(member, from);
        }
        let Some(session) = &mut state.peers[from].session else {
            return self.report_violation("a message arrived without a session");
        };
        let is_expected = bytes == message(session.id, from, session.next_received, max);
        session.next_received += 1;
        state.peers[from].held.push((slot, bytes));
        self.check_held(member, from);
        if !is_expected {
            return self
                .report_violation(&format!("member {from}'s message arrived altered or out of order"));
        }
        if self.random.below(4) == 0 {
            self.act(member, from);
        }
    }

    /// Checks that a peer's messages and immediate data never exceed its credits.
    fn check_held(&mut self, member: usize, from: usize) {
        let view = &self.members[member].peers[from];
        if view.held.len() + view.early.len() > usize::from(self.config.recv_slots) {
            self.report_violation("the application holds more messages than the peer had credits");
        }
    }

    fn batch(&self) -> u64 {
        u64::from(self.config.doorbell_batch.min(self.config.queue_depth))
    }
}

/// Returns the end of the connection between two members that belongs to `member`.
pub(super) fn end_of(member: usize, peer: usize) -> usize {
    usize::from(member > peer)
}

fn expected_transfer(transfer: &Transfer) -> ExpectedPost {
    let remote = transfer.remote.memory.at(0);
    let operation = match transfer.operation {
        TransferOperation::Write => SendOperation::Write(remote),
        TransferOperation::WriteWithImm(immediate) => SendOperation::WriteWithImm(remote, immediate),
        TransferOperation::CompareSwap { compare, swap } => {
            SendOperation::CompareSwap { remote, compare, swap }
        }
        TransferOperation::FetchAdd { add } => SendOperation::FetchAdd { remote, add },
        _ => SendOperation::Read(remote),
    };
    ExpectedPost::Transfer { operation, local: transfer.local }
}

/// Returns the initial shadow of an area.
pub(super) fn zeroed_shadow() -> Vec<u8> {
    vec![0; AREA]
}
