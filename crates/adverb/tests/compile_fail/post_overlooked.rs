//! The result of posting can't be ignored where warnings are errors: an error contains the request's buffers.
#![deny(unused_must_use)]

use adverb::memory::Buffer;
use adverb::verbs::{QueuePair, RecvRequest, SendRequest};

fn overlook(queue_pair: &QueuePair, buffer: Buffer, other: Buffer) {
    queue_pair.post_recv(buffer);
    SendRequest::send(other);
    RecvRequest::new(());
}

fn main() {}
