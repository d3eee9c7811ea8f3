//! The connection manager: what an application asks of it.

use std::collections::VecDeque;

use adverb_wire::cm::{AdditionalInfo, Mad, PrivateData, RejectReason};

use super::agenda::Repetition;
use super::compose;
use super::connection::{Connection, Ready, State};
use super::sidr::Queries;
use super::table::Table;
use super::{CallError, Config, Connect, ConnectionId, Depths, Ends, Event, Listen, ListenerId, Offer};
use crate::Time;
use crate::mutation::mutant;
use crate::types::{Psn, Qpn, Transport};

/// A connection manager without a clock, a socket or a queue pair: see the [module](super).
///
/// After each call and each message, poll in this order:
///
/// 1. [`poll_transmit`](Manager::poll_transmit) until it gives nothing, and send what it gives.
/// 2. [`poll_event`](Manager::poll_event) until it gives nothing. Answering an event may make more of both.
/// 3. [`poll_timeout`](Manager::poll_timeout): when to call [`handle_timeout`](Manager::handle_timeout) at the latest.
///
/// Randomness is an argument, because communication IDs and sequence numbers that can be guessed let strangers meddle.
#[derive(Debug)]
pub struct Manager {
    pub(super) config: Config,
    pub(super) table: Table,
    pub(super) queries: Queries,
    pub(super) out: Outbox,
    next_listener: u32,
}

/// A message to be sent: the payload of an unreliable datagram from queue pair 1 to queue pair 1, with the Q_Key
/// [`GSI_QKEY`](adverb_wire::cm::GSI_QKEY).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// From where to where.
    pub ends: Ends,
    /// What: [`emit`](Mad::emit) makes it bytes.
    pub mad: Mad,
}

/// What a manager has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Messages that came and could be read.
    pub received: u64,
    /// What came and was no message.
    pub malformed: u64,
    /// Messages that had come before.
    pub duplicates: u64,
    /// Messages that belong to no connection, or to another than they say.
    pub strays: u64,
    /// Established connections whose peers were asked whether they still have them, because a message named the
    /// peer's queue pair for another connection.
    pub probes: u64,
    /// Requests dropped because too many wait already.
    pub overflows: u64,
    /// Messages sent.
    pub sent: u64,
    /// Of those, messages sent again because no answer came.
    pub retransmitted: u64,
    /// Messages not sent because nobody takes them away.
    pub unsent: u64,
}

/// What a manager holds: for finding leaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ResourceCounts {
    /// Connections, those in timewait included.
    pub connections: usize,
    /// Connections that a peer asked for and that aren't established.
    pub half_open: usize,
    /// Ways to find a connection.
    pub index_entries: usize,
    /// Questions for datagram queue pairs, either way.
    pub queries: usize,
    /// Times to look at something again.
    pub timers: usize,
    /// Listeners.
    pub listeners: usize,
    /// Events that nobody has polled.
    pub events: usize,
    /// Messages that nobody has polled.
    pub datagrams: usize,
}

/// What goes out: messages and events.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    datagrams: VecDeque<Datagram>,
    pub(super) events: VecDeque<Event>,
    pub(super) statistics: Statistics,
}

/// The maximum number of times that a REP is retransmitted while many connections are half open. One makes up for a
/// lost RTU: the peer sends that again.
const MAX_CROWDED_RETRANSMISSIONS: u8 = 1;

/// How many messages wait at most. Who doesn't take them away loses them, as a network does.
const MOST_DATAGRAMS: usize = 4096;

impl Outbox {
    pub(super) fn send(&mut self, ends: Ends, mad: Mad) {
        if self.datagrams.len() >= MOST_DATAGRAMS {
            self.statistics.unsent += 1;
            return;
        }
        self.statistics.sent += 1;
        self.datagrams.push_back(Datagram { ends, mad });
    }
}

impl Manager {
    /// A manager with nothing in it.
    pub fn new(config: Config) -> Manager {
        Manager {
            config,
            table: Table::default(),
            queries: Queries::default(),
            out: Outbox::default(),
            next_listener: 1,
        }
    }

