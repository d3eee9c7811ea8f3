//! Brokers of a cluster on modeled queue pairs.
//!
//! Members send messages, transfer data, flush and poll at random. Connections break, and members die without notice
//! and restart with a new epoch. The checks of every run:
//!
//! - messages arrive once, in order and unaltered, between each pair of members;
//! - no message finds the receive queue empty (RNR), and no slot is overwritten or posted while in use;
//! - the application never holds more messages and immediate data of a peer than it granted credits;
//! - no request accesses memory of an earlier epoch;
//! - each ticket ends exactly once, the NIC accesses its buffers only before that, and its data is correct if it
//!   succeeded;
//! - requests are posted in the order of the application's calls, and only when a doorbell batch is complete, at a
//!   flush, or at a poll;
//! - requests are signaled selectively;
//! - no send queue overflows;
//! - a session ends only because of an injected fault, or because a member leaves it;
//! - after the faults end, all members are connected, and all messages and transfers complete.
//!
//! In half of the runs, the messages are calls, with deadlines, cancellations, delayed and missing answers, and
//! handlers that make calls:
//!
//! - each call ends exactly once, with the reply or failure of its own request;
//! - a request arrives once;
//! - a request can be answered while its caller waits, but not after its session has ended;
//! - a call expires at its deadline, and ends with its session.
//!
//! In half of the runs, members publish and withdraw segments of an arena, while others transfer data by pointers to
//! them:
//!
//! - a pointer resolves only to the segment that it names, in its epoch and its bounds;
//! - no request is posted to a segment that its owner has deregistered, and none is executed;
//! - a message arrives after the keys of the segments that existed when it was sent;
//! - withdrawn segments are released, and the memory of keys and calls is bounded.

mod application;
mod calls;
mod finish;
mod hostile;
mod memory;
mod posts;
mod run;
mod scale;
mod segments;

use std::fmt;
use std::time::Duration;

use adverb_cluster_proto::{BrokerConfig, rpc};

use crate::Random;
use crate::runner::run_each;
pub use hostile::cluster_attack_from_bytes;
use run::ClusterRun;
pub use scale::{ClusterScale, run_cluster_scale};

/// The numbers of calls, and of uses of segments.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LayerCounts {
    /// The number of calls.
    pub calls: u64,
    /// The number of calls that ended with a reply.
    pub answered_calls: u64,
    /// The number of calls that ended with a failure.
    pub failed_calls: u64,
    /// The number of calls whose deadline expired.
    pub expired_calls: u64,
    /// The number of calls that were cancelled.
    pub cancelled_calls: u64,
    /// The number of calls whose session ended.
    pub lost_calls: u64,
    /// The number of calls that a handler made to answer a request.
    pub nested_calls: u64,
    /// The number of tickets whose transfers used a pointer.
    pub pointer_transfers: u64,
    /// The number of invalid pointers that were refused.
    pub refused_pointers: u64,
    /// The number of withdrawn segments that were released.
    pub released_segments: u64,
}

impl LayerCounts {
    fn add(&mut self, other: &LayerCounts) {
        self.calls += other.calls;
        self.answered_calls += other.answered_calls;
        self.failed_calls += other.failed_calls;
        self.expired_calls += other.expired_calls;
        self.cancelled_calls += other.cancelled_calls;
        self.lost_calls += other.lost_calls;
        self.nested_calls += other.nested_calls;
        self.pointer_transfers += other.pointer_transfers;
        self.refused_pointers += other.refused_pointers;
        self.released_segments += other.released_segments;
    }
}

/// The outcome of [`run_cluster`].
#[derive(Clone, Debug)]
pub struct ClusterOutcome {
    /// The seed.
    pub seed: u64,
    /// The number of members.
    pub member_count: u64,
    /// The number of messages that arrived, including WRITEs with immediate data.
    pub message_count: u64,
    /// The number of tickets that ended, including those that failed.
    pub ticket_count: u64,
    /// The number of tickets that failed.
    pub failed_ticket_count: u64,
    /// The number of posted lists, each of which rings the doorbell once.
    pub doorbell_count: u64,
    /// The number of posted send requests.
    pub request_count: u64,
    /// The number of credit messages and probes among the posted send requests.
    pub control_request_count: u64,
    /// The number of signaled requests.
    pub signaled_count: u64,
    /// The number of established sessions.
    pub session_count: u64,
    /// The number of injected faults: cut connections, closed sessions and deaths.
    pub fault_count: u64,
    /// The number of restarts of members.
    pub restart_count: u64,
    /// The number of requests that a broker refused because of a stale epoch.
    pub stale_epoch_count: u64,
    /// The numbers of calls, and of uses of segments.
    pub layers: LayerCounts,
    /// A hash of all events and requests.
    pub digest: u64,
    /// The first violation.
    pub violation: Option<String>,
    /// The trace, if requested.
    pub trace: Vec<String>,
}

