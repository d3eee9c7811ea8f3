//! A buffer can't be read while the device may write into it.

use adverb::memory::Buffer;
use adverb::verbs::QueuePair;

fn read(queue_pair: &QueuePair, buffer: Buffer) -> adverb::verbs::Result<u8> {
    queue_pair.post_recv(buffer)?;
    Ok(buffer[0])
}

fn main() {}
