//! A slice of a buffer can't be used after the buffer is posted.

use adverb::memory::Buffer;
use adverb::verbs::QueuePair;

fn keep(queue_pair: &QueuePair, buffer: Buffer) -> adverb::verbs::Result<u8> {
    let bytes: &[u8] = &buffer;
    queue_pair.post_recv(buffer)?;
    Ok(bytes[0])
}

fn main() {}
