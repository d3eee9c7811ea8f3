//! The broker: sessions and timers. Its other files post requests, process completions and produce output.

mod completion;
mod output;
mod post;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use adverb_proto::Time;

use crate::config::MAX_PEERS;
use crate::mutation::mutant;
use crate::rail::RequestKind;
use crate::session::{Lifecycle, Peer, Phase, Probe, RecvSlotState, Session, WaitingRequest};
use crate::{
    BrokerConfig, ConfigError, EndReason, Event, PeerId, RecvPost, RecvSlot, SendPost, SessionError,
    TicketError,
};

/// The broker of one thread of a member: the sessions with its peers.
///
/// The [crate documentation](crate) describes its inputs and outputs.
#[derive(Debug)]
pub struct Broker {
    config: BrokerConfig,
    peers: Vec<Peer>,
    /// The peers that may have output, in order.
    ready: VecDeque<PeerId>,
    /// The peers with requests or receives that wait for a flush.
    unflushed: Vec<PeerId>,
    events: VecDeque<Event>,
    /// The keepalive timers, one per open session, in the order of their times.
    timers: VecDeque<Timer>,
    next_ticket: u64,
    /// The requests of the last [`Post`](crate::Post).
    recv_posts: Vec<RecvPost>,
    send_posts: Vec<SendPost>,
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    at: Time,
    peer: PeerId,
    session: u16,
}

/// The memory of a broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemoryUse {
    /// The bytes of the broker's own state.
    pub state_bytes: usize,
    /// The bytes of the message slots of all peers that have had a session. The driver allocates and registers them.
    pub message_bytes: u64,
}

