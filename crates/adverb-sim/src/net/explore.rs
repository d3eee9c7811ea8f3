//! All states of small connections.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Mutex;
use std::time::Duration;

use adverb_net_proto::{Config, EndReason};

use super::application::{Application, EagerCall, Ending, PlannedMessage};
use super::pair::{Action, Pair, Process};

/// The outcome of [`explore_net`].
#[derive(Clone, Debug)]
pub struct NetExploration {
    /// The number of states.
    pub state_count: u64,
    /// The number of transitions between states.
    pub transition_count: u64,
    /// The number of states in which both sides have ended.
    pub final_count: u64,
    /// Whether all states were visited.
    pub is_complete: bool,
    /// The first violation, with the steps that lead to it.
    pub violation: Option<String>,
}

impl fmt::Display for NetExploration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} states, {} transitions, {} final states{}",
            self.state_count,
            self.transition_count,
            self.final_count,
            if self.is_complete { "" } else { " (not all states)" }
        )
    }
}

/// A pair of processes, and the faults that may still happen.
#[derive(Clone, Hash)]
struct State {
    pair: Pair,
    breaks_left: u8,
    restarts_left: u8,
    had_fault: bool,
}

/// A step between two states.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The NIC completes the executed requests, the driver registers, dials, posts and polls, and the application
    /// receives, until nothing is left to do.
    Drive(usize),
    /// The NIC executes all requests of a side.
    Execute(usize),
    /// The lane breaks, after the NICs have executed these numbers of requests of the connector and of the listener.
    Break(usize, usize),
    Act(Action),
}

/// A hash function of 128 bits: two different hashes of the same words.
struct Fingerprint(u64, u64);

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let mut full = [0; 8];
            full[..word.len()].copy_from_slice(word);
            self.write_u64(u64::from_le_bytes(full));
        }
        self.write_u64(bytes.len() as u64);
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_u64(&mut self, value: u64) {
        let first = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15;
        let second = u128::from(self.1.wrapping_add(value) | 1) * 0xd6e8_feb8_6659_fd93;
        self.0 = (first as u64 ^ (first >> 64) as u64).wrapping_add(0x2545_f491_4f6c_dd1d);
        self.1 = (second as u64 ^ (second >> 64) as u64).rotate_left(29) ^ value;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Returns a fingerprint of 128 bits.
fn fingerprint(state: &State) -> u128 {
    let mut hasher = Fingerprint(1, 2);
    state.hash(&mut hasher);
    u128::from(hasher.0) << 64 | u128::from(hasher.1)
}

impl State {
    /// Whether the search tries a step. It skips steps that can have no effect, because copying the state takes time,
    /// and steps that would exceed its number of breaks or restarts.
    fn is_tried(&self, step: Step) -> bool {
        match step {
            Step::Drive(_) => true,
            Step::Act(Action::Send(side)) => self.pair.sides[side].application.is_sending(),
            Step::Break(..) => self.breaks_left > 0,
            Step::Act(Action::Kill(..)) => self.restarts_left > 0,
            // A broken lane fails sooner or later, so this is not an additional fault.
            Step::Act(Action::FailLane(side)) => self.pair.is_lane_silent(side),
            // No timeout is needed while the lane works, or while a completion waits for the driver.
            Step::Act(Action::Timeout(side)) => {
                let is_waiting = self.pair.next_timeout(side).is_some() && self.pair.is_lane_dead(side);
                is_waiting && !self.clone().step(Step::Drive(side))
            }
            Step::Act(Action::Drain(side)) => self.pair.sides[side].must_drain,
            Step::Execute(side) => self.pair.can_execute(side),
            Step::Act(_) => true,
        }
    }

    /// Performs a step, and returns whether it changed anything.
    fn step(&mut self, step: Step) -> bool {
        match step {
            Step::Drive(side) => {
                let mut done = false;
                while self.pair.act(Action::Complete(side))
                    | self.pair.act(Action::Register(side))
                    | self.pair.act(Action::Dial(side))
                    | self.pair.act(Action::Post(side))
                    | self.pair.act(Action::Poll(side))
                    | self.pair.act(Action::Receive(side))
                {
                    done = true;
                }
                done
            }
            Step::Execute(side) => {
                while self.pair.act(Action::Execute(side)) {}
                true
            }
            Step::Break(first, second) => {
                let mut execute =
                    |side: usize, count: usize| (0..count).all(|_| self.pair.act(Action::Execute(side)));
                let done = execute(0, first) && execute(1, second) && self.pair.act(Action::Cut);
                self.breaks_left -= u8::from(done);
                self.had_fault |= done;
                done
            }
            Step::Act(action) => {
                let done = self.pair.act(action);
                if done && matches!(action, Action::Kill(..)) {
                    self.restarts_left -= 1;
                    self.had_fault = true;
                }
                done
            }
        }
    }

    /// Whether both sides have ended.
    fn is_final(&self) -> bool {
        self.pair.sides.iter().all(|side| side.is_over())
    }

    /// Checks a final state, after the applications have received all messages that they can receive.
    fn check_final(&self) -> Option<String> {
        let mut pair = self.pair.clone();
        for side in 0..2 {
            while pair.act(Action::Receive(side)) || pair.act(Action::Register(side)) {}
            pair.check_resources(side);
        }
        for side in 0..2 {
            pair.check_messages(side);
            let is_graceful = matches!(
                pair.sides[side].application.end,
                Some(EndReason::Closed | EndReason::PeerClosed) | None
            );
            if !self.had_fault && !is_graceful {
                pair.report_violation("a connection without faults did not end gracefully");
            }
        }
        pair.violation
    }
}

/// A small connection, whose states [`explore_net`] visits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NetPlan {
    /// The connector sends an eager and a rendezvous message, and closes.
    ConnectorCloses,
    /// The listener sends an eager and a rendezvous message, and closes.
    ListenerCloses,
    /// Each side sends a message, and closes.
    BothClose,
    /// Each side sends a message, and shuts down. A side closes after the peer's shutdown.
    BothShutDown,
    /// The connector sends a rendezvous message, and shuts down; the listener shuts down at once. A side closes after
    /// the peer's shutdown.
    ShutdownAndClose,
    /// The connector sends messages and closes, while the listener, which has a message to send, receives them.
    CloseAgainstMessages,
}

