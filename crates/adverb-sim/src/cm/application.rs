//! The application of a connection manager. It reacts to events immediately, later or never.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use adverb_proto::Time;
use adverb_proto::cm::{
    AddrPair, ConnectParams, ConnectionId, Event, LocalQp, QpAttributes, QueryId, ResolveParams, State,
    UDP_QKEY,
};
use adverb_proto::types::{Qpn, RejectReason};
use adverb_wire::cm::{ServiceId, SidrStatus};

use super::packet::Content;
use super::register::{Outcome, Role};
use super::{CallContext, Ping};

/// A planned task of an application.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Task {
    /// Connects to a node's listener.
    Connect { to: usize, timeout: Duration },
    /// Connects to a node that connects at the same time (peer to peer).
    ConnectPeerToPeer { to: usize, timeout: Duration, token: u64 },
    /// Requests a node's datagram queue pair.
    Resolve { to: usize, timeout: Duration },
    /// Decides on a connection request or an acceptance.
    Decide { id: ConnectionId, decision: Decision },
    /// Sends a ping, or detects that the last pings got no response.
    SendPing { id: ConnectionId },
    /// Disconnects or abandons a connection.
    End { id: ConnectionId, abandon: bool },
    /// Responds to a service ID resolution request.
    Respond { id: QueryId, yes: bool, token: u64 },
}

/// The decision on a connection request or an acceptance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Decision {
    Accept { timeout: Duration },
    Establish,
    Reject,
    Abandon,
}

/// The connections and service ID resolution requests of a node.
#[derive(Default)]
pub(super) struct Application {
    connections: BTreeMap<ConnectionId, OwnConnection>,
    queries: BTreeMap<QueryId, u64>,
    /// The queue pairs in time-wait, with the end times of their connections.
    timewait_qpns: BTreeMap<u32, Time>,
    used_qpns: BTreeSet<u32>,
}

/// A connection from the application's view.
struct OwnConnection {
    token: u64,
    role: Role,
    local_qp: Option<LocalQp>,
    /// The attributes for the queue pair's transitions to RTR and RTS, once the queue pair is ready to receive.
    ready: Option<QpAttributes>,
    established: bool,
    /// Whether the application disconnected or abandoned the connection after it was established.
    dropped: bool,
    unanswered_pings: u32,
}

/// The number of pings without a response after which the queue pair fails.
const MAX_UNANSWERED_PINGS: u32 = 8;

impl Application {
    /// Whether the application has no connections or requests.
    pub(super) fn is_idle(&self) -> bool {
        self.connections.values().all(|own| own.dropped && !own.established) && self.queries.is_empty()
    }

    pub(super) fn run(&mut self, cx: &mut CallContext<'_>, task: Task) {
        match task {
            Task::Connect { to, timeout } => {
                let token = cx.random.u64() | 1;
                self.connect(cx, to, timeout, token, false);
            }
            Task::ConnectPeerToPeer { to, timeout, token } => self.connect(cx, to, timeout, token, true),
            Task::Resolve { to, timeout } => self.resolve(cx, to, timeout),
            Task::Decide { id, decision } => self.decide(cx, id, decision),
            Task::SendPing { id } => self.send_ping(cx, id),
            Task::End { id, abandon } => self.end(cx, id, abandon),
            Task::Respond { id, yes, token } => {
                cx.register.recognize_duplicates_until(token, cx.now + cx.rules.timewait);
                let _ = if yes {
                    let private = (!token).to_be_bytes();
                    cx.manager.accept_query(cx.now, id, response_qpn(token), UDP_QKEY, &private)
                } else {
                    cx.manager.reject_query(cx.now, id, SidrStatus::Rejected, &[])
                };
            }
        }
    }

