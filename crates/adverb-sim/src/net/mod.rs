//! Two sides of a connection (adverb-net-proto) on modeled queue pairs, or on two devices (adverb-proto) for one of
//! [`DEVICE_SEED_INTERVAL`] seeds.
//!
//! Applications send eager and rendezvous messages, receive, shut down and close at random. Lanes break at both ends or
//! at one, packets are lost, dialing fails, and processes hang, die without notice or restart. The checks of every run:
//!
//! - each message is received once, in order and unaltered, or reported as unacknowledged;
//! - nothing is received after the peer's shutdown or after a close, and nothing can be sent after a shutdown;
//! - no write finds the receive queue empty (credits), and no place in a ring is overwritten before it is read;
//! - no request uses the key of released memory, and the NIC accesses no buffer that was returned;
//! - the buffered messages, the messages that are kept for a replay, the requests in flight and the registered regions
//!   stay within their limits;
//! - every wait ends: each connection ends after the faults, and an idle side notices that its lane has failed;
//! - without faults, every connection ends gracefully, over its first lane, and without waiting for a timeout;
//! - an ended connection leaves nothing registered, and all buffers were returned.

mod application;
mod devices;
mod explore;
mod hostile;
mod log;
mod memory;
mod pair;

use std::fmt;
use std::time::Duration;

use adverb_net_proto::{Config, EndReason, MAX_RENDEZVOUS, PhaseKind};

use crate::Random;
use crate::runner::run_each;
use application::{Application, EagerCall, Ending, PlannedMessage, Progress};
use devices::Devices;
pub use explore::{NetExploration, NetPlan, NetSearch, explore_net, explore_net_plans};
pub use hostile::net_attack_from_bytes;
use pair::{Action, Pair, Process};

/// The maximum number of rounds in which a run must end.
const MAX_ROUNDS: u32 = 3000;
/// The interval between the seeds that run on two devices, over a fabric that loses, duplicates and reorders packets.
pub const DEVICE_SEED_INTERVAL: u64 = 20;
/// The number of seeds of which one has [`ClosePace::Slow`].
const SLOW_CLOSE_INTERVAL: u64 = 5;

/// The outcome of [`run_net`].
#[derive(Clone, Debug)]
pub struct NetOutcome {
    /// The seed.
    pub seed: u64,
    /// The number of messages that were sent.
    pub message_count: u64,
    /// The number of messages that were received.
    pub received_count: u64,
    /// The number of messages that were reported as unacknowledged.
    pub unacknowledged_count: u64,
    /// The number of established lanes. Each side's establishment counts.
    pub lane_count: u64,
    /// The number of injected faults.
    pub fault_count: u64,
    /// The number of sides that closed the connection gracefully.
    pub graceful_count: u64,
    /// The number of packets, if the seed ran on devices.
    pub packet_count: u64,
    /// A hash of all steps.
    pub digest: u64,
    /// The first violation.
    pub violation: Option<String>,
    /// The trace, if requested.
    pub trace: Vec<String>,
}

struct Run {
    random: Random,
    pair: Pair,
    /// The devices, or `None` if the queue pairs are modeled.
    devices: Option<Devices>,
    limits: [Bounds; 2],
    has_faults: bool,
    profile: Profile,
    /// The number of lanes that [`Profile::BrokenClose`] may still break.
    breaks_left: u32,
    close_pace: ClosePace,
    fault_count: u64,
    digest: u64,
}

/// The speed at which a driver posts the requests of a close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ClosePace {
    Random,
    /// A side that has closed posts a request only when nothing else is left to do, so that all earlier requests have
    /// completed, and the peer has answered them.
    Slow,
}

/// Situations that random steps rarely reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Profile {
    Usual,
    /// Lanes break while a close frame is in flight.
    BrokenClose,
    /// As [`Profile::BrokenClose`], and the NICs retransmit for longer than all time limits of connections.
    SlowRetries,
}

/// The limits of a side's memory and requests.
struct Bounds {
    buffered_bytes: usize,
    kept_bytes: usize,
    request_count: usize,
}

/// The maximum number of registered regions of a side, besides those that the application has exposed: the ring, the
/// rendezvous messages, and one message that is registered again.
const MAX_REGION_COUNT: usize = 2 + MAX_RENDEZVOUS as usize;

