//! Polling: completions, events, and requests to the queue pairs.

use std::panic::AssertUnwindSafe;

use adverb_cluster_proto::{Event as CoreEvent, LocalMemory, PeerId, Phase, Post, RecvPost, SendPost};
use adverb_proto::types::{Completion as PlainCompletion, Qpn, SendFlags};
use adverb_verbs::internal::{self, WithCauses};
use adverb_verbs::memory::{Buffer, Payload};
use adverb_verbs::{Completion, Error, RecvRequest, SendRequest};

use super::event::{Filter, QueuedEvent};
use super::peer::{InFlight, Link, Peer, RequestKind, Tag};
use super::{Broker, Event, Payloads, Result};

/// The number of busy polls after which the clock is read.
const POLLS_PER_CLOCK: u32 = 64;

/// A value that owns a broker and handles its events: the broker itself, or a layer above it.
pub(crate) trait BrokerOwner {
    fn broker_mut(&mut self) -> &mut Broker;
}

impl BrokerOwner for Broker {
    fn broker_mut(&mut self) -> &mut Broker {
        self
    }
}

impl Broker {
    /// Processes completions, delivers all events to the handler, and then posts the waiting requests of all peers. Returns
    /// the number of events.
    ///
    /// The handler runs in the caller's thread. It has the broker, so it can post requests. If the handler panics, its event is
    /// consumed, and the broker can still be used: the other events are delivered by the next poll.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Verbs`](super::BrokerError::Verbs) if the device failed. All sessions have ended then, and
    /// their events were delivered.
    pub fn poll(&mut self, handler: impl FnMut(&mut Broker, Event<'_>)) -> Result<usize> {
        self.poll_filtered(Filter::All, handler)
    }

    /// Polls like [`poll`](Broker::poll), but delivers only the results of this side's requests, and changes of sessions.
    /// Other events are delivered later, and their peers get no credits for them until then.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`poll`](Broker::poll).
    pub fn poll_sq(&mut self, handler: impl FnMut(&mut Broker, Event<'_>)) -> Result<usize> {
        self.poll_filtered(Filter::Sends, handler)
    }

    /// Polls like [`poll`](Broker::poll), but delivers only messages, immediate data, and changes of sessions. Other events
    /// are delivered later.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`poll`](Broker::poll).
    pub fn poll_rq(&mut self, handler: impl FnMut(&mut Broker, Event<'_>)) -> Result<usize> {
        self.poll_filtered(Filter::Receives, handler)
    }

    /// Polls like [`poll`](Broker::poll), but delivers only the events of one peer. Other events are delivered later,
    /// and their peers get no credits for them until then.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`poll`](Broker::poll).
    pub fn poll_peer(&mut self, peer: PeerId, handler: impl FnMut(&mut Broker, Event<'_>)) -> Result<usize> {
        self.poll_filtered(Filter::Peer(peer), handler)
    }

    fn poll_filtered(
        &mut self,
        filter: Filter,
        mut handler: impl FnMut(&mut Broker, Event<'_>),
    ) -> Result<usize> {
        let progress = self.progress_unless_polled();
        let count = deliver(self, filter, &mut handler);
        self.flush_all();
        self.close_sessions();
        progress.map(|()| count)
    }

    /// Processes the available completions, unless a wait has just done so.
    ///
    /// The software NIC delays an acknowledgement until the next post or poll. The post is usually the application's reply,
    /// which then carries the acknowledgement.
    pub(crate) fn progress_unless_polled(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_polled) { Ok(()) } else { self.progress() }
    }

    /// Processes the available completions.
    pub(crate) fn progress(&mut self) -> Result<()> {
        let mut completions = std::mem::take(&mut self.completions);
        let polled = self.completion_queue.poll(&mut completions);
        let is_idle = completions.is_empty();
        for completion in completions.drain(..) {
            self.handle_completion(completion);
        }
        self.completions = completions;
        self.polls += 1;
        if is_idle || self.polls >= POLLS_PER_CLOCK {
            self.polls = 0;
            let now = self.now();
            if self.core.poll_timeout().is_some_and(|at| at <= now) {
                self.core.handle_timeout(now);
            }
        }
        if let Err(error) = polled {
            for index in 0..self.core.peer_count() {
                self.core.close(PeerId(index as u16));
            }
            self.post_requests();
            self.close_sessions();
            return Err(error.into());
        }
        self.post_requests();
        self.close_sessions();
        self.execute_commands();
        Ok(())
    }

    fn handle_completion(&mut self, completion: Completion) {
        let outcome = internal::plain_outcome(&completion);
        let (peer, wr_id, mut message) = match Tag::decode(completion.tag()) {
            Tag::Send { peer } => {
                let Some(state) = self.peers.get_mut(usize::from(peer)) else { return };
                let Some(wr_id) = state.finish_send(completion.into_payload()) else { return };
                (peer, wr_id, None)
            }
            Tag::Recv { peer, slot } => {
                let Some(state) = self.peers.get_mut(usize::from(peer)) else { return };
                let Some(wr_id) = state.recv_ids.get(usize::from(slot)) else { return };
                state.posted_recv_count -= 1;
                (peer, *wr_id, completion.into_buffer())
            }
        };
        // The state machine doesn't use the queue pair number.
        self.core.handle_completion(&PlainCompletion { wr_id, qpn: Qpn::truncate(0), outcome });
        self.collect_events(&mut message);
        if let (Some(buffer), Some(state)) = (message, self.peers.get_mut(usize::from(peer))) {
            state.finish_recv(Some(buffer));
        }
    }

    /// Queues the events of the state machine. `message` is the buffer of the receive that just completed.
    fn collect_events(&mut self, message: &mut Option<Buffer>) {
        while let Some(event) = self.core.poll_event() {
            let queued = match event {
                CoreEvent::Message { from, slot, length } => {
                    let Some(buffer) = message.take() else {
                        self.core.release(slot);
                        continue;
                    };
                    QueuedEvent::Message { from, slot, buffer, length: length as usize }
                }
                CoreEvent::Control { from, slot, length } => {
                    let buffer = message.take();
                    let bytes = buffer.as_ref().and_then(|buffer| buffer.get(..length as usize));
                    let has_changed = self.handle_control(from, bytes.unwrap_or_default());
                    if let (Some(buffer), Some(state)) = (buffer, self.peers.get_mut(usize::from(from.0))) {
                        state.finish_recv(Some(buffer));
                    }
                    self.core.release(slot);
                    if !has_changed {
                        continue;
                    }
                    QueuedEvent::SegmentsChanged { peer: from }
                }
                CoreEvent::Immediate { from, slot, immediate, length } => {
                    QueuedEvent::Immediate { from, slot, immediate, length }
                }
                CoreEvent::Completed { peer, ticket, result } => {
                    let state = self.peers.get_mut(usize::from(peer.0));
                    let count = state.and_then(|state| state.ticket_sizes.pop_front()).unwrap_or(0);
                    self.keys.end_ticket(peer);
                    QueuedEvent::Completed { peer, ticket, result, count }
                }
                CoreEvent::Unblocked { peer } => {
                    let state = self.peers.get_mut(usize::from(peer.0));
                    // One event is enough for all changes until it is delivered.
                    if state.is_none_or(|state| std::mem::replace(&mut state.is_unblocked, true)) {
                        continue;
                    }
                    QueuedEvent::Unblocked { peer }
                }
                CoreEvent::SessionEnded { peer, epoch: Some(epoch), reason } => {
                    self.keys.end(peer);
                    self.release_segments();
                    if let Some(mailbox) = &self.mailbox {
                        mailbox.session_ended(peer, reason);
                    }
                    self.push_session_event(QueuedEvent::SessionEnded { peer, epoch, reason });
                    continue;
                }
                // The application gets no event for a session that was never open.
                CoreEvent::SessionEnded { peer, .. } => {
                    self.keys.end(peer);
                    self.release_segments();
                    self.take_early_events(peer, Broker::discard_event);
                    continue;
                }
                _ => continue,
            };
            match queued {
                // These belong to a session that the application doesn't know yet.
                QueuedEvent::Message { from: peer, .. }
                | QueuedEvent::Immediate { from: peer, .. }
                | QueuedEvent::SegmentsChanged { peer }
                    if self.core.phase(peer) == Phase::Preparing =>
                {
                    if let Some(state) = self.peers.get_mut(usize::from(peer.0)) {
                        state.early_events.push(queued);
                    }
                }
                _ => self.events.push(queued),
            }
        }
    }

    pub(super) fn push_session_event(&mut self, event: QueuedEvent) {
        if let Some(state) = self.peers.get_mut(usize::from(event.peer().0)) {
            state.session_event_count += 1;
            self.events.push(event);
        }
    }

    /// Counts an event of a session that is delivered now.
    fn finish_session_event(&mut self, peer: PeerId) {
        if let Some(state) = self.peers.get_mut(usize::from(peer.0)) {
            state.session_event_count -= 1;
        }
    }

    /// Takes the early events of a peer, in order.
    pub(super) fn take_early_events(&mut self, peer: PeerId, mut take: impl FnMut(&mut Broker, QueuedEvent)) {
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        for event in std::mem::take(&mut state.early_events) {
            take(self, event);
        }
    }

    /// Releases the receive of an event that is not delivered.
    fn discard_event(&mut self, event: QueuedEvent) {
        let Some(state) = self.peers.get_mut(usize::from(event.peer().0)) else { return };
        match event {
            QueuedEvent::Message { slot, buffer, .. } => {
                state.finish_recv(Some(buffer));
                self.core.release(slot);
            }
            QueuedEvent::Immediate { slot, .. } => self.core.release(slot),
            QueuedEvent::SegmentsChanged { .. } => state.has_changed_segments = false,
            _ => {}
        }
    }

    /// Posts the requests that the state machine returns.
    pub(super) fn post_requests(&mut self) {
        while let Some(post) = self.core.poll_post() {
            let (peer, posted) = match post {
                Post::Receives { peer, requests, .. } => {
                    (peer, post_receives(peer, self.peers.get_mut(usize::from(peer.0)), requests))
                }
                Post::Sends { peer, requests, .. } => {
                    (peer, post_sends(peer, self.peers.get_mut(usize::from(peer.0)), requests))
                }
                // Polled completions may hold payloads of the session, so it is closed after them.
                Post::Close { peer } => {
                    self.closing.push(peer);
                    (peer, Ok(()))
                }
            };
            if let Err(error) = posted {
                tracing::warn!(%peer, error = %WithCauses(&error), "posting requests failed: the session ends");
                self.core.close(peer);
            }
        }
        self.collect_events(&mut None);
    }

    /// Destroys the queue pairs of ended sessions. All polled completions must have been processed.
    pub(crate) fn close_sessions(&mut self) {
        while let Some(peer) = self.closing.pop() {
            if let Some(state) = self.peers.get_mut(usize::from(peer.0)) {
                state.close();
            }
            // The state machine has requested this, so the call succeeds.
            let closed = self.core.handle_closed(peer);
            debug_assert!(closed.is_ok());
            self.collect_events(&mut None);
        }
    }
}

/// Delivers the events that are queued now to the handler of the broker's owner.
pub(crate) fn deliver<O: BrokerOwner>(
    owner: &mut O,
    filter: Filter,
    handler: &mut impl FnMut(&mut O, Event<'_>),
) -> usize {
    let mut count = 0;
    // Events that the handler causes are left for the next poll.
    let end = owner.broker_mut().events.next_sequence();
    while let Some(event) = owner.broker_mut().events.pop(filter, end) {
        count += 1;
        deliver_event(owner, event, handler);
    }
    count
}

fn deliver_event<O: BrokerOwner>(
    owner: &mut O,
    event: QueuedEvent,
    handler: &mut impl FnMut(&mut O, Event<'_>),
) {
    match event {
        QueuedEvent::Message { from, slot, buffer, length } => {
            let bytes = buffer.get(..length).unwrap_or_default();
            // The slot and its buffer are returned even if the handler panics.
            let event = AssertUnwindSafe(|| handler(owner, Event::Message { from, bytes }));
            let handled = std::panic::catch_unwind(event);
            let broker = owner.broker_mut();
            if let Some(state) = broker.peers.get_mut(usize::from(from.0)) {
                state.finish_recv(Some(buffer));
            }
            broker.core.release(slot);
            if let Err(panic) = handled {
                std::panic::resume_unwind(panic);
            }
        }
        QueuedEvent::Completed { peer, ticket, result, count } => {
            let broker = owner.broker_mut();
            let mut payloads = std::mem::take(&mut broker.payloads);
            if let Some(state) = broker.peers.get_mut(usize::from(peer.0)) {
                let count = count.min(state.finished_transfers.len());
                payloads.extend(state.finished_transfers.drain(..count));
            }
            let drain = Payloads(payloads.drain(..));
            handler(owner, Event::Completed { peer, ticket, result, payloads: drain });
            owner.broker_mut().payloads = payloads;
        }
        QueuedEvent::Immediate { from, slot, immediate, length } => {
            owner.broker_mut().core.release(slot);
            handler(owner, Event::Immediate { from, immediate, length });
        }
        QueuedEvent::Unblocked { peer } => {
            if let Some(state) = owner.broker_mut().peers.get_mut(usize::from(peer.0)) {
                state.is_unblocked = false;
            }
            handler(owner, Event::Unblocked { peer });
        }
        QueuedEvent::SegmentsChanged { peer } => {
            if let Some(state) = owner.broker_mut().peers.get_mut(usize::from(peer.0)) {
                state.has_changed_segments = false;
            }
            handler(owner, Event::SegmentsChanged { peer });
        }
        QueuedEvent::SessionOpened { peer, epoch } => {
            owner.broker_mut().finish_session_event(peer);
            handler(owner, Event::SessionOpened { peer, epoch });
        }
        QueuedEvent::SessionEnded { peer, epoch, reason } => {
            owner.broker_mut().finish_session_event(peer);
            handler(owner, Event::SessionEnded { peer, epoch, reason });
        }
    }
}

fn post_receives(peer: PeerId, state: Option<&mut Peer>, requests: &[RecvPost]) -> Result<(), Error> {
    let Some(Peer { link: Some(link), free_recv_buffers, recv_ids, posted_recv_count, .. }) = state else {
        return Ok(());
    };
    let missing = || Error::InvalidRequest { reason: "a receive slot has no buffer".into() };
    if free_recv_buffers.len() < requests.len() {
        return Err(missing());
    }
    let requests = requests.iter().filter_map(|&RecvPost { wr_id, slot }| {
        *recv_ids.get_mut(usize::from(slot))? = wr_id;
        *posted_recv_count += 1;
        let buffer = free_recv_buffers.pop()?;
        Some(RecvRequest::new(buffer).tag(Tag::Recv { peer: peer.0, slot }.encode()))
    });
    let Err(refused) = link.queue_pair.post_recvs(requests) else { return Ok(()) };
    *posted_recv_count -= refused.requests.len();
    let buffers = refused.requests.into_iter().filter_map(|request| request.into_payload().into_buffer());
    free_recv_buffers.extend(buffers);
    Err(refused.error)
}

fn post_sends(peer: PeerId, state: Option<&mut Peer>, requests: &[SendPost]) -> Result<(), Error> {
    let Some(state) = state else { return Ok(()) };
    let Peer { link: Some(Link { queue_pair, .. }), waiting_messages, waiting_transfers, in_flight, .. } =
        state
    else {
        return Ok(());
    };
    let tag = Tag::Send { peer: peer.0 }.encode();
    let requests = requests.iter().map(|&SendPost { wr_id, operation, flags, local }| {
        let (kind, payload) = match local {
            LocalMemory::None => (RequestKind::Control, Payload::Empty),
            LocalMemory::Slot { index, .. } => {
                let buffer = waiting_messages.get_mut(usize::from(index)).and_then(Option::take);
                (RequestKind::Message, buffer.map_or(Payload::Empty, Payload::from))
            }
            LocalMemory::Segment(_) => {
                (RequestKind::Transfer, waiting_transfers.pop_front().unwrap_or_default())
            }
        };
        in_flight.push_back(InFlight { wr_id, kind });
        let request = internal::send_request(operation, payload).tag(tag);
        if flags.contains(SendFlags::SIGNALED) { request } else { request.unsignaled() }
    });
    let Err(refused) = queue_pair.post_sends(requests) else { return Ok(()) };
    state.unposted = refused.requests.into_iter().map(SendRequest::into_payload).collect();
    Err(refused.error)
}
