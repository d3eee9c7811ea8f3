//! The keys of arena segments, which brokers exchange in control messages.
//!
//! A broker announces the segments of its published arena to each peer when a session opens, before any message of the
//! application, and when segments are added. When a segment is withdrawn, the broker tells the peers, and keeps the memory
//! registered until each of them has confirmed, or its session has ended. A peer confirms when its transfers that were
//! posted before have completed. So no transfer finds an invalid key, which would end the session.
//!
//! | bytes | addition | withdrawal | confirmation |
//! |---|---|---|---|
//! | 0 | 1 | 2 | 3 |
//! | 4–7 | number of the member | number of the member | number of the member |
//! | from 8 | for each segment: number, key (4 bytes each), address, length (8 bytes each) | numbers (4 bytes each) | numbers |
//!
//! All numbers are in little endian. Bytes 1 to 3 are zero.

use std::collections::VecDeque;
use std::sync::Arc;

use adverb_cluster_proto::{ConfigError, PeerId, PostError, RemoteRange};
use adverb_verbs::memory::RemoteMemory;

use super::{Broker, BrokerError, Result, TransferError};
use crate::arena::Segment;
use crate::{Arena, RemotePtr, RemotePtrError};

const ADD: u8 = 1;
const WITHDRAW: u8 = 2;
const CONFIRM: u8 = 3;

const HEADER_LEN: usize = 8;
const ADD_LEN: usize = 24;
const ID_LEN: usize = 4;

/// The maximum number of a peer's segments, including withdrawn ones that were not confirmed.
const MAX_PEER_SEGMENTS: usize = 4096;

/// Remote memory of a transfer: a range whose key the caller has, or a pointer, whose key the peer's broker announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteTarget {
    /// A range.
    Range(RemoteRange),
    /// A pointer to memory of the peer's arena. See [`Broker::resolve`].
    Ptr(RemotePtr),
}

impl From<RemoteRange> for RemoteTarget {
    fn from(range: RemoteRange) -> RemoteTarget {
        RemoteTarget::Range(range)
    }
}

impl From<RemotePtr> for RemoteTarget {
    fn from(ptr: RemotePtr) -> RemoteTarget {
        RemoteTarget::Ptr(ptr)
    }
}

/// The arena whose segments a broker announces.
pub(super) struct Publication {
    arena: Arena,
    /// The index of the broker's protection domain in the arena.
    domain: usize,
    /// The version of the arena's segments that was seen last.
    version: u64,
    /// The segments, by number. Withdrawn ones stay until all peers have confirmed.
    segments: Vec<PublishedSegment>,
}

struct PublishedSegment {
    /// Keeps the memory registered.
    segment: Arc<Segment>,
    is_withdrawn: bool,
    /// The number of peers that know the key.
    peer_count: usize,
}

/// The keys that a broker and a peer exchanged in a session.
#[derive(Debug, Default)]
pub(super) struct PeerKeys {
    /// The segments of this side that the peer knows, by number, and whether it was told of the withdrawal.
    announced: Vec<(u32, bool)>,
    /// The number of the peer as a member, which it announced.
    member: Option<u32>,
    /// The segments of the peer, by number.
    segments: Vec<(u32, RemoteMemory)>,
    /// The withdrawn segments of the peer to confirm, and the number of ended tickets at which this is possible.
    confirmations: VecDeque<(u32, u64)>,
    ended_ticket_count: u64,
    /// Whether the peer is in the list of peers to send control messages to.
    is_queued: bool,
}

impl Broker {
    /// Announces the segments of an arena to all peers, now and when they change. Peers use them with a [`RemotePtr`].
    ///
    /// The announcement precedes every message of a session, so a peer that receives a pointer in a message can use it. A
    /// segment that is [withdrawn](Arena::withdraw) stays registered until the peers know, so no transfer of a peer fails.
    ///
    /// The arena must have the epoch of this broker ([`identity`](crate::ArenaBuilder::identity)) and be registered in
    /// its protection domain. The broker keeps a handle to the arena.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::InvalidArena`] if the arena has another epoch or no region in the broker's domain, or if an
    /// arena was published before; [`BrokerError::Config`] if the message slots are too small; and [`BrokerError::Io`] if
    /// a descriptor can't be created.
    pub fn publish(&mut self, arena: &Arena) -> Result<()> {
        let invalid = |reason| BrokerError::InvalidArena { reason };
        if self.publication.is_some() {
            return Err(invalid("the broker has published an arena before"));
        }
        if arena.epoch() != self.epoch {
            return Err(invalid("its epoch is not that of the broker"));
        }
        let domain = arena.domain_index(&self.domain);
        let domain = domain.ok_or(invalid("it is not registered in the broker's protection domain"))?;
        let (size, min) = (self.core.config().slot_size, (HEADER_LEN + ADD_LEN) as u32);
        if size < min {
            return Err(ConfigError::SlotTooSmall { size, min }.into());
        }
        arena.add_watcher(&self.waker()?);
        // No arena has this version, so the segments are announced by the next call.
        let publication =
            Publication { arena: arena.clone(), domain, version: u64::MAX, segments: Vec::new() };
        self.publication = Some(publication);
        self.exchange_keys();
        Ok(())
    }

