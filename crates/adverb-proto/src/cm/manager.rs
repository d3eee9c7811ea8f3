//! The connection manager and the calls of the application.

use std::collections::VecDeque;

use adverb_wire::cm::{AdditionalInfo, Mad, PrivateData, RejectReason};

use super::compose;
use super::connection::{Connection, QpAttributes, State};
use super::sidr::Queries;
use super::table::Table;
use super::timers::Retransmission;
use super::{
    AddrPair, CallError, Config, ConnectParams, ConnectionId, Event, ListenParams, ListenerId, LocalQp,
    RdAtomicLimits,
};
use crate::Time;
use crate::mutation::mutant;
use crate::types::{Psn, Qpn, Transport};

/// A connection manager without a clock, a socket or a queue pair. The [module documentation](super) has an example.
///
/// After each call and each message, the caller must poll, for example in this order:
///
/// 1. The caller polls [`poll_transmit`](Manager::poll_transmit) until it returns `None`, and sends each message.
/// 2. The caller polls [`poll_event`](Manager::poll_event) until it returns `None`. Calls that handle an event may
///    queue more messages and events.
/// 3. The caller polls [`poll_timeout`](Manager::poll_timeout), and calls [`handle_timeout`](Manager::handle_timeout)
///    at that time at the latest.
///
/// The caller supplies randomness as an argument, for communication IDs and packet sequence numbers. The
/// randomness must be unpredictable: an attacker that guesses these values can forge messages of a connection.
#[derive(Debug)]
pub struct Manager {
    pub(super) config: Config,
    pub(super) table: Table,
    pub(super) queries: Queries,
    pub(super) out: Outbox,
    next_listener: u32,
}

/// A message to send: the payload of an unreliable datagram from queue pair 1 to queue pair 1, with the queue key
/// [`GSI_QKEY`](adverb_wire::cm::GSI_QKEY).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// The addresses of both sides.
    pub addrs: AddrPair,
    /// The message. [`emit`](Mad::emit) encodes it.
    pub mad: Mad,
}

/// Statistics of a manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Valid messages received.
    pub received: u64,
    /// Received datagrams that are not valid messages, or whose addresses are of different families.
    pub malformed: u64,
    /// Received messages that are duplicates.
    pub duplicates: u64,
    /// Received messages, except REQs, MRAs and SIDR queries, that match no connection or query, or are invalid for the
    /// one that they match.
    pub unmatched: u64,
    /// Probes of established connections. A probe is sent because a message named the peer's queue pair for another
    /// connection.
    pub probes: u64,
    /// Received requests that were dropped because a backlog or a [limit](Config) was reached.
    pub dropped_requests: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages retransmitted because no response arrived.
    pub retransmitted: u64,
    /// Messages to send that were dropped because 4096 others were queued for
    /// [`poll_transmit`](Manager::poll_transmit).
    pub dropped_sends: u64,
}

/// The numbers of objects that a manager holds, for finding leaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ResourceCounts {
    /// Connections, including those in timewait.
    pub connections: usize,
    /// Connections that a peer requested and that are not established.
    pub half_open: usize,
    /// Entries of all indexes over connections, sources and queries.
    pub index_entries: usize,
    /// SIDR queries that this side or peers sent.
    pub queries: usize,
    /// Timers.
    pub timers: usize,
    /// Listeners.
    pub listeners: usize,
    /// Events not polled yet.
    pub events: usize,
    /// Messages not polled yet.
    pub datagrams: usize,
}

/// Messages and events not polled yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    datagrams: VecDeque<Datagram>,
    pub(super) events: VecDeque<Event>,
    pub(super) statistics: Statistics,
}

/// The maximum number of times that a REP is retransmitted while many connections are half open. One retransmission
/// recovers from a lost RTU, because the peer then retransmits the RTU.
const MAX_CROWDED_RETRANSMISSIONS: u8 = 1;

/// The maximum number of messages that wait for transmission. Further messages are dropped, as if the network lost
/// them.
const MAX_DATAGRAMS: usize = 4096;

impl Outbox {
    pub(super) fn send(&mut self, addrs: AddrPair, mad: Mad) {
        if self.datagrams.len() >= MAX_DATAGRAMS {
            self.statistics.dropped_sends += 1;
            return;
        }
        self.statistics.sent += 1;
        self.datagrams.push_back(Datagram { addrs, mad });
    }
}

