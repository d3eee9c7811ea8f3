//! A simulation of the members of a cluster, with a broker per member, on modeled queue pairs.
//!
//! Members send messages, transfer data, flush and poll at random. Connections break, and members stop without notice
//! and restart with a new epoch. An epoch identifies a run of a member, and a ticket identifies a posted transfer or batch of
//! transfers. The checks of every run:
//!
//! - messages arrive once, in order and unaltered, between each pair of members;
//! - no message arrives while the receive queue is empty (RNR), and no slot is overwritten or posted while it is in use;
//! - an application that granted n credits to a peer never holds more than n messages and immediate data of that peer;
//! - no request accesses memory of an earlier epoch;
//! - each ticket ends exactly once, the NIC accesses the ticket's buffers only before the ticket ends, and the data of a
//!   successful ticket is correct;
//! - a broker posts requests in the order of the application's calls, and only when a doorbell batch is complete, when the
//!   application flushes, or when the application polls;
//! - a broker signals only about one request in each signal interval;
//! - no send queue overflows;
//! - a session ends only because of an injected fault, or because a member leaves it;
//! - after the faults end, all members are connected, and all messages and transfers complete.
//!
//! In half of the runs, the messages are the requests and replies of calls. Calls have deadlines and are cancelled, answers
//! are delayed or missing, and handlers make calls of their own. The checks of these runs:
//!
//! - each call ends exactly once, with the reply or failure of its own request;
//! - a request arrives once;
//! - a request can be answered while its caller waits, but not after the request's session has ended;
//! - a call expires at its deadline, and ends when its session ends.
//!
//! In half of the runs, members publish and withdraw segments of an arena, while other members transfer data with pointers to
//! these segments. The checks of these runs:
//!
//! - a pointer resolves only to the segment that it names, only in the epoch that it names, and only within the segment;
//! - after the owner of a segment has deregistered it, no request to the segment is posted or executed;
//! - before a message arrives, the keys of all segments that existed when the message was sent have arrived;
//! - withdrawn segments are released, and the size of the state for keys and calls is bounded.

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

/// The numbers of calls and of transfers with pointers, and other counters of calls and segments.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LayerCounts {
    /// The number of calls.
    pub calls: u64,
    /// The number of calls that ended with a reply.
    pub answered_calls: u64,
    /// The number of calls that ended with a failure.
    pub failed_calls: u64,
    /// The number of calls that ended because their deadline expired.
    pub expired_calls: u64,
    /// The number of calls that were cancelled.
    pub cancelled_calls: u64,
    /// The number of calls that ended because their session ended.
    pub lost_calls: u64,
    /// The number of calls that handlers made before they answered a request.
    pub nested_calls: u64,
    /// The number of tickets whose transfers accessed a segment through a pointer.
    pub pointer_transfers: u64,
    /// The number of invalid pointers that members tried to resolve. Each attempt must fail.
    pub refused_pointers: u64,
    /// The number of withdrawn segments that their owners deregistered.
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
    /// The number of transfers that a broker rejected because of a stale epoch.
    pub stale_epoch_count: u64,
    /// The numbers of calls, and of uses of segments.
    pub layers: LayerCounts,
    /// A hash of all events and requests.
    pub digest: u64,
    /// The first violation that a check found.
    pub violation: Option<String>,
    /// The lines of the trace, or none if the caller requested no trace.
    pub trace: Vec<String>,
}

/// Simulates a cluster of 3 to 8 members. The seed determines the whole run. `trace` requests a trace in the outcome.
pub fn run_cluster(seed: u64, trace: bool) -> ClusterOutcome {
    let mut random = Random::new(seed ^ 0x6272_6f6b_6572);
    let member_count = random.between(3, 8) as usize;
    // The queues are short and the slots are few, so that the brokers often run out of them.
    let mut count = |max| random.between(1, max) as u16;
    let config = BrokerConfig {
        send_slots: count(8),
        recv_slots: count(8),
        queue_depth: count(16),
        send_queue_depth: count(16),
        doorbell_batch: count(12),
        signal_interval: count(12),
        // Even the smallest slot has room for a control message with one key.
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
    /// The sum of the numbers of members of the runs.
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
    /// The number of transfers that brokers rejected because of a stale epoch.
    pub stale_epoch_count: u64,
    /// The numbers of calls, and of uses of segments.
    pub layers: LayerCounts,
    /// The wrapping sum of the runs' digests. The order of the runs doesn't affect the sum.
    pub digest: u64,
    /// The violations, each with its seed and a description.
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

/// Calls [`run_cluster`] with each seed, on `thread_count` threads, and stops after `max_violations` violations.
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