    /// Returns the memory that a pointer refers to, for example for a [batch](Broker::post_batch). The caller must use the
    /// range before it polls again: afterwards, the peer may have withdrawn the segment.
    ///
    /// # Errors
    ///
    /// Returns [`PostError::NotOpen`] without a session, and [`TransferError::Pointer`] if the pointer is from another
    /// epoch or to another member, if the peer has not announced the segment or has withdrawn it, or if the pointer is out
    /// of bounds.
    pub fn resolve(&self, peer: PeerId, ptr: RemotePtr) -> Result<RemoteRange, TransferError> {
        let state = self.peers.get(usize::from(peer.0));
        let (Some(epoch), Some(state)) = (self.core.epoch(peer), state) else {
            return Err(PostError::NotOpen { peer }.into());
        };
        if ptr.epoch != epoch {
            return Err(RemotePtrError::StaleEpoch { epoch: ptr.epoch, current: epoch }.into());
        }
        let unknown = RemotePtrError::UnknownSegment { segment: ptr.segment };
        let member = state.keys.member.ok_or(unknown)?;
        if ptr.member != member {
            return Err(RemotePtrError::WrongMember { member: ptr.member, expected: member }.into());
        }
        let index = state.keys.segments.binary_search_by_key(&ptr.segment, |(id, _)| *id);
        let (_, memory) = state.keys.segments[index.map_err(|_| unknown)?];
        ptr.check(member, epoch, memory.len)?;
        // The peer's range doesn't exceed 64 bits, which was checked when it was received.
        let memory = RemoteMemory { addr: memory.addr + ptr.offset, len: ptr.len, ..memory };
        Ok(RemoteRange { epoch, memory })
    }

    pub(super) fn resolve_target(
        &self,
        peer: PeerId,
        target: RemoteTarget,
    ) -> Result<RemoteRange, TransferError> {
        match target {
            RemoteTarget::Range(range) => Ok(range),
            RemoteTarget::Ptr(ptr) => self.resolve(peer, ptr),
        }
    }

    /// Queues control messages to a peer whose session was opened.
    pub(super) fn start_keys(&mut self, peer: PeerId) {
        if self.publication.is_some() {
            self.queue_keys(peer);
        }
        self.exchange_keys();
    }

    /// Forgets the keys of an ended session.
    pub(super) fn end_keys(&mut self, peer: PeerId) {
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        let PeerKeys { announced, is_queued, .. } = std::mem::take(&mut state.keys);
        state.keys.is_queued = is_queued;
        if let Some(publication) = &mut self.publication {
            announced.into_iter().for_each(|(id, _)| publication.forget(id));
        }
    }

    /// Counts an ended ticket of a peer.
    pub(super) fn count_ended_ticket(&mut self, peer: PeerId) {
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        state.keys.ended_ticket_count += 1;
        if !state.keys.confirmations.is_empty() {
            self.queue_keys(peer);
        }
    }

    fn queue_keys(&mut self, peer: PeerId) {
        if let Some(state) = self.peers.get_mut(usize::from(peer.0)).filter(|state| !state.keys.is_queued) {
            state.keys.is_queued = true;
            self.key_peers.push_back(peer);
        }
    }

    /// Sends the control messages that are due, as far as there are slots and credits.
    pub(super) fn exchange_keys(&mut self) {
        if self.publication.as_mut().is_some_and(Publication::refresh) {
            for peer in (0..self.peers.len()).map(|index| PeerId(index as u16)) {
                if self.is_open(peer) {
                    self.queue_keys(peer);
                }
            }
        }
        for _ in 0..self.key_peers.len() {
            let Some(peer) = self.key_peers.pop_front() else { return };
            if let Some(state) = self.peers.get_mut(usize::from(peer.0)) {
                state.keys.is_queued = false;
            }
            while let Some(message) = self.next_keys(peer) {
                // The credit and the slot of the message were taken before its contents.
                if self.post_control(message).is_err() {
                    break;
                }
            }
        }
    }

