//! A buffer can't be freed while it is in flight.

use adverb::memory::Buffer;
use adverb::verbs::{QueuePair, SendRequest};

fn free(queue_pair: &QueuePair, buffer: Buffer) -> adverb::verbs::Result<()> {
    queue_pair.post_send(SendRequest::send(buffer))?;
    drop(buffer);
    Ok(())
}

fn main() {}
