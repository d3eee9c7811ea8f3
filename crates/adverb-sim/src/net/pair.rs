//! Two processes, their drivers, and the lanes between them.

use std::collections::VecDeque;

use adverb_net_proto::{
    Completed, Config, Connection, EndReason, Event, HELLO_LEN, Hello, Payload, PhaseKind, Post, Register,
    RegisterMemory, Tag,
};
use adverb_proto::Time;
use adverb_proto::types::{CompletedOperation, Completion, RemoteAddress, Segment, SendFlags, SendOperation};

use super::application::{Application, Progress, Receipt};
use super::log;
use super::memory::{ModelRegion, ProcessMemory};
use crate::rc_model::{Execution, ModelRequest, RcConnection};

/// The `wr_id` of the receive for a hello.
const HELLO_RECV: u64 = u64::MAX;
/// The `wr_id` of the receives for writes.
const WRITE_RECV: u64 = u64::MAX - 1;
/// The ID of the connection's session.
const SESSION: [u8; 16] = [7; 16];

/// The state of a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Process {
    Running,
    /// The process was restarted: it accepts lanes, and knows no session.
    Restarted,
    /// The process died without notifying its peer.
    Dead,
}

/// A posted send request.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Posted {
    wr_id: u64,
    tag: Tag,
    addr: Option<u64>,
}

/// One side: a process with its connection, and the driver's state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Side {
    pub(super) process: Process,
    pub(super) connection: Option<Connection<Vec<u8>, ModelRegion>>,
    pub(super) memory: ProcessMemory,
    pub(super) application: Application,
    pub(super) config: Config,
    /// The connection's lane.
    lane: Option<usize>,
    /// The lane on which the connection resumes after `lane` is drained.
    successor: Option<usize>,
    /// Lanes whose hello has not arrived.
    incoming: Vec<usize>,
    /// Lanes that were rejected because their session is unknown.
    rejected: Vec<usize>,
    /// The buffers of the receives for hellos, by lane.
    hello_buffers: Vec<(usize, u64)>,
    posted: VecDeque<Posted>,
    next_wr_id: u64,
    registering: Option<Register<Vec<u8>, ModelRegion>>,
    pub(super) must_drain: bool,
    must_dial: bool,
    pub(super) established_count: u64,
}

/// A step of the simulation. The names of the actions are part of the digest of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Action {
    /// The application sends its next message, exposes a region, reads a region of the peer, or ends the connection as
    /// planned.
    Send(usize),
    /// The application receives a message or the peer's shutdown.
    Receive(usize),
    /// The application closes the connection.
    Close(usize),
    /// The driver registers memory: takes the request, or completes it.
    Register(usize),
    /// The driver posts the next request.
    Post(usize),
    /// The NIC executes the next request.
    Execute(usize),
    /// The NIC completes the next request.
    Complete(usize),
    /// The driver passes on the next completion.
    Poll(usize),
    /// The driver drains the lane.
    Drain(usize),
    /// The driver dials.
    Dial(usize),
    /// The driver can't dial.
    DialFailed(usize),
    /// The driver passes on the connection's next timeout.
    Timeout(usize),
    /// The NIC gives up retransmitting.
    Retry(usize),
    /// Packets of the newest lane are lost from now on.
    Cut,
    /// The device of a side fails its lane.
    FailLane(usize),
    /// The process is killed, and is then in this state.
    Kill(usize, Process),
}

/// Both sides, and the lanes between them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Pair {
    pub(super) now: Time,
    pub(super) sides: [Side; 2],
    pub(super) lanes: Vec<Option<RcConnection>>,
    pub(super) violation: Option<String>,
    /// The log, if requested.
    pub(super) log: Option<Vec<String>>,
}

impl Side {
    fn new(config: Config, application: Application) -> Side {
        Side {
            process: Process::Running,
            connection: None,
            memory: ProcessMemory::default(),
            application,
            config,
            lane: None,
            successor: None,
            incoming: Vec::new(),
            rejected: Vec::new(),
            hello_buffers: Vec::new(),
            posted: VecDeque::new(),
            next_wr_id: 0,
            registering: None,
            must_drain: false,
            must_dial: false,
            established_count: 0,
        }
    }

