//! A request is posted once: posting consumes it and its memory.

use adverb::verbs::{QueuePair, SendRequest};

fn post_twice(queue_pair: &QueuePair, request: SendRequest) -> adverb::verbs::Result<()> {
    queue_pair.post_send(request)?;
    queue_pair.post_send(request)?;
    Ok(())
}

fn main() {}
