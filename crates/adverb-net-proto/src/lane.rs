//! A lane: one queue pair under a connection, and this side's ring, which the peer writes.

use std::collections::VecDeque;

use adverb_proto::Time;
use adverb_proto::types::RemoteMemory;

use crate::config::Config;
use crate::hello::Hello;
use crate::mutation::mutant;
use crate::ring::{RecvRing, SendRing, max_write_len};
use crate::types::Tag;

/// This side of a lane.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Lane<R> {
    pub(crate) region: RingRegion<R>,
    pub(crate) ring: RecvRing,
    /// The number of receives that are to be posted, once they are a batch.
    pub(crate) receives: u32,
    /// The number of receives that are posted together.
    pub(crate) recv_batch: u32,
    pub(crate) hello: HelloState,
    pub(crate) queue: SendQueue,
    /// The number of rendezvous messages that were read, and not reported to the peer.
    pub(crate) rendezvous_done: u32,
    pub(crate) report: Report,
    pub(crate) probe: Probe,
    /// The number of exposed regions whose frames were taken over this lane.
    pub(crate) exposed_count: usize,
    /// The names of regions that were announced over this lane and then withdrawn. Their withdrawal frames were not
    /// taken yet.
    pub(crate) withdrawn: VecDeque<String>,
    pub(crate) close: CloseState,
    /// The end of the wait for the peer's acknowledgement of its close.
    pub(crate) linger: Linger,
    /// The time of the last completion or keepalive probe.
    pub(crate) last_activity: Time,
}

/// The memory of the ring.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum RingRegion<R> {
    Unregistered,
    Registering,
    Registered(R),
}

/// This side's hello.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum HelloState {
    Due,
    Posted,
}

/// An extra report of credits, which acknowledges the peer's close.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Report {
    /// Only the ring decides when credits are reported.
    Usual,
    Due,
}

/// A probe of the peer's device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Probe {
    Unneeded,
    Due,
}

/// The progress of this side's close over this lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum CloseState {
    /// The peer's device has not acknowledged the close frame.
    Undelivered,
    /// The peer's device has the close frame.
    Delivered,
    /// The acknowledgement that ends the lane is to be posted.
    AckDue,
    /// The acknowledgement was posted.
    AckPosted { until: Time },
    /// The peer's device has the acknowledgement, or had time to receive it.
    Finished,
}

/// The wait for the peer's acknowledgement of its close.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Linger {
    /// The peer has not closed the connection, or this side has not read all of its messages.
    Inactive,
    Until(Time),
    /// The acknowledgement has arrived, or the time is over.
    Finished,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SendQueue {
    depth: u32,
    in_flight: u32,
    /// The number of requests after the last signaled one.
    unsignaled: u32,
    /// The number of requests in flight that must reach the peer before the connection is closed.
    undelivered: u32,
}

impl SendQueue {
    /// Whether `count` more requests fit.
    pub(crate) fn has_room(&self, count: u32) -> bool {
        self.in_flight + count <= self.depth
    }

    /// Counts a request. Returns whether it must be signaled.
    pub(crate) fn post(&mut self, tag: Tag, must_signal: bool) -> bool {
        self.in_flight += 1;
        self.undelivered += u32::from(is_delivery(tag));
        self.unsignaled += 1;
        let is_signaled = must_signal || self.unsignaled >= self.depth / 2 && !mutant!(NeverSignaled);
        if is_signaled {
            self.unsignaled = 0;
        }
        is_signaled
    }

    /// Counts a completed request.
    pub(crate) fn complete(&mut self, tag: Tag) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.unsignaled = self.unsignaled.min(self.in_flight);
        self.undelivered = self.undelivered.saturating_sub(u32::from(is_delivery(tag)));
    }

    /// Whether a completion will follow.
    pub(crate) fn awaits_completion(&self) -> bool {
        self.in_flight > self.unsignaled
    }

    /// Whether the peer's device has acknowledged everything that it must have.
    pub(crate) fn is_delivered(&self) -> bool {
        self.undelivered == 0
    }
}

fn is_delivery(tag: Tag) -> bool {
    matches!(tag, Tag::Frames | Tag::Close | Tag::RendezvousDone)
}

impl<R> Lane<R> {
    /// Whether receives are to be posted.
    #[inline]
    pub(crate) fn has_recv_batch(&self) -> bool {
        self.receives >= self.recv_batch
    }

    pub(crate) fn new(config: &Config, now: Time) -> Lane<R> {
        Lane {
            region: RingRegion::Unregistered,
            ring: RecvRing::new(config.recv_ring_size, config.max_outstanding_writes),
            receives: config.receives(),
            recv_batch: config.recv_batch(),
            hello: HelloState::Due,
            queue: SendQueue {
                depth: config.send_queue_depth(),
                in_flight: 0,
                unsignaled: 0,
                undelivered: 0,
            },
            rendezvous_done: 0,
            report: Report::Usual,
            probe: Probe::Unneeded,
            exposed_count: 0,
            withdrawn: VecDeque::new(),
            close: CloseState::Undelivered,
            linger: Linger::Inactive,
            last_activity: now,
        }
    }

    /// Takes the registered memory of the ring.
    pub(crate) fn take_region(&mut self) -> Option<R> {
        match std::mem::replace(&mut self.region, RingRegion::Registering) {
            RingRegion::Registered(region) => Some(region),
            RingRegion::Unregistered | RingRegion::Registering => None,
        }
    }
}

/// The peer's side of a lane.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Peer {
    pub(crate) memory: RemoteMemory,
    pub(crate) ring: SendRing,
    pub(crate) max_write_len: usize,
    pub(crate) eager_limit: u32,
    pub(crate) max_message_size: u32,
}

impl Peer {
    pub(crate) fn new(config: &Config, hello: &Hello) -> Peer {
        let len = hello.ring.len as u32;
        let writes = hello.max_outstanding_writes + u32::from(mutant!(OneWriteTooMany));
        Peer {
            memory: hello.ring,
            ring: SendRing::new(len, writes),
            max_write_len: max_write_len(len) as usize,
            eager_limit: config.eager_limit(len).min(hello.max_message_size),
            max_message_size: hello.max_message_size,
        }
    }
}
