//! A mutable slice of a buffer can't be used after the buffer is posted.

use adverb::memory::Buffer;
use adverb::verbs::{QueuePair, SendRequest};

fn keep(queue_pair: &QueuePair, mut buffer: Buffer) -> adverb::verbs::Result<()> {
    let bytes: &mut [u8] = &mut buffer;
    queue_pair.post_send(SendRequest::send(buffer))?;
    bytes.fill(0);
    Ok(())
}

fn main() {}