/// Runs two sides of a connection.
pub fn run_net(seed: u64, trace: bool) -> NetOutcome {
    let mut random = Random::new(seed ^ 0x6e65_7470_726f_746f);
    let has_faults = !random.below(4).is_multiple_of(4);
    let reconnects = random.below(4) > 0;
    let millis = |count: u64| Duration::from_millis(count);
    let configs = [(); 2].map(|()| Config {
        recv_ring_size: random.between(512, 2048) as u32,
        max_outstanding_writes: random.between(4, 16) as u32,
        eager_threshold: random.between(16, 300) as u32,
        recv_buffer_limit: random.between(64, 1500) as usize,
        max_message_size: 2000,
        max_read_len: random.between(100, 2000) as u32,
        handshake_timeout: millis(20),
        close_timeout: millis(200),
        linger: millis(20),
        close_ack_timeout: millis(2),
        keepalive: (has_faults && random.below(4) > 0).then(|| millis(5)),
        reconnect: reconnects.then(|| millis(50)),
        redial_interval: millis(3),
    });
    let plans = [(); 2].map(|()| plan(&mut random));
    let mut ending = || random.pick(&[Ending::Open, Ending::Shutdown, Ending::Shutdown, Ending::Close]);
    let mut endings = [ending(), ending()];
    if has_faults && random.below(20) == 0 {
        endings[0] = Ending::Abort;
    }
    let applications = [0, 1].map(|side| {
        let (plan, peer_plan) = (plans[side].clone(), plans[1 - side].clone());
        Application::new(side as u8, plan, peer_plan, endings[side])
    });
    let limits = [0, 1].map(|side| {
        let Config { recv_buffer_limit, recv_ring_size, max_message_size, eager_threshold, .. } =
            configs[side];
        let peer_ring = configs[1 - side].recv_ring_size;
        let eager_limit = eager_threshold.min(peer_ring / 64 * 16 - 16);
        Bounds {
            buffered_bytes: recv_buffer_limit
                + 5 * recv_ring_size as usize / 4
                + max_message_size as usize
                + 64,
            kept_bytes: applications[side].max_kept_bytes(peer_ring as usize, eager_limit),
            request_count: configs[side].clone().clamped().send_queue_depth() as usize,
        }
    });
    let fault_count = u64::from(endings[0] == Ending::Abort);
    let profiles = [Profile::Usual, Profile::Usual, Profile::BrokenClose, Profile::SlowRetries];
    let profile = if has_faults { random.pick(&profiles) } else { Profile::Usual };
    let breaks_left = if profile == Profile::Usual { 0 } else { 3 };
    let devices = seed.is_multiple_of(DEVICE_SEED_INTERVAL).then(|| Devices::new(random.u64()));
    // None of these seeds runs on devices.
    let close_pace = if seed % SLOW_CLOSE_INTERVAL == 1 { ClosePace::Slow } else { ClosePace::Random };
    let mut pair = Pair::new(configs, applications);
    if trace {
        pair.log = Some(vec![format!("{profile:?}, faults: {has_faults}, devices: {}", devices.is_some())]);
        for side in 0..2 {
            let view = &pair.sides[side];
            let text = format!("{}: {:?}, {:?}", log::name(side), view.config, view.application);
            pair.note(|| text);
        }
    }
    let mut run = Run {
        random,
        pair,
        devices,
        limits,
        has_faults,
        profile,
        breaks_left,
        close_pace,
        fault_count,
        digest: seed,
    };
    run.run();
    run.outcome(seed)
}

fn plan(random: &mut Random) -> Vec<PlannedMessage> {
    let count = random.pick(&[0, 1, 3, 10, 30, 60]);
    let rendezvous_chance = random.pick(&[0, 100_000, 500_000]);
    let is_short = random.below(4) == 0;
    let message = |_| {
        let is_rendezvous = !is_short && random.chance_per_million(rendezvous_chance);
        let max = match random.below(10) {
            _ if is_short => 16,
            0 => 2000,
            _ if is_rendezvous => 2000,
            _ => 200,
        };
        let len = random.below(max) as u32;
        let call = match random.below(3) {
            0 => EagerCall::Feed,
            1 => EagerCall::Send,
            _ => EagerCall::SendAtOnce,
        };
        PlannedMessage { len, is_rendezvous, call }
    };
    (0..count).map(message).collect()
}

impl Run {
    fn run(&mut self) {
        let steps = self.random.between(200, 2500);
        // Each action has a random weight: a side that rarely receives fills the rings and the receive buffers.
        let mut weights = [10; 10];
        for weight in &mut weights {
            *weight = self.random.pick(&[1, 4, 10, 20]);
        }
        let fault_chance = if self.has_faults { self.random.pick(&[1000, 4000, 20_000]) } else { 0 };
        let breaks_handshake = self.random.below(4) == 0;
        for _ in 0..steps {
            // Faults during a close are more likely than others.
            let has_left = |side: &pair::Side| side.application.progress == Progress::Left && !side.is_over();
            let factor = if self.pair.sides.iter().any(has_left) { 5 } else { 1 };
            // Before both sides are established, most faults would end the handshake.
            let is_established = self.pair.sides.iter().all(|side| side.established_count > 0);
            if (is_established || breaks_handshake) && self.random.chance_per_million(fault_chance * factor) {
                self.inject_fault();
            }
            self.break_close();
            self.random_step(&weights);
            self.check();
            if self.pair.violation.is_some() {
                return;
            }
        }
        self.finish();
    }

