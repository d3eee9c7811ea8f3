//! The application of a connection manager, which acts immediately, later or never.

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
use super::{Desk, Ping};

/// A planned task of an application.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Task {
    /// Connects to a node's listener.
    Connect { to: usize, patience: Duration },
    /// Connects to a node that connects at the same time (peer to peer).
    Meet { to: usize, patience: Duration, token: u64 },
    /// Requests a node's datagram queue pair.
    ResolveParams { to: usize, patience: Duration },
    /// Decides on a connection request or an acceptance.
    Decide { id: ConnectionId, decision: Decision },
    /// Sends a ping, or detects that the last pings got no response.
    Beat { id: ConnectionId },
    /// Disconnects or abandons a connection.
    End { id: ConnectionId, abandon: bool },
    /// Responds to a service ID resolution request.
    Answer { id: QueryId, yes: bool, token: u64 },
}

/// The decision on a connection request or an acceptance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Decision {
    Accept { patience: Duration },
    Establish,
    Reject,
    Abandon,
}

/// The connections and service ID resolution requests of a node.
#[derive(Default)]
pub(super) struct Application {
    connections: BTreeMap<ConnectionId, Mine>,
    questions: BTreeMap<QueryId, u64>,
    /// The queue pairs in time-wait, with the end times of their connections.
    resting: BTreeMap<u32, Time>,
    taken: BTreeSet<u32>,
}

/// A connection from the application's view.
struct Mine {
    token: u64,
    role: Role,
    local_qp: Option<LocalQp>,
    ready: Option<QpAttributes>,
    established: bool,
    /// Whether the application abandoned the connection.
    dropped: bool,
    unanswered: u32,
}

/// The number of pings without a response after which the queue pair fails.
const MOST_UNANSWERED: u32 = 8;

impl Application {
    /// Whether the application has no connections or requests.
    pub(super) fn is_idle(&self) -> bool {
        self.connections.values().all(|mine| mine.dropped && !mine.established) && self.questions.is_empty()
    }

    pub(super) fn run(&mut self, desk: &mut Desk<'_>, task: Task) {
        match task {
            Task::Connect { to, patience } => {
                let token = desk.random.u64() | 1;
                self.connect(desk, to, patience, token, false);
            }
            Task::Meet { to, patience, token } => self.connect(desk, to, patience, token, true),
            Task::ResolveParams { to, patience } => self.resolve(desk, to, patience),
            Task::Decide { id, decision } => self.decide(desk, id, decision),
            Task::Beat { id } => self.beat(desk, id),
            Task::End { id, abandon } => self.end(desk, id, abandon),
            Task::Answer { id, yes, token } => {
                desk.register.remembered_until(token, desk.now + desk.rules.timewait);
                let _ = if yes {
                    let private = (!token).to_be_bytes();
                    desk.manager.accept_query(desk.now, id, answer_qpn(token), UDP_QKEY, &private)
                } else {
                    desk.manager.reject_query(desk.now, id, SidrStatus::Rejected, &[])
                };
            }
        }
    }

    fn connect(&mut self, desk: &mut Desk<'_>, to: usize, patience: Duration, token: u64, meet: bool) {
        let Some(local_qp) = self.local_qp(desk) else { return };
        let deadline = desk.now + patience;
        // Each meeting has a port of its own, so that no two of them cross.
        let service = if meet { ServiceId::tcp_port(token as u16 | 0x8000) } else { desk.rules.service };
        let mut connect = ConnectParams::new(desk.addrs(to), service, local_qp, deadline);
        connect.peer_to_peer = meet;
        connect.source_port = 40_000;
        let private = token.to_be_bytes();
        connect.private_data = &private;
        let random = &mut *desk.random;
        // Two meetings with one peer at a time are refused, and so they should be.
        let Ok(id) = desk.manager.connect(desk.now, &connect, &mut || random.u32()) else { return };
        self.take(desk, local_qp.qpn);
        let role = if meet { Role::Peer(desk.node) } else { Role::Client };
        desk.register.begin(desk.now, token, role, deadline);
        let mine = Mine {
            token,
            role,
            local_qp: Some(local_qp),
            ready: None,
            established: false,
            dropped: false,
            unanswered: 0,
        };
        self.connections.insert(id, mine);
        if desk.random.below(12) == 0 {
            let after = patience.mul_f64(desk.random.below(100) as f64 / 100.0);
            desk.tasks.push((after, Task::End { id, abandon: true }));
        }
    }

