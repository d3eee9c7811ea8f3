//! The sequence numbers of a requester's packets.

use adverb_wire::Psn;

use crate::mutation::mutant;

/// The window of sequence numbers that were sent and are not acknowledged.
#[derive(Debug, Default)]
pub(in crate::qp) struct SendWindow {
    /// The oldest unacknowledged sequence number.
    unacked: Psn,
    /// The first sequence number that was never sent.
    unsent: Psn,
    /// The number of packets since the last acknowledgement request.
    since_ack_request: u32,
}

/// The maximum number of packets between acknowledgement requests, so that a long message is acknowledged before its
/// end.
const ACK_REQUEST_INTERVAL: u32 = 32;

impl SendWindow {
    /// Returns an empty window before this sequence number.
    pub(super) fn new(first: Psn) -> SendWindow {
        SendWindow { unacked: first, unsent: first, since_ack_request: 0 }
    }

    /// Returns the oldest unacknowledged sequence number.
    #[inline]
    pub(in crate::qp) const fn unacked(&self) -> Psn {
        self.unacked
    }

    /// Returns the first sequence number that was never sent.
    #[inline]
    pub(in crate::qp) const fn unsent(&self) -> Psn {
        self.unsent
    }

    /// Returns the number of unacknowledged sequence numbers.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.unsent.since(self.unacked).unsigned_abs()
    }

    /// Whether all packets are acknowledged.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.unacked == self.unsent
    }

    /// Whether this sequence number was sent and is not acknowledged.
    #[inline]
    pub(in crate::qp) fn is_in_flight(&self, psn: Psn) -> bool {
        if mutant!(PsnWithoutWrap) {
            return self.unacked.get() <= psn.get() && psn.get() < self.unsent.get();
        }
        psn.since(self.unacked) >= 0 && psn.since(self.unsent) < 0
    }

    /// Records that a packet, or a retransmission, is sent. `end` is the sequence number after the packet and its
    /// response.
    #[inline]
    pub(super) fn record_sent(&mut self, end: Psn) {
        if end.since(self.unsent) > 0 {
            self.unsent = end;
        }
    }

    /// Records that a packet is sent, on a transport without acknowledgements.
    #[inline]
    pub(in crate::qp) fn record_unreliable(&mut self) {
        self.unsent += 1;
        self.unacked = self.unsent;
    }

    /// Records that all packets before this sequence number are acknowledged.
    #[inline]
    pub(in crate::qp) fn acknowledge_before(&mut self, psn: Psn) {
        self.unacked = psn;
    }

    /// Counts a packet, and returns whether it requests an acknowledgement: because it must, because `max_len`
    /// sequence numbers are unacknowledged, or because many packets before it requested none.
    #[inline]
    pub(super) fn requests_ack(&mut self, must_request: bool, max_len: u32) -> bool {
        self.since_ack_request += 1;
        let is_full = self.len() >= max_len;
        let requests_ack = must_request || is_full || self.since_ack_request >= ACK_REQUEST_INTERVAL;
        if requests_ack {
            self.since_ack_request = 0;
        }
        requests_ack
    }

    /// Counts packets from the oldest unacknowledged one, which is sent next.
    #[inline]
    pub(super) fn go_back(&mut self) {
        self.since_ack_request = 0;
    }
}
