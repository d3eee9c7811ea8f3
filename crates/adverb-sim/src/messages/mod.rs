//! MessagePlan: messages of all transports that say who wrote them, so that whoever gets one can tell whether it is whole.
//!
//! Queue pairs for reliable and unreliable connections and for datagrams share devices, some of them also receives. Each
//! message arrives whole or not at all, in order on a connection and all of them on a reliable one; where one is lost,
//! that is counted. Windows are bound, used, misused and invalidated meanwhile, and queue pairs are ended and connected
//! anew.

mod check;
mod endpoint;
mod plan;
mod world;

pub use plan::{EndpointPlan, MessageAction, MessagePlan, MessageStep};

use crate::world::Outcome;

/// Runs messages, and adds what came of it to the outcome of a run.
pub(crate) fn run(messages: &MessagePlan, trace: bool, outcome: &mut Outcome) {
    let mut world = world::MessageWorld::new(messages.clone(), trace);
    world.run();
    world.finish();
    outcome.operations += world.operations;
    outcome.packets += world.packets;
    outcome.queue_pairs += world.made;
    outcome.failures += world.failures;
    outcome.faults.add(&world.fabric.counts);
    outcome.time = outcome.time.max(world.now);
    outcome.digest ^= world.digest.rotate_left(17);
    outcome.violation = world.log.violation;
    outcome.trace.extend(world.log.trace.unwrap_or_default());
}
