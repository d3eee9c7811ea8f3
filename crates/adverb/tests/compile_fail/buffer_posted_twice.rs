//! A buffer can't be in two requests: the device would write it for one while it reads it for the other.

use adverb::memory::Buffer;
use adverb::verbs::{QueuePair, SendRequest};

fn post_twice(queue_pair: &QueuePair, buffer: Buffer) -> adverb::verbs::Result<()> {
    queue_pair.post_recv(buffer)?;
    queue_pair.post_send(SendRequest::send(buffer))?;
    Ok(())
}

fn main() {}
