//! The arena of a member: segments that are added and withdrawn, and the peers' pointers to them.

use std::collections::BTreeMap;

use adverb_cluster_proto::{PeerId, Phase, PostError, RemotePtr, RemotePtrError, RemoteRange, SendPost};
use adverb_proto::types::RemoteMemory;

use super::application::ExpectedPost;
use super::memory::AREA;
use super::run::ClusterRun;

/// The segments of a member.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// The segments that are announced to the peers, by number.
    current: BTreeMap<u32, RemoteMemory>,
    /// The withdrawn segments that are still registered.
    pub(super) withdrawn: Vec<u32>,
    next: u32,
}

impl Segments {
    pub(super) fn newest(&self) -> Option<u32> {
        self.current.last_key_value().map(|(number, _)| *number)
    }

    pub(super) fn is_current(&self, number: u32) -> bool {
        self.current.contains_key(&number)
    }
}

impl ClusterRun {
    /// Publishes the arena of a member, or adds or withdraws a segment.
    pub(super) fn act_segments(&mut self, member: usize) {
        let state = &mut self.members[member];
        if !state.keys.is_published() {
            if let Err(error) = state.keys.publish(member as u32, self.config.slot_size) {
                return self.report_violation(&format!("the arena was not published: {error}"));
            }
            return self.add_segment(member);
        }
        let count = state.segments.current.len() as u64;
        if count > 0 && self.random.below(2) == 0 {
            let index = self.random.below(count) as usize;
            self.withdraw_segment(member, index);
        } else {
            self.add_segment(member);
        }
    }

    /// Adds a segment, if there is memory for it.
    pub(super) fn add_segment(&mut self, member: usize) {
        let fill = self.random.u64();
        let state = &mut self.members[member];
        let number = state.segments.next;
        let Some(memory) = state.memory.register(member, state.epoch, number, fill) else { return };
        state.segments.next += 1;
        state.segments.current.insert(number, memory);
        self.registry.insert((member, self.members[member].epoch, number), memory);
        self.update_segments(member);
    }

    /// Withdraws a segment, by its index.
    pub(super) fn withdraw_segment(&mut self, member: usize, index: usize) {
        let segments = &mut self.members[member].segments;
        let Some(number) = segments.current.keys().nth(index).copied() else { return };
        segments.current.remove(&number);
        segments.withdrawn.push(number);
        self.update_segments(member);
    }

    fn update_segments(&mut self, member: usize) {
        let state = &mut self.members[member];
        let list: Vec<_> = state.segments.current.iter().map(|(number, memory)| (*number, *memory)).collect();
        state.keys.update(&list);
        self.release_segments(member);
    }

    /// Deregisters the segments that no peer may access anymore.
    pub(super) fn release_segments(&mut self, member: usize) {
        while let Some(number) = self.members[member].keys.poll_released() {
            let now = self.now;
            self.log.note(now, || format!("member {member} deregisters segment {number}"));
            self.layers.released_segments += 1;
            let state = &mut self.members[member];
            let position = state.segments.withdrawn.iter().position(|withdrawn| *withdrawn == number);
            let is_registered = state.memory.deregister(number);
            match position.filter(|_| is_registered) {
                Some(position) => _ = state.segments.withdrawn.swap_remove(position),
                None => self.report_violation("a segment was released that was not withdrawn"),
            }
        }
    }

    /// Sends the control messages of a member that are due, as far as slots and credits allow.
    pub(super) fn send_all_keys(&mut self, member: usize) {
        for _ in 0..self.members[member].keys.ready_count() {
            let Some(peer) = self.members[member].keys.poll_ready() else { return };
            if !self.send_keys(member, usize::from(peer.0)) {
                self.members[member].keys.mark_ready(peer);
            }
        }
    }

    /// Sends the control messages to a peer. Returns `false` if more of them wait for a slot or a credit.
    pub(super) fn send_keys(&mut self, member: usize, peer: usize) -> bool {
        let id = PeerId(peer as u16);
        while self.members[member].keys.has_output(id) {
            let slot = match self.take_slot(member, peer) {
                Ok(slot) => slot,
                Err(PostError::WouldBlock { .. }) => return false,
                Err(_) => return true,
            };
            let max = self.config.slot_size as usize;
            let state = &mut self.members[member];
            let Some(bytes) = state.keys.poll_output(id, max) else {
                state.broker.discard(slot);
                self.report_violation("a control message is missing");
                return true;
            };
            let (index, length) = (slot.index(), bytes.len() as u32);
            state.memory.write(state.memory.send_slot(peer, index, length), bytes);
            if let Err(error) = state.broker.post_control(slot, length) {
                self.report_violation(&format!("a control message was not posted: {error}"));
                return true;
            }
            self.expect_post(member, peer, ExpectedPost::Message { slot: index, length });
        }
        true
    }

    /// Processes a control message.
    pub(super) fn handle_control(&mut self, member: usize, from: usize, bytes: &[u8]) {
        let state = &mut self.members[member];
        let outstanding = state.peers[from].tickets.len();
        if let Err(reason) = state.keys.handle_message(PeerId(from as u16), bytes, outstanding) {
            self.report_violation(&format!("a control message of member {from} was rejected: {reason}"));
        }
        self.release_segments(member);
    }

