//! A buffer that was mutably borrowed by a request can't be read before the scope ends.

use std::time::Duration;

use adverb::memory::{Buffer, RemoteMemory};
use adverb::verbs::QueuePair;

fn main() {}

fn misuse(queue_pair: &mut QueuePair, mut buffer: Buffer, table: RemoteMemory) -> adverb::verbs::Result<u8> {
    queue_pair.scope(Duration::MAX, |scope| {
        scope.read(&mut buffer, table.at(0)).unwrap();
        buffer[0]
    })
}
