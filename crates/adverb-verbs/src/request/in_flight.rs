//! Requests in flight, and their memory.
//!
//! A queue of a queue pair is a [ring](crate::request::ring) with two ends. Requests enter it where they are posted
//! ([`Posting`]), under the queue's lock, and leave it where they complete ([`Completing`]), under the completion
//! queue's lock.
//!
//! A request is identified by its position in the ring, which is part of the work request id. The position selects
//! the slot. Because positions are not reused for a long time, the position in a completion also distinguishes this
//! request from earlier requests in the slot.

use adverb_proto::trace::Queue;
use adverb_proto::types::{Gid, Qpn, SendFlags};

use super::completion::Completion;
use super::ring::{Consumer, Producer, ring};
use crate::backend::{RawCompletion, RawOutcome, flag};
use crate::device::AddressHandle;
use crate::memory::Payload;
use crate::recorder::QueueRecorder;
use crate::request::Scratch;
use crate::request_id::RequestId;
use crate::stats::{CompletingStats, PostingStats};

/// A request in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) payload: Payload,
    pub(crate) tag: u64,
    /// The operation that its completion reports: one of the backend's opcodes.
    pub(crate) opcode: u32,
    /// The address handle, which the device may use until the request completes.
    pub(crate) address_handle: Option<AddressHandle>,
}

/// The posting end of a queue.
pub(crate) struct Posting {
    pub(crate) ring: Producer<InFlight>,
    pub(crate) signals: Signals,
    /// The upper bits of the identifiers of this queue.
    pub(crate) id_base: u64,
    pub(crate) stats: PostingStats,
    pub(crate) scratch: Scratch,
    pub(crate) recorder: QueueRecorder,
}

/// The counter that makes requests signaled often enough, so that the queue can't fill with unsignaled ones.
pub(crate) struct Signals {
    /// The number of requests since the last signaled one.
    unsignaled_count: u32,
    /// The maximum number of unsignaled requests in a row. With more, the queue could fill with requests that never
    /// complete.
    max_unsignaled: u32,
}

impl Signals {
    /// Returns the flags of the next request, signaled if it must be.
    #[inline]
    pub(crate) fn set(&mut self, flags: SendFlags) -> SendFlags {
        let is_signaled = flags.contains(SendFlags::SIGNALED) || self.unsignaled_count >= self.max_unsignaled;
        self.unsignaled_count = if is_signaled { 0 } else { self.unsignaled_count + 1 };
        if is_signaled { flags | SendFlags::SIGNALED } else { flags }
    }
}

/// The completing end of a queue.
#[derive(Debug)]
pub(crate) struct Completing {
    ring: Consumer<InFlight>,
    id_base: u64,
    pub(crate) stats: CompletingStats,
    /// The queue, for recordings.
    pub(crate) kind: Queue,
    /// The queue pair, once it exists.
    pub(crate) qpn: Option<Qpn>,
    /// The peer, while the queue pair is connected.
    pub(crate) peer: Option<Gid>,
    pub(crate) marker: Marker,
}

/// The marker of a queue that is being drained: a request behind all others, whose completion shows that the others
/// have completed. It isn't in the ring, and its completion is not returned to callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Marker {
    /// The queue is not being drained.
    #[default]
    Absent,
    /// The queue is being drained, and the marker is posted when the queue has a free entry.
    Pending,
    /// The marker is in flight, with this position.
    Posted(u32),
    /// The marker has completed, and therefore all requests.
    Completed,
}

/// Creates a queue for `depth` requests, whose identifiers start with `id_base`.
pub(crate) fn queue(
    depth: u32,
    id_base: u64,
    kind: Queue,
    recorder: QueueRecorder,
    scratch: Scratch,
) -> (Posting, Completing) {
    let (producer, consumer) = ring(depth);
    let posting = Posting {
        ring: producer,
        signals: Signals { unsignaled_count: 0, max_unsignaled: (depth / 2).saturating_sub(1) },
        id_base,
        stats: PostingStats::default(),
        scratch,
        recorder,
    };
    let stats = CompletingStats::default();
    let completing =
        Completing { ring: consumer, id_base, stats, kind, qpn: None, peer: None, marker: Marker::Absent };
    (posting, completing)
}

