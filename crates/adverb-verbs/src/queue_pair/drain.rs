//! Draining of queue pairs: returning all their requests after a move to the error state.
//!
//! Unsignaled requests that succeed produce no completion, so the completions alone don't tell when the last request has
//! completed. As in the kernel (`ib_drain_qp`), a marker is posted behind the requests of each queue. The marker is
//! flushed, and the requests of a queue complete in order, so all requests before it have then completed.

use std::time::Duration;

use adverb_proto::types as plain;
use adverb_proto::types::{RemoteAddress, SendFlags, SendOperation, Transport};

use super::QueuePair;
use crate::backend::{PostFailure, StateChange};
use crate::completion_queue::Attached;
use crate::deadline::Deadline;
use crate::error::{Error, Result, WithCauses};
use crate::request::{Marker, Posting};

impl QueuePair {
    /// Moves the queue pair to the error state and waits until all its requests have completed. Their completions,
    /// and those of other queue pairs that arrived meanwhile, can then be polled from the completion queues.
    ///
    /// The completions of unsignaled requests that succeed are included, except on UD queue pairs, where they are
    /// returned with the completion of a later request. If no later request exists, this call waits until the timeout;
    /// [`reset`](QueuePair::reset) returns the payloads of such requests.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Timeout`] if requests are outstanding after `timeout`, and [`Error::CallFailed`] if the operation
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
                return Err(Error::Timeout { timeout, action: "draining a queue pair".into() });
            }
            if has_markers {
                self.post_markers()?;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Moves a connected queue pair to the error state and posts the markers, or those for which there is a free entry.
    pub(crate) fn begin_drain(&self) -> Result<()> {
        if self.transport == Transport::Ud {
            let reason = "draining with markers requires a connected queue pair";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        // From here on, posting is rejected: a request is either before the marker or not posted. Posting checks the
        // state under the queue's lock, and the marker is posted under the same lock.
        self.move_to_error()?;
        self.send.change_marker(Marker::Absent, Marker::Pending);
        if let Some(recv) = self.recv.own() {
            recv.change_marker(Marker::Absent, Marker::Pending);
        }
        self.post_markers()
    }

    /// Posts the markers that are pending, and returns whether all markers have completed.
    pub(crate) fn is_drained(&self) -> Result<bool> {
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
        let is_posted = self.post_marker(recv, |queue, wr_id| {
            let list = &mut queue.scratch.recv_list;
            list.clear();
            list.add(&plain::RecvRequest { wr_id, tag: 0, segments: &[] });
            self.backend.post_recvs(list).map_err(|errno| PostFailure::new(errno, list.posted_count()))
        })?;
        // soft-RoCE flushes receives when the queue pair enters the error state, even if it is in that state already,
        // but not when they are posted.
        if is_posted && let Err(error) = self.backend.modify(&StateChange::Error) {
            tracing::debug!(error = %WithCauses(&error), "could not move a failed queue pair to the error state again");
        }
        Ok(())
    }

    /// Posts the marker of a queue if it is pending and the queue has a free entry. Returns whether the marker was
    /// posted.
    fn post_marker(
        &self,
        queue: &Attached,
        post: impl FnOnce(&mut Posting, u64) -> Result<(), PostFailure>,
    ) -> Result<bool> {
        let mut posting = queue.lock();
        let position = posting.marker_position();
        let posted = Marker::Posted(position);
        // The state changes first: the completion may arrive before posting returns.
        if !posting.has_free_slots(1) || !queue.change_marker(Marker::Pending, posted) {
            return Ok(false);
        }
        let wr_id = posting.marker_id(position);
        let Err(failure) = post(&mut posting, wr_id) else { return Ok(true) };
        if failure.unposted_count(1) > 0 {
            queue.change_marker(posted, Marker::Pending);
        }
        Err(self.post_error("posting the marker of a drain", failure))
    }
}
