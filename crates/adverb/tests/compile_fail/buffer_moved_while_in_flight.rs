//! A buffer can't be moved while it is in flight.

use adverb::memory::Buffer;
use adverb::verbs::{QueuePair, SendRequest};

fn give_away(queue_pair: &QueuePair, buffer: Buffer) -> adverb::verbs::Result<std::thread::JoinHandle<usize>> {
    queue_pair.post_send(SendRequest::send(buffer))?;
    Ok(std::thread::spawn(move || buffer.len()))
}

fn main() {}
