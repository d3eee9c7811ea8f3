//! The states of a queue pair, and the ways between them (vol. 1, 10.3.1).

use adverb_wire::{Psn, Qpn};

use super::{Context, ModifyError, QueuePair, Transition};
use crate::event::QueueEvent;
use crate::mutation::mutant;
use crate::path::IcrcChecker;
use crate::trace::{EventSink, Queue, TraceEvent};
use crate::types::{Failure, PathMtu, QpState, Status, Transport};

impl QueuePair {
    /// Goes into another state (vol. 1, 10.3.1; `rxe_qp.c`, `rxe_qp_from_attr`).
    pub(crate) fn modify<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        transition: &Transition,
    ) -> Result<(), ModifyError> {
        use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError};
        match (self.state, transition) {
            (_, Transition::Reset) => {
                if let Some(srq) = self.config.srq
                    && let Some(Some(queue)) = cx.srqs.get_mut(srq.0 as usize)
                {
                    self.return_to_srq(queue);
                }
                cx.keys.unbind_all(self.qpn);
                self.reset();
                self.change(cx, Reset);
            }
            (Reset | Init, Transition::Init(init)) => {
                self.access = init.access;
                self.pkey = init.pkey;
                self.qkey = init.qkey;
                self.change(cx, Init);
            }
            (Init, Transition::ReadyToReceiveUd) if self.config.transport == Transport::Ud => {
                self.mtu = u32::from(cx.mtu.bytes());
                self.icrc_checker = IcrcChecker::default();
                self.change(cx, ReadyToReceive);
            }
            (Init, Transition::ReadyToReceive(receiving)) if self.config.transport != Transport::Ud => {
                // Wider packets than the port carries would never arrive.
                if receiving.path_mtu > cx.mtu {
                    return Err(ModifyError::OutOfRange("path_mtu"));
                }
                self.remote_qpn = receiving.remote_qpn;
                self.path = Some(receiving.path);
                self.icrc_checker = IcrcChecker::default();
                self.mtu = u32::from(receiving.path_mtu.bytes());
                self.responder.start(receiving);
                self.change(cx, ReadyToReceive);
                self.record_connection(cx);
            }
            (ReadyToReceive, Transition::ReadyToSend(sending)) => {
                if sending.retry_count > 7 {
                    return Err(ModifyError::OutOfRange("retry_count"));
                }
                if sending.rnr_retry > 7 {
                    return Err(ModifyError::OutOfRange("rnr_retry"));
                }
                // Half of them, so that the next part is under way while one comes in.
                let read_part = (self.config.read_window / (self.mtu + 512) / 2).max(1);
                self.requester.start(sending, self.config.credits, read_part);
                self.change(cx, ReadyToSend);
                self.record_connection(cx);
            }
            (ReadyToReceive | ReadyToSend, Transition::ModifyAccess(access)) => self.access = *access,
            (ReadyToSend, Transition::Drain) => {
                self.requester.drained = false;
                self.change(cx, SendQueueDrained);
                self.report_if_drained(cx);
            }
            (SendQueueDrained, Transition::Resume) => self.change(cx, ReadyToSend),
            (SendQueueError, Transition::Resume) => {
                self.requester.running = true;
                self.change(cx, ReadyToSend);
            }
            (Reset, Transition::Error) => return Err(ModifyError::WrongState(Reset)),
            (Error, Transition::Error) => {}
            (_, Transition::Error) => {
                self.responder.clear();
                self.enter_error(cx);
            }
            (state, _) => return Err(ModifyError::WrongState(state)),
        }
        Ok(())
    }

    fn change<S: EventSink>(&mut self, cx: &mut Context<'_, S>, to: QpState) {
        cx.event(|| TraceEvent::StateChanged { qpn: self.qpn, from: self.state, to });
        self.state = to;
    }

    /// Passes the peer and the numbers of a connection to the event sink.
    pub(crate) fn record_connection<S: EventSink>(&self, cx: &mut Context<'_, S>) {
        let Some(path) = &self.path else { return };
        let is_sending =
            !matches!(self.state, QpState::Reset | QpState::Init | QpState::ReadyToReceive | QpState::Error);
        cx.event(|| TraceEvent::Connected {
            qpn: self.qpn,
            transport: self.config.transport,
            remote_qpn: self.remote_qpn,
            local: path.source(),
            remote: path.destination(),
            path_mtu: PathMtu::at_most(self.mtu as usize).unwrap_or(PathMtu::Mtu256),
            recv_psn: self.responder.expected_psn(),
            send_psn: is_sending.then(|| self.requester.next_psn()),
        });
    }

    /// Forgets everything but what it was made with. Requests that are posted are gone without a completion
    /// (vol. 1, 10.3.1).
    fn reset(&mut self) {
        let fresh = QueuePair::new(self.qpn, self.config, self.recv_pd);
        let queued = self.queued;
        // What it is attached to isn't part of its state (vol. 1, 10.5.2).
        let groups = core::mem::take(&mut self.groups);
        *self = QueuePair { queued, groups, ..fresh };
    }

    /// Goes into error: every request that isn't done comes back flushed, in the order in which it was posted
    /// (vol. 1, 10.3.1 and 10.8.3).
    pub(super) fn enter_error<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        if self.state == QpState::Error {
            return;
        }
        self.complete_polled(cx);
        self.change(cx, QpState::Error);
        self.requester.stop();
        self.pacer = None;
        self.cnp_due = false;
        self.flush_sends(cx);
        if !mutant!(FlushSkipsReceives) {
            self.flush_receives(cx);
        }
        if self.config.srq.is_some() {
            // Receives of the shared queue are others' too, so that they stay; the one in use was the last that this
            // queue pair takes (vol. 1, 10.2.9 and 11.6.3).
            cx.queue_events.push_back(QueueEvent::LastReceiveReached(self.qpn));
        }
    }

    /// A request of an unreliable transport couldn't be sent: those behind it come back flushed, and receiving goes
    /// on (vol. 1, 10.3.1).
    pub(super) fn enter_send_queue_error<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        self.change(cx, QpState::SendQueueError);
        self.requester.stop();
        self.flush_sends(cx);
    }

    /// Goes into error for a reason that its completions tell.
    pub(super) fn fail<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        if self.state != QpState::Error {
            self.report_error(cx, QueueEvent::Fatal(self.qpn));
            self.responder.clear();
            self.enter_error(cx);
        }
    }

    /// Reports the event that moves the queue pair to the error state.
    pub(super) fn report_error<S: EventSink>(&mut self, cx: &mut Context<'_, S>, event: QueueEvent) {
        self.error_event = Some(event);
        cx.queue_events.push_back(event);
    }

    /// Goes into error if a completion was lost during the step that ends here.
    #[inline]
    pub(crate) fn settle<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        if self.completion_lost {
            self.completion_lost = false;
            self.fail(cx);
        }
    }

    pub(super) fn flush_sends<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        while let Some(entry) = self.send_queue.pop() {
            if mutant!(FlushSkipsLastSend) && self.send_queue.len() == 0 {
                break;
            }
            self.complete_send(cx, &entry, Err(Status::Flushed));
        }
    }

    pub(super) fn flush_receives<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        while let Some(entry) = self.recv_queue.pop() {
            let failure = Failure { status: Status::Flushed, vendor_error: 0 };
            self.complete(cx, Queue::Recv, entry.number, entry.wr_id, Err(failure), false);
        }
    }

    /// Says that the send queue is drained, if it is to be and is (vol. 1, 10.3.1).
    pub(super) fn report_if_drained<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        if self.state != QpState::SendQueueDrained || self.requester.drained {
            return;
        }
        if self.send_queue.front().is_none_or(|entry| !entry.is_started()) {
            self.requester.drained = true;
            cx.queue_events.push_back(QueueEvent::SendQueueDrained(self.qpn));
        }
    }

    /// The peer's queue pair and the next numbers of both directions, for those who show them.
    pub(crate) fn peer_and_psns(&self) -> (Qpn, Psn, Psn) {
        (self.remote_qpn, self.requester.next_psn(), self.responder.expected_psn())
    }
}
