//! Posting raw requests needs `unsafe`.

use adverb::verbs::QueuePair;
use adverb::verbs::raw::SendList;

fn main() {}

fn misuse(queue_pair: &QueuePair, list: &mut SendList) {
    let _ = queue_pair.post_raw_sends(list);
}
