//! Completions of the driver's requests.

use adverb_proto::types::{CompletedOperation, Completion, Success};

use super::Broker;
use crate::credits;
use crate::mutation::mutant;
use crate::rail::RequestKind;
use crate::session::{Lifecycle, Probe, RecvSlotState};
use crate::wr_id::{Queue, WrId};
use crate::{EndReason, Event, PeerId, Phase, RecvSlot};

/// The index of the only rail.
const RAIL: usize = 0;

impl Broker {
    /// Processes a completion of a request that [`poll_post`](Broker::poll_post) returned. The completions of each queue
    /// must be passed in order. A completion of an ended session has no effect, so completions may remain in a completion
    /// queue that outlives the queue pair.
    pub fn handle_completion(&mut self, completion: &Completion) {
        let WrId { peer, session: number, queue, index } = WrId::decode(completion.wr_id);
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        let is_current = |current: u16| current == number || mutant!(AcceptStaleCompletion);
        let Some(session) = state.session().filter(|session| is_current(session.number)) else { return };
        session.is_active = true;
        session.is_confirmed |= completion.outcome.is_ok();
        match (queue, completion.outcome) {
            (Queue::Send, Ok(_)) => self.complete_send(peer, index),
            (Queue::Recv, Ok(success)) => self.complete_recv(peer, index as u16, success),
            (Queue::Send, Err(failure)) => {
                // A failed request always produces a completion, so the requests before the first failure succeeded.
                let rail = &mut session.rails[RAIL];
                let failed = rail.position(index).filter(|_| rail.fail());
                let succeeded = failed.map(|position| position + usize::from(mutant!(FailureIsSuccess)));
                self.complete_requests(peer, succeeded.unwrap_or(0));
                self.end_session(peer, EndReason::RequestFailed { status: failure.status });
            }
            (Queue::Recv, Err(failure)) => {
                self.end_session(peer, EndReason::RequestFailed { status: failure.status });
            }
        }
    }

    fn complete_send(&mut self, peer: PeerId, sequence: u32) {
        let Some(session) = self.peers.get_mut(usize::from(peer.0)).and_then(|state| state.session()) else {
            return;
        };
        match session.rails[RAIL].position(sequence) {
            Some(position) => {
                self.complete_requests(peer, position + 1 + usize::from(mutant!(CompletionCoversNext)));
            }
            None => self
                .end_session(peer, EndReason::ProtocolViolation { violation: "unexpected send completion" }),
        }
    }

    /// Completes the first `count` requests in flight. A completion of a request implies the success of all earlier ones.
    fn complete_requests(&mut self, peer: PeerId, count: usize) {
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        let mut has_left = false;
        for _ in 0..count {
            let Some(session) = state.session() else { return };
            let Some(request) = session.rails[RAIL].pop() else { break };
            match request.kind {
                RequestKind::Message(slot) if !mutant!(SlotFreedWhenPosted) => {
                    state.free_send_slots.push(slot);
                }
                RequestKind::Probe => session.probe = Probe::Idle,
                RequestKind::Leave => has_left = true,
                _ => {}
            }
            self.events.extend(request.ticket.map(|ticket| Event::Completed {
                peer,
                ticket,
                result: Ok(()),
            }));
        }
        let has_output = state.must_leave() || state.session().is_some_and(|session| session.has_output());
        if has_output && !mutant!(FullSendQueueForgotten) {
            self.mark_ready(peer);
        }
        self.check_unblocked(peer);
        if has_left {
            self.end_session(peer, EndReason::Closed);
        }
    }

    fn complete_recv(&mut self, peer: PeerId, index: u16, success: Success) {
        let mut is_control = false;
        let message = match success.operation {
            CompletedOperation::Recv { immediate: Some(immediate), .. } => {
                is_control = immediate & credits::CONTROL_MESSAGE != 0;
                let (count, is_credit_message) = credits::decode(immediate);
                self.receive_credits(peer, count);
                match (is_credit_message, is_control) {
                    (true, true) => Received::Leave,
                    (true, false) => Received::Credit,
                    (false, _) => Received::Message,
                }
            }
            CompletedOperation::RecvWrite { immediate } => Received::Immediate(immediate),
            _ => {
                return self.end_session(
                    peer,
                    EndReason::ProtocolViolation { violation: "message without credits" },
                );
            }
        };
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        let is_closing = state.phase() == Phase::Closing;
        // The application never learns of a session that ended before it was established.
        let is_unknown = matches!(state.lifecycle, Lifecycle::Closing { epoch: None, .. });
        let Some(slot @ RecvSlotState::Posted) = state.recv_slots.get_mut(usize::from(index)) else {
            return self.end_session(
                peer,
                EndReason::ProtocolViolation { violation: "unexpected receive completion" },
            );
        };
        if is_unknown && !mutant!(MessageOfUnknownSession) {
            *slot = RecvSlotState::Free;
            return;
        }
        let uses_credit = matches!(message, Received::Message | Received::Immediate(_));
        let is_early = matches!(message, Received::Immediate(_)) && mutant!(ImmediateGrantedEarly);
        let is_held = uses_credit && !is_early;
        *slot = if is_held { RecvSlotState::Held } else { RecvSlotState::Free };
        let Some(session) = state.session() else { return };
        if uses_credit && !session.recv_credits.receive() {
            state.recv_slots[usize::from(index)] = RecvSlotState::Free;
            return self
                .end_session(peer, EndReason::ProtocolViolation { violation: "message without a credit" });
        }
        let (from, length, slot) = (peer, success.length, RecvSlot { peer, index });
        let event = match message {
            Received::Message if is_control => Event::Control { from, slot, length },
            Received::Message => Event::Message { from, slot, length },
            Received::Immediate(immediate) => Event::Immediate { from, slot, immediate, length },
            // All earlier messages have arrived.
            Received::Leave => return self.end_session(peer, EndReason::Left),
            Received::Credit => {
                // The receive of a credit message is posted again at once.
                session.repost_grants += u32::from(mutant!(CreditMessageGrants));
                session.reposts.push(index);
                if !is_closing {
                    self.mark_unflushed(peer);
                }
                return;
            }
        };
        if is_early || mutant!(ReceivePostedWhileHeld) {
            session.reposts.push(index);
            session.repost_grants += u32::from(is_early);
        }
        let is_due = session.recv_credits.is_due() || is_early;
        self.events.push_back(event);
        // The peer may have used its last credit, while earlier grants are unannounced.
        if is_due && !is_closing && !mutant!(LastCreditUnnoticed) {
            self.mark_unflushed(peer);
        }
    }

    /// Processes the count of credits in a message.
    fn receive_credits(&mut self, peer: PeerId, count: u32) {
        let Some(session) = self.peers.get_mut(usize::from(peer.0)).and_then(|state| state.session()) else {
            return;
        };
        if session.send_credits.update(count) {
            self.check_unblocked(peer);
        } else {
            self.end_session(peer, EndReason::ProtocolViolation { violation: "invalid number of credits" });
        }
    }
}

/// The kind of a receive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Received {
    Message,
    Credit,
    Leave,
    Immediate(u32),
}
