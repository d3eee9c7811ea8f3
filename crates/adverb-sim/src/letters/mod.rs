//! Letters: messages of all transports that say who wrote them, so that whoever gets one can tell whether it is whole.
//!
//! Queue pairs for reliable and unreliable connections and for datagrams share devices, some of them also receives. Each
//! letter arrives whole or not at all, in order on a connection and all of them on a reliable one; where one is lost,
//! that is counted. Windows are bound, used, misused and invalidated meanwhile, and queue pairs are ended and connected
//! anew.

mod check;
mod office;
mod plan;
mod station;

pub use plan::{LetterAction, LetterStep, Letters, StationPlan};

use crate::world::Outcome;

/// Runs letters, and adds what came of it to the outcome of a run.
pub(crate) fn run(letters: &Letters, trace: bool, outcome: &mut Outcome) {
    let mut office = office::Office::new(letters.clone(), trace);
    office.run();
    office.finish();
    outcome.operations += office.operations;
    outcome.packets += office.packets;
    outcome.queue_pairs += office.made;
    outcome.failures += office.failures;
    outcome.faults.add(&office.fabric.counts);
    outcome.time = outcome.time.max(office.now);
    outcome.digest ^= office.digest.rotate_left(17);
    outcome.violation = office.log.violation;
    outcome.trace.extend(office.log.trace.unwrap_or_default());
}