impl Posting {
    /// Returns the number of requests in flight.
    pub(crate) fn len(&self) -> u32 {
        self.ring.len()
    }

    /// Whether this request of this queue is in flight.
    pub(crate) fn is_outstanding(&self, id: RequestId) -> bool {
        let [_, _, _, _, position @ ..] = id.0.to_be_bytes();
        let behind = self.ring.next().wrapping_sub(u32::from_be_bytes(position));
        (1..=self.len()).contains(&behind)
    }

    /// Returns the maximum number of requests in flight.
    pub(crate) fn depth(&self) -> u32 {
        self.ring.depth()
    }

    /// Whether `count` more requests can be posted.
    #[inline]
    pub(crate) fn has_free_slots(&mut self, count: u32) -> bool {
        self.ring.has_free_slots(count)
    }

    /// Returns the identifier of the request `ahead` positions after the next.
    #[inline]
    pub(crate) fn id(&self, ahead: u32) -> u64 {
        self.id_base | u64::from(self.ring.next().wrapping_add(ahead))
    }

    /// Returns the position of the queue's marker. It is as far as possible from the positions of requests, because the
    /// queue pair can be reset and used again, and a request must not have the position of an earlier marker.
    pub(crate) fn marker_position(&self) -> u32 {
        self.ring.next() ^ 1 << 31
    }

    /// Returns the identifier of the marker at `position`.
    pub(crate) fn marker_id(&self, position: u32) -> u64 {
        self.id_base | u64::from(position)
    }

    /// Stores a request that is about to be posted. The queue must not be full.
    #[inline]
    pub(crate) fn push(&mut self, request: InFlight) {
        self.push_with(|| request);
    }

    /// Does the same as [`push`](Posting::push), and makes the request when its place is known, so that it is written
    /// straight there.
    #[inline(always)]
    pub(crate) fn push_with(&mut self, make: impl FnOnce() -> InFlight) {
        let vacancy = self.ring.vacancy().expect("the caller checks for a free entry first");
        vacancy.fill(make());
        self.stats.posted += 1;
    }
}

impl Posting {
    /// Does the same as [`push`](Posting::push), for several requests.
    pub(crate) fn push_all(&mut self, requests: &mut Vec<InFlight>) {
        self.stats.posted += requests.len() as u64;
        let pushed = self.ring.push_all(requests);
        assert!(pushed, "the caller checks for a free entry first");
    }
}

impl Completing {
    /// Completes the oldest request if the completion belongs to it and reports success, which is the most common case.
    /// Returns whether the request was completed.
    #[inline(always)]
    pub(crate) fn complete_oldest_success(
        &mut self,
        completion: &RawCompletion,
        out: &mut Vec<Completion>,
    ) -> bool {
        let expected = self.id_base | u64::from(self.ring.oldest());
        let RawOutcome { status, flags, length, .. } = completion.outcome;
        if completion.wr_id != expected || status | (flags & flag::SLOW_PATH) != 0 {
            return false;
        }
        let outstanding = self.ring.pop_into(out, |InFlight { payload, tag, address_handle, .. }| {
            let (id, outcome) = (RequestId(completion.wr_id), completion.outcome);
            (Completion { id, tag, payload, outcome }, address_handle)
        });
        self.stats.max_outstanding = self.stats.max_outstanding.max(outstanding);
        self.stats.count_success(length);
        outstanding > 0
    }

    /// Completes the request at `position`, and before it the unsignaled ones: requests of a queue complete in order.
    /// Returns whether the request exists.
    #[inline]
    pub(crate) fn complete_up_to(
        &mut self,
        position: u32,
        outcome: RawOutcome,
        out: &mut Vec<Completion>,
    ) -> bool {
        let outstanding = self.ring.len();
        if position.wrapping_sub(self.ring.oldest()) >= outstanding {
            return self.complete_marker(position, outcome, out);
        }
        self.stats.max_outstanding = self.stats.max_outstanding.max(outstanding);
        while self.ring.oldest() != position {
            self.complete_oldest(None, out);
        }
        self.complete_oldest(Some(outcome), out);
        true
    }

