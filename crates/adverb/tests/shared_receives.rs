//! Receives of a shared receive queue are returned, even if the queue pairs that consumed them are destroyed.

#![cfg(feature = "soft")]

use std::time::{Duration, Instant};

use adverb::verbs::{
    CompletionQueue, Device, ProtectionDomain, QueuePair, RecvRequest, Result, SendRequest,
    SharedReceiveQueue, Transport,
};

const TIMEOUT: Duration = Duration::from_secs(10);
const DEPTH: u32 = 4;

/// A sender, and a receiver with a shared receive queue, which is the only queue pair of its completion queue.
struct Pair {
    domain: ProtectionDomain,
    shared: SharedReceiveQueue,
    sent: CompletionQueue,
    sender: QueuePair,
    received: CompletionQueue,
    receiver: QueuePair,
}

impl Pair {
    fn new() -> Result<Pair> {
        let device = Device::open("soft")?;
        let domain = device.create_protection_domain()?;
        let shared = domain.shared_receive_queue(DEPTH).create()?;
        let (sent, received) = (device.completion_queue(64).create()?, device.completion_queue(64).create()?);
        let sender = domain.queue_pair(Transport::Rc).completion_queue(&sent).depth(8, 1).create()?;
        let receiver = domain.queue_pair(Transport::Rc).completion_queue(&received).depth(8, 1);
        let receiver = receiver.shared_receive_queue(&shared).create()?;
        sender.connect(&receiver.endpoint())?;
        receiver.connect(&sender.endpoint())?;
        Ok(Pair { domain, shared, sent, sender, received, receiver })
    }
}

#[test]
fn unpolled_receives_are_returned_after_the_last_queue_pair_is_destroyed() -> Result<()> {
    let Pair { domain, shared, sent, sender, received, receiver } = Pair::new()?;
    for _ in 0..DEPTH {
        shared.post_recv(RecvRequest::new(domain.allocate_buffer(64)?))?;
    }
    for _ in 0..DEPTH {
        let id = sender.post_send(SendRequest::send(domain.allocate_buffer(8)?))?;
        sent.wait(id, TIMEOUT)?.result()?;
    }
    // All receives have completed, and no completion was polled.
    drop(receiver);
    let mut out = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    while out.len() < DEPTH as usize {
        received.poll(&mut out)?;
        assert!(Instant::now() < deadline, "{} of {DEPTH} receives were returned", out.len());
    }
    assert!(out.iter().all(|completion| completion.is_ok()));
    assert_eq!((shared.outstanding_recv_count(), received.stale_completion_count()), (0, 0));
    shared.post_recv(RecvRequest::new(domain.allocate_buffer(64)?))?;
    Ok(())
}