impl Broker {
    /// Creates a broker with `peer_count` peers, all without a session.
    pub fn new(config: BrokerConfig, peer_count: usize) -> Result<Broker, ConfigError> {
        config.validate()?;
        if peer_count > MAX_PEERS {
            return Err(ConfigError::TooManyPeers { requested: peer_count, max: MAX_PEERS });
        }
        Ok(Broker {
            peers: (0..peer_count).map(|_| Peer::new()).collect(),
            ready: VecDeque::with_capacity(peer_count),
            unflushed: Vec::with_capacity(peer_count),
            events: VecDeque::with_capacity(64),
            timers: VecDeque::with_capacity(peer_count),
            next_ticket: 0,
            recv_posts: Vec::with_capacity(usize::from(config.recv_queue_depth())),
            send_posts: Vec::with_capacity(usize::from(config.send_queue_depth)),
            config,
        })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &BrokerConfig {
        &self.config
    }

    /// Returns the number of peers.
    pub fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// Adds a peer without a session, and returns its id.
    pub fn add_peer(&mut self) -> Result<PeerId, ConfigError> {
        let too_many = |_| ConfigError::TooManyPeers { requested: self.peers.len() + 1, max: MAX_PEERS };
        let index = u16::try_from(self.peers.len()).map_err(too_many)?;
        self.peers.push(Peer::new());
        Ok(PeerId(index))
    }

    /// Returns the phase of the session with a peer.
    pub fn phase(&self, peer: PeerId) -> Phase {
        self.peers.get(usize::from(peer.0)).map_or(Phase::Closed, Peer::phase)
    }

    /// Returns the epoch of a peer, if its session is open.
    pub fn epoch(&self, peer: PeerId) -> Option<u64> {
        match self.peers.get(usize::from(peer.0))?.lifecycle {
            Lifecycle::Open { epoch, .. } => Some(epoch),
            _ => None,
        }
    }

    /// Returns the broker's memory. The call visits all peers.
    pub fn memory_use(&self) -> MemoryUse {
        let lists = self.peers.capacity() * size_of::<Peer>()
            + (self.ready.capacity() + self.unflushed.capacity()) * size_of::<PeerId>()
            + self.events.capacity() * size_of::<Event>()
            + self.timers.capacity() * size_of::<Timer>()
            + self.recv_posts.capacity() * size_of::<RecvPost>()
            + self.send_posts.capacity() * size_of::<SendPost>();
        let peers: usize = self.peers.iter().map(Peer::heap_bytes).sum();
        let with_slots = self.peers.iter().filter(|peer| !peer.recv_slots.is_empty()).count();
        MemoryUse {
            state_bytes: size_of::<Broker>() + lists + peers,
            message_bytes: with_slots as u64 * self.config.message_bytes_per_peer(),
        }
    }

    /// Starts a session with a peer whose queue pair the driver has created. Returns the initial credits, which the
    /// driver sends to the peer. [`poll_post`](Broker::poll_post) returns the receives, which the driver must post before
    /// the peer can send.
    pub fn prepare(&mut self, peer: PeerId) -> Result<u32, SessionError> {
        let config = self.config;
        let state = self.peer_mut(peer)?;
        if state.phase() != Phase::Closed {
            return Err(SessionError::WrongPhase { peer, expected: Phase::Closed });
        }
        state.allocate(&config);
        state.session_number = state.session_number.wrapping_add(1);
        // Slots that the application still holds are posted when it releases them.
        let mut slots = Vec::with_capacity(state.recv_slots.len());
        for (index, slot) in state.recv_slots.iter().enumerate() {
            if *slot == RecvSlotState::Free || mutant!(HeldSlotPostedAgain) {
                slots.push(index as u16);
            }
        }
        let held = state.recv_slots.len() - slots.len();
        let grant = u32::from(config.recv_slots).saturating_sub(held as u32);
        let session = Session::new(&config, state.session_number, slots, grant);
        state.lifecycle = Lifecycle::Preparing(Box::new(session));
        self.mark_ready(peer);
        Ok(grant)
    }

    /// Opens a prepared session. `epoch` is the peer's, and `credits` is the number that the peer's broker returned from
    /// [`prepare`](Broker::prepare).
    pub fn establish(
        &mut self,
        peer: PeerId,
        epoch: u64,
        credits: u32,
        now: Time,
    ) -> Result<(), SessionError> {
        let keepalive = self.config.keepalive.filter(|_| !mutant!(NoKeepalive));
        let state = self.peer_mut(peer)?;
        let Lifecycle::Preparing(session) = &mut state.lifecycle else {
            return Err(SessionError::WrongPhase { peer, expected: Phase::Preparing });
        };
        let credits = if mutant!(InitialCreditTooHigh) { credits + 1 } else { credits };
        // A message of the peer can arrive before this call, with a newer count.
        if !session.send_credits.start(credits) {
            return Err(SessionError::InvalidCredits { peer });
        }
        let session_number = session.number;
        if let Lifecycle::Preparing(session) = core::mem::replace(&mut state.lifecycle, Lifecycle::Closed) {
            state.lifecycle = Lifecycle::Open { session, epoch };
        }
        if let Some(interval) = keepalive {
            self.timers.push_back(Timer { at: now + interval, peer, session: session_number });
        }
        self.mark_ready(peer);
        Ok(())
    }

    /// Checks whether a run of a peer may replace the session with the peer's current run. A run with a smaller epoch may
    /// not, if the current one has completed a request or sent a message. The call then probes the session, which ends if the
    /// current run is dead.
    ///
    /// The order of epochs decides only between runs that live at the same time. No epoch is remembered: a peer whose clock
    /// went back can return, and an epoch in a forged offer has no effect after its session.
    pub fn check_epoch(&mut self, peer: PeerId, epoch: u64) -> Result<(), SessionError> {
        let state = self.peer_mut(peer)?;
        let Some((session, current)) = state.open() else { return Ok(()) };
        if epoch >= current || !session.is_confirmed || mutant!(AcceptOlderEpoch) {
            return Ok(());
        }
        if session.probe == Probe::Idle {
            session.probe = Probe::Due;
            self.mark_ready(peer);
        }
        Err(SessionError::StaleEpoch { peer, newest: current, requested: epoch })
    }

    /// Leaves the session with a peer. The waiting requests are posted, followed by a leave message; no other requests
    /// can be posted. The session ends here with [`EndReason::Closed`] when all requests have completed, and at the
    /// peer with [`EndReason::Left`] when it has received all messages. A session that is not open is closed.
    ///
    /// If the peer doesn't respond, the session ends when a request fails, or when the driver [closes](Broker::close) it.
    pub fn leave(&mut self, peer: PeerId) {
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        match core::mem::replace(&mut state.lifecycle, Lifecycle::Closed) {
            Lifecycle::Open { mut session, epoch } => {
                if !mutant!(LeaveBeforeRequests) {
                    session.flush();
                }
                state.lifecycle = Lifecycle::Leaving { session, epoch, is_posted: false };
                self.mark_ready(peer);
            }
            preparing @ Lifecycle::Preparing(_) => {
                state.lifecycle = preparing;
                self.end_session(peer, EndReason::Closed);
            }
            other => state.lifecycle = other,
        }
    }

    /// Ends the session with a peer. [`poll_post`](Broker::poll_post) asks the driver to destroy the queue pair. The call
    /// has no effect if no session exists or the session has ended.
    pub fn close(&mut self, peer: PeerId) {
        self.end_session(peer, EndReason::Closed);
    }

    /// Ends the session with a peer because of its messages, which the broker doesn't interpret. Apart from the reason, the call
    /// is like [`close`](Broker::close).
    pub fn abort(&mut self, peer: PeerId, reason: EndReason) {
        self.end_session(peer, reason);
    }

    /// Processes the destruction of a peer's queue pair, after [`Post::Close`](crate::Post::Close): all tickets of the
    /// session end, and a new session can be prepared.
    pub fn handle_closed(&mut self, peer: PeerId) -> Result<(), SessionError> {
        let send_slots = self.config.send_slots;
        let state = self.peer_mut(peer)?;
        let (mut session, epoch, reason) = match core::mem::replace(&mut state.lifecycle, Lifecycle::Closed) {
            Lifecycle::Closing { session, epoch, reason, .. } => (session, epoch, reason),
            other => {
                state.lifecycle = other;
                return Err(SessionError::WrongPhase { peer, expected: Phase::Closing });
            }
        };
        for slot in &mut state.recv_slots {
            if *slot == RecvSlotState::Posted {
                *slot = RecvSlotState::Free;
            }
        }
        if mutant!(ReservedSlotFreed) {
            state.free_send_slots = (0..send_slots).rev().collect();
            session.rails[0].in_flight.retain(|request| request.ticket.is_some());
            session.waiting.retain(|request| request.ticket.is_some());
        }
        self.fail_tickets(peer, &mut session, reason);
        self.events.push_back(Event::SessionEnded { peer, epoch, reason });
        Ok(())
    }

    /// Ends all requests of a session.
    fn fail_tickets(&mut self, peer: PeerId, session: &mut Session, reason: EndReason) {
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        let result = Err(TicketError { peer, reason });
        let in_flight = session.rails.iter_mut().flat_map(|rail| rail.in_flight.drain(..));
        let in_flight = in_flight.map(|request| (request.kind, request.ticket));
        for (kind, ticket) in in_flight {
            if let RequestKind::Message(slot) = kind
                && !mutant!(SlotsLostWithSession)
                && !mutant!(SlotFreedWhenPosted)
            {
                state.free_send_slots.push(slot);
            }
            self.events.extend(ticket.map(|ticket| Event::Completed { peer, ticket, result }));
        }
        session.flushed = 0;
        for WaitingRequest { kind, ticket, .. } in session.waiting.drain(..) {
            if let RequestKind::Message(slot) = kind
                && !mutant!(SlotsLostWithSession)
            {
                state.free_send_slots.push(slot);
            }
            let ticket = ticket.filter(|_| !mutant!(WaitingTicketsLost));
            self.events.extend(ticket.map(|ticket| Event::Completed { peer, ticket, result }));
        }
    }

    /// Returns the slot of a message or of immediate data to the broker, which posts it again and grants the sender a credit.
    pub fn release(&mut self, slot: RecvSlot) {
        let RecvSlot { peer, index } = slot;
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        let Some(slot) = state.recv_slots.get_mut(usize::from(index)) else { return };
        if *slot != RecvSlotState::Held {
            return;
        }
        *slot = RecvSlotState::Free;
        if let Lifecycle::Preparing(session)
        | Lifecycle::Open { session, .. }
        | Lifecycle::Leaving { session, .. } = &mut state.lifecycle
        {
            session.reposts.push(index);
            session.repost_grants += 1;
            self.mark_unflushed(peer);
        }
    }

    /// Checks idle sessions whose keepalive interval has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        let Some(interval) = self.config.keepalive else { return };
        while self.timers.front().is_some_and(|timer| timer.at <= now) {
            let Some(timer) = self.timers.pop_front() else { return };
            let Some(state) = self.peers.get_mut(usize::from(timer.peer.0)) else { continue };
            let Some((session, _)) = state.open().filter(|(session, _)| session.number == timer.session)
            else {
                continue;
            };
            let is_idle = !core::mem::replace(&mut session.is_active, false);
            if is_idle && session.probe == Probe::Idle {
                session.probe = Probe::Due;
                self.mark_ready(timer.peer);
            }
            self.timers.push_back(Timer { at: now + interval, ..timer });
        }
    }