/// Runs the brokers of a cluster of 3 to 8 members.
pub fn run_cluster(seed: u64, trace: bool) -> ClusterOutcome {
    let mut random = Random::new(seed ^ 0x6272_6f6b_6572);
    let member_count = random.between(3, 8) as usize;
    // The queues and rings are small, so that each of them is often full.
    let mut count = |max| random.between(1, max) as u16;
    let config = BrokerConfig {
        send_slots: count(8),
        recv_slots: count(8),
        queue_depth: count(16),
        send_queue_depth: count(16),
        doorbell_batch: count(12),
        signal_interval: count(12),
        // A slot holds at least a control message with one key.
        slot_size: random.between(32, 80) as u32,
        keepalive: Some(Duration::from_micros(random.between(5, 50))),
    };
    let (has_calls, has_segments) = (random.below(2) == 0, random.below(2) == 0);
    let mut count = |max| random.between(1, max) as u16;
    let call_config = rpc::RpcConfig { max_calls: count(6), max_requests: count(8) };
    let call_config = has_calls.then_some(call_config);
    let mut run = ClusterRun::new(seed, config, call_config, has_segments, member_count, random, trace);
    run.run();
    run.outcome()
}

/// The totals of many runs of [`run_cluster`].
#[derive(Clone, Debug, Default)]
pub struct ClusterTotals {
    /// The number of seeds that were run.
    pub seed_count: u64,
    /// The number of members of all runs.
    pub member_count: u64,
    /// The number of messages that arrived.
    pub message_count: u64,
    /// The number of tickets that ended.
    pub ticket_count: u64,
    /// The number of tickets that failed.
    pub failed_ticket_count: u64,
    /// The number of posted lists.
    pub doorbell_count: u64,
    /// The number of posted send requests.
    pub request_count: u64,
    /// The number of credit messages and probes among the posted send requests.
    pub control_request_count: u64,
    /// The number of signaled requests.
    pub signaled_count: u64,
    /// The number of established sessions.
    pub session_count: u64,
    /// The number of injected faults.
    pub fault_count: u64,
    /// The number of restarts of members.
    pub restart_count: u64,
    /// The number of requests that were refused because of a stale epoch.
    pub stale_epoch_count: u64,
    /// The numbers of calls, and of uses of segments.
    pub layers: LayerCounts,
    /// The wrapping sum of the runs' digests. The order of the runs doesn't affect the sum.
    pub digest: u64,
    /// The seeds and descriptions of the violations.
    pub violations: Vec<(u64, String)>,
}

impl ClusterTotals {
    fn add(&mut self, outcome: &ClusterOutcome) {
        self.seed_count += 1;
        self.member_count += outcome.member_count;
        self.message_count += outcome.message_count;
        self.ticket_count += outcome.ticket_count;
        self.failed_ticket_count += outcome.failed_ticket_count;
        self.doorbell_count += outcome.doorbell_count;
        self.request_count += outcome.request_count;
        self.control_request_count += outcome.control_request_count;
        self.signaled_count += outcome.signaled_count;
        self.session_count += outcome.session_count;
        self.fault_count += outcome.fault_count;
        self.restart_count += outcome.restart_count;
        self.stale_epoch_count += outcome.stale_epoch_count;
        self.layers.add(&outcome.layers);
        self.digest = self.digest.wrapping_add(outcome.digest);
        if let Some(what) = &outcome.violation {
            self.violations.push((outcome.seed, format!("brokers: {what}")));
        }
    }
}

impl fmt::Display for ClusterTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "brokers: {} seeds, {} members, {} sessions, {} faults, {} restarts",
            self.seed_count, self.member_count, self.session_count, self.fault_count, self.restart_count
        )?;
        writeln!(
            f,
            "{} messages, {} tickets ({} failed), {} stale epochs refused",
            self.message_count, self.ticket_count, self.failed_ticket_count, self.stale_epoch_count
        )?;
        let LayerCounts { calls, answered_calls, failed_calls, expired_calls, .. } = self.layers;
        let LayerCounts { cancelled_calls, lost_calls, nested_calls, .. } = self.layers;
        writeln!(
            f,
            "{calls} calls, {nested_calls} of them in handlers: {answered_calls} answered, {failed_calls} failed, \
             {expired_calls} expired, {cancelled_calls} cancelled, {lost_calls} lost"
        )?;
        let LayerCounts { pointer_transfers, refused_pointers, released_segments, .. } = self.layers;
        writeln!(
            f,
            "{pointer_transfers} transfers by pointers, {refused_pointers} invalid pointers refused, \
             {released_segments} segments released"
        )?;
        writeln!(
            f,
            "{} requests with {} doorbells, {} signaled, {} credit messages and probes",
            self.request_count, self.doorbell_count, self.signaled_count, self.control_request_count
        )?;
        write!(f, "digest of the brokers' events and requests: {:#018x}", self.digest)
    }
}

/// Runs the brokers of each seed on `thread_count` threads. The run stops after `max_violations` violations.
pub fn run_cluster_seeds(
    seeds: std::ops::Range<u64>,
    thread_count: usize,
    max_violations: usize,
) -> ClusterTotals {
    let add = |totals: &mut ClusterTotals, outcome: ClusterOutcome| {
        totals.add(&outcome);
        totals.violations.len() < max_violations
    };
    let mut totals = run_each(seeds, thread_count, |seed| run_cluster(seed, false), add);
    totals.violations.sort();
    totals
}