    fn connect(
        &mut self,
        cx: &mut CallContext<'_>,
        to: usize,
        timeout: Duration,
        token: u64,
        peer_to_peer: bool,
    ) {
        let Some(local_qp) = self.local_qp(cx) else { return };
        let deadline = cx.now + timeout;
        // Each peer-to-peer connection has its own port, so that no two of them collide.
        let service =
            if peer_to_peer { ServiceId::tcp_port(token as u16 | 0x8000) } else { cx.rules.service };
        let mut connect = ConnectParams::new(cx.addrs(to), service, local_qp, deadline);
        connect.peer_to_peer = peer_to_peer;
        connect.source_port = 40_000;
        let private = token.to_be_bytes();
        connect.private_data = &private;
        let random = &mut *cx.random;
        // The manager rejects a queue pair in time-wait.
        let Ok(id) = cx.manager.connect(cx.now, &connect, &mut || random.u32()) else { return };
        self.mark_used(cx, local_qp.qpn);
        let role = if peer_to_peer { Role::Peer(cx.node) } else { Role::Client };
        cx.register.begin(cx.now, token, role, deadline);
        let own = OwnConnection {
            token,
            role,
            local_qp: Some(local_qp),
            ready: None,
            established: false,
            dropped: false,
            unanswered_pings: 0,
        };
        self.connections.insert(id, own);
        if cx.random.below(12) == 0 {
            let after = timeout.mul_f64(cx.random.below(100) as f64 / 100.0);
            cx.tasks.push((after, Task::End { id, abandon: true }));
        }
    }

    fn resolve(&mut self, cx: &mut CallContext<'_>, to: usize, timeout: Duration) {
        let token = cx.random.u64() | 1;
        let deadline = cx.now + timeout;
        let private = token.to_be_bytes();
        let resolve = ResolveParams {
            addrs: cx.addrs(to),
            service: cx.rules.resolution_service,
            source_port: 40_001,
            private_data: &private,
            deadline,
        };
        let random = &mut *cx.random;
        match cx.manager.resolve_service(cx.now, &resolve, &mut || random.u32()) {
            Ok(id) => {
                cx.register.begin(cx.now, token, Role::Resolver, deadline);
                self.queries.insert(id, token);
            }
            Err(error) => {
                cx.report_violation(format!("a service ID resolution request is rejected: {error}"));
            }
        }
    }

    /// Returns a queue pair for a connection: a free one, or occasionally one in time-wait.
    fn local_qp(&mut self, cx: &mut CallContext<'_>) -> Option<LocalQp> {
        for number in 2..40 {
            let qpn = Qpn::truncate(number);
            let free = !self.used_qpns.contains(&number) && !self.timewait_qpns.contains_key(&number);
            if free && !cx.manager.is_qpn_free(qpn) {
                cx.report_violation(format!("queue pair {number} is not free after its connection ended"));
            }
            // The manager must reject a queue pair in time-wait.
            if free || cx.random.below(8) == 0 && !self.used_qpns.contains(&number) {
                let mut local_qp = LocalQp::new(qpn);
                local_qp.rd_atomic_limits.max_rd_atomic = cx.random.below(17) as u8;
                local_qp.rd_atomic_limits.max_dest_rd_atomic = cx.random.below(17) as u8;
                return Some(local_qp);
            }
        }
        None
    }

    fn mark_used(&mut self, cx: &mut CallContext<'_>, qpn: Qpn) {
        self.used_qpns.insert(qpn.get());
        if self.timewait_qpns.remove(&qpn.get()).is_some() {
            cx.report_violation(format!("{qpn} has a new connection before the end of its time-wait"));
        }
    }

