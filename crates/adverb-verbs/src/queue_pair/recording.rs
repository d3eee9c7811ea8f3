//! Recording of a queue pair's requests and state, on devices that don't record them themselves.

use std::net::SocketAddr;

use adverb_proto::Time;
use adverb_proto::trace::{EventSink, RecvQueueId, TraceEvent};
use adverb_proto::types::QpState;

use super::QueuePair;
use crate::backend::{RecvList, SendList, StateChange};
use crate::recorder::QueueRecorder;

impl QueuePair {
    /// Records the first `count` requests of a list that was posted.
    #[cold]
    pub(crate) fn record_sends(
        &self,
        recorder: &mut QueueRecorder,
        time: Time,
        list: &SendList,
        count: usize,
    ) {
        let qpn = self.qpn();
        recorder.record(
            Some(qpn),
            || self.connection(),
            |recorder| {
                for request in (0..count).map(|index| list.posted_request(index)) {
                    let bytes =
                        request.segments.iter().map(|segment| segment.length).fold(0, u32::wrapping_add);
                    recorder.event(
                        time,
                        TraceEvent::PostedSend {
                            qpn,
                            request: request.wr_id as u32,
                            wr_id: request.wr_id,
                            tag: request.tag,
                            operation: request.operation,
                            flags: request.flags,
                            length: bytes,
                            sge_count: request.segments.len() as u16,
                            first_sge: request.segments.first().copied(),
                        },
                    );
                }
            },
        );
    }

    /// Records the first `count` requests of a list that was posted.
    #[cold]
    pub(crate) fn record_recvs(
        &self,
        recorder: &mut QueueRecorder,
        time: Time,
        list: &RecvList,
        count: usize,
    ) {
        let queue = RecvQueueId::Qp(self.qpn());
        recorder.record(
            Some(self.qpn()),
            || self.connection(),
            |recorder| {
                for request in (0..count).map(|index| list.posted_request(index)) {
                    recorder.event(time, TraceEvent::posted_recv(queue, request.wr_id as u32, &request));
                }
            },
        );
    }

    /// Records a change of the state, and keeps the description of the connection for later recordings.
    pub(super) fn record_change(&self, change: &StateChange, from: QpState, to: QpState) {
        let Some(recorder) = self.domain.device().backend().recorder() else { return };
        let qpn = self.qpn();
        let mut connection = self.connection.lock();
        let is_connecting = match change {
            StateChange::ReadyToReceive(ready) => {
                *connection = ready.connection.as_ref().map(|peer| {
                    Box::new(TraceEvent::Connected {
                        qpn,
                        transport: self.transport,
                        remote_qpn: peer.qpn,
                        // The NIC chooses the source port.
                        local: SocketAddr::new(self.source.gid.gid.udp_addr().ip(), 0),
                        remote: peer.address.gid.udp_addr(),
                        path_mtu: peer.mtu,
                        recv_psn: peer.psn,
                        send_psn: None,
                    })
                });
                true
            }
            StateChange::ReadyToSend(ready) => {
                if let Some(TraceEvent::Connected { send_psn, .. }) = connection.as_deref_mut() {
                    *send_psn = Some(ready.psn);
                }
                true
            }
            StateChange::Reset | StateChange::Error => {
                *connection = None;
                false
            }
            StateChange::Init(_) | StateChange::Access(_) => false,
        };
        let connected = connection.as_deref().copied().filter(|_| is_connecting);
        // The recorder's lock is never taken under this lock, because adding a queue takes them in the other order.
        drop(connection);
        if from != to {
            recorder.record(|| TraceEvent::StateChanged { qpn, from, to });
        }
        if let Some(connected) = connected {
            recorder.record(|| connected);
        }
    }

    /// Returns the description of the connection, if there is one.
    fn connection(&self) -> Option<TraceEvent> {
        self.connection.lock().as_deref().copied()
    }
}