    /// Completes the requests that are left before the marker at `position`. Returns whether the marker exists.
    #[cold]
    fn complete_marker(&mut self, position: u32, outcome: RawOutcome, out: &mut Vec<Completion>) -> bool {
        if !self.is_marker(position) {
            return false;
        }
        self.marker = Marker::Completed;
        let outcome = match self.kind {
            // A send request that failed has a completion of its own, so these succeeded.
            Queue::Send => None,
            // Every receive request has a completion of its own; if the device lost it, the request did not succeed.
            Queue::Recv => Some(outcome),
        };
        while self.ring.len() > 0 {
            self.complete_oldest(outcome, out);
        }
        true
    }

    /// Whether the marker has this position.
    pub(crate) fn is_marker(&self, position: u32) -> bool {
        self.marker == Marker::Posted(position)
    }

    /// Returns the positions of the outstanding requests.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = u32> + use<> {
        let oldest = self.ring.oldest();
        (0..self.ring.len()).map(move |ahead| oldest.wrapping_add(ahead))
    }

    /// Returns the positions of the unsignaled requests that the completion of the request at `position` completes,
    /// too.
    pub(crate) fn unsignaled_before(&self, position: u32) -> impl Iterator<Item = u32> + use<> {
        let oldest = self.ring.oldest();
        let count = position.wrapping_sub(oldest);
        let is_outstanding = count < self.ring.len();
        (0..if is_outstanding { count } else { 0 }).map(move |ahead| oldest.wrapping_add(ahead))
    }

    /// Removes all requests of a queue pair that was reset or destroyed, oldest first, and returns their tags and
    /// memory.
    pub(crate) fn take_all(&mut self) -> Vec<(u64, Payload)> {
        self.marker = Marker::Absent;
        std::iter::from_fn(|| self.ring.pop()).map(|request| (request.tag, request.payload)).collect()
    }

    /// Removes the request that was posted last, because the device rejected it.
    pub(crate) fn retract(&mut self, posting: &mut Posting) -> Option<InFlight> {
        posting.stats.posted -= 1;
        // This may have been the signaled request, so the next request is signaled.
        posting.signals.unsignaled_count = posting.signals.max_unsignaled;
        self.ring.retract(&mut posting.ring)
    }

    /// Completes the oldest request. Without an outcome of its own, it succeeded.
    #[inline]
    fn complete_oldest(&mut self, outcome: Option<RawOutcome>, out: &mut Vec<Completion>) {
        let id = RequestId(self.id_base | u64::from(self.ring.oldest()));
        let Completing { ring, stats, kind, peer, .. } = self;
        ring.pop_into(out, |InFlight { payload, tag, opcode, address_handle }| {
            let mut outcome = outcome.unwrap_or(RawOutcome::implied(opcode));
            stats.count(&outcome);
            if outcome.status != 0 {
                outcome.flags |= if *kind == Queue::Recv { flag::RECV } else { 0 };
                if let Some(peer) = *peer {
                    outcome.store_peer(peer);
                }
            }
            (Completion { id, tag, payload, outcome }, address_handle)
        });
    }
}

