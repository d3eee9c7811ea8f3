//! Completions can't be made up: only the device's own return memory.

use adverb::memory::Payload;
use adverb::verbs::{Completion, RequestId};

fn make_up(payload: Payload) -> Completion {
    Completion { id: RequestId(0), tag: 0, payload }
}

fn main() {}
