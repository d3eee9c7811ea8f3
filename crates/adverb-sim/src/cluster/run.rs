//! The run: members, their connections, faults, and virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use adverb_cluster_proto::keys::Keys;
use adverb_cluster_proto::rpc::{self, Rpc};
use adverb_cluster_proto::{Broker, BrokerConfig, PeerId, Phase};
use adverb_proto::Time;
use adverb_proto::types::{Completion, RemoteMemory};

use super::application::{PeerView, SessionView, end_of, zeroed_shadow};
use super::calls::{Calls, Issued};
use super::memory::MemberMemory;
use super::segments::Segments;
use super::{ClusterOutcome, LayerCounts};
use crate::Random;
use crate::rc_model::{Execution, RcConnection};
use crate::schedule::Log;

/// The state of a run.
#[derive(Debug)]
pub(super) struct ClusterRun {
    seed: u64,
    pub(super) config: BrokerConfig,
    pub(super) call_config: rpc::RpcConfig,
    /// Whether the messages are calls.
    pub(super) has_calls: bool,
    /// Whether the members publish segments.
    pub(super) has_segments: bool,
    pub(super) random: Random,
    pub(super) now: Time,
    pub(super) members: Vec<Member>,
    /// The connections, by the pair of members.
    links: Vec<Option<Link>>,
    /// The sessions that one end has not yet established.
    pub(super) pending: Vec<Pending>,
    next_session: u64,
    /// Whether the faults have ended.
    pub(super) is_finishing: bool,
    /// The calls of all members, by serial number.
    pub(super) issued: Vec<Issued>,
    /// The memory of all segments, by member, epoch and number.
    pub(super) registry: BTreeMap<(usize, u64, u32), RemoteMemory>,
    pub(super) layers: LayerCounts,
    pub(super) log: Log,
    digest: u64,
    pub(super) messages: u64,
    pub(super) tickets: u64,
    pub(super) failed_tickets: u64,
    pub(super) doorbells: u64,
    pub(super) requests: u64,
    pub(super) control_requests: u64,
    pub(super) signaled: u64,
    sessions: u64,
    faults: u64,
    restarts: u64,
    pub(super) stale_epochs: u64,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) is_alive: bool,
    pub(super) epoch: u64,
    pub(super) broker: Broker,
    pub(super) rpc: Rpc,
    pub(super) keys: Keys,
    pub(super) calls: Calls,
    pub(super) segments: Segments,
    pub(super) memory: MemberMemory,
    pub(super) peers: Vec<PeerView>,
    /// Completions of destroyed queue pairs that stayed in the completion queue.
    stale: VecDeque<Completion>,
    /// The peers whose queue pairs the driver must destroy.
    pub(super) closing: Vec<usize>,
}

/// A connection of two members.
#[derive(Debug)]
pub(super) struct Link {
    id: u64,
    pub(super) connection: RcConnection,
    /// Whether the session may fail: a fault was injected, or an end was destroyed.
    is_faulted: bool,
}

/// A handshake of which one end is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    member: usize,
    peer: usize,
    session: u64,
    epoch: u64,
    credits: u32,
}

/// Returns the remote key of a member's memory in an epoch.
pub(super) fn key(member: usize, epoch: u64) -> u32 {
    (member as u32) << 16 | epoch as u32 & 0xffff
}

impl ClusterRun {
    pub(super) fn new(
        seed: u64,
        config: BrokerConfig,
        call_config: Option<rpc::RpcConfig>,
        has_segments: bool,
        count: usize,
        random: Random,
        trace: bool,
    ) -> ClusterRun {
        let mut run = ClusterRun {
            seed,
            config,
            call_config: call_config.unwrap_or_default(),
            has_calls: call_config.is_some(),
            has_segments,
            random,
            now: Time::ZERO,
            members: Vec::new(),
            links: (0..count * count).map(|_| None).collect(),
            pending: Vec::new(),
            next_session: 1,
            is_finishing: false,
            issued: Vec::new(),
            registry: BTreeMap::new(),
            layers: LayerCounts::default(),
            log: Log::new(trace),
            digest: 0,
            messages: 0,
            tickets: 0,
            failed_tickets: 0,
            doorbells: 0,
            requests: 0,
            control_requests: 0,
            signaled: 0,
            sessions: 0,
            faults: 0,
            restarts: 0,
            stale_epochs: 0,
        };
        for index in 0..count {
            let member = run.start_member(index, 1, count);
            run.members.push(member);
        }
        run
    }