    /// Returns the next control message to a peer. Without a slot or a credit, the peer is queued again.
    fn next_keys(&mut self, peer: PeerId) -> Option<super::SendBuf> {
        let state = self.peers.get(usize::from(peer.0))?;
        let kind = state.keys.next_kind(self.publication.as_ref())?;
        let mut message = match self.send_buf(peer) {
            Ok(message) => message,
            Err(PostError::WouldBlock { .. }) => {
                self.queue_keys(peer);
                return None;
            }
            Err(_) => return None,
        };
        let max = message.capacity() - HEADER_LEN;
        let keys = &mut self.peers.get_mut(usize::from(peer.0))?.keys;
        let member = self.publication.as_ref().map_or(0, |publication| publication.arena.member());
        // The entries fit the slot, because their number is limited.
        let mut write = |bytes: &[u8]| {
            let written = message.write(bytes);
            debug_assert!(written.is_ok());
        };
        write(&[kind, 0, 0, 0]);
        write(&member.to_le_bytes());
        match (kind, &mut self.publication) {
            (ADD, Some(publication)) => {
                publication.take_additions(keys, max / ADD_LEN, |id, RemoteMemory { addr, rkey, len }| {
                    write(&id.to_le_bytes());
                    write(&rkey.to_le_bytes());
                    write(&addr.to_le_bytes());
                    write(&len.to_le_bytes());
                });
            }
            (WITHDRAW, Some(publication)) => {
                publication.take_withdrawals(keys, max / ID_LEN, |id| {
                    write(&id.to_le_bytes());
                });
            }
            _ => {
                for _ in 0..max / ID_LEN {
                    let Some(id) = keys.take_confirmation() else { break };
                    write(&id.to_le_bytes());
                }
            }
        }
        Some(message)
    }

    /// Processes a control message. A message that no correct peer sends ends the session.
    pub(super) fn handle_control(&mut self, from: PeerId, bytes: &[u8]) {
        let handled = match bytes.split_first_chunk::<HEADER_LEN>() {
            Some((&[kind, 0, 0, 0, m0, m1, m2, m3], entries)) if !entries.is_empty() => {
                let member = u32::from_le_bytes([m0, m1, m2, m3]);
                match kind {
                    ADD => self.handle_additions(from, member, entries),
                    WITHDRAW => self.handle_withdrawals(from, entries),
                    CONFIRM => self.handle_confirmations(from, entries),
                    _ => None,
                }
            }
            _ => None,
        };
        if handled.is_none() {
            tracing::warn!(peer = %from, "the peer sent an invalid control message: the session ends");
            self.core.close(from);
        }
    }

    fn handle_additions(&mut self, from: PeerId, member: u32, entries: &[u8]) -> Option<()> {
        let keys = &mut self.peers.get_mut(usize::from(from.0))?.keys;
        if *keys.member.get_or_insert(member) != member {
            return None;
        }
        let (entries, []) = entries.as_chunks::<ADD_LEN>() else { return None };
        for entry in entries {
            let (words, _) = entry.as_chunks::<8>();
            let [first, addr, len] = [0, 1, 2].map(|index| u64::from_le_bytes(words[index]));
            addr.checked_add(len)?;
            let (id, rkey) = (first as u32, (first >> 32) as u32);
            let is_full = keys.segments.len() + keys.confirmations.len() >= MAX_PEER_SEGMENTS;
            let Err(position) = keys.segments.binary_search_by_key(&id, |(id, _)| *id) else { return None };
            if is_full {
                return None;
            }
            keys.segments.insert(position, (id, RemoteMemory { addr, rkey, len }));
        }
        Some(())
    }

    fn handle_withdrawals(&mut self, from: PeerId, entries: &[u8]) -> Option<()> {
        let state = self.peers.get_mut(usize::from(from.0))?;
        let (entries, []) = entries.as_chunks::<ID_LEN>() else { return None };
        let outstanding = state.ticket_sizes.len() as u64;
        for entry in entries {
            let id = u32::from_le_bytes(*entry);
            let position = state.keys.segments.binary_search_by_key(&id, |(id, _)| *id).ok()?;
            state.keys.segments.remove(position);
            // Transfers that were posted before may use the key. Their tickets end in order.
            let ticket_count = state.keys.ended_ticket_count + outstanding;
            state.keys.confirmations.push_back((id, ticket_count));
        }
        self.queue_keys(from);
        Some(())
    }