#[cfg(all(test, feature = "soft", not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const DEPTH: u32 = 8;
    const BASE: u64 = 5 << 32;

    fn new_queue(depth: u32) -> (Posting, Completing) {
        queue(depth, BASE, Queue::Send, QueueRecorder::new(None), Scratch::of_a_software_nic())
    }

    fn request(tag: u64) -> InFlight {
        InFlight { payload: Payload::Empty, tag, opcode: 0, address_handle: None }
    }

    fn tags(completions: &[Completion]) -> Vec<u64> {
        completions.iter().map(Completion::tag).collect()
    }

    fn position(id: u64) -> u32 {
        u32::try_from(id ^ BASE).expect("an id is the base and a position")
    }

    #[test]
    fn every_request_is_returned_once_and_in_order() {
        // A deterministic random walk, compared with a model.
        let mut random = 1u64;
        let mut choose = move |count: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % count
        };
        let (mut posting, mut completing) = new_queue(DEPTH);
        let mut device = VecDeque::new();
        let (mut next_tag, mut expected) = (0, 0);
        for _ in 0..100_000 {
            match choose(8) {
                0..4 if posting.has_free_slots(1) => {
                    device.push_back(position(posting.id(0)));
                    posting.push(request(next_tag));
                    next_tag += 1;
                }
                // The device rejects the last posted request.
                4 if !device.is_empty() => {
                    device.pop_back();
                    next_tag -= 1;
                    assert_eq!(completing.retract(&mut posting).map(|request| request.tag), Some(next_tag));
                }
                // The device completes a request, and thereby those before it.
                5..8 if !device.is_empty() => {
                    let last = choose(device.len() as u64) as usize;
                    let completed: Vec<u32> = device.drain(..=last).collect();
                    let mut out = Vec::new();
                    assert!(completing.complete_up_to(completed[last], RawOutcome::implied(0), &mut out));
                    let want: Vec<u64> = (expected..).take(completed.len()).collect();
                    assert_eq!(tags(&out), want);
                    expected += completed.len() as u64;
                    // A second completion of any of these requests is stale, and returns nothing.
                    for stale in completed {
                        assert!(!completing.complete_up_to(stale, RawOutcome::implied(0), &mut out));
                    }
                    assert_eq!(out.len(), want.len());
                }
                _ => {}
            }
            assert_eq!(posting.len() as usize, device.len());
        }
        assert_eq!(completing.take_all().len(), device.len());
        assert_eq!(posting.len(), 0);
        assert!(expected > 10_000, "too few requests completed");
    }

    #[test]
    fn completions_of_unknown_positions_are_rejected() {
        let (mut posting, mut completing) = new_queue(DEPTH);
        posting.push(request(1));
        let mut out = Vec::new();
        for unknown in [1, 2, DEPTH, u32::MAX] {
            assert!(!completing.complete_up_to(unknown, RawOutcome::implied(0), &mut out), "{unknown}");
        }
        assert!(out.is_empty());
        assert!(completing.complete_up_to(0, RawOutcome::implied(0), &mut out));
    }

    #[test]
    fn a_marker_completes_the_requests_before_it_once() {
        let (mut posting, mut completing) = new_queue(DEPTH);
        (1..=3).for_each(|tag| posting.push(request(tag)));
        let marker = posting.marker_position();
        assert_eq!(position(posting.marker_id(marker)), marker);
        let mut out = Vec::new();
        assert!(!completing.complete_up_to(marker, RawOutcome::implied(0), &mut out), "no marker is posted");
        completing.marker = Marker::Posted(marker);
        // The first request completes by itself.
        assert!(completing.complete_up_to(0, RawOutcome::implied(0), &mut out));
        assert_eq!(completing.outstanding().collect::<Vec<_>>(), [1, 2]);
        let mut flushed = RawOutcome::implied(0);
        flushed.status = adverb_proto::types::Status::Flushed.code();
        assert!(completing.complete_up_to(marker, flushed, &mut out));
        assert_eq!(tags(&out), [1, 2, 3]);
        assert!(out.iter().all(Completion::is_ok), "requests without a completion of their own succeeded");
        assert_eq!((completing.marker, completing.stats.max_outstanding), (Marker::Completed, 3));
        assert!(!completing.complete_up_to(marker, flushed, &mut out), "a marker completes once");
        assert_eq!((out.len(), posting.len()), (3, 0));
        assert!(completing.take_all().is_empty());
        assert_eq!(completing.marker, Marker::Absent);
    }

    #[test]
    fn a_full_queue_always_has_a_request_that_will_complete() {
        for depth in 1..=16 {
            let (mut posting, mut completing) = new_queue(depth);
            let mut signaled = VecDeque::new();
            for _ in 0..100 {
                while posting.has_free_slots(1) {
                    // The device rejects every signaled request once, and then accepts another in its place.
                    if posting.signals.set(SendFlags::empty()) == SendFlags::SIGNALED {
                        posting.push(request(0));
                        assert!(completing.retract(&mut posting).is_some());
                        if posting.signals.set(SendFlags::empty()) == SendFlags::SIGNALED {
                            signaled.push_back(position(posting.id(0)));
                        }
                    }
                    posting.push(request(0));
                }
                let first = signaled.pop_front();
                let first = first.unwrap_or_else(|| {
                    panic!("depth {depth}: the queue is full, and no request will complete")
                });
                assert!(completing.complete_up_to(first, RawOutcome::implied(0), &mut Vec::new()));
            }
        }
    }
}
