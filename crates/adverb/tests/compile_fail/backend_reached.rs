//! The engines are private: nobody reaches past the types that keep the rules.

use adverb::verbs::backend::QueuePair;

fn main() {}