    /// Creates a member that starts with `epoch`.
    fn start_member(&mut self, index: usize, epoch: u64, count: usize) -> Member {
        let fill = self.random.u64();
        let holds = u64::from(self.config.recv_slots);
        let peers = (0..count).map(|_| PeerView {
            hold_limit: self.random.below(holds) as usize,
            shadow: zeroed_shadow(),
            ..PeerView::default()
        });
        let peers = peers.collect();
        Member {
            is_alive: true,
            epoch,
            broker: Broker::new(self.config, count).expect("the configuration is valid"),
            rpc: Rpc::new(self.call_config, count).expect("the configuration is valid"),
            keys: Keys::new(count),
            calls: Calls::default(),
            segments: Segments::default(),
            memory: MemberMemory::new(&self.config, count, key(index, epoch), fill),
            peers,
            stale: VecDeque::new(),
            closing: Vec::new(),
        }
    }

    /// Runs random steps, and then completes all work without faults.
    pub(super) fn run(&mut self) {
        let steps = self.random.between(500, 2500);
        for _ in 0..steps {
            self.step();
            if self.log.violation.is_some() {
                return;
            }
        }
        self.finish();
    }

    pub(super) fn outcome(self) -> ClusterOutcome {
        ClusterOutcome {
            seed: self.seed,
            member_count: self.members.len() as u64,
            message_count: self.messages,
            ticket_count: self.tickets,
            failed_ticket_count: self.failed_tickets,
            doorbell_count: self.doorbells,
            request_count: self.requests,
            control_request_count: self.control_requests,
            signaled_count: self.signaled,
            session_count: self.sessions,
            fault_count: self.faults,
            restart_count: self.restarts,
            stale_epoch_count: self.stale_epochs,
            layers: self.layers,
            digest: self.digest,
            violation: self.log.violation,
            trace: self.log.trace.unwrap_or_default(),
        }
    }

    fn step(&mut self) {
        self.now = self.now + Duration::from_nanos(self.random.below(500));
        let (member, peer) = self.random_pair();
        match self.random.below(64) {
            0..=25 => {
                if self.members[member].is_alive {
                    if self.has_segments && self.random.below(40) == 0 {
                        self.act_segments(member);
                    } else {
                        self.act(member, peer);
                    }
                    // A driver posts after each call, or only when it polls.
                    if self.random.below(2) == 0 {
                        self.post_some(member);
                    }
                }
            }
            26..=37 => self.poll(member),
            38..=54 => self.transfer_some(member, peer),
            55..=57 => {
                let keep = self.random.below(1 + self.members[member].peers[peer].hold_limit as u64) as usize;
                if self.members[member].is_alive {
                    self.release(member, peer, keep);
                }
            }
            58..=60 => self.maintain(500_000),
            61..=62 => self.advance(),
            _ => {
                if self.random.below(4) == 0 {
                    self.inject(member, peer);
                }
            }
        }
        self.check_memory();
    }

    fn random_pair(&mut self) -> (usize, usize) {
        let count = self.members.len() as u64;
        let member = self.random.below(count);
        let peer = (member + 1 + self.random.below(count - 1)) % count;
        (member as usize, peer as usize)
    }

    fn link_index(&self, a: usize, b: usize) -> usize {
        a.min(b) * self.members.len() + a.max(b)
    }