impl NetPlan {
    /// All plans.
    pub const ALL: &[NetPlan] = &[
        NetPlan::ConnectorCloses,
        NetPlan::ListenerCloses,
        NetPlan::BothClose,
        NetPlan::BothShutDown,
        NetPlan::ShutdownAndClose,
        NetPlan::CloseAgainstMessages,
    ];

    /// Returns the maximum number of a side's requests that are executed before a break. Plans with messages in both
    /// directions, or with two endings, have more states, so they have fewer kinds of breaks.
    fn max_executed(self) -> usize {
        match self {
            NetPlan::ConnectorCloses | NetPlan::ListenerCloses => 3,
            _ => 0,
        }
    }

    fn sides(self) -> [(Vec<PlannedMessage>, Ending); 2] {
        let eager = PlannedMessage { len: 8, is_rendezvous: false, call: EagerCall::Send };
        let rendezvous = PlannedMessage { len: 24, is_rendezvous: true, call: EagerCall::Send };
        match self {
            NetPlan::ConnectorCloses => [(vec![eager, rendezvous], Ending::Close), (vec![], Ending::Open)],
            NetPlan::ListenerCloses => [(vec![], Ending::Open), (vec![eager, rendezvous], Ending::Close)],
            NetPlan::BothClose => [(vec![eager], Ending::Close), (vec![rendezvous], Ending::Close)],
            NetPlan::BothShutDown => [(vec![rendezvous], Ending::Shutdown), (vec![eager], Ending::Shutdown)],
            NetPlan::ShutdownAndClose => [(vec![rendezvous], Ending::Shutdown), (vec![], Ending::Shutdown)],
            NetPlan::CloseAgainstMessages => {
                [(vec![eager, rendezvous], Ending::Close), (vec![eager], Ending::Open)]
            }
        }
    }
}

/// Visits all states of a connection with a ring of 512 bytes and at most four outstanding writes, with at most
/// `break_count` breaks of lanes and `restart_count` restarts: breadth first, up to `max_states`.
///
/// It makes the checks of [`run_net`](crate::run_net), and checks that a final state can be reached from each state. To
/// keep the number of states small, all work of a driver is one step, and so is the execution of all requests of a
/// side. Only a break interrupts the execution: after up to three requests of each side, or before the first one in
/// plans with many states.
pub fn explore_net(plan: NetPlan, break_count: u8, restart_count: u8, max_states: usize) -> NetExploration {
    let config = Config {
        recv_ring_size: 512,
        max_outstanding_writes: 4,
        eager_threshold: 64,
        recv_buffer_limit: 200,
        max_message_size: 400,
        max_read_len: 400,
        keepalive: None,
        reconnect: Some(Duration::from_secs(1)),
        ..Config::default()
    };
    let [(connector_plan, connector_ending), (listener_plan, listener_ending)] = plan.sides();
    let applications = [
        Application::new(0, connector_plan.clone(), listener_plan.clone(), connector_ending),
        Application::new(1, listener_plan, connector_plan, listener_ending),
    ];
    let pair = Pair::new([config.clone(), config], applications);
    let (breaks_left, restarts_left) = (break_count, restart_count);
    let first = State { pair, breaks_left, restarts_left, had_fault: false };
    explore(first, plan.max_executed(), max_states)
}

/// A search: a plan, and the maximum numbers of breaks and of restarts.
pub type NetSearch = (NetPlan, u8, u8);