    /// What it was made with.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Listens for peers that want to be connected, or want to know a datagram queue pair.
    ///
    /// # Errors
    ///
    /// If somebody listens there already. Listeners at one address and at any can be side by side: the more exact one
    /// is asked.
    pub fn listen(&mut self, listen: Listen) -> Result<ListenerId, CallError> {
        let id = self.next_listener;
        if !self.table.listen(id, listen) {
            return Err(CallError::ServiceInUse(listen.service));
        }
        self.next_listener += 1;
        Ok(ListenerId(id))
    }

    /// Listens no longer. Requests whose events nobody has polled are rejected; others don't need the listener.
    ///
    /// # Errors
    ///
    /// If there is no such listener.
    pub fn close(&mut self, now: Time, listener: ListenerId) -> Result<(), CallError> {
        let mut untaken = Vec::new();
        self.out.events.retain(|event| match event {
            Event::Request(request) if request.listener == listener => {
                untaken.push(request.id);
                false
            }
            Event::Query(query) if query.listener == listener => false,
            _ => true,
        });
        for id in untaken {
            let _ = self.reject(now, id, RejectReason::InvalidServiceId, &[]);
        }
        if self.table.close(listener.0) { Ok(()) } else { Err(CallError::Unknown) }
    }

    /// Asks a peer for a connection. By the deadline there is one [outcome](Event).
    ///
    /// The queue pair should be in the state init: it gets ready when the peer has [accepted](Event::Accepted).
    ///
    /// # Errors
    ///
    /// If the queue pair has a connection already or is in timewait, the private data is too long, a value is out of
    /// its range, or there are too many connections.
    pub fn connect(
        &mut self,
        now: Time,
        connect: &Connect<'_>,
        random: &mut impl FnMut() -> u32,
    ) -> Result<ConnectionId, CallError> {
        let offer = &connect.offer;
        self.check(offer)?;
        if !connect.ends.is_one_family() {
            return Err(CallError::AddressFamilyMismatch);
        }
        if connect.path_mtu > self.config.path_mtu {
            return Err(CallError::OutOfRange("path_mtu"));
        }
        if self.table.len() >= self.config.max_connections {
            return Err(CallError::TooMany);
        }
        if connect.peer_to_peer && self.table.by_peer(connect.ends.remote, connect.service).is_some() {
            return Err(CallError::ServiceInUse(connect.service));
        }
        let local_id = self.table.fresh_id(random);
        let mut connection = Connection {
            state: State::ReqSent,
            active: true,
            peer_to_peer: connect.peer_to_peer,
            listener: None,
            local_id,
            remote_id: None,
            ends: connect.ends,
            transaction_id: compose::transaction_id(&self.config, local_id),
            service: connect.service,
            remote_guid: 0,
            remote_qpn: None,
            offer: Some(*offer),
            receive_psn: Psn::wrapping(random()),
            send_psn: Psn::wrapping(0),
            transport: offer.transport,
            path_mtu: connect.path_mtu,
            pkey: self.config.pkey,
            remote_depths: Depths { max_dest_rd_atomic: 0, max_rd_atomic: 0 },
            ack_timeout: offer.ack_timeout,
            retry_count: offer.retry_count,
            rnr_retry: offer.rnr_retry,
            repetition: None,
            deadline: Some(connect.deadline),
            farewell: None,
            last_probe: None,
            timer: None,
        };
        let req = compose::req(&self.config, &connection, connect)?;
        connection.repetition = Some(self.repetition(now, req));
        self.table.insert(connection);
        self.out.send(connect.ends, req);
        Ok(ConnectionId(local_id))
    }

    /// What the queue pair must be told for this connection: once a [request](Event::Request) or an
    /// [acceptance](Event::Accepted) has come. `offer` is what it is, or will be, accepted with.
    ///
    /// # Errors
    ///
    /// If there is no such connection, or the peer isn't known yet.
    pub fn ready(&self, id: ConnectionId, offer: &Offer) -> Result<Ready, CallError> {
        let connection = self.table.get(id.0).ok_or(CallError::Unknown)?;
        connection.ready(offer).ok_or(CallError::WrongState(connection.state))
    }

