//! The descriptor of a completion queue's events is closed with the queue, and can't be used afterwards.

use std::os::fd::{AsRawFd, RawFd};

use adverb::verbs::CompletionQueue;

fn outlive(queue: CompletionQueue) -> Option<RawFd> {
    let descriptor = queue.event_fd()?;
    drop(queue);
    Some(descriptor.as_raw_fd())
}

fn main() {}