impl Manager {
    /// Creates a manager without connections and listeners.
    pub fn new(config: Config) -> Manager {
        Manager {
            config,
            table: Table::default(),
            queries: Queries::default(),
            out: Outbox::default(),
            next_listener: 1,
        }
    }

    /// Returns the configuration.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Listens for connection requests or SIDR queries.
    ///
    /// If several listeners match a request, a listener bound to one address takes precedence over a listener bound to
    /// any IPv4 address, which takes precedence over a listener bound to any address.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::ServiceInUse`] if another listener has the same service and the same bind address.
    pub fn listen(&mut self, listen: ListenParams) -> Result<ListenerId, CallError> {
        let id = self.next_listener;
        if !self.table.listen(id, listen) {
            return Err(CallError::ServiceInUse(listen.service));
        }
        self.next_listener += 1;
        Ok(ListenerId(id))
    }

    /// Stops listening. Connection requests whose events were not polled yet are rejected, and such SIDR queries get no
    /// response. Requests and queries whose events were polled are not affected.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Unknown`] if the listener does not exist.
    pub fn close_listener(&mut self, now: Time, listener: ListenerId) -> Result<(), CallError> {
        let mut unpolled = Vec::new();
        self.out.events.retain(|event| match event {
            Event::Request(request) if request.listener == listener => {
                unpolled.push(request.id);
                false
            }
            Event::Query(query) if query.listener == listener => false,
            _ => true,
        });
        for id in unpolled {
            let _ = self.reject(now, id, RejectReason::InvalidServiceId, &[]);
        }
        if self.table.close(listener.0) { Ok(()) } else { Err(CallError::Unknown) }
    }

    /// Sends a connection request to a peer. The manager reports one [outcome](Event) by the deadline.
    ///
    /// The queue pair should be in the init state. The application moves it to ready-to-receive and ready-to-send when
    /// the peer has [accepted](Event::Accepted).
    ///
    /// # Errors
    ///
    /// Returns:
    ///
    /// - [`CallError::QpInUse`] if the queue pair has a connection, or is in timewait.
    /// - [`CallError::UnsupportedTransport`] if the transport is UD.
    /// - [`CallError::AddressFamilyMismatch`] if one address is IPv4 and the other IPv6.
    /// - [`CallError::OutOfRange`] if the queue pair number, the path MTU or a retry count is out of range.
    /// - [`CallError::PrivateDataTooLong`] if the private data is too long.
    /// - [`CallError::ServiceInUse`] if a peer-to-peer request to the same address and service is pending.
    /// - [`CallError::TooMany`] if there are [`Config::max_connections`] connections.
    pub fn connect(
        &mut self,
        now: Time,
        connect: &ConnectParams<'_>,
        random: &mut impl FnMut() -> u32,
    ) -> Result<ConnectionId, CallError> {
        let local_qp = &connect.local_qp;
        self.check(local_qp)?;
        if !connect.addrs.is_one_family() {
            return Err(CallError::AddressFamilyMismatch);
        }
        if connect.path_mtu > self.config.path_mtu {
            return Err(CallError::OutOfRange("path_mtu"));
        }
        if self.table.len() >= self.config.max_connections {
            return Err(CallError::TooMany);
        }
        if connect.peer_to_peer && self.table.by_peer(connect.addrs.remote, connect.service).is_some() {
            return Err(CallError::ServiceInUse(connect.service));
        }
        let local_id = self.table.unused_id(random);
        let mut connection = Connection {
            state: State::ReqSent,
            active: true,
            peer_to_peer: connect.peer_to_peer,
            listener: None,
            local_id,
            remote_id: None,
            addrs: connect.addrs,
            transaction_id: compose::transaction_id(&self.config, local_id),
            service: connect.service,
            remote_guid: 0,
            remote_qpn: None,
            local_qp: Some(*local_qp),
            receive_psn: Psn::wrapping(random()),
            send_psn: Psn::wrapping(0),
            transport: local_qp.transport,
            path_mtu: connect.path_mtu,
            pkey: self.config.pkey,
            remote_limits: RdAtomicLimits { max_dest_rd_atomic: 0, max_rd_atomic: 0 },
            ack_timeout: local_qp.ack_timeout,
            retry_count: local_qp.retry_count,
            rnr_retry: local_qp.rnr_retry,
            retransmission: None,
            deadline: Some(connect.deadline),
            timewait_response: None,
            last_probe: None,
            timer: None,
        };
        let req = compose::req(&self.config, &connection, connect)?;
        connection.retransmission = Some(self.retransmission(now, req));
        self.table.insert(connection);
        self.out.send(connect.addrs, req);
        Ok(ConnectionId(local_id))
    }

