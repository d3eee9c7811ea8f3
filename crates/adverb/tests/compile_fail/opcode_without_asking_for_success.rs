//! The operation of a completion can't be read before its success is checked.

use adverb::verbs::{CompletedOperation, Completion};

fn operation(completion: &Completion) -> CompletedOperation {
    completion.outcome().operation
}

fn main() {}
