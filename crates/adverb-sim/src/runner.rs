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
use crate::scenario_run::{Outcome, run};

/// The totals of many runs.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// The number of seeds that were run.
    pub seed_count: u64,
    /// The number of posted send requests.
    pub send_request_count: u64,
    /// The number of sent packets.
    pub packet_count: u64,
    /// The number of queue pairs.
    pub queue_pair_count: u64,
    /// The sum of [`Outcome::failed_qp_count`] of all runs.
    pub failed_qp_count: u64,
    /// The number of connections and service ID resolutions that applications requested from connection managers.
    pub cm_request_count: u64,
    /// The number of connections that the connection managers established.
    pub established_connection_count: u64,
    /// The numbers of injected faults.
    pub fault_counts: FaultCounts,
    /// The seeds and descriptions of the violations.
    pub violations: Vec<(u64, String)>,
    /// The number of runs of [`run_congestion`].
    pub congestion_run_count: u64,
    /// The wrapping sum of the runs' digests. The order of the runs doesn't affect the sum.
    pub digest: u64,
}

/// The interval between the seeds for which [`run_seeds`] also calls [`run_congestion`].
pub const CONGESTION_SEED_INTERVAL: u64 = 20;

impl Totals {
    fn add_congestion(&mut self, report: &CongestionReport) {
        self.congestion_run_count += 1;
        self.packet_count += report.packet_count;
        self.fault_counts.marked += report.ecn_marked_count;
    }

    fn add(&mut self, outcome: &Outcome) {
        self.seed_count += 1;
        self.send_request_count += outcome.send_request_count;
        self.packet_count += outcome.packet_count;
        self.queue_pair_count += outcome.queue_pair_count;
        self.failed_qp_count += outcome.failed_qp_count;
        self.digest = self.digest.wrapping_add(outcome.digest);
        self.fault_counts.add(&outcome.fault_counts);
        if let Some(what) = &outcome.violation {
            self.violations.push((outcome.seed, what.clone()));
        }
    }

    fn add_cm(&mut self, outcome: &CmOutcome) {
        self.cm_request_count += outcome.cm_request_count;
        self.digest = self.digest.wrapping_add(outcome.digest);
        self.established_connection_count += outcome.established_connection_count;
        self.packet_count += outcome.packet_count;
        self.fault_counts.add(&outcome.fault_counts);
        if let Some(what) = &outcome.violation {
            self.violations.push((outcome.seed, format!("connection managers: {what}")));
        }
    }
}

/// Runs the scenario and the connection managers of each seed on `thread_count` threads. The run stops after
/// `max_violations` violations.
pub fn run_seeds(seeds: std::ops::Range<u64>, thread_count: usize, max_violations: usize) -> Totals {
    let run = |seed: u64| {
        let congestion = seed.is_multiple_of(CONGESTION_SEED_INTERVAL).then(|| run_congestion(seed));
        (seed, run(&Scenario::new(seed), false), run_cm(seed, false), congestion)
    };
    let mut totals =
        run_each(seeds, thread_count, run, |totals: &mut Totals, (seed, outcome, cm, congestion)| {
            totals.add(&outcome);
            totals.add_cm(&cm);
            match congestion {
                Some(Ok(report)) => totals.add_congestion(&report),
                Some(Err(what)) => totals.violations.push((seed, what)),
                None => {}
            }
            totals.violations.len() < max_violations
        });
    totals.violations.sort();
    totals
}

/// Calls `run` for each seed, on `thread_count` threads, and `add` for each result, until `add` returns `false`.
pub(crate) fn run_each<T: Default + Send, R>(
    seeds: std::ops::Range<u64>,
    thread_count: usize,
    run: impl Fn(u64) -> R + Sync,
    add: impl Fn(&mut T, R) -> bool + Sync,
) -> T {
    let next = AtomicU64::new(seeds.start);
    let totals = Mutex::new(T::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds.contains(&seed) {
                break;
            }
            let result = run(seed);
            let mut totals = totals.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if !add(&mut totals, result) {
                break;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread_count.max(1) {
            scope.spawn(work);
        }
    });
    totals.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Runs attacks with consecutive seeds from `first_seed` on `thread_count` threads, with [`PACKETS_PER_ATTACK`] packets
/// per attack, until the attackers have sent `packet_count` packets or `deadline` has passed.
///
/// Returns the statistics of the attacks, and the seeds and descriptions of the violations.
pub fn run_attacks(
    first_seed: u64,
    packet_count: u64,
    deadline: Option<Instant>,
    thread_count: usize,
) -> (AttackReport, Vec<(u64, String)>) {
    let seeds = first_seed..first_seed + packet_count.div_ceil(PACKETS_PER_ATTACK);
    let is_over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let run =
        |seed| (!is_over()).then(|| (seed, std::panic::catch_unwind(|| attack(seed, PACKETS_PER_ATTACK))));
    let add = |outcome: &mut (AttackReport, Vec<(u64, String)>), report| {
        match report {
            Some((_, Ok(Ok(report)))) => outcome.0.add(&report),
            Some((seed, Ok(Err(what)))) => outcome.1.push((seed, what)),
            Some((seed, Err(_))) => outcome.1.push((seed, "panic".to_owned())),
            None => return false,
        }
        true
    };
    let mut outcome = run_each(seeds, thread_count, run, add);
    outcome.1.sort();
    outcome
}

/// The number of packets per attack of [`run_attacks`].
pub const PACKETS_PER_ATTACK: u64 = 10_000;

/// Shrinks a scenario with a violation. The function removes connections, steps and kinds of faults while the scenario
/// still has a violation. Returns the smallest scenario found within `max_runs` runs.
pub fn shrink(scenario: &Scenario, max_runs: usize) -> Scenario {
    let mut runs = 0;
    let mut fails = |candidate: &Scenario| {
        runs += 1;
        runs <= max_runs && run(candidate, false).violation.is_some()
    };
    let mut best = scenario.clone();
    loop {
        let before = (best.connections.len(), best.max_request_count());
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
        for endpoint in 0..best.message_run.endpoints.len() {
            shrink_steps(&mut best, |s| &mut s.message_run.endpoints[endpoint].steps, &mut fails);
        }
        for kind in 0..8 {
            let mut candidate = best.clone();
            for faults in [&mut candidate.faults, &mut candidate.message_run.faults] {
                match kind {
                    0 => faults.loss_per_million = 0,
                    1 => faults.duplication_per_million = 0,
                    2 => faults.reordering_per_million = 0,
                    3 => faults.corruption_per_million = 0,
                    4 => faults.delay_per_million = 0,
                    5 => faults.partitions.clear(),
                    6 => faults.bottleneck = None,
                    _ => faults.stalls.clear(),
                }
            }
            if fails(&candidate) {
                best = candidate;
            }
        }
        if (best.connections.len(), best.max_request_count()) == before {
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