    /// Returns the attributes for the local queue pair of a connection. They are available after [`Event::Request`] or
    /// [`Event::Accepted`]. `local_qp` must be the value that the application passed to `connect`, or will pass to
    /// `accept`.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Unknown`] if the connection does not exist, and [`CallError::WrongState`] if the peer's
    /// queue pair is not known yet.
    pub fn qp_attributes(&self, id: ConnectionId, local_qp: &LocalQp) -> Result<QpAttributes, CallError> {
        let connection = self.table.get(id.0).ok_or(CallError::Unknown)?;
        connection.qp_attributes(local_qp).ok_or(CallError::WrongState(connection.state))
    }

    /// Accepts a peer's request. The queue pair must be ready to receive, because the peer may send as soon as it
    /// receives the REP. The manager reports one [outcome](Event) by the deadline.
    ///
    /// # Errors
    ///
    /// After an error other than the first two, the request is still pending. Returns:
    ///
    /// - [`CallError::Unknown`] if the request does not exist, or its timewait is over.
    /// - [`CallError::WrongState`] if the request was accepted or rejected already, or has ended, or if the connection
    ///   is peer-to-peer.
    /// - [`CallError::UnsupportedTransport`] if the request is for another transport.
    /// - [`CallError::QpInUse`] if the queue pair has a connection, or is in timewait.
    /// - [`CallError::OutOfRange`] if the queue pair number or the RNR retry count is out of range.
    /// - [`CallError::PrivateDataTooLong`] if the private data is longer than 196 bytes.
    pub fn accept(
        &mut self,
        now: Time,
        id: ConnectionId,
        local_qp: &LocalQp,
        private_data: &[u8],
        deadline: Time,
    ) -> Result<(), CallError> {
        let connection = self.table.get(id.0).ok_or(CallError::Unknown)?;
        if connection.state != State::ReqReceived || connection.peer_to_peer {
            return Err(CallError::WrongState(connection.state));
        }
        if local_qp.transport != connection.transport {
            return Err(CallError::UnsupportedTransport(local_qp.transport));
        }
        self.check(local_qp)?;
        let rep = compose::rep(&self.config, connection, local_qp, private_data)?;
        self.send_rep(now, id.0, local_qp, rep, deadline);
        Ok(())
    }

    fn send_rep(&mut self, now: Time, id: u32, local_qp: &LocalQp, rep: Mad, deadline: Time) {
        let retransmission = self.retransmission(now, rep);
        if let Some(connection) = self.table.change_state(id, State::RepSent, Some(deadline)) {
            connection.local_qp = Some(*local_qp);
            connection.retransmission = Some(retransmission);
            self.out.send(connection.addrs, rep);
        }
        self.table.add_to_indexes(id);
        self.table.update_timer(id);
    }

    /// Completes a connection that the peer has [accepted](Event::Accepted). The queue pair must be ready to send. The
    /// connection is then [established](Event::Established). In a peer-to-peer connection, the passive side's
    /// connection is established only when the peer's RTU arrives.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Unknown`] if the connection does not exist, and [`CallError::WrongState`] if the peer has
    /// not accepted it, or if it was established already or has ended.
    pub fn establish(&mut self, now: Time, id: ConnectionId) -> Result<(), CallError> {
        let connection = self.table.get(id.0).ok_or(CallError::Unknown)?;
        match (connection.state, connection.local_qp) {
            (State::RepReceived, _) => {
                self.out.send(connection.addrs, compose::rtu(connection));
                self.set_established(id.0);
            }
            (State::ReqReceived, Some(local_qp)) => {
                let rep = compose::rep(&self.config, connection, &local_qp, &[])?;
                let deadline = connection.deadline.unwrap_or(now);
                self.send_rep(now, id.0, &local_qp, rep, deadline);
            }
            (state, _) => return Err(CallError::WrongState(state)),
        }
        Ok(())
    }

    /// Rejects a connection that a peer requested or accepted. The manager then reports no outcome of the connection.
    ///
    /// An application that rejects a connection for a reason of its own should pass [`RejectReason::ConsumerReject`].
    /// The private data may contain an explanation.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Unknown`] if the connection does not exist, [`CallError::WrongState`] if there is no
    /// request or acceptance to reject, and [`CallError::PrivateDataTooLong`] if the private data is longer than 148
    /// bytes.
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

