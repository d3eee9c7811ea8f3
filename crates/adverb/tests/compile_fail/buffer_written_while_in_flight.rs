//! A buffer can't be changed while the device reads it.

use adverb::memory::Buffer;
use adverb::verbs::{QueuePair, SendRequest};

fn write(queue_pair: &QueuePair, mut buffer: Buffer) -> adverb::verbs::Result<()> {
    queue_pair.post_send(SendRequest::send(buffer))?;
    buffer[0] = 1;
    Ok(())
}

fn main() {}