    fn resolve(&mut self, desk: &mut Desk<'_>, to: usize, patience: Duration) {
        let token = desk.random.u64() | 1;
        let deadline = desk.now + patience;
        let private = token.to_be_bytes();
        let resolve = ResolveParams {
            addrs: desk.addrs(to),
            service: desk.rules.datagrams,
            source_port: 40_001,
            private_data: &private,
            deadline,
        };
        let random = &mut *desk.random;
        match desk.manager.resolve_service(desk.now, &resolve, &mut || random.u32()) {
            Ok(id) => {
                desk.register.begin(desk.now, token, Role::Asker, deadline);
                self.questions.insert(id, token);
            }
            Err(error) => desk.violate(format!("a service ID resolution request is rejected: {error}")),
        }
    }

    /// Returns a queue pair that is free for a connection.
    fn local_qp(&mut self, desk: &mut Desk<'_>) -> Option<LocalQp> {
        for number in 2..40 {
            let qpn = Qpn::truncate(number);
            let free = !self.taken.contains(&number) && !self.resting.contains_key(&number);
            if free && !desk.manager.is_qpn_free(qpn) {
                desk.violate(format!("queue pair {number} is not free after its connection ended"));
            }
            // Those that rest are tried too, now and then: the manager must say no.
            if free || desk.random.below(8) == 0 && !self.taken.contains(&number) {
                let mut local_qp = LocalQp::new(qpn);
                local_qp.rd_atomic_limits.max_rd_atomic = desk.random.below(17) as u8;
                local_qp.rd_atomic_limits.max_dest_rd_atomic = desk.random.below(17) as u8;
                return Some(local_qp);
            }
        }
        None
    }

    fn take(&mut self, desk: &mut Desk<'_>, qpn: Qpn) {
        self.taken.insert(qpn.get());
        if self.resting.remove(&qpn.get()).is_some() {
            desk.violate(format!("{qpn} has a new connection before the end of its time-wait"));
        }
    }

    pub(super) fn hear(&mut self, desk: &mut Desk<'_>, event: Event) {
        match event {
            Event::Request(request) => {
                let Some(token) = token(&request.private_data) else {
                    return desk.violate("a connection request lost its private data");
                };
                desk.register.request(desk.now, token, desk.node);
                let mine = Mine {
                    token,
                    role: Role::Server,
                    local_qp: None,
                    ready: None,
                    established: false,
                    dropped: false,
                    unanswered: 0,
                };
                self.connections.insert(request.id, mine);
                let patience = desk.rules.response * desk.random.between(30, 80) as u32;
                let (prompt, decision) = match desk.random.below(20) {
                    0 => (false, Decision::Reject),
                    1 => (false, Decision::Abandon),
                    2 => return desk.register.not_prompt(token),
                    3..=5 => (false, Decision::Accept { patience }),
                    _ => (true, Decision::Accept { patience }),
                };
                self.decide_soon(desk, request.id, token, prompt, decision);
            }
            Event::Accepted(acceptance) => {
                let Some(mine) = self.connections.get_mut(&acceptance.id) else {
                    return desk.violate("acceptance of an unknown request");
                };
                if mine.role == Role::Client && token(&acceptance.private_data) != Some(!mine.token) {
                    return desk.violate("acceptance of another request");
                }
                let token = mine.token;
                let (prompt, decision) = match desk.random.below(20) {
                    0 => (false, Decision::Reject),
                    1 => return desk.register.not_prompt(token),
                    2 | 3 => (false, Decision::Establish),
                    _ => (true, Decision::Establish),
                };
                self.decide_soon(desk, acceptance.id, token, prompt, decision);
            }
            Event::Established(id) => self.established(desk, id),
            Event::Rejected(rejection) => {
                let id = rejection.id;
                self.outcome(desk, id, Outcome::Rejected(rejection.reason));
            }
            Event::Unreachable(id) => self.outcome(desk, id, Outcome::Unreachable),
            Event::Disconnected(id) => self.outcome(desk, id, Outcome::Disconnected),
            Event::TimewaitExit { qpn, .. } => {
                let Some(since) = self.resting.remove(&qpn.get()) else {
                    return desk.violate(format!("the time-wait of {qpn} ended, but had not started"));
                };
                if desk.now - since < desk.rules.timewait {
                    desk.violate(format!("the time-wait of {qpn} was too short: {:?}", desk.now - since));
                }
            }
            Event::Query(query) => {
                let Some(token) = token(&query.private_data) else {
                    return desk.violate("a service ID resolution request lost its private data");
                };
                desk.register.request(desk.now, token, desk.node);
                let yes = desk.random.below(8) > 0;
                match desk.random.below(8) {
                    0 => {
                        desk.register.not_prompt(token);
                        desk.register.remembered_until(token, desk.now + desk.rules.patience);
                    }
                    1 => {
                        desk.register.not_prompt(token);
                        desk.tasks.push((desk.rules.response * 3, Task::Answer { id: query.id, yes, token }));
                    }
                    _ => self.run(desk, Task::Answer { id: query.id, yes, token }),
                }
            }
            Event::Resolved(resolution) => match self.questions.remove(&resolution.id) {
                Some(asked)
                    if token(&resolution.private_data) == Some(!asked)
                        && resolution.qpn == answer_qpn(asked)
                        && resolution.qkey == UDP_QKEY =>
                {
                    desk.register.end(desk.now, asked, Role::Asker, Outcome::Established);
                }
                Some(_) => desk.violate("response to another service ID resolution request"),
                None => desk.violate("response without a service ID resolution request"),
            },
            Event::QueryRejected { id, status, .. } => match self.questions.remove(&id) {
                Some(token) => {
                    let reason = RejectReason::from_code(status.code().into());
                    desk.register.end(desk.now, token, Role::Asker, Outcome::Rejected(reason));
                }
                None => desk.violate("response without a service ID resolution request"),
            },
            Event::QueryTimedOut(id) => match self.questions.remove(&id) {
                Some(token) => desk.register.end(desk.now, token, Role::Asker, Outcome::Unreachable),
                None => desk.violate("timeout without a service ID resolution request"),
            },
            other => desk.violate(format!("unexpected event {other:?}")),
        }
    }