/// The searches of [`explore_net_plans`], which together take seconds. The first one has the most states.
const SEARCHES: &[NetSearch] = &[
    (NetPlan::ConnectorCloses, 2, 1),
    (NetPlan::ListenerCloses, 1, 1),
    (NetPlan::BothClose, 1, 0),
    (NetPlan::BothClose, 0, 1),
    (NetPlan::BothShutDown, 0, 1),
    (NetPlan::ShutdownAndClose, 0, 1),
    (NetPlan::CloseAgainstMessages, 0, 1),
];

/// Visits the states of all plans on `thread_count` threads. Calls `report` when a search ends.
pub fn explore_net_plans(
    max_states: usize,
    thread_count: usize,
    report: impl Fn(NetSearch, &NetExploration) + Sync,
) {
    let searches = Mutex::new(SEARCHES.iter());
    let work = || {
        loop {
            let next = searches.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
            let Some((plan, break_count, restart_count)) = next.copied() else { break };
            let exploration = explore_net(plan, break_count, restart_count, max_states);
            report((plan, break_count, restart_count), &exploration);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..thread_count.max(1) {
            scope.spawn(work);
        }
    });
}

fn explore(first: State, max_executed: usize, max_states: usize) -> NetExploration {
    let steps: Vec<Step> = (0..2)
        .flat_map(|side| {
            [
                Step::Drive(side),
                Step::Act(Action::Send(side)),
                Step::Execute(side),
                Step::Act(Action::Drain(side)),
                Step::Act(Action::Timeout(side)),
                Step::Act(Action::FailLane(side)),
                Step::Act(Action::Kill(side, Process::Restarted)),
            ]
        })
        .chain(
            (0..=max_executed)
                .flat_map(|first| (0..=max_executed).map(move |second| Step::Break(first, second))),
        )
        .collect();
    let mut ids = HashMap::from([(fingerprint(&first), 0u32)]);
    // The step and the state before each state, for the trace of a violation.
    let mut origins: Vec<(u32, Option<Step>)> = vec![(0, None)];
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut finals = Vec::new();
    let mut level = vec![(0u32, first.clone())];
    let mut result = NetExploration {
        state_count: 1,
        transition_count: 0,
        final_count: 0,
        is_complete: true,
        violation: None,
    };
    // Repeats the steps that lead to a state, because the search itself keeps no log.
    let describe = |origins: &[(u32, Option<Step>)], mut id: u32, what: &str| {
        let mut steps = Vec::new();
        while let (before, Some(step)) = origins[id as usize] {
            steps.push(step);
            id = before;
        }
        let mut state = first.clone();
        state.pair.log = Some(Vec::new());
        for step in steps.into_iter().rev() {
            state.pair.note(|| format!("-- {step:?}"));
            state.step(step);
        }
        let log = state.pair.log.take().unwrap_or_default();
        format!("{what}, after:\n{}", log.join("\n"))
    };
    while !level.is_empty() {
        let mut next = Vec::new();
        for (id, state) in level {
            if state.is_final() {
                result.final_count += 1;
                finals.push(id);
                if let Some(what) = state.check_final() {
                    result.violation = Some(describe(&origins, id, &what));
                    return result;
                }
                continue;
            }
            for step in steps.iter().filter(|step| state.is_tried(**step)) {
                let mut successor = state.clone();
                if !successor.step(*step) {
                    continue;
                }
                result.transition_count += 1;
                let new_id = origins.len() as u32;
                match ids.entry(fingerprint(&successor)) {
                    Entry::Occupied(entry) => edges.push((id, *entry.get())),
                    Entry::Vacant(entry) => {
                        entry.insert(new_id);
                        origins.push((id, Some(*step)));
                        edges.push((id, new_id));
                        if let Some(what) = &successor.pair.violation {
                            result.violation = Some(describe(&origins, new_id, what));
                            return result;
                        }
                        next.push((new_id, successor));
                    }
                }
            }
            result.state_count = origins.len() as u64;
            if origins.len() > max_states {
                result.is_complete = false;
                return result;
            }
        }
        level = next;
    }
    if let Some(id) = find_stuck_state(origins.len(), &mut edges, &finals) {
        result.violation = Some(describe(&origins, id, "no final state can be reached"));
    }
    result
}

/// Returns a state from which no final state can be reached.
fn find_stuck_state(count: usize, edges: &mut [(u32, u32)], finals: &[u32]) -> Option<u32> {
    edges.sort_unstable_by_key(|(_, to)| *to);
    let mut reaches_end = vec![false; count];
    let mut queue = finals.to_vec();
    for id in finals {
        reaches_end[*id as usize] = true;
    }
    while let Some(id) = queue.pop() {
        let start = edges.partition_point(|(_, to)| *to < id);
        for (from, to) in &edges[start..] {
            if *to != id {
                break;
            }
            if !std::mem::replace(&mut reaches_end[*from as usize], true) {
                queue.push(*from);
            }
        }
    }
    reaches_end.iter().position(|reaches_end| !reaches_end).map(|id| id as u32)
}
