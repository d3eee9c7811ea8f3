//! The requests of a session: the callee's side.

use std::collections::VecDeque;

use super::header::{Failure, Header, WireId};
use crate::MAX_COUNT;
use crate::mutation::mutant;

/// The requests of a peer that were not answered, and the answers that were not sent.
///
/// The peer chooses the indices of requests. The table grows to the largest index, but not above its maximum.
#[derive(Debug, Default)]
pub(super) struct Requests {
    slots: Vec<RequestSlot>,
    /// The indices of the answers to send, in order.
    answers: VecDeque<u16>,
    /// The ids of requests that exceeded the table, in order.
    refusals: VecDeque<WireId>,
    pending_count: usize,
}

#[derive(Debug)]
struct RequestSlot {
    /// The generation of the last request.
    generation: u32,
    state: RequestState,
    /// The data of a reply that was not sent yet. The allocation is reused.
    data: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RequestState {
    /// No request of this session had the index.
    Unused,
    Free,
    /// The application has the request.
    Pending,
    /// The answer was not sent yet.
    Answered(Answer),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// The data is in the slot.
    Reply,
    Failure(Failure),
}

/// The result of [`Requests::admit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    Accepted,
    /// A failure is sent.
    Refused,
    /// The index is in use, or the id was used before.
    Duplicate,
    /// The peer has more requests than any peer may have. No answer is sent.
    Excess,
}

impl Requests {
    pub(super) fn admit(&mut self, id: WireId, max: u16) -> Admission {
        let index = usize::from(id.index);
        if id.index >= max {
            if self.refusals.len() >= usize::from(MAX_COUNT) {
                return Admission::Excess;
            }
            if !mutant!(RefusalLost) {
                self.refusals.push_back(id);
            }
            return Admission::Refused;
        }
        if index >= self.slots.len() {
            let empty = || RequestSlot { generation: 0, state: RequestState::Unused, data: Vec::new() };
            self.slots.resize_with(index + 1, empty);
        }
        let slot = &mut self.slots[index];
        let is_newer = id.generation.wrapping_sub(slot.generation) as i32 > 0;
        match slot.state {
            RequestState::Unused => {}
            RequestState::Free if is_newer => {}
            _ => return Admission::Duplicate,
        }
        slot.generation = id.generation;
        slot.state = RequestState::Pending;
        self.pending_count += 1;
        Admission::Accepted
    }

    pub(super) fn is_pending(&self, id: WireId) -> bool {
        let slot = self.slots.get(usize::from(id.index)).filter(|slot| slot.generation == id.generation);
        slot.is_some_and(|slot| slot.state == RequestState::Pending)
    }

    /// Ends a pending request, whose answer is sent now.
    pub(super) fn finish(&mut self, id: WireId) -> bool {
        let is_pending = self.is_pending(id);
        if is_pending && !mutant!(AnsweredRequestPending) {
            self.slots[usize::from(id.index)].state = RequestState::Free;
            self.pending_count -= 1;
        }
        is_pending
    }

    /// Ends a pending request, whose answer is sent later.
    pub(super) fn queue(&mut self, id: WireId, answer: Answer, data: &[u8]) -> bool {
        let is_pending = self.is_pending(id);
        if is_pending {
            let slot = &mut self.slots[usize::from(id.index)];
            slot.state = RequestState::Answered(answer);
            slot.data.clear();
            slot.data.extend_from_slice(data);
            if !mutant!(QueuedReplyLost) {
                self.answers.push_back(id.index);
            }
            self.pending_count -= 1;
        }
        is_pending
    }

    /// Ends a request whose caller doesn't wait anymore. Returns `false` if there is no such request.
    pub(super) fn cancel(&mut self, id: WireId) -> bool {
        let Some(slot) = self.slots.get_mut(usize::from(id.index)) else {
            let count = self.refusals.len();
            self.refusals.retain(|refused| *refused != id);
            return self.refusals.len() < count;
        };
        if slot.generation != id.generation {
            return false;
        }
        if mutant!(CancellationIgnored) {
            return true;
        }
        match slot.state {
            RequestState::Unused | RequestState::Free => return false,
            RequestState::Pending => self.pending_count -= 1,
            RequestState::Answered(_) => self.answers.retain(|index| *index != id.index),
        }
        slot.state = RequestState::Free;
        true
    }

    pub(super) fn has_answer(&self) -> bool {
        !self.answers.is_empty() || !self.refusals.is_empty()
    }

    /// Takes the next answer to send.
    pub(super) fn take_answer(&mut self) -> Option<(Header, &[u8])> {
        let Some(index) = self.answers.pop_front() else {
            let id = self.refusals.pop_front()?;
            return Some((Header::Failure { id, failure: Failure::Overloaded }, &[]));
        };
        let slot = self.slots.get_mut(usize::from(index))?;
        let id = WireId { index, generation: slot.generation };
        let state = core::mem::replace(&mut slot.state, RequestState::Free);
        Some(match state {
            RequestState::Answered(Answer::Failure(failure)) => (Header::Failure { id, failure }, &[]),
            _ => {
                let source = if mutant!(QueuedReplyMixedUp) { 0 } else { usize::from(index) };
                (Header::Reply { id }, &self.slots[source].data)
            }
        })
    }

    /// Ends the session: all requests end without an answer.
    pub(super) fn end(&mut self) {
        for slot in &mut self.slots {
            // The generations of the peer's next session start anew, because the peer may have restarted.
            slot.state =
                if mutant!(GenerationsSurviveSession) { RequestState::Free } else { RequestState::Unused };
        }
        self.answers.clear();
        self.refusals.clear();
        self.pending_count = 0;
    }

    /// Returns the heap bytes of the state.
    pub(super) fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<RequestSlot>()
            + self.slots.iter().map(|slot| slot.data.capacity()).sum::<usize>()
            + self.answers.capacity() * size_of::<u16>()
            + self.refusals.capacity() * size_of::<WireId>()
    }

    pub(super) fn pending_count(&self) -> usize {
        self.pending_count
    }
}