    /// Disconnects an established connection. The manager reports [`Event::Disconnected`] when the peer confirms, or at
    /// the deadline. The application should move the queue pair to the error state first.
    ///
    /// If the manager is already disconnecting the connection, this call can only move the deadline to an earlier time.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Unknown`] if the connection does not exist, and [`CallError::WrongState`] if it is not
    /// established. If the connection was established before, `Event::Disconnected` was already reported.
    pub fn disconnect(&mut self, now: Time, id: ConnectionId, deadline: Time) -> Result<(), CallError> {
        if let Some(connection) = self.table.get_mut(id.0).filter(|known| known.state == State::DreqSent) {
            connection.deadline = Some(connection.deadline.map_or(deadline, |at| at.min(deadline)));
            self.table.update_timer(id.0);
            return Ok(());
        }
        let connection = self.table.get(id.0).ok_or(CallError::Unknown)?;
        let (State::Established, Some(remote_qpn)) = (connection.state, connection.remote_qpn) else {
            return Err(CallError::WrongState(connection.state));
        };
        let dreq = compose::dreq(&self.config, connection, remote_qpn);
        let retransmission = self.retransmission(now, dreq);
        if let Some(connection) = self.table.change_state(id.0, State::DreqSent, Some(deadline)) {
            connection.retransmission = Some(retransmission);
            self.out.send(connection.addrs, dreq);
        }
        self.table.update_timer(id.0);
        Ok(())
    }

    /// Ends a connection in any state and notifies the peer, for an application that drops its handle. The manager then
    /// reports no outcome, with one exception: an established connection is [disconnected](Manager::disconnect) by the
    /// deadline, and the manager reports [`Event::Disconnected`], as for a connection that it is already disconnecting.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Unknown`] if the connection does not exist.
    pub fn abort(&mut self, now: Time, id: ConnectionId, deadline: Time) -> Result<(), CallError> {
        let connection = self.table.get(id.0).ok_or(CallError::Unknown)?;
        match connection.state {
            State::ReqReceived | State::RepReceived => {
                return self.reject(now, id, RejectReason::ConsumerReject, &[]);
            }
            State::Established => return self.disconnect(now, id, deadline),
            State::DreqSent | State::TimeWait => {}
            State::ReqSent | State::RepSent => self.end_at_deadline(now, id.0),
        }
        Ok(())
    }

    /// Reports that a queue pair received its first packet. The peer therefore considers the connection established,
    /// even if its RTU was lost (vol. 1, 12.9.6; `cm_establish` in `cm.c`).
    pub fn communication_established(&mut self, qpn: Qpn) {
        if let Some(id) = self.table.by_local_qp(qpn)
            && self.table.get(id).is_some_and(|connection| connection.state == State::RepSent)
        {
            self.set_established(id);
        }
    }

    /// Whether a queue pair number may be used for a new connection: no connection in any state, including timewait,
    /// uses the number.
    pub fn is_qpn_free(&self, qpn: Qpn) -> bool {
        self.table.by_local_qp(qpn).is_none()
    }

    /// Returns the state of a connection, or `None` if it does not exist.
    pub fn state(&self, id: ConnectionId) -> Option<State> {
        self.table.get(id.0).map(|connection| connection.state)
    }

    /// Removes and returns the next message to send, or returns `None` if there is none.
    pub fn poll_transmit(&mut self) -> Option<Datagram> {
        self.out.datagrams.pop_front()
    }