    /// Whether the connection has ended, or never began.
    pub(super) fn is_over(&self) -> bool {
        self.process != Process::Running
            || self.connection.as_ref().is_none_or(|connection| connection.phase() == PhaseKind::Closed)
    }

    /// Returns the number of send requests that have not completed.
    pub(super) fn request_count(&self) -> usize {
        self.posted.len()
    }

    fn take_hello_buffer(&mut self, lane: usize) -> Vec<u8> {
        let Some(index) = self.hello_buffers.iter().position(|(buffer_lane, _)| *buffer_lane == lane) else {
            return Vec::new();
        };
        let (_, addr) = self.hello_buffers.remove(index);
        self.memory.take_back(addr).unwrap_or_default()
    }
}

impl Pair {
    pub(super) fn new(configs: [Config; 2], applications: [Application; 2]) -> Pair {
        let [first, second] = configs;
        let [connector, listener] = applications;
        let sides = [Side::new(first.clamped(), connector), Side::new(second.clamped(), listener)];
        let mut pair = Pair { now: Time::ZERO, sides, lanes: Vec::new(), violation: None, log: None };
        let lane = pair.connect();
        let config = pair.sides[0].config.clone();
        pair.sides[0].connection = Some(Connection::connect(config, SESSION, Time::ZERO));
        pair.sides[0].lane = Some(lane);
        pair
    }

    pub(super) fn report_violation(&mut self, what: &str) {
        self.note(|| format!("VIOLATION: {what}"));
        self.violation.get_or_insert_with(|| what.to_owned());
    }

