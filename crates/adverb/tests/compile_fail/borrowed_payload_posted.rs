//! A payload that is borrowed from a completion can't be posted.

use adverb::verbs::{Completion, QueuePair, SendRequest};

fn post_borrowed(queue_pair: &QueuePair, completion: &Completion) -> adverb::verbs::Result<()> {
    queue_pair.post_send(SendRequest::send(*completion.payload()))?;
    Ok(())
}

fn main() {}