    fn decide_soon(
        &mut self,
        desk: &mut Desk<'_>,
        id: ConnectionId,
        token: u64,
        prompt: bool,
        decision: Decision,
    ) {
        if prompt {
            return self.decide(desk, id, decision);
        }
        desk.register.not_prompt(token);
        let after = desk.rules.response.mul_f64(desk.random.below(500) as f64 / 100.0);
        desk.tasks.push((after, Task::Decide { id, decision }));
    }

    fn decide(&mut self, desk: &mut Desk<'_>, id: ConnectionId, decision: Decision) {
        let now = desk.now;
        let Some(mine) = self.connections.get(&id).filter(|mine| !mine.dropped) else { return };
        let (token, role) = (mine.token, mine.role);
        match decision {
            Decision::Accept { patience } => {
                if desk.manager.state(id) != Some(State::ReqReceived) {
                    return;
                }
                let Some(local_qp) = self.local_qp(desk) else { return desk.register.not_prompt(token) };
                let ready = desk.manager.qp_attributes(id, &local_qp);
                let accepted =
                    desk.manager.accept(now, id, &local_qp, &(!token).to_be_bytes(), now + patience);
                let (Ok(ready), Ok(()), Some(mine)) = (ready, accepted, self.connections.get_mut(&id)) else {
                    // A number that rests.
                    return desk.register.not_prompt(token);
                };
                (mine.local_qp, mine.ready) = (Some(local_qp), Some(ready));
                self.take(desk, local_qp.qpn);
                desk.register.begin(now, token, role, now + patience);
            }
            Decision::Establish => {
                let Some(local_qp) = mine.local_qp else { return };
                let ready = desk.manager.qp_attributes(id, &local_qp).ok();
                if desk.manager.establish(now, id).is_ok()
                    && let Some(mine) = self.connections.get_mut(&id)
                {
                    mine.ready = ready;
                }
            }
            Decision::Reject => {
                if desk.manager.reject(now, id, RejectReason::ConsumerReject, b"no").is_ok() {
                    self.drop_it(desk, id);
                }
            }
            Decision::Abandon => self.end(desk, id, true),
        }
    }

    fn established(&mut self, desk: &mut Desk<'_>, id: ConnectionId) {
        let Some(mine) = self.connections.get_mut(&id) else {
            return desk.violate("established an unknown connection");
        };
        let Some(ready) = mine.ready else {
            return desk.violate("established before the queue pair was ready");
        };
        if mine.established {
            return desk.violate("established twice");
        }
        mine.established = true;
        desk.register.end(desk.now, mine.token, mine.role, Outcome::Established);
        desk.register.qp_attributes(
            desk.now,
            mine.token,
            mine.role,
            &ready,
            mine.local_qp.map(|local_qp| local_qp.qpn),
        );
        // Packets begin at once or much later; one side ends it, or both.
        let response = desk.rules.response;
        let quiet = if desk.random.below(2) == 0 { response } else { response * 90 };
        desk.tasks.push((quiet, Task::Beat { id }));
        if mine.role != Role::Server || desk.random.below(3) == 0 {
            let after = response.mul_f64(desk.random.below(12_000) as f64 / 100.0);
            desk.tasks.push((after, Task::End { id, abandon: desk.random.below(4) == 0 }));
        }
    }

