//! Messages of all transports that identify their sender and content, so that a receiver can check them.
//!
//! Queue pairs for reliable and unreliable connections and for datagrams share devices; some also share a receive
//! queue. The checks: each message arrives complete or not at all; messages arrive in order on a connection, and all
//! arrive on a reliable one; each loss is counted. Meanwhile, the endpoints bind, use, misuse and invalidate memory
//! windows, and destroy, recreate and reconnect queue pairs.

mod check;
mod endpoint;
mod plan;
mod run;

pub use plan::{EndpointPlan, MessageAction, MessagePlan, MessageStep};

use crate::scenario_run::Outcome;
use crate::world::{Actors, Limit};

/// Runs the messages of a plan, and adds the result to the outcome of a run.
pub(crate) fn run(messages: &MessagePlan, trace: bool, outcome: &mut Outcome) {
    let mut run = run::MessageRun::new(messages.clone(), trace);
    run.run(Limit::Time(messages.faults_end_at + run::COMPLETION_TIMEOUT));
    run.finish();
    let world = run.world;
    outcome.send_request_count += run.operations;
    outcome.packet_count += world.packet_count;
    outcome.queue_pair_count += run.created_qp_count;
    outcome.failed_qp_count += run.failures;
    outcome.fault_counts.add(&world.fabric.counts);
    outcome.end_time = outcome.end_time.max(world.now);
    outcome.digest ^= world.digest.rotate_left(17);
    outcome.violation = world.log.violation;
    outcome.trace.extend(world.log.trace.unwrap_or_default());
}
