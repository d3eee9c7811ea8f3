//! The requests that the device has, and their memory.
//!
//! A queue of a queue pair is a [ring](crate::ring) with two ends: requests are put in where they are posted
//! ([`Posting`]), under the queue's lock, and taken out where they complete ([`Completing`]), under the completion queue's.
//!
//! A request's place is its position in the ring. It travels to the device and back in the work-request id, and says both
//! which slot is meant and, because positions aren't reused for a long time, whether a completion is of this request or
//! of one long gone.

use super::AddressHandle;
use super::completion::{Completion, RequestId};
use super::stats::{CompletingStats, PostingStats};
use crate::backend::RawOutcome;
use crate::memory::Payload;
use crate::ring::{Consumer, Producer, ring};

/// A request that the device has.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) payload: Payload,
    pub(super) tag: u64,
    /// What its completion will say: one of the backend's opcodes.
    pub(super) opcode: u32,
    /// Held for the device, which may look at it until the request completes.
    pub(super) _recipient: Option<AddressHandle>,
}

/// The end of a queue where requests are posted.
#[derive(Debug)]
pub(super) struct Posting {
    ring: Producer<InFlight>,
    /// How many requests since the last one that asks for a completion.
    unsignaled: u32,
    /// How many may go without: if half the queue did, it could fill with requests that never leave it.
    most_unsignaled: u32,
    /// What the ids of this queue have beside the position.
    id_base: u64,
    pub(super) stats: PostingStats,
}

/// The end of a queue where requests complete.
#[derive(Debug)]
pub(super) struct Completing {
    ring: Consumer<InFlight>,
    id_base: u64,
    is_datagram: bool,
    pub(super) stats: CompletingStats,
}

/// A queue for `depth` requests, whose ids begin with `id_base`.
pub(super) fn queue(depth: u32, id_base: u64) -> (Posting, Completing) {
    let (producer, consumer) = ring(depth);
    let most_unsignaled = (depth / 2).saturating_sub(1);
    let stats = PostingStats::default();
    let posting = Posting { ring: producer, unsignaled: 0, most_unsignaled, id_base, stats };
    let completing =
        Completing { ring: consumer, id_base, is_datagram: false, stats: CompletingStats::default() };
    (posting, completing)
}

impl Posting {
    /// How many requests the device has.
    pub(super) fn len(&self) -> u32 {
        self.ring.len()
    }

    /// How many requests fit.
    pub(super) fn depth(&self) -> u32 {
        self.ring.depth()
    }

    /// Whether `count` more fit.
    #[inline]
    pub(super) fn has_room(&mut self, count: u32) -> bool {
        self.ring.has_room(count)
    }

    /// The id of the request that comes `ahead` requests after the next.
    #[inline]
    pub(super) fn id(&self, ahead: u32) -> u64 {
        self.id_base | u64::from(self.ring.next().wrapping_add(ahead))
    }

    /// Whether the next request must ask for a completion, whatever it wants; counts it either way.
    #[inline]
    pub(super) fn must_signal(&mut self, wants: bool) -> bool {
        let must = wants || self.unsignaled >= self.most_unsignaled;
        self.unsignaled = if must { 0 } else { self.unsignaled + 1 };
        must
    }

    /// Takes the memory of a request that is about to be posted. There must be room.
    #[inline]
    pub(super) fn push(&mut self, request: InFlight) {
        let pushed = self.ring.push(request);
        debug_assert!(pushed.is_ok(), "who pushes has looked for room");
        self.stats.posted += 1;
    }
}

impl Completing {
    /// Makes it a queue for datagrams, whose completions say who sent.
    pub(super) fn carry_datagrams(&mut self) {
        self.is_datagram = true;
    }

    /// Completes the request at `position`, and before it those that didn't ask for a completion: requests of a queue
    /// complete in order. Says whether there was such a request.
    #[inline]
    pub(super) fn complete_up_to(
        &mut self,
        position: u32,
        outcome: RawOutcome,
        out: &mut Vec<Completion>,
    ) -> bool {
        let outstanding = self.ring.len();
        if position.wrapping_sub(self.ring.oldest()) >= outstanding {
            return false;
        }
        self.stats.high_water = self.stats.high_water.max(outstanding);
        while self.ring.oldest() != position {
            self.complete_oldest(None, out);
        }
        self.complete_oldest(Some(outcome), out);
        true
    }

    /// Takes out all requests, oldest first: for a queue pair that is no more.
    pub(super) fn take_all(&mut self) -> Vec<Payload> {
        std::iter::from_fn(|| self.ring.pop()).map(|request| request.payload).collect()
    }

    /// Takes back the request that was posted last, because the device didn't take it.
    pub(super) fn retract(&mut self, posting: &mut Posting) -> Option<InFlight> {
        posting.stats.posted -= 1;
        self.ring.retract(&mut posting.ring)
    }

    /// Completes the oldest request; without an outcome of its own it has succeeded.
    #[inline]
    fn complete_oldest(&mut self, outcome: Option<RawOutcome>, out: &mut Vec<Completion>) {
        let id = RequestId(self.id_base | u64::from(self.ring.oldest()));
        let Some(InFlight { payload, tag, opcode, _recipient: _ }) = self.ring.pop() else { return };
        let outcome = outcome.unwrap_or(RawOutcome::implied(opcode));
        self.stats.count(&outcome);
        out.push(Completion { id, tag, payload, outcome, is_datagram: self.is_datagram });
    }
}