    pub(super) fn handle_event(&mut self, cx: &mut CallContext<'_>, event: Event) {
        match event {
            Event::Request(request) => {
                let Some(token) = token(&request.private_data) else {
                    return cx.report_violation("a connection request lost its private data");
                };
                cx.register.record_request(cx.now, token, cx.node);
                let own = OwnConnection {
                    token,
                    role: Role::Server,
                    local_qp: None,
                    ready: None,
                    established: false,
                    dropped: false,
                    unanswered_pings: 0,
                };
                self.connections.insert(request.id, own);
                let timeout = cx.rules.response_timeout * cx.random.between(30, 80) as u32;
                let (prompt, decision) = match cx.random.below(20) {
                    0 => (false, Decision::Reject),
                    1 => (false, Decision::Abandon),
                    2 => return cx.register.mark_slow(token),
                    3..=5 => (false, Decision::Accept { timeout }),
                    _ => (true, Decision::Accept { timeout }),
                };
                self.decide_or_plan(cx, request.id, token, prompt, decision);
            }
            Event::Accepted(acceptance) => {
                let Some(own) = self.connections.get_mut(&acceptance.id) else {
                    return cx.report_violation("acceptance of an unknown request");
                };
                if own.role == Role::Client && token(&acceptance.private_data) != Some(!own.token) {
                    return cx.report_violation("acceptance of another request");
                }
                let token = own.token;
                let (prompt, decision) = match cx.random.below(20) {
                    0 => (false, Decision::Reject),
                    1 => return cx.register.mark_slow(token),
                    2 | 3 => (false, Decision::Establish),
                    _ => (true, Decision::Establish),
                };
                self.decide_or_plan(cx, acceptance.id, token, prompt, decision);
            }
            Event::Established(id) => self.handle_established(cx, id),
            Event::Rejected(rejection) => {
                let id = rejection.id;
                self.handle_outcome(cx, id, Outcome::Rejected(rejection.reason));
            }
            Event::Unreachable(id) => self.handle_outcome(cx, id, Outcome::Unreachable),
            Event::Disconnected(id) => self.handle_outcome(cx, id, Outcome::Disconnected),
            Event::TimewaitExit { qpn, .. } => {
                let Some(since) = self.timewait_qpns.remove(&qpn.get()) else {
                    return cx.report_violation(format!("the time-wait of {qpn} ended, but had not started"));
                };
                if cx.now - since < cx.rules.timewait {
                    cx.report_violation(format!(
                        "the time-wait of {qpn} was too short: {:?}",
                        cx.now - since
                    ));
                }
            }
            Event::Query(query) => {
                let Some(token) = token(&query.private_data) else {
                    return cx.report_violation("a service ID resolution request lost its private data");
                };
                cx.register.record_request(cx.now, token, cx.node);
                let yes = cx.random.below(8) > 0;
                match cx.random.below(8) {
                    0 => {
                        cx.register.mark_slow(token);
                        cx.register.recognize_duplicates_until(token, cx.now + cx.rules.request_timeout);
                    }
                    1 => {
                        cx.register.mark_slow(token);
                        let after = cx.rules.response_timeout * 3;
                        cx.tasks.push((after, Task::Respond { id: query.id, yes, token }));
                    }
                    _ => self.run(cx, Task::Respond { id: query.id, yes, token }),
                }
            }
            Event::Resolved(resolution) => match self.queries.remove(&resolution.id) {
                Some(requested)
                    if token(&resolution.private_data) == Some(!requested)
                        && resolution.qpn == response_qpn(requested)
                        && resolution.qkey == UDP_QKEY =>
                {
                    cx.register.end(cx.now, requested, Role::Resolver, Outcome::Established);
                }
                Some(_) => cx.report_violation("response to another service ID resolution request"),
                None => cx.report_violation("response without a service ID resolution request"),
            },
            Event::QueryRejected { id, status, .. } => match self.queries.remove(&id) {
                Some(token) => {
                    let reason = RejectReason::from_code(status.code().into());
                    cx.register.end(cx.now, token, Role::Resolver, Outcome::Rejected(reason));
                }
                None => cx.report_violation("response without a service ID resolution request"),
            },
            Event::QueryTimedOut(id) => match self.queries.remove(&id) {
                Some(token) => cx.register.end(cx.now, token, Role::Resolver, Outcome::Unreachable),
                None => cx.report_violation("timeout without a service ID resolution request"),
            },
            other => cx.report_violation(format!("unexpected event {other:?}")),
        }
    }

