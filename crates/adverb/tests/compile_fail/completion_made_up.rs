//! Programs can't create completions: only those of the device return memory.

use adverb::memory::Payload;
use adverb::verbs::{Completion, RequestId};

fn make_up(payload: Payload) -> Completion {
    Completion { id: RequestId(0), tag: 0, payload }
}

fn main() {}