    /// Accepts a peer's request, with a queue pair that is ready to receive: the peer may send as soon as it knows. By
    /// the deadline there is one [outcome](Event).
    ///
    /// # Errors
    ///
    /// If the request is gone, or was answered, or the queue pair has a connection or is of another kind, or the
    /// private data (at most 196 bytes) is too long. Then the request still waits for an answer.
    pub fn accept(
        &mut self,
        now: Time,
        id: ConnectionId,
        offer: &Offer,
        private_data: &[u8],
        deadline: Time,
    ) -> Result<(), CallError> {
        let connection = self.table.get(id.0).ok_or(CallError::Unknown)?;
        if connection.state != State::ReqReceived || connection.peer_to_peer {
            return Err(CallError::WrongState(connection.state));
        }
        if offer.transport != connection.transport {
            return Err(CallError::UnsupportedTransport(offer.transport));
        }
        self.check(offer)?;
        let rep = compose::rep(&self.config, connection, offer, private_data)?;
        self.send_rep(now, id.0, offer, rep, deadline);
        Ok(())
    }

    fn send_rep(&mut self, now: Time, id: u32, offer: &Offer, rep: Mad, deadline: Time) {
        let repetition = self.repetition(now, rep);
        if let Some(connection) = self.table.change(id, State::RepSent, Some(deadline)) {
            connection.offer = Some(*offer);
            connection.repetition = Some(repetition);
            self.out.send(connection.ends, rep);
        }
        self.table.enter(id);
        self.table.settle(id);
    }

    /// Completes a connection that the peer has [accepted](Event::Accepted), with a queue pair that is ready to send.
    /// The connection is [established](Event::Established) then; of two peers that connected to each other, one still
    /// waits to hear from the other.
    ///
    /// # Errors
    ///
    /// If there is no such connection, or nobody has accepted it.
    pub fn establish(&mut self, now: Time, id: ConnectionId) -> Result<(), CallError> {
        let connection = self.table.get(id.0).ok_or(CallError::Unknown)?;
        match (connection.state, connection.offer) {
            (State::RepReceived, _) => {
                self.out.send(connection.ends, compose::rtu(connection));
                self.established(id.0);
            }
            (State::ReqReceived, Some(offer)) => {
                let rep = compose::rep(&self.config, connection, &offer, &[])?;
                let deadline = connection.deadline.unwrap_or(now);
                self.send_rep(now, id.0, &offer, rep, deadline);
            }
            (state, _) => return Err(CallError::WrongState(state)),
        }
        Ok(())
    }

    /// Says no to a peer that asked for, or accepted, a connection. There is no outcome then.
    ///
    /// A reason of the application's own is [`RejectReason::ConsumerReject`], and its private data (at most 148 bytes)
    /// may say more.
    ///
    /// # Errors
    ///
    /// If there is no such connection, or nothing to say no to, or too much private data.
    pub fn reject(
        &mut self,
        now: Time,
        id: ConnectionId,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), CallError> {
        let private_data = PrivateData::new(private_data).map_err(CallError::PrivateDataTooLong)?;
        let connection = self.table.get(id.0).ok_or(CallError::Unknown)?;
        if !matches!(connection.state, State::ReqReceived | State::RepReceived) {
            return Err(CallError::WrongState(connection.state));
        }
        let rej = compose::rej(connection, reason, AdditionalInfo::EMPTY, private_data);
        self.end(now, id.0, Some(rej));
        Ok(())
    }

    /// Ends a connection that stands. [`Disconnected`](Event::Disconnected) comes when the peer agrees, or at the
    /// deadline. The queue pair should be in error by now.
    ///
    /// It may be being ended already, by an earlier call: then only the deadline may come earlier.
    ///
    /// # Errors
    ///
    /// If there is no such connection, or it doesn't stand (any longer): then `Disconnected` came already.
    pub fn disconnect(&mut self, now: Time, id: ConnectionId, deadline: Time) -> Result<(), CallError> {
        if let Some(connection) = self.table.get_mut(id.0).filter(|known| known.state == State::DreqSent) {
            connection.deadline = Some(connection.deadline.map_or(deadline, |at| at.min(deadline)));
            self.table.settle(id.0);
            return Ok(());
        }
        let connection = self.table.get(id.0).ok_or(CallError::Unknown)?;
        let (State::Established, Some(remote_qpn)) = (connection.state, connection.remote_qpn) else {
            return Err(CallError::WrongState(connection.state));
        };
        let dreq = compose::dreq(&self.config, connection, remote_qpn);
        let repetition = self.repetition(now, dreq);
        if let Some(connection) = self.table.change(id.0, State::DreqSent, Some(deadline)) {
            connection.repetition = Some(repetition);
            self.out.send(connection.ends, dreq);
        }
        self.table.settle(id.0);
        Ok(())
    }

