//! Queues whose completions are delivered to a completion queue.

use std::sync::Arc;

use adverb_proto::trace::Queue;
use adverb_proto::types::{Gid, Qpn, Transport};
use parking_lot::{Mutex, MutexGuard};

use super::{
    CompletionQueue, Entry, GENERATION_BITS, GENERATION_MASK, NUMBER_BITS, Queues, SharedEntry, State,
};
use crate::error::{Error, Limit, Result};
use crate::memory::Payload;
use crate::recorder::QueueRecorder;
use crate::request::{Completing, InFlight, Marker, Posting, Scratch, queue};
use crate::request_id::RequestId;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::stats::QueueStats;

impl CompletionQueue {
    /// Reserves entries for a queue of a queue pair, and assigns the upper bits of its identifiers.
    pub(crate) fn attach(&self, depth: u32, kind: Queue, transport: Transport) -> Result<Attached> {
        let mut state = self.lock();
        self.fetch_completions_locked(&mut state)?;
        state.queues.check_numbers()?;
        self.reserve(&mut state, depth)?;
        let number = state.queues.free.pop().unwrap_or_else(|| {
            state.queues.own.push(Entry::default());
            // The number fits, because there are at most `MAX_QUEUES`.
            (state.queues.own.len() - 1) as u32
        });
        let entry = &mut state.queues.own[number as usize];
        entry.generation = (entry.generation + 1) & GENERATION_MASK;
        let owner = number << GENERATION_BITS | entry.generation;
        let datagram = if transport == Transport::Ud { RequestId::DATAGRAM } else { 0 };
        let device = self.0.device.backend();
        let (recorder, scratch) = (QueueRecorder::new(device.recorder()), Scratch::new(device));
        let (posting, completing) = queue(depth, datagram | u64::from(owner) << 32, kind, recorder, scratch);
        entry.queue = Some(completing);
        Ok(Attached { completion_queue: self.clone(), number, depth, posting: Mutex::new(posting) })
    }

    /// Reserves entries for a shared receive queue, any request of which may complete here.
    pub(crate) fn attach_shared(&self, queue: &SharedReceiveQueue) -> Result<AttachedShared> {
        let mut state = self.lock();
        match state.queues.shared.iter_mut().find(|entry| entry.id == queue.id()) {
            Some(entry) => entry.users += 1,
            None => {
                self.fetch_completions_locked(&mut state)?;
                self.reserve(&mut state, queue.depth())?;
                let (id, depth, table) = (queue.id(), queue.depth(), Arc::clone(queue.table()));
                state.queues.shared.push(SharedEntry { id, users: 1, depth, table });
            }
        }
        Ok(AttachedShared { completion_queue: self.clone(), queue: queue.clone() })
    }

    /// Whether this is the same queue.
    pub(crate) fn is_same(&self, other: &CompletionQueue) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Checks that entries are free for queues of this total depth.
    pub(crate) fn check_free(&self, depth: u64) -> Result<()> {
        self.check_free_locked(&self.lock(), depth)
    }

    fn check_free_locked(&self, state: &State, depth: u64) -> Result<()> {
        let (requested, max) = (u64::from(state.reserved) + depth, u64::from(self.depth()));
        if requested > max {
            return Err(Error::LimitExceeded { limit: Limit::QueueDepths, requested, max });
        }
        Ok(())
    }

    fn reserve(&self, state: &mut State, depth: u32) -> Result<()> {
        self.check_free_locked(state, depth.into())?;
        state.reserved += depth;
        Ok(())
    }
}

impl Queues {
    /// Checks that a number is free for another queue.
    fn check_numbers(&self) -> Result<()> {
        if !self.free.is_empty() || self.own.len() < MAX_QUEUES {
            return Ok(());
        }
        let (requested, max) = (MAX_QUEUES as u64 + 1, MAX_QUEUES as u64);
        Err(Error::LimitExceeded { limit: Limit::QueueCount, requested, max })
    }
}

/// The maximum number of queues that ids can distinguish.
const MAX_QUEUES: usize = 1 << NUMBER_BITS;

/// The posting end of a queue whose completions are delivered to a completion queue. The completion queue has the
/// other end. Dropping it detaches the queue.
pub(crate) struct Attached {
    completion_queue: CompletionQueue,
    number: u32,
    depth: u32,
    posting: Mutex<Posting>,
}