    pub(super) fn link(&self, a: usize, b: usize) -> Option<&Link> {
        self.links[self.link_index(a, b)].as_ref()
    }

    pub(super) fn link_mut(&mut self, a: usize, b: usize) -> Option<&mut Link> {
        let index = self.link_index(a, b);
        self.links[index].as_mut()
    }

    pub(super) fn is_faulted(&self, a: usize, b: usize) -> bool {
        self.link(a, b).is_some_and(|link| link.is_faulted)
    }

    pub(super) fn report_violation(&mut self, what: &str) {
        self.log.report_violation(self.now, what);
    }

    pub(super) fn mix(&mut self, values: &[u64]) {
        for value in values {
            self.digest = (self.digest ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }

    /// Injects a fault, or makes a member leave its session with the peer, which is no fault.
    fn inject(&mut self, member: usize, peer: usize) {
        let now = self.now;
        match self.random.below(4) {
            0 | 1 => {
                if let Some(link) = self.link_mut(member, peer) {
                    link.connection.cut();
                    link.is_faulted = true;
                    self.faults += 1;
                    self.log.note(now, || format!("the connection of {member} and {peer} breaks"));
                }
            }
            // This choice draws no random number, so that the other faults of a seed stay the same.
            2 if self.now.as_nanos() % 4 == 3 => self.leave(member, peer),
            2 => {
                if self.members[member].is_alive
                    && let Some(link) = self.link_mut(member, peer)
                {
                    link.is_faulted = true;
                    self.faults += 1;
                    self.log.note(now, || format!("member {member} closes its session with {peer}"));
                    self.members[member].broker.close(PeerId(peer as u16));
                    self.post(member);
                }
            }
            _ => {
                // At least two members stay alive.
                let alive = self.members.iter().filter(|member| member.is_alive).count();
                if !self.members[member].is_alive || alive <= 2 {
                    return;
                }
                self.faults += 1;
                self.log.note(now, || format!("member {member} dies"));
                self.members[member].is_alive = false;
                self.pending.retain(|pending| pending.member != member);
                for other in 0..self.members.len() {
                    if other != member
                        && let Some(link) = self.link_mut(member, other)
                    {
                        link.connection.destroy(end_of(member, other));
                        link.is_faulted = true;
                    }
                }
            }
        }
    }

    /// Makes a member leave its session with a peer. The peer must receive all messages of the member.
    fn leave(&mut self, member: usize, peer: usize) {
        let id = PeerId(peer as u16);
        if !self.members[member].is_alive || self.members[member].broker.phase(id) != Phase::Open {
            return;
        }
        let now = self.now;
        self.log.note(now, || format!("member {member} leaves its session with {peer}"));
        self.members[member].broker.leave(id);
        if let Some(session) = &mut self.members[member].peers[peer].session {
            session.leave();
        }
        self.post(member);
    }

    /// Destroys queue pairs, completes handshakes and connects members, each with the probability `per_million`. Members
    /// restart with half of that probability.
    pub(super) fn maintain(&mut self, per_million: u32) {
        for member in 0..self.members.len() {
            if !self.members[member].is_alive && self.random.chance_per_million(per_million / 2) {
                let epoch = self.members[member].epoch + 1;
                let now = self.now;
                self.log.note(now, || format!("member {member} returns with epoch {epoch}"));
                self.members[member] = self.start_member(member, epoch, self.members.len());
                self.restarts += 1;
            }
        }
        for member in 0..self.members.len() {
            if self.members[member].is_alive && self.random.chance_per_million(per_million) {
                self.destroy_closing(member);
            }
        }
        for index in (0..self.pending.len()).rev() {
            if self.random.chance_per_million(per_million) {
                let pending = self.pending.swap_remove(index);
                self.establish(pending);
            }
        }
        for a in 0..self.members.len() {
            for b in a + 1..self.members.len() {
                if self.can_connect(a, b) && self.random.chance_per_million(per_million) {
                    self.connect(a, b);
                }
            }
        }
    }

    fn can_connect(&self, a: usize, b: usize) -> bool {
        let is_closed = |member: usize, peer: usize| {
            let member = &self.members[member];
            member.is_alive && member.broker.phase(PeerId(peer as u16)) == Phase::Closed
        };
        is_closed(a, b) && is_closed(b, a)
    }

    /// Destroys the queue pairs of sessions that have ended.
    fn destroy_closing(&mut self, member: usize) {
        for peer in std::mem::take(&mut self.members[member].closing) {
            let end = end_of(member, peer);
            let keeps_completions = self.random.below(2) == 0;
            if let Some(link) = self.link_mut(member, peer) {
                let left = link.connection.destroy(end);
                link.is_faulted = true;
                if keeps_completions {
                    self.members[member].stale.extend(left);
                }
            }
            if let Err(error) = self.members[member].broker.handle_closed(PeerId(peer as u16)) {
                self.report_violation(&format!("an ended session could not be closed: {error}"));
            }
            self.handle_events(member);
        }
    }

    /// Connects two members: both prepare their sessions and post receives, and one of them establishes the session.
    fn connect(&mut self, a: usize, b: usize) {
        let (first, second) = if self.random.below(2) == 0 { (a, b) } else { (b, a) };
        let id = self.next_session;
        self.next_session += 1;
        let depths = (self.config.send_queue_depth, self.config.recv_queue_depth());
        let connection = RcConnection::new(usize::from(depths.0), usize::from(depths.1));
        let index = self.link_index(a, b);
        self.links[index] = Some(Link { id, connection, is_faulted: false });
        let mut credits = [0; 2];
        for (index, (member, peer)) in [(first, second), (second, first)].into_iter().enumerate() {
            match self.members[member].broker.prepare(PeerId(peer as u16)) {
                Ok(count) => credits[index] = count,
                Err(error) => {
                    return self.report_violation(&format!("a session could not be prepared: {error}"));
                }
            }
            self.members[member].peers[peer].session = Some(SessionView::new(id));
            self.post(member);
        }
        self.sessions += 1;
        let (epoch, other_epoch) = (self.members[first].epoch, self.members[second].epoch);
        self.establish(Pending {
            member: first,
            peer: second,
            session: id,
            epoch: other_epoch,
            credits: credits[1],
        });
        let other = Pending { member: second, peer: first, session: id, epoch, credits: credits[0] };
        self.pending.push(other);
    }

    /// Establishes one end of a session.
    fn establish(&mut self, pending: Pending) {
        let Pending { member, peer, session, epoch, credits } = pending;
        let id = PeerId(peer as u16);
        let is_current = self.link(member, peer).is_some_and(|link| link.id == session);
        if !is_current || self.members[member].broker.phase(id) != Phase::Preparing {
            return;
        }
        let shadow = self.members[peer].memory.area(member).to_vec();
        let state = &mut self.members[member];
        state.peers[peer].shadow = shadow;
        state.peers[peer].segment_shadows.clear();
        if let Err(error) = state.broker.establish(id, epoch, credits, self.now) {
            self.report_violation(&format!("a session could not be established: {error}"));
        }
        // The keys must be sent before any message of the application.
        self.members[member].keys.open(id, epoch);
        self.send_keys(member, peer);
        if let Err(error) = self.members[member].rpc.open(id, epoch) {
            self.report_violation(&format!("a session of calls could not be opened: {error}"));
        }
        for (slot, length) in std::mem::take(&mut self.members[member].peers[peer].early) {
            self.handle_message(member, peer, slot, length);
        }
        self.post(member);
    }

    /// Executes and completes a few requests of a connection.
    fn transfer_some(&mut self, member: usize, peer: usize) {
        let (execute, complete) = (self.random.below(6), self.random.below(6));
        self.transfer(member, peer, execute, complete);
        if self.random.below(4) == 0
            && let Some(link) = self.link_mut(member, peer)
        {
            link.connection.exceed_retries(end_of(member, peer));
        }
    }

    /// Executes and completes requests of `member` to `peer`.
    pub(super) fn transfer(&mut self, member: usize, peer: usize, execute: u64, complete: u64) {
        let index = self.link_index(member, peer);
        let end = end_of(member, peer);
        let Some(link) = &mut self.links[index] else { return };
        for _ in 0..execute {
            let [local, remote] = self.members.get_disjoint_mut([member, peer]).expect("two members");
            match link.connection.execute(end, &mut local.memory, &mut remote.memory) {
                Execution::Executed => {}
                Execution::Idle => break,
                execution @ (Execution::Rnr | Execution::TooLong | Execution::AccessRejected) => {
                    let what = format!("a request of member {member} to member {peer}: {execution:?}");
                    self.log.report_violation(self.now, &what);
                    break;
                }
            }
        }
        if self.random.below(3) == 0 {
            let memory = &mut self.members[peer].memory;
            if link.connection.repeat_reads(end, memory) == Execution::AccessRejected {
                let what =
                    format!("a READ of member {member} to member {peer} was rejected when it was repeated");
                self.log.report_violation(self.now, &what);
            }
        }
        for _ in 0..complete {
            if !link.connection.complete(end) {
                break;
            }
        }
    }

    /// Advances the time to the next timeout of a member, and handles the brokers' timeouts that have expired. Timeouts
    /// of calls are handled by a poll.
    pub(super) fn advance(&mut self) {
        let next = self.members.iter().filter(|member| member.is_alive);
        let next = next.flat_map(|member| [member.broker.poll_timeout(), member.rpc.poll_timeout()]);
        if let Some(next) = next.flatten().filter(|next| *next > self.now).min() {
            self.now = next;
        }
        for member in 0..self.members.len() {
            if self.members[member].is_alive
                && self.members[member].broker.poll_timeout().is_some_and(|at| at <= self.now)
            {
                self.members[member].broker.handle_timeout(self.now);
                self.post(member);
            }
        }
    }

    /// Performs a driver's poll: completions, events, a flush, and posts.
    pub(super) fn poll(&mut self, member: usize) {
        if !self.members[member].is_alive {
            return;
        }
        for _ in 0..self.random.below(3) {
            if let Some(completion) = self.members[member].stale.pop_front() {
                self.members[member].broker.handle_completion(&completion);
            }
        }
        for peer in 0..self.members.len() {
            if peer == member {
                continue;
            }
            let end = end_of(member, peer);
            let (sends, receives) = (self.random.below(5), self.random.below(5));
            for index in 0..sends + receives {
                let Some(link) = self.link_mut(member, peer) else { break };
                let completion = if index < sends {
                    link.connection.poll_send(end)
                } else {
                    link.connection.poll_recv(end)
                };
                if let Some(completion) = completion {
                    self.members[member].broker.handle_completion(&completion);
                    // The events are handled at once, because a message belongs to the phase in which it arrived.
                    self.handle_events(member);
                }
            }
            self.handle_events(member);
        }
        self.expire_calls(member);
        if self.is_finishing {
            self.answer_all(member);
        }
        self.send_call_messages(member);
        self.send_all_keys(member);
        self.members[member].broker.flush_all();
        for view in &mut self.members[member].peers {
            if let Some(session) = &mut view.session {
                session.flush();
            }
        }
        self.post_some(member);
    }

    pub(super) fn handle_events(&mut self, member: usize) {
        while let Some(event) = self.members[member].broker.poll_event() {
            self.handle_event(member, event);
            if self.log.violation.is_some() {
                return;
            }
        }
    }

    pub(super) fn check_memory(&mut self) {
        if let Some(what) = self.members.iter_mut().find_map(|member| member.memory.violation.take()) {
            self.report_violation(&what);
        }
    }
}
