//! A failure has no length: devices leave it undefined.

use adverb::verbs::Failure;

fn length(failure: Failure) -> u32 {
    failure.length
}

fn main() {}
