//! Hostile peers of a connection manager, whose owner connects, accepts, rejects and abandons connections.
//!
//! An attack fails if the manager sends more than one reply, a reply to another peer or a reply to a reply; if it
//! reports an impossible, late or duplicate event to its owner; if its tables exceed their bounds; or if state remains
//! at the end.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use adverb_proto::Time;
use adverb_proto::cm::{
    AddrPair, BindAddr, Config, ConnectParams, ConnectionId, Event, ListenParams, ListenerId, LocalQp,
    Manager, QueryId, ResolveParams, ResourceCounts,
};
use adverb_proto::types::{Qpn, RejectReason, Transport};
use adverb_wire::cm::{Dreq, Mad, Message, SidrStatus, Timeout};

use super::generator::{CM_ATTACK_TCP_SERVICE_ID, CM_ATTACK_UDP_SERVICE_ID, CmMessageGenerator};
use crate::Random;
use crate::hostile::decisions::DecisionSource;

/// The statistics of an attack on a connection manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CmAttackReport {
    /// The number of messages that the attackers sent.
    pub attacker_message_count: u64,
    /// The number of messages that the manager sent.
    pub manager_message_count: u64,
    /// The number of events that the manager reported to its owner.
    pub event_count: u64,
    /// The number of connections that were established.
    pub established_connection_count: u64,
}

/// Attacks a connection manager with `message_count` messages. The seed determines the messages.
///
/// ```
/// let report = adverb_sim::attack_cm(7, 2000).unwrap();
/// assert_eq!(report.attacker_message_count, 2000);
/// ```
///
/// # Errors
///
/// Returns a description of the violation if the manager sends an invalid reply, reports an invalid or late event,
/// exceeds a limit of its tables, or keeps state after all connections have ended.
pub fn attack_cm(seed: u64, message_count: u64) -> Result<CmAttackReport, String> {
    Attack::new(DecisionSource::Random(Random::new(seed ^ 0x636d_6174_7461_636b))).run(message_count)
}

/// Attacks a connection manager with messages that `bytes` determine, for fuzzers.
///
/// # Errors
///
/// Returns a description of the violation if the manager sends an invalid reply, reports an invalid or late event,
/// exceeds a limit of its tables, or keeps state after all connections have ended.
pub fn attack_cm_from_bytes(bytes: &[u8]) -> Result<CmAttackReport, String> {
    Attack::new(DecisionSource::Bytes(bytes)).run(u64::MAX)
}

struct Attack<'a> {
    decisions: DecisionSource<'a>,
    manager: Manager,
    now: Time,
    random: Random,
    listeners: Vec<ListenerId>,
    connections: BTreeMap<ConnectionId, Status>,
    queries: Vec<QueryId>,
    /// The generator of messages, some of which reply to the manager's recent messages.
    generator: CmMessageGenerator,
    report: CmAttackReport,
}

/// The state of a connection from its owner's view. States that wait have a deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Connecting(Time),
    /// The peer accepted, and the owner hasn't established the connection.
    Replied(Time),
    Establishing(Time),
    Requested(Time),
    Accepted(Time),
    Established,
    /// The owner disconnected.
    Disconnecting(Time),
    Ended,
}

const MAX_HALF_OPEN: usize = 16;
const MAX_CONNECTIONS: usize = 48;
const TIMEOUT: Duration = Duration::from_secs(1);

fn manager_addr() -> IpAddr {
    [10, 0, 0, 1].into()
}

/// Returns the address pairs of connections with the attackers and with the manager itself.
fn candidates() -> [AddrPair; 3] {
    [1, 2, 3].map(|last| AddrPair { local: manager_addr(), remote: [10, 0, 0, last].into() })
}