    /// Returns the time at which [`handle_timeout`](Broker::handle_timeout) must be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.front().map(|timer| timer.at)
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Moves a session to the closing phase.
    fn end_session(&mut self, peer: PeerId, reason: EndReason) {
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        let (mut session, epoch) = match core::mem::replace(&mut state.lifecycle, Lifecycle::Closed) {
            Lifecycle::Preparing(session) => (session, None),
            Lifecycle::Open { session, epoch } | Lifecycle::Leaving { session, epoch, .. } => {
                (session, Some(epoch))
            }
            other => {
                state.lifecycle = other;
                return;
            }
        };
        if mutant!(TicketsEndBeforeClose) {
            self.fail_tickets(peer, &mut session, reason);
        }
        if let Some(state) = self.peers.get_mut(usize::from(peer.0)) {
            state.lifecycle = Lifecycle::Closing { session, epoch, reason, is_announced: false };
        }
        self.mark_ready(peer);
    }

    fn peer_mut(&mut self, peer: PeerId) -> Result<&mut Peer, SessionError> {
        self.peers.get_mut(usize::from(peer.0)).ok_or(SessionError::UnknownPeer { peer })
    }

    /// Adds a peer to those that may have output.
    fn mark_ready(&mut self, peer: PeerId) {
        if let Some(state) = self.peers.get_mut(usize::from(peer.0))
            && !state.is_ready
        {
            state.is_ready = true;
            self.ready.push_back(peer);
        }
    }

    /// Adds a peer to those that the next flush of all peers includes.
    fn mark_unflushed(&mut self, peer: PeerId) {
        if let Some(state) = self.peers.get_mut(usize::from(peer.0))
            && !state.is_unflushed
        {
            state.is_unflushed = true;
            self.unflushed.push(peer);
        }
    }

    /// Delivers [`Event::Unblocked`] if a request that was refused may succeed now.
    fn check_unblocked(&mut self, peer: PeerId) {
        let config = self.config;
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        let has_free_slot = !state.free_send_slots.is_empty();
        if state.open().is_some_and(|(session, _)| session.unblock(&config, has_free_slot)) {
            self.events.push_back(Event::Unblocked { peer });
        }
    }
}
