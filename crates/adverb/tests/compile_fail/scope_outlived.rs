//! A scope can't be kept, to lend memory that nobody waits for.

use std::time::Duration;

use adverb::verbs::QueuePair;

fn main() {}

fn misuse(queue_pair: &mut QueuePair) {
    let mut kept = None;
    let _ = queue_pair.scope(Duration::MAX, |scope| kept = Some(scope));
}