    /// Removes and returns the oldest event, or returns `None` if there is none.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// Returns the time at which to call [`handle_timeout`](Manager::handle_timeout) at the latest, or `None` if no
    /// timer is set.
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.table.next(), self.queries.next()].into_iter().flatten().min()
    }

    /// Handles the timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(id) = self.table.due(now) {
            self.handle_timer(now, id);
        }
        self.queries.handle_timeout(now, &mut self.out);
    }

    /// Returns the statistics.
    pub const fn statistics(&self) -> &Statistics {
        &self.out.statistics
    }

    /// Returns the numbers of objects that the manager holds.
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

    /// Checks that a queue pair can get a connection.
    fn check(&self, local_qp: &LocalQp) -> Result<(), CallError> {
        if local_qp.transport == Transport::Ud {
            return Err(CallError::UnsupportedTransport(local_qp.transport));
        }
        if !is_connectable(local_qp.qpn) {
            return Err(CallError::OutOfRange("qpn"));
        }
        if !self.is_qpn_free(local_qp.qpn) {
            return Err(CallError::QpInUse(local_qp.qpn));
        }
        Ok(())
    }

    pub(super) fn retransmission(&self, now: Time, mad: Mad) -> Retransmission<Box<Mad>> {
        Retransmission::new(
            Box::new(mad),
            now,
            self.config.response_timeout.duration(),
            self.config.max_retries,
        )
    }

    fn handle_timer(&mut self, now: Time, id: u32) {
        let may_be_spoofed = self.table.get(id).is_some_and(|connection| self.may_be_spoofed(connection));
        let Some(connection) = self.table.get_mut(id) else { return };
        if connection.deadline.is_some_and(|deadline| deadline <= now) {
            return self.handle_deadline(now, id);
        }
        if may_be_spoofed && let Some(retransmission) = &mut connection.retransmission {
            retransmission.limit(MAX_CROWDED_RETRANSMISSIONS);
        }
        if let Some(retransmission) = &mut connection.retransmission
            && let Some(mad) = retransmission.poll(now)
        {
            self.out.statistics.retransmitted += 1;
            self.out.send(connection.addrs, **mad);
        }
        self.table.update_timer(id);
    }

    /// Handles a deadline that has passed.
    fn handle_deadline(&mut self, now: Time, id: u32) {
        let Some(connection) = self.table.get(id) else { return };
        let connection_id = ConnectionId(id);
        match connection.state {
            State::TimeWait => {
                let removed = self.table.remove(id);
                if let Some(local_qp) = removed.and_then(|removed| removed.local_qp) {
                    self.out.events.push_back(Event::TimewaitExit { id: connection_id, qpn: local_qp.qpn });
                }
            }
            State::DreqSent => {
                self.out.events.push_back(Event::Disconnected(connection_id));
                self.end(now, id, None);
            }
            State::ReqReceived => {
                let (reason, none) = (RejectReason::NoResources, AdditionalInfo::EMPTY);
                let rej = compose::rej(connection, reason, none, PrivateData::EMPTY);
                self.out.events.push_back(Event::Unreachable(connection_id));
                self.end(now, id, Some(rej));
            }
            State::ReqSent | State::RepReceived | State::RepSent | State::Established => {
                self.out.events.push_back(Event::Unreachable(connection_id));
                self.end_at_deadline(now, id);
            }
        }
    }

    pub(super) fn set_established(&mut self, id: u32) {
        self.table.change_state(id, State::Established, None);
        self.out.events.push_back(Event::Established(ConnectionId(id)));
    }

    /// Moves a connection to timewait and sends `timewait_response`, which is also the response to further REQs, REPs
    /// and RTUs from the peer.
    pub(super) fn end(&mut self, now: Time, id: u32, timewait_response: Option<Mad>) {
        if let Some(connection) = self.enter_timewait(now, id, timewait_response)
            && let Some(timewait_response) = timewait_response
        {
            let addrs = connection.addrs;
            self.out.send(addrs, timewait_response);
        }
    }

    /// Ends a connection that was not established by its deadline, or that the application aborts, with a REJ. The
    /// address of a peer that has sent only a REQ may be spoofed: while many connections are half open, the REJ is sent
    /// only if the peer sends another message.
    fn end_at_deadline(&mut self, now: Time, id: u32) {
        let Some(connection) = self.table.get(id) else { return };
        let rej = compose::rej_timeout(&self.config, connection);
        if self.may_be_spoofed(connection) {
            self.enter_timewait(now, id, Some(rej));
        } else {
            self.end(now, id, Some(rej));
        }
    }

    /// Whether the peer is known only by a REQ, whose source may be spoofed, while many connections are half open.
    fn may_be_spoofed(&self, connection: &Connection) -> bool {
        connection.state == State::RepSent
            && self.table.half_open().is_crowded(connection.addrs.remote, self.config.max_half_open)
    }

    /// Moves a connection to timewait. `timewait_response` is the response to further REQs, REPs and RTUs of the peer.
    fn enter_timewait(&mut self, now: Time, id: u32, timewait_response: Option<Mad>) -> Option<&Connection> {
        let timewait = if mutant!(CmNoTimewait) { core::time::Duration::ZERO } else { self.config.timewait };
        let connection = self.table.change_state(id, State::TimeWait, Some(now + timewait))?;
        connection.timewait_response = timewait_response.map(Box::new);
        Some(connection)
    }
}

/// Whether a queue pair with this number can have a connection: management queue pairs and the multicast number can't.
pub(super) fn is_connectable(qpn: Qpn) -> bool {
    qpn.get() > 1 && qpn != Qpn::MULTICAST
}
