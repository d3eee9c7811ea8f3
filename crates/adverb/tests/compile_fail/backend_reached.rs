//! The backends are private: programs cannot bypass the types that enforce the rules.

use adverb::verbs::backend::QueuePair;

fn main() {}