impl<'a> Attack<'a> {
    fn new(decisions: DecisionSource<'a>) -> Attack<'a> {
        let mut config = Config::new(0x0011_2233_4455_6677);
        config.response_timeout = Timeout::new(12).unwrap_or(Timeout::ZERO);
        config.timewait = Duration::from_millis(100);
        config.request_timeout = TIMEOUT;
        config.max_connections = MAX_CONNECTIONS;
        config.max_half_open = MAX_HALF_OPEN;
        let mut manager = Manager::new(config);
        let listen =
            |service, transport| ListenParams { service, bind: BindAddr::Any, transport, backlog: 12 };
        let listeners = [
            listen(CM_ATTACK_TCP_SERVICE_ID, Transport::Rc),
            listen(CM_ATTACK_UDP_SERVICE_ID, Transport::Ud),
        ];
        let listeners = listeners.into_iter().flat_map(|listen| manager.listen(listen)).collect();
        Attack {
            decisions,
            manager,
            now: Time::ZERO + Duration::from_secs(1),
            random: Random::new(1),
            listeners,
            connections: BTreeMap::new(),
            queries: Vec::new(),
            generator: CmMessageGenerator::default(),
            report: CmAttackReport::default(),
        }
    }

    fn run(mut self, messages: u64) -> Result<CmAttackReport, String> {
        while self.report.attacker_message_count < messages && self.decisions.has_more() {
            match self.decisions.below(8) {
                0 | 1 => self.act_as_owner()?,
                2 => self.advance_time()?,
                _ => self.send_hostile_message()?,
            }
            self.check_output(None)?;
            self.check()?;
        }
        self.finish()?;
        Ok(self.report)
    }

    /// Executes an action of the owner.
    fn act_as_owner(&mut self) -> Result<(), String> {
        let (now, deadline) = (self.now, self.now + self.random_duration());
        let chosen = self.decisions.below(self.connections.len().max(1) as u64) as usize;
        let (id, status) = match self.connections.iter().nth(chosen) {
            Some((id, status)) => (Some(*id), *status),
            None => (None, Status::Ended),
        };
        let local_qp = LocalQp::new(Qpn::truncate(2 + self.decisions.below(60) as u32));
        match (self.decisions.below(16), id) {
            (0, _) => {
                let mut connect =
                    ConnectParams::new(self.random_addrs(), CM_ATTACK_TCP_SERVICE_ID, local_qp, deadline);
                connect.peer_to_peer = self.decisions.one_in(4);
                let random = &mut self.random;
                if let Ok(id) = self.manager.connect(now, &connect, &mut || random.u32()) {
                    self.connections.insert(id, Status::Connecting(deadline));
                }
            }
            (1, _) => {
                let (addrs, service) = (self.random_addrs(), CM_ATTACK_UDP_SERVICE_ID);
                let resolve = ResolveParams { addrs, service, source_port: 1, private_data: b"?", deadline };
                let random = &mut self.random;
                let _ = self.manager.resolve_service(now, &resolve, &mut || random.u32());
            }
            (2, _) => {
                if let Some(id) = self.queries.pop() {
                    let _ = if self.decisions.one_in(2) {
                        self.manager.accept_query(now, id, local_qp.qpn, 1, b"!")
                    } else {
                        self.manager.reject_query(now, id, SidrStatus::Rejected, &[])
                    };
                }
            }
            (3, _) => {
                self.manager.communication_established(local_qp.qpn);
            }
            (4, _) if self.decisions.one_in(16) && !self.listeners.is_empty() => {
                let listener = self.listeners.remove(0);
                let _ = self.manager.close_listener(now, listener);
            }
            (5, Some(id)) => {
                let next = if self.manager.reject(now, id, RejectReason::ConsumerReject, &[]).is_ok() {
                    Status::Ended
                } else if self.manager.disconnect(now, id, deadline).is_ok() {
                    Status::Disconnecting(deadline)
                } else {
                    return Ok(());
                };
                self.connections.insert(id, next);
            }
            (6, Some(id)) => {
                let next = match (self.manager.abort(now, id, deadline), status) {
                    (Ok(()), Status::Established) => Status::Disconnecting(deadline),
                    (Ok(()), Status::Disconnecting(_)) | (Err(_), _) => status,
                    (Ok(()), _) => Status::Ended,
                };
                self.connections.insert(id, next);
            }
            (_, Some(id)) => match status {
                Status::Requested(_) => {
                    let accepted = self.manager.accept(now, id, &local_qp, b"welcome", deadline);
                    self.connections.insert(id, accepted.map_or(status, |()| Status::Accepted(deadline)));
                }
                Status::Replied(until) => {
                    self.manager
                        .qp_attributes(id, &local_qp)
                        .map_err(|error| format!("the peer accepted, but {error}"))?;
                    self.manager
                        .establish(now, id)
                        .map_err(|error| format!("the peer accepted, but {error}"))?;
                    self.connections.insert(id, Status::Establishing(until));
                }
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }

    fn random_duration(&mut self) -> Duration {
        let seconds = Duration::from_secs(self.decisions.below(30));
        self.decisions.pick(&[Duration::ZERO, Duration::from_millis(5), Duration::from_millis(101), seconds])
    }

    fn random_addrs(&mut self) -> AddrPair {
        self.decisions.pick(&candidates())
    }

    fn advance_time(&mut self) -> Result<(), String> {
        // Most steps are short, so that connections make progress.
        let long = self.decisions.one_in(8);
        self.now = self.now + if long { self.random_duration() } else { Duration::from_millis(2) };
        self.manager.handle_timeout(self.now);
        if self.manager.poll_timeout().is_some_and(|next| next <= self.now) {
            return Err("a timer is overdue".to_owned());
        }
        self.check_output(None)?;
        for (id, status) in &self.connections {
            let (Status::Connecting(until)
            | Status::Replied(until)
            | Status::Establishing(until)
            | Status::Requested(until)
            | Status::Accepted(until)
            | Status::Disconnecting(until)) = *status
            else {
                continue;
            };
            if until <= self.now {
                return Err(format!("{id} is still {status:?} at {}", self.now));
            }
        }
        Ok(())
    }

    /// Sends a message of an attacker.
    fn send_hostile_message(&mut self) -> Result<(), String> {
        self.report.attacker_message_count += 1;
        let (mut addrs, mad) = self.generator.next_message(&mut self.decisions, &candidates());
        let mut bytes = mad.emit().to_vec();
        if self.decisions.one_in(6) {
            for _ in 0..=self.decisions.below(4) {
                let index = self.decisions.below(256) as usize;
                bytes[index] = self.decisions.bits(8) as u8;
            }
        }
        if self.decisions.one_in(40) {
            bytes.truncate(self.decisions.below(256) as usize);
        }
        if self.decisions.one_in(100) {
            addrs.remote = "fd77::1".parse().unwrap_or(addrs.remote);
        }
        self.check_output(None)?;
        let random = &mut self.random;
        self.manager.handle(self.now, addrs, &bytes, &mut || random.u32());
        self.check_output(Some((addrs, &bytes)))
    }

    /// Checks the manager's messages and events.
    fn check_output(&mut self, hostile_message: Option<(AddrPair, &[u8])>) -> Result<(), String> {
        let mut messages = 0;
        while let Some(datagram) = self.manager.poll_transmit() {
            self.report.manager_message_count += 1;
            messages += 1;
            if let Some((addrs, bytes)) = hostile_message {
                let message = Mad::parse(bytes).map(|mad| mad.message);
                let is_allowed = match message {
                    // If the message shows that an established connection may be stale, the manager also probes that
                    // connection.
                    Ok(Message::Req(_) | Message::Rep(_)) if messages == 2 => {
                        matches!(datagram.mad.message, Message::Dreq(Dreq { remote_qpn, .. }) if remote_qpn.get() == 0)
                    }
                    Ok(
                        Message::Req(_)
                        | Message::Rep(_)
                        | Message::Rtu(_)
                        | Message::Dreq(_)
                        | Message::SidrReq(_),
                    ) => messages == 1 && datagram.addrs == addrs,
                    Ok(_) | Err(_) => false,
                };
                if !is_allowed || datagram.addrs.remote != addrs.remote {
                    return Err(format!("invalid reply to {message:?}: {datagram:?}"));
                }
            }
            self.generator.record_manager_message(datagram.addrs, datagram.mad);
        }
        while let Some(event) = self.manager.poll_event() {
            self.report.event_count += 1;
            if let (Event::Disconnected(id), Some((_, bytes))) = (&event, hostile_message)
                && self.connections.get(id) == Some(&Status::Established)
            {
                let message = Mad::parse(bytes).map(|mad| mad.message);
                let named = match message {
                    Ok(Message::Rej(rej)) => rej.remote_comm_id,
                    Ok(Message::Dreq(dreq)) => dreq.remote_comm_id,
                    Ok(Message::Drep(drep)) => drep.remote_comm_id,
                    _ => 0,
                };
                if format!("{named:#010x}") != id.to_string() {
                    return Err(format!("{message:?} ended {id} without its communication ID"));
                }
            }
            self.check_event(&event)?;
        }
        Ok(())
    }

    fn check_event(&mut self, event: &Event) -> Result<(), String> {
        let (id, next) = match event {
            Event::Request(request) => (request.id, Status::Requested(self.now + TIMEOUT)),
            Event::Accepted(acceptance) => match self.connections.get(&acceptance.id) {
                Some(Status::Connecting(until)) => (acceptance.id, Status::Replied(*until)),
                other => return Err(format!("unexpected {event:?} in {other:?}")),
            },
            Event::Established(id) => {
                self.report.established_connection_count += 1;
                (*id, Status::Established)
            }
            Event::Rejected(rejection) => (rejection.id, Status::Ended),
            Event::Unreachable(id) | Event::Disconnected(id) => (*id, Status::Ended),
            Event::TimewaitExit { id, .. } => (*id, Status::Ended),
            Event::Query(query) => {
                self.queries.push(query.id);
                return Ok(());
            }
            _ => return Ok(()),
        };
        let before = self.connections.insert(id, next);
        let is_allowed = match (event, before) {
            (Event::Request(_), None) | (Event::Accepted(_), _) => true,
            (Event::Established(_), Some(Status::Establishing(_) | Status::Accepted(_))) => true,
            (
                Event::Rejected(_) | Event::Unreachable(_),
                Some(
                    Status::Connecting(_)
                    | Status::Replied(_)
                    | Status::Requested(_)
                    | Status::Accepted(_)
                    | Status::Establishing(_),
                ),
            ) => true,
            (
                Event::Disconnected(_),
                Some(
                    Status::Replied(_)
                    | Status::Establishing(_)
                    | Status::Accepted(_)
                    | Status::Established
                    | Status::Disconnecting(_),
                ),
            ) => true,
            (Event::TimewaitExit { .. }, Some(Status::Ended)) => {
                self.connections.remove(&id);
                true
            }
            _ => false,
        };
        if is_allowed { Ok(()) } else { Err(format!("unexpected {event:?} in {before:?}")) }
    }

    fn check(&mut self) -> Result<(), String> {
        // Connections that have ended and are not in time-wait are removed.
        let manager = &self.manager;
        self.connections.retain(|id, status| *status != Status::Ended || manager.state(*id).is_some());
        for (id, status) in &self.connections {
            if *status == Status::Established && manager.state(*id) == Some(adverb_proto::cm::State::DreqSent)
            {
                return Err(format!("{id} is being disconnected without a request of its owner"));
            }
        }
        let ResourceCounts { connections, half_open, index_entries, queries, timers, .. } =
            manager.resource_counts();
        // The limit of half-open connections applies to peers' queries, and the limit of connections to the manager's
        // own.
        let max_queries = MAX_CONNECTIONS + MAX_HALF_OPEN;
        if connections > MAX_CONNECTIONS
            || half_open > MAX_HALF_OPEN
            || queries > max_queries
            || index_entries > 4 * MAX_CONNECTIONS + 2 * max_queries
            || timers > connections + queries
        {
            return Err(format!("the manager exceeds its bounds: {:?}", manager.resource_counts()));
        }
        Ok(())
    }

    /// Ends the attack: the owner releases all connections.
    fn finish(&mut self) -> Result<(), String> {
        let open: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in open {
            let deadline = self.now + TIMEOUT;
            if self.manager.abort(self.now, id, deadline).is_ok() {
                self.connections.insert(id, Status::Disconnecting(deadline + TIMEOUT * 30));
            }
        }
        for _ in 0..200 {
            // The messages and events of abandoned connections are not checked.
            self.manager.handle_timeout(self.now);
            while self.manager.poll_transmit().is_some() || self.manager.poll_event().is_some() {}
            self.now = self.now + TIMEOUT;
        }
        let ResourceCounts {
            connections, half_open, index_entries, queries, timers, events, datagrams, ..
        } = self.manager.resource_counts();
        if [connections, half_open, index_entries, queries, timers, events, datagrams] != [0; 7] {
            return Err(format!("resources remain at the end: {:?}", self.manager.resource_counts()));
        }
        Ok(())
    }
}
