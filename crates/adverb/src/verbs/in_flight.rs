//! The requests that the device has, and their buffers.

use super::AddressHandle;
use super::completion::{Completion, RequestId};
use super::stats::QueueStats;
use crate::backend::{CompletionKind, RawOutcome};
use crate::memory::Payload;

/// One queue of a queue pair: the requests that were posted and haven't completed, oldest first.
///
/// A request's place is its position: a number that counts up and wraps. It travels to the device and back in the
/// work-request id, and says both which slot is meant and, because positions aren't reused for a long time, whether a
/// completion is of this request or of one long gone.
#[derive(Debug)]
pub(super) struct InFlight {
    /// As many as a power of two that holds `depth`, so that a position finds its slot by a mask.
    slots: Box<[Option<Slot>]>,
    depth: u32,
    /// The position that the next request gets.
    next: u32,
    /// The position of the oldest request.
    oldest: u32,
    /// How many requests since the last one that asks for a completion.
    unsignaled: u32,
    is_datagram: bool,
    /// What the ids of this queue have beside the position.
    id_base: u64,
    pub(super) stats: QueueStats,
}

/// A request that the device has.
#[derive(Debug)]
struct Slot {
    payload: Payload,
    tag: u64,
    kind: CompletionKind,
    /// Held for the device, which may look at it until the request completes.
    _recipient: Option<AddressHandle>,
}

impl InFlight {
    pub(super) fn new(depth: u32, id_base: u64) -> InFlight {
        let slots = depth.next_power_of_two() as usize;
        InFlight {
            slots: (0..slots).map(|_| None).collect(),
            depth,
            next: 0,
            oldest: 0,
            unsignaled: 0,
            is_datagram: false,
            id_base,
            stats: QueueStats::default(),
        }
    }

    /// Makes it a queue for datagrams, whose completions say who sent.
    pub(super) fn carry_datagrams(&mut self) {
        self.is_datagram = true;
    }

    /// How many requests the device has.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.next.wrapping_sub(self.oldest)
    }

    /// How many requests fit.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// How many more fit.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        self.depth - self.len()
    }

    /// The id of the request that comes `ahead` requests after the next.
    #[inline]
    pub(super) fn id(&self, ahead: u32) -> u64 {
        self.id_base | u64::from(self.next.wrapping_add(ahead))
    }

    /// Whether a request that doesn't ask for a completion must have one all the same, when `ahead` others are posted
    /// before it: if half the queue went without, it could fill with requests that never leave it.
    #[inline]
    pub(super) fn must_signal(&self, unsignaled_ahead: u32) -> bool {
        (self.unsignaled + unsignaled_ahead + 1) * 2 > self.depth
    }

    /// Takes the memory of a request that was posted. There must be room.
    #[inline]
    pub(super) fn push(
        &mut self,
        payload: Payload,
        tag: u64,
        kind: CompletionKind,
        signaled: bool,
        recipient: Option<AddressHandle>,
    ) {
        debug_assert!(self.room() > 0);
        let index = self.index(self.next);
        self.slots[index] = Some(Slot { payload, tag, kind, _recipient: recipient });
        self.next = self.next.wrapping_add(1);
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
        self.stats.posted += 1;
        self.stats.high_water = self.stats.high_water.max(self.len());
    }

    /// Completes the send request at `position`, and before it those that didn't ask for a completion: requests of a
    /// send queue complete in order. Says whether there was such a request.
    #[inline]
    pub(super) fn complete_up_to(
        &mut self,
        position: u32,
        outcome: RawOutcome,
        out: &mut Vec<Completion>,
    ) -> bool {
        if position.wrapping_sub(self.oldest) >= self.len() {
            return false;
        }
        while self.oldest != position {
            self.take_oldest(None, out);
        }
        self.take_oldest(Some(outcome), out);
        true
    }

    /// Gives up all requests, in order: for a queue pair that is no more.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Payload> {
        let first = std::mem::replace(&mut self.oldest, self.next);
        let count = self.next.wrapping_sub(first);
        (0..count).filter_map(move |ahead| {
            let index = self.index(first.wrapping_add(ahead));
            self.slots[index].take().map(|slot| slot.payload)
        })
    }

    /// Completes the oldest request; without an outcome of its own it has succeeded.
    #[inline]
    fn take_oldest(&mut self, outcome: Option<RawOutcome>, out: &mut Vec<Completion>) {
        let position = self.oldest;
        self.oldest = position.wrapping_add(1);
        let index = self.index(position);
        let Some(Slot { payload, tag, kind, .. }) = self.slots[index].take() else { return };
        let outcome = outcome.unwrap_or(RawOutcome::implied(kind));
        self.stats.count(&outcome);
        let id = RequestId(self.id_base | u64::from(position));
        out.push(Completion { id, tag, payload, outcome, is_datagram: self.is_datagram });
    }

    #[inline]
    fn index(&self, position: u32) -> usize {
        position as usize & (self.slots.len() - 1)
    }
}
