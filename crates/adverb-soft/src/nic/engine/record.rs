//! Recording of events that the protocol engine can't observe, and of payloads.

use adverb_proto::{Cq, EventSink, TraceEvent};
use adverb_wire::Packet;

use super::Engine;

impl Engine {
    /// Passes the payload of a packet between queue pairs of this NIC to the recorder, if the recorder keeps it.
    #[inline(always)]
    pub(super) fn record_payload(&mut self) {
        if self.device.sink().wants_payload() {
            self.device.sink_mut().record_payload(&self.payload);
        }
    }

    /// Passes the payload of the packet at `start` of the transmit queue to the recorder.
    #[cold]
    pub(super) fn record_queued_payload(&mut self, start: usize) {
        if let Ok(packet) = Packet::parse(self.port.queued_bytes(start)) {
            self.device.sink_mut().record_payload(packet.payload());
        }
    }

    /// Records an event that the protocol engine can't observe.
    #[inline]
    pub(in crate::nic) fn record(&mut self, event: impl FnOnce() -> TraceEvent) {
        if self.device.sink().is_recording() {
            let now = self.now();
            self.device.record(now, event);
        }
    }

    /// Records that the `max` oldest completions of a completion queue are polled.
    #[cold]
    pub(in crate::nic) fn record_polled(&mut self, cq: Cq, max: usize) {
        if self.device.has_completions(cq) {
            let now = self.now();
            self.device.record_polled(now, cq, max);
        }
    }
}