    /// Wants nothing more of a connection, however far it has come: what a program does that drops it. The peer is told.
    /// There is no outcome then, except that a connection that stands is [disconnected](Manager::disconnect) by the
    /// deadline.
    ///
    /// # Errors
    ///
    /// If there is no such connection.
    pub fn abandon(&mut self, now: Time, id: ConnectionId, deadline: Time) -> Result<(), CallError> {
        let connection = self.table.get(id.0).ok_or(CallError::Unknown)?;
        match connection.state {
            State::ReqReceived | State::RepReceived => {
                return self.reject(now, id, RejectReason::ConsumerReject, &[]);
            }
            State::Established => return self.disconnect(now, id, deadline),
            State::DreqSent | State::TimeWait => {}
            State::ReqSent | State::RepSent => self.end_unanswered(now, id.0),
        }
        Ok(())
    }

    /// The first packet has come for a queue pair: its peer knows that the connection stands, whatever became of the
    /// message that was to say so (vol. 1, 12.9.6; `cm_establish` in `cm.c`).
    pub fn communication_established(&mut self, qpn: Qpn) {
        if let Some(id) = self.table.by_local_qp(qpn)
            && self.table.get(id).is_some_and(|connection| connection.state == State::RepSent)
        {
            self.established(id);
        }
    }

    /// Whether a queue pair's number may be used for a new connection: it has none, nor is its last one in timewait.
    pub fn is_free(&self, qpn: Qpn) -> bool {
        self.table.by_local_qp(qpn).is_none()
    }

    /// How far a connection has come, or `None` if it is gone.
    pub fn state(&self, id: ConnectionId) -> Option<State> {
        self.table.get(id.0).map(|connection| connection.state)
    }

    /// The next message to be sent.
    pub fn poll_transmit(&mut self) -> Option<Datagram> {
        self.out.datagrams.pop_front()
    }

