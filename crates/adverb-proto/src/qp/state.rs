//! The states of a queue pair and their transitions (vol. 1, 10.3.1).

use adverb_wire::{Psn, Qpn};

use super::{Context, ModifyError, QueuePair, Transition};
use crate::event::QueueEvent;
use crate::mutation::mutant;
use crate::path::IcrcChecker;
use crate::trace::{EventSink, Queue, TraceEvent};
use crate::types::{Failure, PathMtu, QpState, Status, Transport};

impl QueuePair {
    /// Moves the queue pair to another state (vol. 1, 10.3.1; `rxe_qp.c`, `rxe_qp_from_attr`).
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
            (Init, Transition::ReadyToReceive(ready_to_receive))
                if self.config.transport != Transport::Ud =>
            {
                // Packets longer than the port's MTU would never arrive.
                if ready_to_receive.path_mtu > cx.mtu {
                    return Err(ModifyError::OutOfRange("path_mtu"));
                }
                self.remote_qpn = ready_to_receive.remote_qpn;
                self.path = Some(ready_to_receive.path);
                self.icrc_checker = IcrcChecker::default();
                self.mtu = u32::from(ready_to_receive.path_mtu.bytes());
                self.responder.start(ready_to_receive);
                self.change(cx, ReadyToReceive);
                self.record_connection(cx);
            }
            (ReadyToReceive, Transition::ReadyToSend(ready_to_send)) => {
                if ready_to_send.retry_count > 7 {
                    return Err(ModifyError::OutOfRange("retry_count"));
                }
                if ready_to_send.rnr_retry > 7 {
                    return Err(ModifyError::OutOfRange("rnr_retry"));
                }
                // A part is half of the window, so that the next part is requested while one is received.
                let read_part = (self.config.read_window / (self.mtu + 512) / 2).max(1);
                self.requester.start(ready_to_send, self.config.credits, read_part);
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

    /// Passes the peer and the sequence numbers of a connection to the event sink.
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
            send_psn: is_sending.then(|| self.requester.window.unsent()),
        });
    }

    /// Resets the state, except for the configuration. Posted requests are discarded without completions (vol. 1,
    /// 10.3.1).
    fn reset(&mut self) {
        let fresh = QueuePair::new(self.qpn, self.config, self.recv_pd);
        let queued = self.queued;
        // Multicast groups are not part of the state (vol. 1, 10.5.2).
        let groups = core::mem::take(&mut self.groups);
        *self = QueuePair { queued, groups, ..fresh };
    }

    /// Moves the queue pair to the error state: all outstanding requests are flushed in the order of posting (vol. 1,
    /// 10.3.1 and 10.8.3).
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
            // Other queue pairs use the shared queue too, so its requests stay. The request in use was the last one
            // that this queue pair takes (vol. 1, 10.2.9 and 11.6.3).
            cx.queue_events.push_back(QueueEvent::LastReceiveReached(self.qpn));
        }
    }

    /// Moves the send queue to the error state, because a request of an unreliable transport couldn't be sent or
    /// executed. Later requests are flushed, and receiving continues (vol. 1, 10.3.1).
    pub(super) fn enter_send_queue_error<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        self.change(cx, QpState::SendQueueError);
        self.requester.stop();
        self.flush_sends(cx);
    }

    /// Moves the queue pair to the error state, and reports [`QueueEvent::Fatal`].
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

    /// Moves the queue pair to the error state if a completion was lost during the step that ends here.
    #[inline]
    pub(crate) fn fail_if_completion_lost<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
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

    /// Reports [`QueueEvent::SendQueueDrained`] once, when no started request of a draining send queue is left (vol. 1,
    /// 10.3.1).
    pub(super) fn report_if_drained<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        if self.state != QpState::SendQueueDrained || self.requester.drained {
            return;
        }
        if self.send_queue.front().is_none_or(|entry| !entry.is_started()) {
            self.requester.drained = true;
            cx.queue_events.push_back(QueueEvent::SendQueueDrained(self.qpn));
        }
    }

    /// Returns the peer's queue pair and the next sequence numbers of both directions.
    pub(crate) fn peer_and_psns(&self) -> (Qpn, Psn, Psn) {
        (self.remote_qpn, self.requester.window.unsent(), self.responder.expected_psn())
    }
}
