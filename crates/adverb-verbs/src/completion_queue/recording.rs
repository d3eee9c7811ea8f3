//! Recording of completions, on devices that don't record them themselves.

use adverb_proto::trace::{EventSink, Queue, Recorder, TraceEvent};
use adverb_proto::types::Qpn;
use adverb_proto::{Cq, Time};

use super::{CompletionQueue, Queues, State, position_of};
use crate::backend::{RawCompletion, flag};
use crate::request::Completion;
use crate::request_id::{RequestId, shared_queue_of};

impl CompletionQueue {
    /// Does the same as [`match_requests`](CompletionQueue::match_requests), and records the completions. The device
    /// wrote them earlier, but doesn't report the time.
    #[cold]
    #[inline(never)]
    pub(super) fn match_and_record(&self, state: &mut State, count: usize, out: &mut Vec<Completion>) {
        let State { queues, raw, recorder, .. } = state;
        let time = recorder.time().unwrap_or(Time::ZERO);
        for completion in &raw[..count] {
            let mut normalized = *completion;
            if normalized.outcome.flags & flag::SLOW_PATH != 0 {
                self.0.backend.normalize(&mut normalized.outcome);
            }
            let record = |recorder: &mut Recorder| {
                queues.record(self.0.cq, &normalized, |event| {
                    // A failure may have stopped the recording.
                    if recorder.is_recording() {
                        recorder.event(time, event);
                    }
                });
            };
            recorder.record(None, || None, record);
            self.complete(queues, completion, out);
        }
    }

    /// Records the delivery of a completion event, if the backend doesn't.
    pub(super) fn record_event(&self) {
        if let Some(recorder) = self.0.device.backend().recorder() {
            recorder.record(|| TraceEvent::CqEventDelivered { cq: self.0.cq });
        }
    }
}

impl Queues {
    /// Passes the events of a polled completion to `record`.
    fn record(&mut self, cq: Cq, completion: &RawCompletion, mut record: impl FnMut(TraceEvent)) {
        let &RawCompletion { wr_id, outcome, .. } = completion;
        let is_shared = shared_queue_of(wr_id).is_some();
        let queue = if is_shared { None } else { self.get(wr_id) };
        let qpn = queue.as_ref().and_then(|queue| queue.qpn).or(outcome.qpn()).unwrap_or(Qpn::truncate(0));
        let request = position_of(wr_id);
        if let Some(queue) = &queue
            && queue.is_marker(request)
        {
            // The marker itself is not recorded when it is posted.
            let is_send = queue.kind == Queue::Send;
            for request in queue.outstanding().filter(|_| is_send) {
                record(TraceEvent::CompletedUnsignaled { qpn, request });
            }
            return;
        }
        if let Some(queue) = &queue
            && queue.kind == Queue::Send
        {
            for request in queue.unsignaled_before(request) {
                record(TraceEvent::CompletedUnsignaled { qpn, request });
            }
        }
        // The queue pair of an unknown request was destroyed.
        let Some(queue) = queue.map(|queue| queue.kind).or(is_shared.then_some(Queue::Recv)) else {
            return record(TraceEvent::Polled { cq, qpn, wr_id });
        };
        let is_datagram = wr_id & RequestId::DATAGRAM != 0;
        record(TraceEvent::Completed {
            qpn,
            queue,
            request,
            wr_id,
            cq,
            outcome: outcome.decode(is_datagram),
        });
        record(TraceEvent::Polled { cq, qpn, wr_id });
    }
}