    /// The oldest thing that the application must be told.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// When to call [`handle_timeout`](Manager::handle_timeout) at the latest, if at all.
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.table.next(), self.queries.next()].into_iter().flatten().min()
    }

    /// Does what is due by `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(id) = self.table.due(now) {
            self.wake(now, id);
        }
        self.queries.handle_timeout(now, &mut self.out);
    }

    /// What has been counted.
    pub const fn statistics(&self) -> &Statistics {
        &self.out.statistics
    }

    /// What the manager holds.
    pub fn resource_counts(&self) -> ResourceCounts {
        let counts = self.table.counts();
        let (queries, query_timers, query_entries) = self.queries.counts();
        ResourceCounts {
            connections: counts.connections,
            half_open: counts.half_open,
            index_entries: counts.remote_ids
                + counts.remote_qps
                + counts.local_qps
                + counts.peers
                + counts.sources
                + query_entries,
            queries,
            timers: counts.timers + query_timers,
            listeners: counts.listeners,
            events: self.out.events.len(),
            datagrams: self.out.datagrams.len(),
        }
    }

    /// Whether a queue pair can have a connection.
    fn check(&self, offer: &Offer) -> Result<(), CallError> {
        if offer.transport == Transport::Ud {
            return Err(CallError::UnsupportedTransport(offer.transport));
        }
        if !is_connectable(offer.qpn) {
            return Err(CallError::OutOfRange("qpn"));
        }
        if !self.is_free(offer.qpn) {
            return Err(CallError::QpInUse(offer.qpn));
        }
        Ok(())
    }

    pub(super) fn repetition(&self, now: Time, mad: Mad) -> Repetition<Box<Mad>> {
        Repetition::new(Box::new(mad), now, self.config.response_timeout.duration(), self.config.max_retries)
    }

    fn wake(&mut self, now: Time, id: u32) {
        let is_in_doubt = self.table.get(id).is_some_and(|connection| self.is_in_doubt(connection));
        let Some(connection) = self.table.get_mut(id) else { return };
        if connection.deadline.is_some_and(|deadline| deadline <= now) {
            return self.give_up(now, id);
        }
        if is_in_doubt && let Some(repetition) = &mut connection.repetition {
            repetition.limit(MAX_CROWDED_RETRANSMISSIONS);
        }
        if let Some(repetition) = &mut connection.repetition
            && let Some(mad) = repetition.take(now)
        {
            self.out.statistics.retransmitted += 1;
            self.out.send(connection.ends, **mad);
        }
        self.table.settle(id);
    }

    /// The time of a wait is up.
    fn give_up(&mut self, now: Time, id: u32) {
        let Some(connection) = self.table.get(id) else { return };
        let told = ConnectionId(id);
        match connection.state {
            State::TimeWait => {
                let gone = self.table.remove(id);
                if let Some(offer) = gone.and_then(|gone| gone.offer) {
                    self.out.events.push_back(Event::TimewaitOver { id: told, qpn: offer.qpn });
                }
            }
            State::DreqSent => {
                self.out.events.push_back(Event::Disconnected(told));
                self.end(now, id, None);
            }
            State::ReqReceived => {
                let (reason, none) = (RejectReason::NoResources, AdditionalInfo::EMPTY);
                let rej = compose::rej(connection, reason, none, PrivateData::EMPTY);
                self.out.events.push_back(Event::Unreachable(told));
                self.end(now, id, Some(rej));
            }
            State::ReqSent | State::RepReceived | State::RepSent | State::Established => {
                self.out.events.push_back(Event::Unreachable(told));
                self.end_unanswered(now, id);
            }
        }
    }

    pub(super) fn established(&mut self, id: u32) {
        self.table.change(id, State::Established, None);
        self.out.events.push_back(Event::Established(ConnectionId(id)));
    }

    /// A connection is over; its numbers rest for a while. The last word is said now, and to a peer that repeats
    /// itself.
    pub(super) fn end(&mut self, now: Time, id: u32, farewell: Option<Mad>) {
        if let Some(connection) = self.enter_timewait(now, id, farewell)
            && let Some(farewell) = farewell
        {
            let ends = connection.ends;
            self.out.send(ends, farewell);
        }
    }

    /// Ends a connection whose peer didn't answer, with a REJ for it. After a REP the peer's address may be spoofed: while
    /// many connections are half open, the REJ waits for a message of the peer's.
    fn end_unanswered(&mut self, now: Time, id: u32) {
        let Some(connection) = self.table.get(id) else { return };
        let rej = compose::rej_timeout(&self.config, connection);
        if self.is_in_doubt(connection) {
            self.enter_timewait(now, id, Some(rej));
        } else {
            self.end(now, id, Some(rej));
        }
    }

    /// Whether only a REQ, whose source may be spoofed, vouches for a peer, and many such connections are half open.
    fn is_in_doubt(&self, connection: &Connection) -> bool {
        connection.state == State::RepSent
            && self.table.half_open().is_crowded(connection.ends.remote, self.config.max_half_open)
    }

    /// Moves a connection to timewait, with the answer to a peer that sends something about it.
    fn enter_timewait(&mut self, now: Time, id: u32, farewell: Option<Mad>) -> Option<&Connection> {
        let rest = if mutant!(CmNoTimewait) { core::time::Duration::ZERO } else { self.config.timewait };
        let connection = self.table.change(id, State::TimeWait, Some(now + rest))?;
        connection.farewell = farewell.map(Box::new);
        Some(connection)
    }
}

/// Whether a queue pair of this number can have a connection: not those for management, nor the one that stands for a
/// group.
pub(super) fn is_connectable(qpn: Qpn) -> bool {
    qpn.get() > 1 && qpn != Qpn::MULTICAST
}