impl Attached {
    /// Locks the posting end. The lock isn't poisoned by a panic: the state is consistent between any two calls.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Posting> {
        self.posting.lock()
    }

    pub(crate) fn completion_queue(&self) -> &CompletionQueue {
        &self.completion_queue
    }

    /// Sets the queue pair number, for recordings.
    pub(crate) fn set_qpn(&self, qpn: Qpn) {
        self.with_completing(|queue| queue.qpn = Some(qpn));
    }

    /// Sets the peer, which the errors of failed requests contain.
    pub(crate) fn set_peer(&self, peer: Option<Gid>) {
        self.with_completing(|queue| queue.peer = peer);
    }

    /// Removes all requests, oldest first, and returns their tags and memory. The caller should prevent posting
    /// meanwhile, because requests that are posted meanwhile may be removed, too.
    pub(crate) fn take_all(&self) -> Vec<(u64, Payload)> {
        self.with_completing(Completing::take_all).unwrap_or_default()
    }

    /// Removes the `count` requests that were posted last and that the device rejected, and returns them in order.
    #[cold]
    pub(crate) fn retract(&self, posting: &mut Posting, count: usize) -> Vec<InFlight> {
        let take = |queue: &mut Completing| (0..count).map_while(|_| queue.retract(posting)).collect();
        let mut retracted: Vec<InFlight> = self.with_completing(take).unwrap_or_default();
        retracted.reverse();
        retracted
    }

    /// Returns the state of the queue's marker.
    pub(crate) fn marker(&self) -> Marker {
        self.with_completing(|queue| queue.marker).unwrap_or_default()
    }

    /// Sets the state of the queue's marker if it is `from`. Returns whether it was.
    pub(crate) fn change_marker(&self, from: Marker, to: Marker) -> bool {
        let change = |queue: &mut Completing| {
            let is_from = queue.marker == from;
            if is_from {
                queue.marker = to;
            }
            is_from
        };
        self.with_completing(change).unwrap_or(false)
    }

    /// Returns the statistics of the queue.
    pub(crate) fn stats(&self) -> QueueStats {
        let posting = self.lock().stats;
        QueueStats::new(posting, self.with_completing(|queue| queue.stats).unwrap_or_default())
    }

    /// Calls `work` with the completing end.
    fn with_completing<T>(&self, work: impl FnOnce(&mut Completing) -> T) -> Option<T> {
        let mut state = self.completion_queue.lock();
        state.queues.own[self.number as usize].queue.as_mut().map(work)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if !self.completion_queue.device().is_owned() {
            return;
        }
        let mut state = self.completion_queue.lock();
        state.queues.own[self.number as usize].queue = None;
        state.queues.free.push(self.number);
        state.reserved -= self.depth;
    }
}

/// A shared receive queue whose completions may be delivered to a completion queue. Dropping it detaches the queue.
pub(crate) struct AttachedShared {
    completion_queue: CompletionQueue,
    pub(crate) queue: SharedReceiveQueue,
}

impl AttachedShared {
    pub(crate) fn completion_queue(&self) -> &CompletionQueue {
        &self.completion_queue
    }
}

impl Drop for AttachedShared {
    fn drop(&mut self) {
        if !self.completion_queue.device().is_owned() {
            return;
        }
        let mut state = self.completion_queue.lock();
        let Some(at) = state.queues.shared.iter().position(|entry| entry.id == self.queue.id()) else {
            return;
        };
        let entry = &mut state.queues.shared[at];
        entry.users -= 1;
        if entry.users == 0 {
            let depth = entry.depth;
            state.queues.shared.swap_remove(at);
            state.reserved -= depth;
        }
    }
}

#[cfg(all(test, feature = "soft", not(loom)))]
mod tests {
    use super::super::NUMBER_MASK;
    use super::*;
    use crate::device::Device;

    #[test]
    fn a_small_queue_reports_the_need_of_both_queues_of_a_queue_pair() {
        let device = Device::open("soft").unwrap();
        let domain = device.create_protection_domain().unwrap();
        for depth in [4, 8, 11] {
            let queue = device.completion_queue(depth).create().unwrap();
            let builder = domain.queue_pair(Transport::Rc).completion_queue(&queue).depth(8, 4);
            let max = u64::from(queue.depth());
            let refused = builder.create().map(drop);
            assert!(
                matches!(refused, Err(Error::LimitExceeded { limit: Limit::QueueDepths, requested: 12, max: at_most })
                    if at_most == max),
                "{refused:?}"
            );
            assert_eq!(queue.stats().reserved_depth, 0);
        }
        let queue = device.completion_queue(12).create().unwrap();
        domain.queue_pair(Transport::Rc).completion_queue(&queue).depth(8, 4).create().unwrap();
    }

    #[test]
    fn more_queues_than_ids_can_distinguish_are_rejected() {
        let queue = Device::open("soft").unwrap().completion_queue(16).create().unwrap();
        queue.lock().queues.own.resize_with(MAX_QUEUES - 1, Entry::default);
        let last = queue.attach(4, Queue::Send, Transport::Rc).unwrap();
        assert_eq!(last.lock().id(0) >> (32 + GENERATION_BITS), NUMBER_MASK);
        let rejected = queue.attach(4, Queue::Send, Transport::Rc).map(drop);
        assert!(matches!(rejected, Err(Error::LimitExceeded { max: 1_048_576, .. })), "{rejected:?}");
        assert_eq!(queue.stats().reserved_depth, 4, "a rejected queue reserves no entries");
        // A number that is free is reused.
        drop(last);
        queue.attach(4, Queue::Send, Transport::Rc).unwrap();
    }
}