    fn act(&mut self, action: Action) -> bool {
        match action {
            Action::Post(side)
                if self.close_pace == ClosePace::Slow
                    && self.pair.sides[side].application.progress == Progress::Left =>
            {
                self.work_before_post(side) | self.act_once(action)
            }
            _ => self.act_once(action),
        }
    }

    /// Completes all requests of both sides, including the peer's new ones, but posts none of `side`. Returns whether
    /// there was any work.
    fn work_before_post(&mut self, side: usize) -> bool {
        let peer = 1 - side;
        let actions = [
            Action::Execute(side),
            Action::Complete(side),
            Action::Poll(side),
            Action::Register(peer),
            Action::Post(peer),
            Action::Execute(peer),
            Action::Complete(peer),
            Action::Poll(peer),
        ];
        for round in 0..MAX_ROUNDS {
            let count = actions.iter().filter(|action| self.act_once(**action)).count();
            if count == 0 || self.pair.violation.is_some() {
                return round > 0;
            }
        }
        true
    }

    fn act_once(&mut self, action: Action) -> bool {
        let done = match (&mut self.devices, action) {
            (Some(devices), Action::Execute(_)) => {
                let done = devices.step(&mut self.pair);
                self.pair.after_step();
                done
            }
            // A device completes requests when it receives packets, and fails a queue pair when its timer expires.
            (Some(_), Action::Complete(_) | Action::Retry(_)) => false,
            _ => self.pair.act(action),
        };
        if done {
            let code = format!("{action:?}")
                .bytes()
                .fold(0u64, |code, byte| code.wrapping_mul(31) + u64::from(byte));
            self.digest = (self.digest ^ code).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        }
        done
    }

    /// Breaks the lane with some probability, if a close is in flight.
    fn break_close(&mut self) {
        if self.breaks_left == 0 || !self.pair.is_close_in_flight() {
            return;
        }
        let side = self.random.below(2) as usize;
        let is_injected = match self.random.below(8) {
            0 => self.act(Action::Cut),
            1 => self.act(Action::FailLane(side)),
            _ => false,
        };
        self.breaks_left -= u32::from(is_injected);
        self.fault_count += u64::from(is_injected);
    }

    fn inject_fault(&mut self) {
        let side = self.random.below(2) as usize;
        let outage = Duration::from_micros(self.random.below(2500));
        let is_injected = match (self.random.below(12), &mut self.devices) {
            (0..2, Some(devices)) => {
                devices.lose_packets_until(self.pair.now + outage);
                self.pair.note(|| format!("FAULT: all packets are lost for {outage:?}"));
                true
            }
            (kind, _) => self.inject(kind, side),
        };
        self.fault_count += u64::from(is_injected);
    }

    fn inject(&mut self, kind: u64, side: usize) -> bool {
        match kind {
            0..4 => self.act(Action::Cut),
            4..6 => self.act(Action::FailLane(side)),
            6..9 => self.act(Action::FailLane(0)) & self.act(Action::FailLane(1)),
            9 => self.act(Action::Kill(side, Process::Restarted)),
            10 => self.act(Action::Kill(side, Process::Dead)),
            _ => {
                self.pair.note(|| format!("FAULT: the application of the {} hangs", log::name(side)));
                !std::mem::replace(&mut self.pair.sides[side].application.is_hung, true)
            }
        }
    }

    fn random_step(&mut self, weights: &[u64; 10]) {
        let side = self.random.below(2) as usize;
        let total: u64 = weights.iter().sum();
        let mut at = self.random.below(total);
        let index = weights.iter().position(|weight| match at.checked_sub(*weight) {
            Some(rest) => {
                at = rest;
                false
            }
            None => true,
        });
        let action = match index.unwrap_or(0) {
            0 => Action::Send(side),
            1 => Action::Receive(side),
            2 => Action::Register(side),
            3 => Action::Post(side),
            4 => Action::Execute(side),
            5 => Action::Complete(side),
            6 => Action::Poll(side),
            7 => Action::Drain(side),
            8 if self.random.below(8) == 0 => Action::DialFailed(side),
            8 => Action::Dial(side),
            _ => return self.advance_time(side),
        };
        self.act(action);
    }