    /// Handles the end of a call or a connection.
    fn outcome(&mut self, desk: &mut Desk<'_>, id: ConnectionId, outcome: Outcome) {
        let Some(mine) = self.connections.get(&id) else {
            return desk.violate(format!("{outcome:?} of a connection that already ended"));
        };
        let (token, role) = (mine.token, mine.role);
        if mine.established {
            if outcome != Outcome::Disconnected {
                desk.violate(format!("{outcome:?} after the connection was established"));
            }
        } else if mine.dropped {
            return desk.violate(format!("{outcome:?} of an unknown connection"));
        } else if mine.local_qp.is_some() {
            desk.register.end(desk.now, token, role, outcome);
        } else {
            // A request that was never answered.
            desk.register.withdrawn(desk.now, token);
        }
        self.forget(desk, id);
    }

    fn drop_it(&mut self, desk: &mut Desk<'_>, id: ConnectionId) {
        let Some(mine) = self.connections.get_mut(&id) else { return };
        if mine.local_qp.is_some() {
            desk.register.end(desk.now, mine.token, mine.role, Outcome::Dropped);
        } else {
            desk.register.withdrawn(desk.now, mine.token);
        }
        self.forget(desk, id);
    }

    /// Removes a connection. Its queue pair may enter time-wait.
    fn forget(&mut self, desk: &mut Desk<'_>, id: ConnectionId) {
        let Some(qpn) =
            self.connections.remove(&id).and_then(|mine| mine.local_qp).map(|local_qp| local_qp.qpn)
        else {
            return;
        };
        self.taken.remove(&qpn.get());
        if desk.manager.state(id) == Some(State::TimeWait) {
            self.resting.insert(qpn.get(), desk.now);
        }
    }

    fn end(&mut self, desk: &mut Desk<'_>, id: ConnectionId, abandon: bool) {
        let (now, deadline) = (desk.now, desk.now + desk.rules.response * 20);
        let Some(mine) = self.connections.get_mut(&id).filter(|mine| !mine.dropped) else { return };
        if mine.established {
            mine.dropped = true;
            let ended = if abandon {
                desk.manager.abort(now, id, deadline)
            } else {
                desk.manager.disconnect(now, id, deadline)
            };
            if let Err(error) = ended {
                desk.violate(format!("an established connection cannot be disconnected: {error}"));
            }
        } else if abandon && desk.manager.abort(now, id, deadline).is_ok() {
            self.drop_it(desk, id);
        }
    }

    /// Sends a ping over an established connection.
    fn beat(&mut self, desk: &mut Desk<'_>, id: ConnectionId) {
        let Some(mine) = self.connections.get_mut(&id).filter(|mine| mine.established && !mine.dropped)
        else {
            return;
        };
        let (Some(ready), Some(local_qp)) = (&mine.ready, &mine.local_qp) else { return };
        if mine.unanswered >= MOST_UNANSWERED {
            // The queue pair's retries are used up.
            return self.end(desk, id, false);
        }
        mine.unanswered += 1;
        let path = ready.ready_to_receive.path;
        let addrs = AddrPair { local: path.local(), remote: path.remote() };
        let (to, from, psn) = (ready.ready_to_receive.remote_qpn, local_qp.qpn, ready.ready_to_send.psn);
        desk.pings.push((addrs, Content::Ping { to, from, psn, reply: false }));
        desk.tasks.push((desk.rules.response, Task::Beat { id }));
    }

    /// Handles a ping to a queue pair.
    pub(super) fn ping(&mut self, desk: &mut Desk<'_>, addrs: AddrPair, ping: Ping) {
        // What a queue pair checks: its own number, the peer's address and number, and the sequence number.
        let is_its = |mine: &&mut Mine| {
            mine.local_qp.is_some_and(|local_qp| local_qp.qpn == ping.to)
                && mine.ready.is_some_and(|ready| {
                    ready.ready_to_receive.path.remote() == addrs.remote
                        && ready.ready_to_receive.remote_qpn == ping.from
                        && ready.ready_to_receive.psn == ping.psn
                })
        };
        let Some(mine) = self.connections.values_mut().find(is_its) else { return };
        if ping.reply {
            mine.unanswered = 0;
            return;
        }
        let Some(ready) = &mine.ready else { return };
        let psn = ready.ready_to_send.psn;
        desk.pings.push((addrs, Content::Ping { to: ping.from, from: ping.to, psn, reply: true }));
        desk.manager.communication_established(ping.to);
    }
}

/// Reads the token in the private data.
fn token(private_data: &[u8]) -> Option<u64> {
    private_data.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)).filter(|token| *token != 0)
}

/// The queue pair number in the response to a service ID resolution request.
fn answer_qpn(token: u64) -> Qpn {
    Qpn::truncate(token as u32 | 2)
}
