//! The calls of a session: the caller's side.

use std::collections::VecDeque;

use super::header::WireId;
use super::timers::TimerId;
use crate::mutation::mutant;

/// The calls to a peer.
#[derive(Debug, Default)]
pub(super) struct Calls {
    slots: Vec<CallSlot>,
    /// The indices of free slots. The last one is used first, so the table of the peer stays small, too.
    free: Vec<u16>,
    /// The indices of calls whose cancellation was not sent yet.
    cancellations: VecDeque<u16>,
    /// The first slot that may hold a call of an ended session.
    ended: usize,
}

#[derive(Debug)]
struct CallSlot {
    generation: u32,
    state: CallState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CallState {
    Free,
    /// The reply is missing.
    Outstanding {
        timer: Option<TimerId>,
    },
    /// The call ended, but its index can't be used before the cancellation is sent.
    Cancelling,
}

/// The call to which the id of a reply belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReplyMatch {
    /// An outstanding call, which ends.
    Outstanding { timer: Option<TimerId> },
    /// An ended call.
    Late,
    /// No call had the id.
    Unknown,
}

impl Calls {
    /// Whether all ids are in use.
    pub(super) fn is_full(&self, max: u16) -> bool {
        let max = max + u16::from(mutant!(OneCallTooMany));
        self.free.is_empty() && self.slots.len() >= usize::from(max)
    }

    /// Takes an id, unless all `max` are in use.
    pub(super) fn start(&mut self, max: u16) -> Option<WireId> {
        let max = max + u16::from(mutant!(OneCallTooMany));
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < usize::from(max) => {
                self.slots.push(CallSlot { generation: 0, state: CallState::Free });
                (self.slots.len() - 1) as u16
            }
            None => return None,
        };
        let slot = &mut self.slots[usize::from(index)];
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = CallState::Outstanding { timer: None };
        Some(WireId { index, generation: slot.generation })
    }

    pub(super) fn set_timer(&mut self, id: WireId, timer: TimerId) {
        if let Some(CallState::Outstanding { timer: place }) = self.state(id) {
            *place = Some(timer);
        }
    }

    pub(super) fn is_outstanding(&self, id: WireId) -> bool {
        let slot = self.slots.get(usize::from(id.index)).filter(|slot| slot.generation == id.generation);
        slot.is_some_and(|slot| matches!(slot.state, CallState::Outstanding { .. }))
    }

    fn state(&mut self, id: WireId) -> Option<&mut CallState> {
        let slot = self.slots.get_mut(usize::from(id.index))?;
        (slot.generation == id.generation).then_some(&mut slot.state)
    }

    /// Ends a call with the peer's reply.
    pub(super) fn finish(&mut self, id: WireId) -> ReplyMatch {
        let Some(slot) = self.slots.get_mut(usize::from(id.index)) else { return ReplyMatch::Unknown };
        let age = slot.generation.wrapping_sub(id.generation) as i32;
        match slot.state {
            CallState::Outstanding { timer } if age == 0 || mutant!(ReplyGenerationIgnored) => {
                slot.state = CallState::Free;
                self.free.push(id.index);
                ReplyMatch::Outstanding { timer }
            }
            _ if age >= 0 => ReplyMatch::Late,
            _ => ReplyMatch::Unknown,
        }
    }

    /// Ends an outstanding call, and returns its timer. The cancellation must be sent to the peer.
    pub(super) fn cancel(&mut self, id: WireId) -> Option<Option<TimerId>> {
        let state = self.state(id)?;
        let CallState::Outstanding { timer } = *state else { return None };
        *state = CallState::Cancelling;
        if mutant!(CancelledIndexReused) {
            *state = CallState::Free;
            self.free.push(id.index);
        }
        self.cancellations.push_back(id.index);
        Some(timer)
    }

    pub(super) fn has_cancellation(&self) -> bool {
        !self.cancellations.is_empty()
    }

    /// Takes the id of a call to cancel at the peer. Later messages may use its index again.
    pub(super) fn take_cancellation(&mut self) -> Option<WireId> {
        let index = self.cancellations.pop_front()?;
        let slot = self.slots.get_mut(usize::from(index))?;
        if !mutant!(CancelledIndexReused) {
            slot.state = CallState::Free;
            self.free.push(index);
        }
        Some(WireId { index, generation: slot.generation })
    }

    /// Ends the session: cancellations aren't sent anymore.
    pub(super) fn end(&mut self) {
        while self.take_cancellation().is_some() {}
        self.ended = 0;
    }

    /// Ends the next outstanding call of an ended session.
    pub(super) fn take_ended(&mut self) -> Option<(WireId, Option<TimerId>)> {
        if mutant!(CallsSurviveSession) {
            return None;
        }
        while let Some(slot) = self.slots.get_mut(self.ended) {
            let index = self.ended as u16;
            self.ended += 1;
            if let CallState::Outstanding { timer } = slot.state {
                slot.state = CallState::Free;
                self.free.push(index);
                return Some((WireId { index, generation: slot.generation }, timer));
            }
        }
        None
    }

    /// Returns the heap bytes of the state.
    pub(super) fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<CallSlot>()
            + (self.free.capacity() + self.cancellations.capacity()) * size_of::<u16>()
    }

    /// Returns the number of calls that wait for a reply.
    pub(super) fn outstanding_count(&self) -> usize {
        self.slots.len() - self.free.len() - self.cancellations.len()
    }
}
