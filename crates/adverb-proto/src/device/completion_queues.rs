//! Completion queues of a device.

use adverb_wire::Qpn;

use super::Device;
use crate::cq::{CompletionQueue, Cq, Timestamp};
use crate::trace::EventSink;
use crate::types::{ArmFor, Completion};

impl<S: EventSink> Device<S> {
    /// Creates a completion queue for `capacity` completions. The queue allocates memory when completions are added,
    /// not at creation.
    pub fn create_cq(&mut self, capacity: u32) -> Cq {
        Cq(self.free_cqs.occupy(&mut self.cqs, CompletionQueue::new(capacity)))
    }

    /// Creates a completion queue like [`create_cq`](Device::create_cq), with timestamps: each completion has the time
    /// at which its request completed, which [`poll_timed_completion`](Device::poll_timed_completion) returns.
    ///
    /// - A receive has the time at which the message's last packet was received ([`received_at`](crate::RxMeta::received_at)).
    /// - A send request of a reliable connection has the time at which the acknowledgement or the last response was
    ///   received.
    /// - A send request of an unreliable connection or a UD queue pair has the time at which its last packet was sent
    ///   ([`packet_sent`](Device::packet_sent)).
    /// - Other requests, such as flushed ones, have the time of the received packet or of the call that completed them.
    pub fn create_timed_cq(&mut self, capacity: u32) -> Cq {
        self.timed_cq_count += 1;
        Cq(self.free_cqs.occupy(&mut self.cqs, CompletionQueue::with_timestamps(capacity)))
    }

    /// Whether the completions of a completion queue have timestamps.
    #[inline]
    pub fn has_timestamps(&self, cq: Cq) -> bool {
        matches!(self.cqs.get(cq.0 as usize), Some(Some(cq)) if cq.has_timestamps())
    }

    /// Destroys a completion queue. Returns `false` if the queue does not exist, or if queue pairs use it.
    pub fn destroy_cq(&mut self, cq: Cq) -> bool {
        let is_unused = matches!(self.cqs.get(cq.0 as usize), Some(Some(cq)) if cq.users == 0);
        if is_unused {
            self.timed_cq_count -= u32::from(self.has_timestamps(cq));
            self.free_cqs.vacate(&mut self.cqs, cq.0);
        }
        is_unused
    }

    /// Changes the capacity of a completion queue. Returns `false` if the queue does not exist, or holds more
    /// completions than `capacity`.
    pub fn resize_cq(&mut self, cq: Cq, capacity: u32) -> bool {
        match self.cqs.get_mut(cq.0 as usize) {
            Some(Some(cq)) => cq.resize(capacity),
            _ => false,
        }
    }

    /// Removes the completions of a queue pair from a completion queue, as drivers of RDMA NICs do when the queue pair is
    /// reset or destroyed.
    pub fn discard_completions(&mut self, cq: Cq, qpn: Qpn) {
        if let Some(Some(cq)) = self.cqs.get_mut(cq.0 as usize) {
            cq.discard(qpn);
        }
    }

    /// Arms a completion queue: its next completion that `arm_for` selects generates one
    /// [event](Device::poll_cq_event). Completions that are already queued generate no event, so the caller should poll
    /// the queue once more after arming it.
    pub fn arm_cq(&mut self, cq: Cq, arm_for: ArmFor) {
        if let Some(Some(cq)) = self.cqs.get_mut(cq.0 as usize) {
            cq.arm(arm_for);
        }
    }

    /// Whether a completion queue has completions.
    #[inline]
    pub fn has_completions(&self, cq: Cq) -> bool {
        matches!(self.cqs.get(cq.0 as usize), Some(Some(cq)) if cq.len() > 0)
    }

    /// Removes and returns the oldest completion of a completion queue, or returns `None` if the queue is empty.
    #[inline]
    pub fn poll_completion(&mut self, cq: Cq) -> Option<Completion> {
        self.cqs.get_mut(cq.0 as usize)?.as_mut()?.pop()
    }

    /// Removes and returns the oldest completion of a completion queue like [`poll_completion`](Device::poll_completion),
    /// with its timestamp if the queue [has timestamps](Device::create_timed_cq).
    #[inline]
    pub fn poll_timed_completion(&mut self, cq: Cq) -> Option<(Completion, Option<Timestamp>)> {
        self.cqs.get_mut(cq.0 as usize)?.as_mut()?.pop_timed()
    }

    /// Removes and returns the oldest completion event: the [armed](Device::arm_cq) completion queue to which a
    /// completion was added.
    pub fn poll_cq_event(&mut self) -> Option<Cq> {
        self.cq_events.pop_front()
    }
}
