//! Draining of queue pairs: returning all their requests after a move to the error state.
//!
//! Unsignaled requests that succeed produce no completion, so the completions alone don't tell when the last request has
//! completed. As in the kernel (`ib_drain_qp`), a marker is posted behind the requests of each queue. The marker is
//! flushed, and the requests of a queue complete in order, so all requests before it have then completed.

use std::time::Duration;

use adverb_proto::types as plain;
use adverb_proto::types::{QpState, RemoteAddress, SendFlags, SendOperation, Transport};

use super::QueuePair;
use crate::backend::{PostFailure, StateChange};
use crate::completion_queue::Attached;
use crate::deadline::Deadline;
use crate::error::{Error, Result, WithCauses};
use crate::request::{Marker, Posting};

impl QueuePair {
    /// Moves the queue pair to the error state and waits until all its requests have completed. Their completions,
    /// and those of other queue pairs that arrived meanwhile, can then be polled from the completion queues. A program
    /// that must not block calls [`begin_drain`](QueuePair::begin_drain) instead.
    ///
    /// On RC and UC queue pairs, the completions of unsignaled requests that succeed are included. On a UD queue pair, such
    /// a request completes only with a later request that is signaled or fails. So if the last request of a UD queue pair
    /// is unsignaled and succeeds, this call waits until the timeout, and [`reset`](QueuePair::reset) returns the payload.
    ///
    /// # Errors
    ///
    /// Returns [`Error::TimedOut`] if requests are outstanding after `timeout`, and [`Error::CallFailed`] if the operation
    /// fails.
    pub fn drain(&self, timeout: impl Into<Option<Duration>>) -> Result<()> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        self.move_to_error()?;
        // Without outstanding requests no marker is posted: completions of raw requests are polled as they are, and a
        // marker would be visible among them.
        let mut has_markers = self.transport != Transport::Ud && self.has_outstanding();
        if has_markers && let Err(error) = self.begin_drain() {
            tracing::debug!(error = %WithCauses(&error), "draining a queue pair without markers");
            has_markers = false;
        }
        let deadline = Deadline::new(timeout);
        loop {
            self.send_completion_queue().fetch_completions()?;
            self.recv_completion_queue().fetch_completions()?;
            if !self.has_outstanding() {
                return Ok(());
            }
            if deadline.left().is_zero() {
                return Err(Error::TimedOut { timeout, action: "draining a queue pair".into() });
            }
            if has_markers {
                self.post_markers()?;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Moves an RC or UC queue pair to the error state and starts to drain it, without blocking: a marker is posted to
    /// each of its queues, and the marker's completion shows that all earlier requests have completed.
    ///
    /// Polling the completion queues returns the completions of all requests, those of each queue in the order of
    /// posting: requests that succeeded, including unsignaled ones, and then those that failed or were flushed. The
    /// markers' own completions aren't returned, but raise completion events. [`poll_drain`](QueuePair::poll_drain)
    /// tells when no more completions follow. Until the queue pair is [reset](QueuePair::reset), posting returns
    /// [`Error::WrongState`], and a second call has no effect. The receives of a shared receive queue are not drained.
    ///
    /// Don't call this method while [raw](crate::raw) requests are outstanding: the markers' completions have ids, too.
    ///
    /// ```no_run
    /// # use adverb::verbs::{Completion, QueuePair, Result};
    /// # fn example(queue_pair: &QueuePair) -> Result<()> {
    /// let queues = [queue_pair.send_completion_queue(), queue_pair.recv_completion_queue()];
    /// let mut completions = Vec::new();
    /// queue_pair.begin_drain()?;
    /// while !queue_pair.poll_drain()? {
    ///     for queue in queues {
    ///         queue.poll(&mut completions)?;
    ///     }
    ///     // … use the completions, and wait for events of the queues …
    /// }
    /// // This poll returns completions that arrived with the marker's.
    /// for queue in queues {
    ///     queue.poll(&mut completions)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if the queue pair is a UD queue pair, and [`Error::CallFailed`] if the operation
    /// fails, for example because the device was removed. [`reset`](QueuePair::reset) then returns the requests, or
    /// dropping the queue pair frees their memory.
    pub fn begin_drain(&self) -> Result<()> {
        if self.transport == Transport::Ud {
            let reason = "a UD queue pair has no markers: call `drain`, which waits";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        // From here on, posting is rejected: a request is either before the marker or not posted. Posting checks the
        // state under the queue's lock, and the marker is posted under the same lock, if the state is still the same.
        self.move_to_error()?;
        self.send.change_marker(Marker::Absent, Marker::Pending);
        if let Some(recv) = self.recv.own() {
            recv.change_marker(Marker::Absent, Marker::Pending);
        }
        self.post_markers()
    }

    /// Continues a drain that [`begin_drain`](QueuePair::begin_drain) has started, without blocking: if a queue was full,
    /// posts its marker as soon as an entry is free. Returns whether the completions of all requests have been fetched
    /// from the device, so that the next poll returns the last of them. Returns `false` if no drain was started, or if
    /// the queue pair was reset since.
    ///
    /// Call this method after each poll, including the poll between arming a completion queue and waiting for its event.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if posting a marker fails.
    pub fn poll_drain(&self) -> Result<bool> {
        self.post_markers()?;
        let is_drained = |queue: &Attached| queue.marker() == Marker::Completed;
        Ok(is_drained(&self.send) && self.recv.own().is_none_or(is_drained))
    }

    fn has_outstanding(&self) -> bool {
        self.outstanding_send_count() > 0 || self.outstanding_recv_count() > 0
    }

    /// Posts the markers that are pending, if their queues have a free entry. A full queue gets one: at least one of its
    /// requests is signaled or a receive, and completes.
    fn post_markers(&self) -> Result<()> {
        self.post_marker(&self.send, |queue, wr_id| {
            let marker = plain::SendRequest {
                wr_id,
                tag: 0,
                operation: SendOperation::Write(RemoteAddress { addr: 0, rkey: 0 }),
                flags: SendFlags::SIGNALED,
                segments: &[],
                destination: None,
            };
            let slot = &mut queue.scratch.send;
            let posted = self.backend.post_send(slot, &marker);
            posted.map_err(|errno| PostFailure::new(errno, slot.posted_count()))
        })?;
        let Some(recv) = self.recv.own() else { return Ok(()) };
        let mut moved = Ok(());
        self.post_marker(recv, |queue, wr_id| {
            let list = &mut queue.scratch.recv_list;
            list.clear();
            list.add(&plain::RecvRequest { wr_id, tag: 0, segments: &[] });
            self.backend.post_recvs(list).map_err(|errno| PostFailure::new(errno, list.posted_count()))?;
            // soft-RoCE flushes receives when the queue pair enters the error state, even if it is in that state
            // already, but not when they are posted. The queue's lock prevents a reset meanwhile.
            moved = self.backend.modify(&StateChange::Error);
            Ok(())
        })?;
        if let Err(error) = moved {
            tracing::debug!(error = %WithCauses(&error), "could not move a failed queue pair to the error state again");
        }
        Ok(())
    }

    /// Posts the marker of a queue if it is pending and the queue has a free entry.
    fn post_marker(
        &self,
        queue: &Attached,
        post: impl FnOnce(&mut Posting, u64) -> Result<(), PostFailure>,
    ) -> Result<()> {
        let mut posting = queue.lock();
        // Another thread may have reset the queue pair since. In another state than the error state, a marker would be
        // executed, and its completion would return the memory of requests that the device still uses. Only a reset
        // leaves the error state, and it holds the queue's lock.
        if self.state.get() != QpState::Error || self.backend.is_destroyed() {
            queue.change_marker(Marker::Pending, Marker::Absent);
            return Ok(());
        }
        let position = posting.marker_position();
        let posted = Marker::Posted(position);
        // The state changes first: the completion may arrive before posting returns.
        if !posting.has_free_slots(1) || !queue.change_marker(Marker::Pending, posted) {
            return Ok(());
        }
        let wr_id = posting.marker_id(position);
        let Err(failure) = post(&mut posting, wr_id) else { return Ok(()) };
        if failure.unposted_count(1) > 0 {
            queue.change_marker(posted, Marker::Pending);
        }
        Err(self.post_error("posting the marker of a drain", failure))
    }
}