    /// Chooses a segment of a peer, and returns its number and this member's area in it, if a pointer resolves to it.
    pub(super) fn choose_segment(&mut self, from: usize, to: usize) -> Option<(u32, RemoteRange)> {
        let peer = PeerId(to as u16);
        let epoch = self.members[from].broker.epoch(peer)?;
        let count = u64::from(self.members[to].segments.next);
        // Newer segments are more likely to be registered.
        let number = (count as u32).checked_sub(1 + self.random.below(1 + count.min(5)) as u32)?;
        let offset = (from * AREA) as u64;
        let ptr = RemotePtr { member: to as u32, epoch, segment: number, offset, len: AREA as u64 };
        let range = match self.members[from].keys.resolve(peer, ptr) {
            Ok(range) => range,
            Err(RemotePtrError::UnknownSegment { .. }) => return None,
            Err(error) => {
                self.report_violation(&format!("a valid pointer was rejected: {error}"));
                return None;
            }
        };
        let expected = self.registry.get(&(to, epoch, number));
        let expected =
            expected.map(|memory| RemoteMemory { addr: memory.addr + offset, len: AREA as u64, ..*memory });
        if range.epoch != epoch || Some(range.memory) != expected {
            self.report_violation("a pointer was resolved to other memory");
            return None;
        }
        // If the session is broken, the owner may have released the segment.
        let owner = &self.members[to];
        let is_registered = owner.epoch == epoch && owner.memory.is_registered(range.memory.rkey);
        if !is_registered && !self.is_faulted(from, to) {
            self.report_violation("a pointer was resolved to a segment that its owner had deregistered");
        }
        is_registered.then_some((number, range))
    }

    /// Tries to use invalid pointers.
    pub(super) fn act_invalid_pointers(&mut self, from: usize, to: usize) {
        let peer = PeerId(to as u16);
        let Some(epoch) = self.members[from].broker.epoch(peer) else { return };
        let Some(number) = self.members[to].segments.newest() else { return };
        let valid = RemotePtr { member: to as u32, epoch, segment: number, offset: 0, len: 8 };
        if self.members[from].keys.resolve(peer, valid).is_err() {
            return;
        }
        let end = (self.members.len() * AREA) as u64;
        let invalid = [
            RemotePtr { epoch: epoch - 1, ..valid },
            RemotePtr { epoch: epoch + 1, ..valid },
            RemotePtr { member: valid.member + 1, ..valid },
            RemotePtr { segment: number + 1000, ..valid },
            RemotePtr { offset: end - 7, ..valid },
            RemotePtr { offset: u64::MAX, ..valid },
            RemotePtr { len: end + 1, ..valid },
        ];
        for ptr in invalid {
            self.layers.refused_pointers += 1;
            if self.members[from].keys.resolve(peer, ptr).is_ok() {
                self.report_violation(&format!("an invalid pointer was resolved: {ptr:?}"));
            }
        }
    }

    /// Checks that a request does not use a segment that its owner has deregistered.
    pub(super) fn check_posted_key(&mut self, member: usize, peer: usize, request: &SendPost) {
        let Some(remote) = request.operation.remote() else { return };
        let is_deregistered = remote.rkey >> 31 == 1 && !self.members[peer].memory.is_registered(remote.rkey);
        if is_deregistered && !self.is_faulted(member, peer) {
            self.report_violation("a request was posted to a segment that its owner had deregistered");
        }
    }

    /// Whether all peers know the segments of a member, and withdrawn ones are released.
    pub(super) fn are_segments_settled(&self, member: usize) -> bool {
        let Segments { current, withdrawn, .. } = &self.members[member].segments;
        let epoch = self.members[member].epoch;
        let is_known = |peer: usize, number: u32| {
            let ptr = RemotePtr { member: member as u32, epoch, segment: number, offset: 0, len: 8 };
            self.members[peer].keys.resolve(PeerId(member as u16), ptr).is_ok()
        };
        let peers = (0..self.members.len()).filter(|peer| *peer != member);
        withdrawn.is_empty()
            && peers.into_iter().all(|peer| current.keys().all(|number| is_known(peer, *number)))
    }

    /// Checks that the memory of a member's keys and calls is bounded.
    pub(super) fn check_bounds(&mut self, member: usize) {
        let state = &self.members[member];
        let count = self.members.len();
        // Each peer has a few segments, in lists whose capacity is at most twice their length.
        let max_key_bytes = 2048 + count * 1024;
        let per_peer = usize::from(self.call_config.max_calls) * 128
            + usize::from(self.call_config.max_requests) * (128 + 2 * self.config.slot_size as usize);
        let max_call_bytes = 2048 + count * (2048 + per_peer);
        let (key_bytes, call_bytes) = (state.keys.state_bytes(), state.rpc.state_bytes());
        if key_bytes > max_key_bytes || call_bytes > max_call_bytes {
            self.report_violation(&format!("the keys occupy {key_bytes} bytes, and the calls {call_bytes}"));
        }
    }

    /// Whether the session of a member with a peer is open.
    pub(super) fn is_open(&self, member: usize, peer: usize) -> bool {
        self.members[member].broker.phase(PeerId(peer as u16)) == Phase::Open
    }
}
