//! A failure has no opcode: devices leave it undefined.

use adverb::verbs::{CompletedOperation, Failure};

fn opcode(failure: Failure) -> CompletedOperation {
    failure.operation
}

fn main() {}
