//! A completion returns its buffer once.

use adverb::verbs::Completion;

fn take_twice(completion: Completion) -> bool {
    completion.into_buffer().is_some() && completion.into_buffer().is_some()
}

fn main() {}
