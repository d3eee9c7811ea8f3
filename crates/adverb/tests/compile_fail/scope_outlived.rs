//! A scope can't be kept after its closure, when requests are not waited for anymore.

use std::time::Duration;

use adverb::verbs::QueuePair;

fn main() {}

fn misuse(queue_pair: &mut QueuePair) {
    let mut kept = None;
    let _ = queue_pair.scope(Duration::MAX, |scope| kept = Some(scope));
}