    /// Advances the time, if faults are enabled.
    fn advance_time(&mut self, side: usize) {
        if !self.has_faults {
            return;
        }
        if self.profile != Profile::SlowRetries {
            self.act(Action::Retry(side));
        }
        self.pair.now = self.pair.now + Duration::from_micros(self.random.below(300));
        self.fire_timeouts();
    }

    fn fire_timeouts(&mut self) {
        for side in 0..2 {
            if self.pair.next_timeout(side).is_some_and(|time| time <= self.pair.now) {
                self.act(Action::Timeout(side));
            }
        }
    }

    fn check(&mut self) {
        for (side, limits) in self.limits.iter().enumerate() {
            let view = &self.pair.sides[side];
            let Some(connection) = &view.connection else { continue };
            let (buffered, kept) = connection.buffered_bytes();
            let (requests, regions) = (view.request_count(), view.memory.region_count());
            let what = if connection.phase() == PhaseKind::Established && buffered > limits.buffered_bytes {
                format!("side {side} buffers {buffered} bytes")
            } else if kept > limits.kept_bytes {
                format!("side {side} keeps {kept} bytes for a replay")
            } else if requests > limits.request_count {
                format!("side {side} has {requests} requests in flight")
            } else if regions > MAX_REGION_COUNT + view.application.exposed_count as usize {
                format!("side {side} has {regions} registered regions")
            } else {
                continue;
            };
            return self.pair.report_violation(&what);
        }
    }

    /// Runs until nothing changes. Returns `false` if a violation was found.
    fn run_until_idle(&mut self) -> bool {
        for _ in 0..MAX_ROUNDS {
            let mut is_busy = false;
            for side in 0..2 {
                is_busy |= self.act(Action::Send(side));
                for action in [
                    Action::Receive(side),
                    Action::Register(side),
                    Action::Post(side),
                    Action::Execute(side),
                    Action::Complete(side),
                    Action::Poll(side),
                ] {
                    while self.act(action) {
                        is_busy = true;
                        self.break_close();
                        if self.pair.violation.is_some() {
                            return false;
                        }
                    }
                }
                is_busy |= self.act(Action::Drain(side)) | self.act(Action::Dial(side));
                is_busy |= self.profile != Profile::SlowRetries && self.act(Action::Retry(side));
            }
            self.check();
            if self.pair.violation.is_some() {
                return false;
            }
            if is_busy {
                continue;
            }
            let is_over = self.pair.sides.iter().all(|side| side.is_over());
            let is_lane_silent = (0..2).any(|side| self.pair.is_lane_silent(side));
            let next = (0..2).filter_map(|side| self.pair.next_timeout(side)).min();
            let is_waiting = self.pair.sides.iter().any(|side| {
                let phase = side.connection.as_ref().map(|connection| connection.phase());
                !matches!(phase, None | Some(PhaseKind::Closed | PhaseKind::Established))
                    || side.application.progress == Progress::Left && !side.is_over()
            });
            match next {
                Some(next) if !is_over && (is_lane_silent || is_waiting) => {
                    if !self.has_faults {
                        self.pair.report_violation("a run without faults waits for a timeout");
                        return false;
                    }
                    if self.devices.is_none() && (0..2).any(|side| self.pair.can_complete_close(side)) {
                        self.pair.report_violation("a close waits for a timeout, though its lane works");
                        return false;
                    }
                    self.pair.now = self.pair.now.max(next);
                    self.fire_timeouts();
                }
                _ if self.act(Action::Retry(0)) | self.act(Action::Retry(1)) => {}
                _ => return true,
            }
        }
        self.pair.report_violation("the connection did not become idle");
        false
    }

    /// Completes all work without faults other than those of [`Run::break_close`], closes both sides, and checks that
    /// both connections end.
    fn finish(&mut self) {
        if !self.run_until_idle() {
            return;
        }
        let has_keepalive = |pair: &Pair, side: usize| pair.next_timeout(side).is_some();
        for side in 0..2 {
            if self.pair.is_lane_silent(side) && has_keepalive(&self.pair, side) {
                return self.pair.report_violation("an idle side did not notice that its lane failed");
            }
        }
        for side in 0..2 {
            self.act(Action::Close(side));
        }
        if !self.run_until_idle() {
            return;
        }
        for side in 0..2 {
            // A connection whose application hangs stays open while its peer exists.
            let is_hung = self.pair.sides[side].application.is_hung;
            if !self.pair.sides[side].is_over() && !is_hung {
                let phase = self.pair.sides[side].connection.as_ref().map(|connection| connection.phase());
                return self.pair.report_violation(&format!("side {side} did not end: {phase:?}"));
            }
            self.pair.check_resources(side);
        }
        self.check_messages();
    }

