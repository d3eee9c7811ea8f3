//! The arena that a broker publishes, and pointers to the arenas of peers.
//!
//! The protocol is in [`adverb_cluster_proto::keys`]; this module owns the memory, and sends the control messages.

use std::sync::Arc;

use adverb_cluster_proto::{PeerId, PostError, RemoteRange};

use super::{Broker, BrokerError, Result, TransferError};
use crate::arena::Segment;
use crate::{Arena, RemotePtr};

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
    /// The segments, by number, which stay registered while they are in the list: withdrawn ones, until no peer may access
    /// them.
    segments: Vec<Arc<Segment>>,
}

impl Publication {
    fn has_changed(&self) -> bool {
        self.arena.segments_version() != self.version
    }
}

impl Broker {
    /// Announces the segments of an arena to all peers, now and when they change. Peers use them with a [`RemotePtr`].
    ///
    /// A message arrives after the keys of the segments that existed when its slot was taken
    /// ([`allocate_send_buf`](Broker::allocate_send_buf)), so a peer that receives a pointer in a message can use it. A peer that has the
    /// pointer from elsewhere, for example from an earlier session, waits for
    /// [`Event::SegmentsChanged`](super::Event::SegmentsChanged). A segment that is [withdrawn](Arena::withdraw) stays
    /// registered until the peers know, so no transfer of a peer fails.
    ///
    /// The arena must have the epoch of this broker ([`ArenaBuilder::epoch`](crate::ArenaBuilder::epoch)) and be registered in
    /// its protection domain. The broker keeps a handle to the arena.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::AlreadyPublished`], [`BrokerError::ArenaEpochMismatch`], and
    /// [`BrokerError::ArenaNotRegistered`] if the arena has no region in the broker's domain; [`BrokerError::Config`] if
    /// the message slots are too small; and [`BrokerError::System`] if a descriptor can't be created.
    pub fn publish(&mut self, arena: &Arena) -> Result<()> {
        if self.publication.is_some() {
            return Err(BrokerError::AlreadyPublished);
        }
        if arena.epoch() != self.epoch {
            return Err(BrokerError::ArenaEpochMismatch { arena: arena.epoch(), broker: self.epoch });
        }
        let not_registered = || BrokerError::ArenaNotRegistered { domain: self.domain.id() };
        let domain = arena.domain_index(&self.domain).ok_or_else(not_registered)?;
        let waker = self.waker()?;
        self.keys.publish(arena.member(), self.core.config().slot_size)?;
        arena.add_watcher(&waker);
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
        if !self.is_open(peer) {
            return Err(PostError::NotOpen { peer }.into());
        }
        Ok(self.keys.resolve(peer, ptr)?)
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

    /// Whether control messages to a peer may have to be sent.
    pub(crate) fn has_due_keys(&self, peer: PeerId) -> bool {
        self.keys.is_ready(peer) || self.publication.as_ref().is_some_and(Publication::has_changed)
    }

    /// Sends the control messages that are due, as far as there are slots and credits.
    pub(super) fn exchange_keys(&mut self) {
        self.update_segments();
        for _ in 0..self.keys.ready_count() {
            let Some(peer) = self.keys.poll_ready() else { return };
            if self.send_keys(peer).is_err() {
                self.keys.mark_ready(peer);
            }
        }
    }

    /// Sends the control messages to a peer. Returns an error if further ones wait for a slot or a credit;
    /// [`Event::Unblocked`](super::Event::Unblocked) follows then.
    pub(super) fn send_keys(&mut self, peer: PeerId) -> Result<(), PostError> {
        while self.keys.has_output(peer) {
            let mut message = match self.take_send_buf(peer) {
                Ok(message) => message,
                Err(error @ PostError::WouldBlock { .. }) => return Err(error),
                // The session has ended.
                Err(_) => return Ok(()),
            };
            let Some(bytes) = self.keys.poll_output(peer, message.capacity()) else { return Ok(()) };
            let written = message.write(bytes);
            debug_assert!(written.is_ok());
            if self.post_control(message).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Passes on changes of the arena's segments.
    pub(super) fn update_segments(&mut self) {
        let Some(publication) = self.publication.as_mut().filter(|publication| publication.has_changed())
        else {
            return;
        };
        // A later change has a later version, so it is noticed by the next call.
        publication.version = publication.arena.segments_version();
        let current = publication.arena.registered_segments();
        let domain = publication.domain;
        let remotes: Vec<_> =
            current.iter().map(|segment| (segment.id, segment.regions[domain].remote())).collect();
        for segment in current {
            // Numbers only increase, so the list stays sorted.
            if publication.segments.last().is_none_or(|last| last.id < segment.id) {
                publication.segments.push(segment);
            }
        }
        self.keys.update(&remotes);
        self.release_segments();
    }

    /// Releases withdrawn segments that no peer may access.
    pub(super) fn release_segments(&mut self) {
        while let Some(number) = self.keys.poll_released() {
            if let Some(publication) = &mut self.publication {
                publication.segments.retain(|segment| segment.id != number);
            }
        }
    }

    /// Processes a control message. A message that no correct peer sends ends the session. Returns whether the peer's
    /// segments have changed, and no event of an earlier change is queued.
    pub(super) fn handle_control(&mut self, from: PeerId, bytes: &[u8]) -> bool {
        let Some(state) = self.peers.get_mut(usize::from(from.0)) else { return false };
        match self.keys.handle_message(from, bytes, state.ticket_sizes.len()) {
            Ok(has_changed) => {
                let is_first = has_changed && !state.has_changed_segments;
                state.has_changed_segments |= has_changed;
                self.release_segments();
                is_first
            }
            Err(reason) => {
                tracing::warn!(peer = %from, "the peer sent an invalid control message: the session ends");
                self.core.abort(from, reason);
                false
            }
        }
    }
}