    /// Adds a line to the log, if there is one.
    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{} {}", self.now, what()));
        }
    }

    /// Adds a line about a side to the log, if there is one.
    fn note_side(&mut self, side: usize, what: impl FnOnce() -> String) {
        self.note(|| format!("{} {}", log::name(side), what()));
    }

    /// Creates a lane, with receives for the hellos.
    fn connect(&mut self) -> usize {
        let depths = self.sides.iter().map(|side| side.config.send_queue_depth());
        let depth = depths.max().unwrap_or(0) as usize;
        let depths = self.sides.iter().map(|side| side.config.recv_queue_depth());
        let recv_depth = depths.max().unwrap_or(0) as usize;
        let mut rc = RcConnection::new(depth, recv_depth);
        let lane = self.lanes.len();
        for (end, side) in self.sides.iter_mut().enumerate() {
            // The lane may use another device, for which regions are registered again.
            side.memory.invalidate_messages();
            let segment = side.memory.lend(vec![0; HELLO_LEN]);
            side.hello_buffers.push((lane, segment.addr));
            let _fits = rc.post_recv(end, HELLO_RECV, segment);
        }
        if self.sides[1].process == Process::Dead {
            rc.destroy(1);
            self.sides[1].take_hello_buffer(lane);
        } else {
            self.sides[1].incoming.push(lane);
        }
        self.lanes.push(Some(rc));
        lane
    }

    fn rc(&mut self, lane: Option<usize>) -> Option<&mut RcConnection> {
        self.lanes.get_mut(lane?)?.as_mut()
    }

    /// Destroys a queue pair.
    fn destroy(&mut self, side: usize, lane: usize) {
        self.sides[side].take_hello_buffer(lane);
        if let Some(rc) = self.rc(Some(lane)) {
            rc.destroy(side);
            if rc.is_destroyed() {
                self.lanes[lane] = None;
            }
        }
    }

    /// Whether the lane of an established side is broken, and the side hasn't noticed.
    pub(super) fn is_lane_silent(&self, side: usize) -> bool {
        let view = &self.sides[side];
        let is_established =
            view.connection.as_ref().is_some_and(|connection| connection.phase() == PhaseKind::Established);
        let lane = view.lane.and_then(|lane| self.lanes[lane].as_ref());
        view.process == Process::Running && is_established && lane.is_none_or(|lane| !lane.is_working())
    }

    /// Whether the peer can't be reached over the lane of a side.
    pub(super) fn is_lane_dead(&self, side: usize) -> bool {
        let lane = self.sides[side].lane.and_then(|lane| self.lanes[lane].as_ref());
        lane.is_none_or(|lane| !lane.is_working())
    }

    /// Whether the NIC of a side can execute a request.
    pub(super) fn can_execute(&self, side: usize) -> bool {
        self.lanes.iter().flatten().any(|rc| rc.is_working() && rc.is_busy(side))
    }

    /// Performs a step. Returns whether it had an effect.
    pub(super) fn act(&mut self, action: Action) -> bool {
        let done = match action {
            Action::Send(side) => self.send(side) | self.post_reads(side),
            Action::Receive(side) => self.with_application(side, Application::receive_next),
            Action::Close(side) => self.with_application(side, Application::close),
            Action::Register(side) => self.register(side),
            Action::Post(side) => self.post(side),
            Action::Execute(side) => self.execute(side),
            Action::Complete(side) => {
                self.lanes.iter_mut().flatten().filter_map(|rc| rc.complete(side).then_some(())).count() > 0
            }
            Action::Poll(side) => self.poll(side),
            Action::Drain(side) => self.drain(side),
            Action::Dial(side) => self.dial(side, true),
            Action::DialFailed(side) => self.dial(side, false),
            Action::Timeout(side) => self.timeout(side),
            Action::Retry(side) => {
                self.lanes.iter_mut().flatten().filter_map(|rc| rc.exceed_retries(side).then_some(())).count()
                    > 0
            }
            Action::Cut => match self.lanes.last_mut() {
                Some(Some(rc)) if rc.is_working() => {
                    rc.cut();
                    true
                }
                _ => false,
            },
            Action::FailLane(side) => match self.rc(self.sides[side].lane) {
                Some(rc) if rc.is_end_working(side) => {
                    rc.move_to_error(side);
                    true
                }
                _ => false,
            },
            Action::Kill(side, process) => self.kill(side, process),
        };
        if done && let Some(text) = log::describe_action(action).filter(|_| self.log.is_some()) {
            self.note(|| text);
        }
        self.after_step();
        done
    }

    /// Handles the events of both sides, and checks for violations.
    pub(super) fn after_step(&mut self) {
        for side in 0..2 {
            self.handle_events(side);
            self.check_redial(side);
            if let Some(what) = self.sides[side].memory.violation.take() {
                self.report_violation(what);
            }
            if let Some(what) = self.sides[side].application.violation.take() {
                self.report_violation(&what);
            }
        }
    }

    fn with_application(
        &mut self,
        side: usize,
        call: impl FnOnce(
            &mut Application,
            &mut Connection<Vec<u8>, ModelRegion>,
            &mut ProcessMemory,
            Time,
        ) -> bool,
    ) -> bool {
        let now = self.now;
        let Side { connection: Some(connection), memory, application, .. } = &mut self.sides[side] else {
            return false;
        };
        let before = application.clone_counts();
        let done = call(application, connection, memory, now);
        let change = if self.log.is_some() { application.describe_change(before) } else { None };
        if let Some(text) = change {
            self.note_side(side, || text);
        }
        done
    }

    fn register(&mut self, side: usize) -> bool {
        let now = self.now;
        let Side { connection: Some(connection), memory, registering, .. } = &mut self.sides[side] else {
            return false;
        };
        match registering.take() {
            Some(Register { id, memory: RegisterMemory::Ring { len } }) => {
                connection.handle_registered(id, memory.register_ring(len), now);
                true
            }
            Some(Register { id, memory: RegisterMemory::Exposed(region) }) => {
                connection.handle_registered(id, memory.register_payload(Payload::Region(region)), now);
                true
            }
            Some(Register { id, memory: RegisterMemory::Message(payload) }) => {
                connection.handle_registered(id, memory.register_payload(payload), now);
                true
            }
            None => {
                *registering = connection.poll_register();
                registering.is_some()
            }
        }
    }

    /// Sends the application's next message, and posts its write if the connection returns it.
    fn send(&mut self, side: usize) -> bool {
        let done = self.with_application(side, Application::send_next);
        if let Some(post) = self.sides[side].application.unposted.take() {
            self.post_request(side, post);
        }
        done
    }

    fn post(&mut self, side: usize) -> bool {
        let now = self.now;
        let Side { connection: Some(connection), memory, .. } = &mut self.sides[side] else { return false };
        let has_output = connection.has_output();
        let Some(post) = connection.poll_post(memory, now) else { return false };
        self.post_request(side, post);
        if !has_output {
            self.report_violation("a connection that announced no output returned a request");
        }
        true
    }

    /// Posts a request, or returns it to the connection if the lane has failed.
    fn post_request(&mut self, side: usize, post: Post<Vec<u8>>) {
        let now = self.now;
        self.note_side(side, || format!("posts {}", log::describe_post(&post)));
        let lane = self.sides[side].lane;
        if !self.rc(lane).is_some_and(|rc| rc.is_end_working(side)) {
            // The driver's queue pair rejects requests in the error state.
            if let Some(connection) = &mut self.sides[side].connection {
                connection.handle_refused(post, now);
            }
            return;
        }
        let (tag, operation, buf, is_signaled) = match post {
            Post::Receives { count } => {
                let segment = Segment { addr: 0, length: 0, lkey: 0 };
                for _ in 0..count {
                    if !self.rc(lane).is_some_and(|rc| rc.post_recv(side, WRITE_RECV, segment)) {
                        self.report_violation("the receive queue overflowed");
                    }
                }
                return;
            }
            Post::Hello { bytes } => (Tag::Hello, SendOperation::Send, Some(bytes.to_vec()), true),
            Post::Write { tag, buf, remote, immediate, is_signaled } => {
                (tag, SendOperation::WriteWithImm(remote, immediate), buf, is_signaled)
            }
            Post::Probe { remote } => (Tag::Probe, SendOperation::Write(remote), None, true),
            Post::Read { buf, remote } => (Tag::Read, SendOperation::Read(remote), Some(buf), true),
        };
        self.post_send(side, tag, operation, buf, is_signaled);
    }

    /// Posts reads of the peer's region, as many as the send queue accepts, and at most 20.
    fn post_reads(&mut self, side: usize) -> bool {
        let lane = self.sides[side].lane;
        let mut count = 0;
        while count < 20
            && self.rc(lane).is_some_and(|rc| rc.is_end_working(side))
            && let Side { connection: Some(connection), application, .. } = &mut self.sides[side]
            && let Some(region) = application.next_read()
            && connection.post_operation(connection.lane()).is_ok()
        {
            application.record_read();
            let remote = RemoteAddress { addr: region.addr, rkey: region.rkey };
            let buf = vec![0; region.len as usize];
            self.post_send(side, Tag::Operation, SendOperation::Read(remote), Some(buf), true);
            count += 1;
        }
        count > 0
    }

    fn post_send(
        &mut self,
        side: usize,
        tag: Tag,
        operation: SendOperation,
        buf: Option<Vec<u8>>,
        is_signaled: bool,
    ) {
        let lane = self.sides[side].lane;
        let view = &mut self.sides[side];
        let local = buf.map(|buf| view.memory.lend(buf));
        view.next_wr_id += 1;
        let wr_id = view.next_wr_id;
        view.posted.push_back(Posted { wr_id, tag, addr: local.map(|local| local.addr) });
        let flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        if !self
            .rc(lane)
            .is_some_and(|rc| rc.post_send(side, ModelRequest { wr_id, operation, flags, local }))
        {
            self.report_violation("the send queue overflowed");
        }
    }

    fn execute(&mut self, side: usize) -> bool {
        let [first, second] = &mut self.sides;
        let (local, remote) = if side == 0 { (first, second) } else { (second, first) };
        let mut what = None;
        let mut done = false;
        for rc in self.lanes.iter_mut().flatten() {
            match rc.execute(side, &mut local.memory, &mut remote.memory) {
                Execution::Idle => {}
                Execution::Executed => done = true,
                Execution::Rnr => what = Some("a message found no receive: credits were exceeded"),
                Execution::TooLong => what = Some("a message was longer than its receive"),
                Execution::AccessRejected => what = Some("the peer's device rejected an access"),
            }
        }
        if let Some(what) = what {
            self.report_violation(what);
        }
        done
    }

    /// Handles the next completion of an incoming, rejected or current lane.
    fn poll(&mut self, side: usize) -> bool {
        for lane in self.sides[side].incoming.clone() {
            if let Some(completion) = self.rc(Some(lane)).and_then(|rc| rc.poll_recv(side)) {
                self.accept(side, lane, completion);
                return true;
            }
        }
        for lane in self.sides[side].rejected.clone() {
            if let Some(completion) = self.rc(Some(lane)).and_then(|rc| rc.poll_send(side)) {
                self.sides[side].memory.take_back(completion.wr_id);
                self.sides[side].rejected.retain(|other| *other != lane);
                self.destroy(side, lane);
                return true;
            }
        }
        self.poll_lane(side)
    }

    fn poll_lane(&mut self, side: usize) -> bool {
        let Some(lane) = self.sides[side].lane else { return false };
        if let Some(completion) = self.rc(Some(lane)).and_then(|rc| rc.poll_recv(side)) {
            self.handle_recv(side, lane, completion);
            return true;
        }
        let Some(completion) = self.rc(Some(lane)).and_then(|rc| rc.poll_send(side)) else { return false };
        let now = self.now;
        let Side { connection: Some(connection), memory, posted, application, .. } = &mut self.sides[side]
        else {
            return true;
        };
        let mut text = None;
        while let Some(Posted { wr_id, tag, addr }) = posted.pop_front() {
            let buf = addr.and_then(|addr| memory.take_back(addr));
            if wr_id < completion.wr_id {
                connection.handle_completion(memory, Completed::Sent { tag, buf }, now);
                continue;
            }
            if let (Tag::Operation, Ok(_), Some(bytes)) = (tag, completion.outcome, &buf) {
                application.check_read(bytes);
            }
            let completed = match completion.outcome {
                Ok(_) => Completed::Sent { tag, buf },
                Err(failure) => Completed::Failed { tag, buf, status: failure.status },
            };
            text = self.log.is_some().then(|| log::describe_completed(&completed));
            connection.handle_completion(memory, completed, now);
            break;
        }
        if let Some(text) = text {
            self.note_side(side, || text);
        }
        true
    }

    fn handle_recv(&mut self, side: usize, lane: usize, completion: Completion) {
        let now = self.now;
        let hello = (completion.wr_id == HELLO_RECV).then(|| self.sides[side].take_hello_buffer(lane));
        let completed = match completion.outcome {
            Ok(success) => match success.operation {
                CompletedOperation::RecvWrite { immediate } => {
                    Some(Completed::Received { immediate, len: success.length })
                }
                _ => None,
            },
            Err(failure) => Some(Completed::Failed { tag: Tag::Recv, buf: None, status: failure.status }),
        };
        let phase = self.sides[side].connection.as_ref().map(Connection::phase);
        let is_flushed =
            phase == Some(PhaseKind::Draining) && matches!(completed, Some(Completed::Failed { .. }));
        if !is_flushed {
            self.note_side(side, || match &completed {
                Some(completed) => log::describe_completed(completed),
                None => "receives a hello".to_owned(),
            });
        }
        let Side { connection: Some(connection), memory, .. } = &mut self.sides[side] else { return };
        match (completed, hello) {
            (Some(completed), _) => connection.handle_completion(memory, completed, now),
            (None, Some(bytes)) => connection.handle_hello(memory, &bytes, now),
            (None, None) => {}
        }
    }

    /// Handles the hello of a lane that belongs to no connection yet.
    fn accept(&mut self, side: usize, lane: usize, completion: Completion) {
        let now = self.now;
        self.sides[side].incoming.retain(|other| *other != lane);
        let bytes = self.sides[side].take_hello_buffer(lane);
        let hello = completion.outcome.ok().and_then(|_| Hello::parse(&bytes).ok());
        let Some(hello) = hello else { return self.destroy(side, lane) };
        self.note_side(side, || format!("receives a hello over lane {lane}"));
        let is_new = hello.session.is_none_or(|session| session.received.is_none());
        let view = &mut self.sides[side];
        if view.connection.is_none() && is_new && view.process == Process::Running {
            view.connection = Some(Connection::accept(view.config.clone(), hello, now));
            view.lane = Some(lane);
            return;
        }
        let connection = view.connection.as_mut().filter(|_| !is_new);
        let Some(connection) = connection else { return self.reject(side, lane) };
        if !connection.resume(hello, view.config.lane(), now) {
            self.reject(side, lane);
        } else if connection.phase() == PhaseKind::Handshake {
            view.lane = Some(lane);
        } else if let Some(replaced) = view.successor.replace(lane) {
            self.destroy(side, replaced);
        }
    }

    fn reject(&mut self, side: usize, lane: usize) {
        self.note_side(side, || "answers that it does not know the session".to_owned());
        let local = self.sides[side].memory.lend(Hello::unknown_session().emit().to_vec());
        self.sides[side].rejected.push(lane);
        let request = ModelRequest {
            wr_id: local.addr,
            operation: SendOperation::Send,
            flags: SendFlags::SIGNALED,
            local: Some(local),
        };
        let _fits = self.rc(Some(lane)).is_some_and(|rc| rc.post_send(side, request));
    }

    fn drain(&mut self, side: usize) -> bool {
        if !self.sides[side].must_drain {
            return false;
        }
        let lane = self.sides[side].lane;
        if let Some(rc) = self.rc(lane) {
            rc.move_to_error(side);
        }
        while self.poll_lane(side) {}
        if let Some(lane) = lane {
            self.destroy(side, lane);
        }
        let now = self.now;
        let view = &mut self.sides[side];
        view.must_drain = false;
        view.lane = None;
        let Some(connection) = &mut view.connection else { return true };
        let posted = std::mem::take(&mut view.posted);
        let left = posted
            .into_iter()
            .map(|Posted { tag, addr, .. }| (tag, addr.and_then(|addr| view.memory.take_back(addr))));
        let left = left.collect();
        connection.handle_drained(&mut view.memory, left, now);
        if let Some(successor) = view.successor.take() {
            if connection.phase() == PhaseKind::Handshake {
                view.lane = Some(successor);
            } else {
                self.reject(side, successor);
            }
        }
        true
    }

    fn dial(&mut self, side: usize, succeeds: bool) -> bool {
        if !std::mem::take(&mut self.sides[side].must_dial) {
            return false;
        }
        let now = self.now;
        if self.sides[side]
            .connection
            .as_ref()
            .is_none_or(|connection| connection.phase() != PhaseKind::Disconnected)
        {
            return true;
        }
        if succeeds && self.sides[1 - side].process != Process::Dead {
            let lane = self.connect();
            self.sides[side].lane = Some(lane);
            let Side { connection, config, .. } = &mut self.sides[side];
            if let Some(connection) = connection {
                let _attached = connection.attach(config.lane(), now);
            }
        } else if let Some(connection) = &mut self.sides[side].connection {
            connection.handle_dial_failed(now);
        }
        true
    }

    /// Returns the time of a side's next timeout.
    pub(super) fn next_timeout(&self, side: usize) -> Option<Time> {
        self.sides[side].connection.as_ref().and_then(Connection::poll_timeout)
    }

    fn timeout(&mut self, side: usize) -> bool {
        let Some(time) = self.next_timeout(side) else { return false };
        let now = self.now.max(time);
        let Side { connection: Some(connection), memory, .. } = &mut self.sides[side] else { return false };
        connection.handle_timeout(memory, now);
        true
    }

    fn kill(&mut self, side: usize, process: Process) -> bool {
        if self.sides[side].process != Process::Running {
            return false;
        }
        for lane in 0..self.lanes.len() {
            self.destroy(side, lane);
        }
        let view = &mut self.sides[side];
        view.process = process;
        (view.connection, view.lane, view.successor, view.registering) = (None, None, None, None);
        (view.must_drain, view.must_dial) = (false, false);
        view.incoming.clear();
        view.rejected.clear();
        view.posted.clear();
        view.hello_buffers.clear();
        view.memory = ProcessMemory::default();
        true
    }

    /// Checks that a connector without a lane dials, or waits for no longer than the interval between two attempts.
    fn check_redial(&mut self, side: usize) {
        let view = &self.sides[side];
        let is_disconnected =
            view.connection.as_ref().is_some_and(|connection| connection.phase() == PhaseKind::Disconnected);
        let latest = self.now + view.config.redial_interval;
        let has_timer = self.next_timeout(side).is_some_and(|time| time <= latest);
        if side == 0 && is_disconnected && !view.must_dial && !has_timer {
            self.report_violation("the connector does not dial again");
        }
    }

    fn handle_events(&mut self, side: usize) {
        let peer = &self.sides[1 - side];
        let is_peer_open = peer.process == Process::Running && peer.application.progress != Progress::Left;
        let view = &mut self.sides[side];
        let Some(connection) = &mut view.connection else { return };
        while let Some(event) = connection.poll_event() {
            if let Some(log) = &mut self.log {
                log.push(format!("{} {} {}", self.now, log::name(side), log::describe_event(&event)));
            }
            match event {
                Event::Release(region) => drop(view.memory.release(&region)),
                Event::Drain => view.must_drain = true,
                Event::Redial { .. } => view.must_dial = true,
                Event::Established { .. } => {
                    view.established_count += 1;
                    view.application.record_lane();
                }
                Event::Exposed { name, region } => view.application.add_exposed(&name, region),
                Event::Withdrawn { name } => view.application.remove_exposed(&name),
                Event::Closed(reason) => {
                    if reason == EndReason::PeerClosed && is_peer_open {
                        self.violation
                            .get_or_insert_with(|| "PeerClosed, but the peer did not close".to_owned());
                    }
                    view.application.record_end(reason);
                }
                _ => {}
            }
        }
        if connection.phase() == PhaseKind::Closed && view.registering.is_none() {
            for message in connection.take_unacknowledged() {
                let bytes = view.memory.reclaim(message.payload);
                if let Some(log) = &mut self.log {
                    let number = message.number;
                    log.push(format!("{} {} gets message {number} back", self.now, log::name(side)));
                }
                view.application.add_unacknowledged(message.number, &bytes);
            }
        }
    }

    /// Checks that an ended connection left no memory registered, and no buffer in flight.
    pub(super) fn check_resources(&mut self, side: usize) {
        let view = &self.sides[side];
        if view.process != Process::Running || !view.is_over() || view.registering.is_some() {
            return;
        }
        if view.memory.region_count() > 0 {
            self.report_violation("memory stayed registered after the end of the connection");
        } else if view.memory.in_flight_count() > view.hello_buffers.len() + view.rejected.len() {
            self.report_violation("a buffer was not returned");
        }
    }

    /// Checks that the messages of a side were received or reported, after both sides have ended.
    pub(super) fn check_messages(&mut self, side: usize) {
        let receiver = &self.sides[1 - side];
        let Application { progress, is_hung, end, received, .. } = receiver.application;
        let has_stopped = receiver.process != Process::Running || progress == Progress::Left || is_hung;
        let receipt = if has_stopped {
            Receipt::Stopped
        } else if receiver.established_count == 0 && end == Some(EndReason::HandshakeTimedOut) {
            Receipt::NeverEstablished
        } else {
            Receipt::Received(received)
        };
        let sender = &mut self.sides[side];
        if sender.process != Process::Running || sender.application.end.is_none() {
            return;
        }
        let has_session = sender.connection.as_ref().is_some_and(|connection| connection.session().is_some());
        sender.application.check_sent(receipt, has_session);
        if let Some(what) = sender.application.violation.take() {
            self.report_violation(&what);
        }
    }

    /// Whether a side has closed the connection, and its close can complete, because both sides and their lane work.
    pub(super) fn can_complete_close(&self, side: usize) -> bool {
        let is_established = |view: &Side| {
            let phase = view.connection.as_ref().map(Connection::phase);
            view.process == Process::Running && phase == Some(PhaseKind::Established)
        };
        self.sides[side].application.progress == Progress::Left
            && self.sides.iter().all(is_established)
            && self.sides[0].lane == self.sides[1].lane
            && !self.is_lane_dead(side)
            && !self.sides[1 - side].application.is_hung
    }

    /// Whether a side has posted a close frame or the acknowledgement of one, and the request has not completed.
    pub(super) fn is_close_in_flight(&self) -> bool {
        let is_close = |posted: &Posted| matches!(posted.tag, Tag::Close | Tag::CloseAck);
        self.sides.iter().any(|side| side.posted.iter().any(is_close))
    }

    /// Returns the reason why a side's connection ended.
    pub(super) fn end_reason(&self, side: usize) -> Option<EndReason> {
        self.sides[side].connection.as_ref().and_then(Connection::end_reason)
    }
}
