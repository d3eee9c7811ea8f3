//! What a request did can't be read past the question whether it did it.

use adverb::verbs::{CompletedOperation, Completion};

fn operation(completion: &Completion) -> CompletedOperation {
    completion.outcome().operation
}

fn main() {}
