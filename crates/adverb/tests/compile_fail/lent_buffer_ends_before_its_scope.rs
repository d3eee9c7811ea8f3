//! Borrowed memory must outlive the scope, not just the call.

use std::time::Duration;

use adverb::memory::RemoteMemory;
use adverb::verbs::QueuePair;

fn main() {}

fn misuse(queue_pair: &mut QueuePair, table: RemoteMemory) -> adverb::verbs::Result<()> {
    let domain = queue_pair.protection_domain().clone();
    queue_pair.scope(Duration::MAX, |scope| {
        let buffer = domain.allocate_buffer(64).unwrap();
        scope.write(&buffer, table.at(0)).unwrap();
    })
}