    /// Decides at once if `prompt`, and otherwise after up to five response timeouts.
    fn decide_or_plan(
        &mut self,
        cx: &mut CallContext<'_>,
        id: ConnectionId,
        token: u64,
        prompt: bool,
        decision: Decision,
    ) {
        if prompt {
            return self.decide(cx, id, decision);
        }
        cx.register.mark_slow(token);
        let after = cx.rules.response_timeout.mul_f64(cx.random.below(500) as f64 / 100.0);
        cx.tasks.push((after, Task::Decide { id, decision }));
    }

    fn decide(&mut self, cx: &mut CallContext<'_>, id: ConnectionId, decision: Decision) {
        let now = cx.now;
        let Some(own) = self.connections.get(&id).filter(|own| !own.dropped) else { return };
        let (token, role) = (own.token, own.role);
        match decision {
            Decision::Accept { timeout } => {
                if cx.manager.state(id) != Some(State::ReqReceived) {
                    return;
                }
                let Some(local_qp) = self.local_qp(cx) else { return cx.register.mark_slow(token) };
                let ready = cx.manager.qp_attributes(id, &local_qp);
                let accepted = cx.manager.accept(now, id, &local_qp, &(!token).to_be_bytes(), now + timeout);
                let (Ok(ready), Ok(()), Some(own)) = (ready, accepted, self.connections.get_mut(&id)) else {
                    // The queue pair number is still in time-wait.
                    return cx.register.mark_slow(token);
                };
                (own.local_qp, own.ready) = (Some(local_qp), Some(ready));
                self.mark_used(cx, local_qp.qpn);
                cx.register.begin(now, token, role, now + timeout);
            }
            Decision::Establish => {
                let Some(local_qp) = own.local_qp else { return };
                let ready = cx.manager.qp_attributes(id, &local_qp).ok();
                if cx.manager.establish(now, id).is_ok()
                    && let Some(own) = self.connections.get_mut(&id)
                {
                    own.ready = ready;
                }
            }
            Decision::Reject => {
                if cx.manager.reject(now, id, RejectReason::ConsumerReject, b"no").is_ok() {
                    self.drop_connection(cx, id);
                }
            }
            Decision::Abandon => self.end(cx, id, true),
        }
    }

    fn handle_established(&mut self, cx: &mut CallContext<'_>, id: ConnectionId) {
        let Some(own) = self.connections.get_mut(&id) else {
            return cx.report_violation("established an unknown connection");
        };
        let Some(ready) = own.ready else {
            return cx.report_violation("established before the queue pair was ready");
        };
        if own.established {
            return cx.report_violation("established twice");
        }
        own.established = true;
        cx.register.end(cx.now, own.token, own.role, Outcome::Established);
        cx.register.record_qp_attributes(
            cx.now,
            own.token,
            own.role,
            &ready,
            own.local_qp.map(|local_qp| local_qp.qpn),
        );
        // The pings start soon or much later. One side or both sides end the connection.
        let response = cx.rules.response_timeout;
        let quiet = if cx.random.below(2) == 0 { response } else { response * 90 };
        cx.tasks.push((quiet, Task::SendPing { id }));
        if own.role != Role::Server || cx.random.below(3) == 0 {
            let after = response.mul_f64(cx.random.below(12_000) as f64 / 100.0);
            cx.tasks.push((after, Task::End { id, abandon: cx.random.below(4) == 0 }));
        }
    }

    /// Handles the end of a connection, or of an attempt to establish one.
    fn handle_outcome(&mut self, cx: &mut CallContext<'_>, id: ConnectionId, outcome: Outcome) {
        let Some(own) = self.connections.get(&id) else {
            return cx.report_violation(format!("{outcome:?} of a connection that already ended"));
        };
        let (token, role) = (own.token, own.role);
        if own.established {
            if outcome != Outcome::Disconnected {
                cx.report_violation(format!("{outcome:?} after the connection was established"));
            }
        } else if own.dropped {
            return cx.report_violation(format!("{outcome:?} of an unknown connection"));
        } else if own.local_qp.is_some() {
            cx.register.end(cx.now, token, role, outcome);
        } else {
            // The application has not accepted the request.
            cx.register.record_withdrawal(cx.now, token);
        }
        self.remove_connection(cx, id);
    }

