//! Runs of many seeds, and shrinking of failing ones.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::cm::{CmOutcome, run_cm};
use crate::congestion::{CongestionReport, run_congestion};
use crate::fabric::FaultCounts;
use crate::hostile::{AttackReport, attack};
use crate::scenario::Scenario;
use crate::world::{Outcome, run};

/// The totals of many runs.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// The number of runs.
    pub seeds: u64,
    /// The number of posted send requests.
    pub operations: u64,
    /// The number of sent packets.
    pub packets: u64,
    /// The number of queue pairs.
    pub queue_pairs: u64,
    /// The number of queue pairs that failed with a cause.
    pub failures: u64,
    /// The number of connections and datagram queue pairs requested through connection managers.
    pub calls: u64,
    /// The number of connections that the connection managers established.
    pub established: u64,
    /// The injected faults.
    pub faults: FaultCounts,
    /// The violations, with their seeds.
    pub violations: Vec<(u64, String)>,
    /// The number of runs of several senders over one slow link.
    pub congestion_runs: u64,
    /// The sum of all runs' digests, which doesn't depend on the order of the runs.
    pub digest: u64,
}

/// The interval of seeds that also run several senders over one slow link: see [`run_congestion`].
pub const CONGESTION_EVERY: u64 = 20;

impl Totals {
    fn add_congestion(&mut self, report: &CongestionReport) {
        self.congestion_runs += 1;
        self.packets += report.packets;
        self.faults.marked += report.marked;
    }

    fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.operations += outcome.operations;
        self.packets += outcome.packets;
        self.queue_pairs += outcome.queue_pairs;
        self.failures += outcome.failures;
        self.digest = self.digest.wrapping_add(outcome.digest);
        self.faults.add(&outcome.faults);
        if let Some(what) = &outcome.violation {
            self.violations.push((outcome.seed, what.clone()));
        }
    }

    fn add_cm(&mut self, outcome: &CmOutcome) {
        self.calls += outcome.calls;
        self.digest = self.digest.wrapping_add(outcome.digest);
        self.established += outcome.established;
        self.packets += outcome.packets;
        self.faults.add(&outcome.faults);
        if let Some(what) = &outcome.violation {
            self.violations.push((outcome.seed, format!("connection managers: {what}")));
        }
    }
}

/// Runs seeds on several threads, and stops after `max_violations` violations.
pub fn run_seeds(seeds: std::ops::Range<u64>, threads: usize, max_violations: usize) -> Totals {
    let next = AtomicU64::new(seeds.start);
    let totals = Mutex::new(Totals::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let outcome = run(&Scenario::new(seed), false);
            let cm = run_cm(seed, false);
            let congestion = seed.is_multiple_of(CONGESTION_EVERY).then(|| run_congestion(seed));
            let mut totals = totals.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            totals.add(&outcome);
            totals.add_cm(&cm);
            match congestion {
                Some(Ok(report)) => totals.add_congestion(&report),
                Some(Err(what)) => totals.violations.push((seed, what)),
                None => {}
            }
            if totals.violations.len() >= max_violations {
                break;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut totals = totals.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    totals.violations.sort();
    totals
}

/// Attacks devices on several threads with the seeds from `first` on, [`ATTACK_PACKETS`] packets each, until `packets`
/// packets were sent or the time is `until`. Returns the statistics, and the violations with their seeds.
pub fn run_attacks(
    first: u64,
    packets: u64,
    until: Option<Instant>,
    threads: usize,
) -> (AttackReport, Vec<(u64, String)>) {
    let next = AtomicU64::new(first);
    let seeds = first..first + packets.div_ceil(ATTACK_PACKETS);
    let outcome = Mutex::new((AttackReport::default(), Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds.contains(&seed) || until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            let report = std::panic::catch_unwind(|| attack(seed, ATTACK_PACKETS));
            let mut outcome = outcome.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            match report {
                Ok(Ok(report)) => outcome.0.add(&report),
                Ok(Err(what)) => outcome.1.push((seed, what)),
                Err(_) => outcome.1.push((seed, "panic".to_owned())),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut outcome = outcome.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    outcome.1.sort();
    outcome
}

/// The number of packets of an attack.
pub const ATTACK_PACKETS: u64 = 10_000;

/// Shrinks a scenario with a violation: removes connections, steps and kinds of faults as long as a violation remains.
/// Returns the smallest scenario found within `max_runs` runs.
pub fn shrink(scenario: &Scenario, max_runs: usize) -> Scenario {
    let mut runs = 0;
    let mut fails = |candidate: &Scenario| {
        runs += 1;
        runs <= max_runs && run(candidate, false).violation.is_some()
    };
    let mut best = scenario.clone();
    loop {
        let before = (best.connections.len(), best.requests());
        let mut index = 0;
        while best.connections.len() > 1 && index < best.connections.len() {
            let mut candidate = best.clone();
            candidate.connections.remove(index);
            if fails(&candidate) { best = candidate } else { index += 1 }
        }
        for connection in 0..best.connections.len() {
            for side in 0..2 {
                shrink_steps(&mut best, |s| &mut s.connections[connection].programs[side].steps, &mut fails);
            }
        }
        for endpoint in 0..best.messages.endpoints.len() {
            shrink_steps(&mut best, |s| &mut s.messages.endpoints[endpoint].steps, &mut fails);
        }
        for kind in 0..8 {
            let mut candidate = best.clone();
            for faults in [&mut candidate.faults, &mut candidate.messages.faults] {
                match kind {
                    0 => faults.loss = 0,
                    1 => faults.duplication = 0,
                    2 => faults.reordering = 0,
                    3 => faults.corruption = 0,
                    4 => faults.delay = 0,
                    5 => faults.partitions.clear(),
                    6 => faults.bottleneck = None,
                    _ => faults.stalls.clear(),
                }
            }
            if fails(&candidate) {
                best = candidate;
            }
        }
        if (best.connections.len(), best.requests()) == before {
            return best;
        }
    }
}

/// Removes sequences of steps, long ones first.
fn shrink_steps<T>(
    best: &mut Scenario,
    steps: impl for<'a> Fn(&'a mut Scenario) -> &'a mut Vec<T>,
    fails: &mut impl FnMut(&Scenario) -> bool,
) {
    let mut chunk = steps(best).len();
    while chunk > 0 {
        let mut start = 0;
        while start < steps(best).len() {
            let mut candidate = best.clone();
            let shorter = steps(&mut candidate);
            let end = (start + chunk).min(shorter.len());
            shorter.drain(start..end);
            if fails(&candidate) { *best = candidate } else { start += chunk }
        }
        chunk /= 2;
    }
}