    fn check_messages(&mut self) {
        for side in 0..2 {
            self.pair.check_messages(side);
            let sender = &self.pair.sides[side];
            if sender.process != Process::Running || sender.application.end.is_none() {
                continue;
            }
            if !self.has_faults {
                let reason = self.pair.end_reason(side);
                if !matches!(reason, Some(EndReason::Closed | EndReason::PeerClosed)) {
                    self.pair.report_violation(&format!("side {side} ended without a fault: {reason:?}"));
                }
                if self.pair.sides[side].established_count != 1 {
                    self.pair.report_violation("a lane was replaced without a fault");
                }
            }
        }
    }

    fn outcome(mut self, seed: u64) -> NetOutcome {
        let mut trace = self.pair.log.take().unwrap_or_default();
        if self.pair.violation.is_some() && !trace.is_empty() {
            let sides = self.pair.sides.iter().enumerate();
            trace.extend(sides.map(|(side, view)| format!("{}: {:#?}", log::name(side), view.connection)));
        }
        let sum = |count: fn(&Application) -> u64| {
            self.pair.sides.iter().map(|side| count(&side.application)).sum::<u64>()
        };
        let is_graceful = |application: &Application| application.end == Some(EndReason::Closed);
        NetOutcome {
            seed,
            message_count: sum(|application| application.sent),
            received_count: sum(|application| application.received),
            unacknowledged_count: sum(|application| application.unacknowledged.len() as u64),
            lane_count: self.pair.sides.iter().map(|side| side.established_count).sum(),
            fault_count: self.fault_count,
            graceful_count: self.pair.sides.iter().filter(|side| is_graceful(&side.application)).count()
                as u64,
            digest: self.digest,
            violation: self.pair.violation,
            packet_count: self.devices.as_ref().map_or(0, Devices::packet_count),
            trace,
        }
    }
}

/// The totals of many runs of [`run_net`].
#[derive(Clone, Debug, Default)]
pub struct NetTotals {
    /// The number of seeds that were run.
    pub seed_count: u64,
    /// The number of messages that were sent.
    pub message_count: u64,
    /// The number of messages that were received.
    pub received_count: u64,
    /// The number of messages that were reported as unacknowledged.
    pub unacknowledged_count: u64,
    /// The number of established lanes. Each side's establishment counts.
    pub lane_count: u64,
    /// The number of injected faults.
    pub fault_count: u64,
    /// The number of sides that closed the connection gracefully.
    pub graceful_count: u64,
    /// The number of packets of the seeds that ran on devices.
    pub packet_count: u64,
    /// The wrapping sum of the runs' digests. The order of the runs doesn't affect the sum.
    pub digest: u64,
    /// The seeds and descriptions of the violations.
    pub violations: Vec<(u64, String)>,
}

impl NetTotals {
    fn add(&mut self, outcome: &NetOutcome) {
        self.seed_count += 1;
        self.message_count += outcome.message_count;
        self.received_count += outcome.received_count;
        self.unacknowledged_count += outcome.unacknowledged_count;
        self.lane_count += outcome.lane_count;
        self.fault_count += outcome.fault_count;
        self.graceful_count += outcome.graceful_count;
        self.packet_count += outcome.packet_count;
        self.digest = self.digest.wrapping_add(outcome.digest);
        if let Some(what) = &outcome.violation {
            self.violations.push((outcome.seed, format!("connections: {what}")));
        }
    }
}

impl fmt::Display for NetTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "connections: {} seeds, {} lanes, {} faults, {} graceful ends",
            self.seed_count, self.lane_count, self.fault_count, self.graceful_count
        )?;
        writeln!(
            f,
            "{} messages sent, {} received, {} reported as unacknowledged; {} packets of seeds on devices",
            self.message_count, self.received_count, self.unacknowledged_count, self.packet_count
        )?;
        write!(f, "digest of the connections' steps: {:#018x}", self.digest)
    }
}

/// Runs the connections of each seed on `thread_count` threads. The run stops after `max_violations` violations.
pub fn run_net_seeds(seeds: std::ops::Range<u64>, thread_count: usize, max_violations: usize) -> NetTotals {
    let add = |totals: &mut NetTotals, outcome: NetOutcome| {
        totals.add(&outcome);
        totals.violations.len() < max_violations
    };
    let mut totals = run_each(seeds, thread_count, |seed| run_net(seed, false), add);
    totals.violations.sort();
    totals
}
