//! A queue pair has one owner, so that dropping it destroys it.

use adverb::verbs::QueuePair;

fn second_handle(queue_pair: &QueuePair) -> QueuePair {
    queue_pair.clone()
}

fn main() {}