    fn handle_confirmations(&mut self, from: PeerId, entries: &[u8]) -> Option<()> {
        let keys = &mut self.peers.get_mut(usize::from(from.0))?.keys;
        let (entries, []) = entries.as_chunks::<ID_LEN>() else { return None };
        for entry in entries {
            let id = u32::from_le_bytes(*entry);
            let position = keys.announced.binary_search_by_key(&id, |(id, _)| *id).ok()?;
            if !keys.announced[position].1 {
                return None;
            }
            keys.announced.remove(position);
            self.publication.as_mut()?.forget(id);
        }
        Some(())
    }
}

impl PeerKeys {
    /// Returns the kind of the next message, if one is due.
    fn next_kind(&self, publication: Option<&Publication>) -> Option<u8> {
        let is_due = |(_, ticket_count): &(u32, u64)| *ticket_count <= self.ended_ticket_count;
        if self.confirmations.front().is_some_and(is_due) {
            return Some(CONFIRM);
        }
        let publication = publication?;
        if self.announced.iter().any(|announced| publication.is_withdrawal_due(announced)) {
            return Some(WITHDRAW);
        }
        let has_room = self.announced.len() < MAX_PEER_SEGMENTS;
        let is_addition =
            |published: &PublishedSegment| !published.is_withdrawn && !self.knows(published.segment.id);
        (has_room && publication.segments.iter().any(is_addition)).then_some(ADD)
    }

    fn take_confirmation(&mut self) -> Option<u32> {
        let (id, ticket_count) = *self.confirmations.front()?;
        if ticket_count > self.ended_ticket_count {
            return None;
        }
        self.confirmations.pop_front();
        Some(id)
    }

    fn knows(&self, id: u32) -> bool {
        self.announced.binary_search_by_key(&id, |(id, _)| *id).is_ok()
    }
}

impl Publication {
    /// Reads the segments of the arena if they have changed, and returns whether they have.
    fn refresh(&mut self) -> bool {
        let version = self.arena.segments_version();
        if version == self.version {
            return false;
        }
        // A later change has a later version, so it is noticed by the next call.
        self.version = version;
        let current = self.arena.registered_segments();
        for published in &mut self.segments {
            let is_current =
                current.binary_search_by_key(&published.segment.id, |segment| segment.id).is_ok();
            published.is_withdrawn = !is_current;
        }
        for segment in current {
            // Numbers only increase, so the list stays sorted.
            if self.segments.last().is_none_or(|last| last.segment.id < segment.id) {
                self.segments.push(PublishedSegment { segment, is_withdrawn: false, peer_count: 0 });
            }
        }
        self.release();
        true
    }

    /// Releases withdrawn segments that no peer knows.
    fn release(&mut self) {
        self.segments.retain(|published| !published.is_withdrawn || published.peer_count > 0);
    }

    /// Counts a peer that doesn't know a segment anymore.
    fn forget(&mut self, id: u32) {
        let position = self.segments.binary_search_by_key(&id, |published| published.segment.id);
        if let Ok(position) = position {
            self.segments[position].peer_count -= 1;
            self.release();
        }
    }

    /// Takes segments that a peer doesn't know.
    fn take_additions(&mut self, keys: &mut PeerKeys, max: usize, mut take: impl FnMut(u32, RemoteMemory)) {
        let max = max.min(MAX_PEER_SEGMENTS.saturating_sub(keys.announced.len()));
        let domain = self.domain;
        let mut count = 0;
        for published in &mut self.segments {
            if count == max {
                return;
            }
            let id = published.segment.id;
            let position = keys.announced.binary_search_by_key(&id, |(id, _)| *id);
            let (Err(position), false) = (position, published.is_withdrawn) else { continue };
            keys.announced.insert(position, (id, false));
            published.peer_count += 1;
            take(id, published.segment.regions[domain].remote());
            count += 1;
        }
    }

    /// Takes segments of which a peer must be told the withdrawal.
    fn take_withdrawals(&self, keys: &mut PeerKeys, max: usize, mut take: impl FnMut(u32)) {
        let due = keys.announced.iter_mut().filter(|announced| self.is_withdrawal_due(announced));
        for (id, is_told) in due.take(max) {
            *is_told = true;
            take(*id);
        }
    }

    /// Whether a peer must be told the withdrawal of a segment that it knows.
    fn is_withdrawal_due(&self, (id, is_told): &(u32, bool)) -> bool {
        let position = self.segments.binary_search_by_key(id, |published| published.segment.id);
        !is_told && position.is_ok_and(|position| self.segments[position].is_withdrawn)
    }
}