    fn drop_connection(&mut self, cx: &mut CallContext<'_>, id: ConnectionId) {
        let Some(own) = self.connections.get_mut(&id) else { return };
        if own.local_qp.is_some() {
            cx.register.end(cx.now, own.token, own.role, Outcome::Dropped);
        } else {
            cx.register.record_withdrawal(cx.now, own.token);
        }
        self.remove_connection(cx, id);
    }

    /// Removes a connection. Its queue pair may enter time-wait.
    fn remove_connection(&mut self, cx: &mut CallContext<'_>, id: ConnectionId) {
        let Some(qpn) =
            self.connections.remove(&id).and_then(|own| own.local_qp).map(|local_qp| local_qp.qpn)
        else {
            return;
        };
        self.used_qpns.remove(&qpn.get());
        if cx.manager.state(id) == Some(State::TimeWait) {
            self.timewait_qpns.insert(qpn.get(), cx.now);
        }
    }

    fn end(&mut self, cx: &mut CallContext<'_>, id: ConnectionId, abandon: bool) {
        let (now, deadline) = (cx.now, cx.now + cx.rules.response_timeout * 20);
        let Some(own) = self.connections.get_mut(&id).filter(|own| !own.dropped) else { return };
        if own.established {
            own.dropped = true;
            let ended = if abandon {
                cx.manager.abort(now, id, deadline)
            } else {
                cx.manager.disconnect(now, id, deadline)
            };
            if let Err(error) = ended {
                cx.report_violation(format!("an established connection cannot be disconnected: {error}"));
            }
        } else if abandon && cx.manager.abort(now, id, deadline).is_ok() {
            self.drop_connection(cx, id);
        }
    }

    /// Sends a ping over an established connection.
    fn send_ping(&mut self, cx: &mut CallContext<'_>, id: ConnectionId) {
        let Some(own) = self.connections.get_mut(&id).filter(|own| own.established && !own.dropped) else {
            return;
        };
        let (Some(ready), Some(local_qp)) = (&own.ready, &own.local_qp) else { return };
        if own.unanswered_pings >= MAX_UNANSWERED_PINGS {
            // The queue pair's retries are used up.
            return self.end(cx, id, false);
        }
        own.unanswered_pings += 1;
        let path = ready.ready_to_receive.path;
        let addrs = AddrPair { local: path.local(), remote: path.remote() };
        let (to, from, psn) = (ready.ready_to_receive.remote_qpn, local_qp.qpn, ready.ready_to_send.psn);
        cx.pings.push((addrs, Content::Ping { to, from, psn, reply: false }));
        cx.tasks.push((cx.rules.response_timeout, Task::SendPing { id }));
    }

    /// Handles a ping to a queue pair.
    pub(super) fn handle_ping(&mut self, cx: &mut CallContext<'_>, addrs: AddrPair, ping: Ping) {
        // A queue pair checks its own number, the peer's address and number, and the sequence number.
        let is_receiver = |own: &&mut OwnConnection| {
            own.local_qp.is_some_and(|local_qp| local_qp.qpn == ping.to)
                && own.ready.is_some_and(|ready| {
                    ready.ready_to_receive.path.remote() == addrs.remote
                        && ready.ready_to_receive.remote_qpn == ping.from
                        && ready.ready_to_receive.psn == ping.psn
                })
        };
        let Some(own) = self.connections.values_mut().find(is_receiver) else { return };
        if ping.reply {
            own.unanswered_pings = 0;
            return;
        }
        let Some(ready) = &own.ready else { return };
        let psn = ready.ready_to_send.psn;
        cx.pings.push((addrs, Content::Ping { to: ping.from, from: ping.to, psn, reply: true }));
        cx.manager.communication_established(ping.to);
    }
}

/// Reads the token in the private data.
fn token(private_data: &[u8]) -> Option<u64> {
    private_data.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)).filter(|token| *token != 0)
}

/// Returns the queue pair number in the response to a service ID resolution request.
fn response_qpn(token: u64) -> Qpn {
    Qpn::truncate(token as u32 | 2)
}
