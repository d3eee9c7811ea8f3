//! The position of a requester in its send queue.

use crate::qp::send_queue::SendEntry;

/// The position of the next packet in the send queue. The front of the queue is always the oldest unacknowledged
/// request, so a retransmission starts there.
#[derive(Debug, Default)]
pub(in crate::qp) struct Cursor {
    /// The index in the send queue of the request to send next.
    request: usize,
    /// The next packet of that request.
    packet: u32,
}

impl Cursor {
    /// Returns the index in the send queue of the request to send next.
    #[inline]
    pub(super) const fn request(&self) -> usize {
        self.request
    }

    /// Returns the next packet of the request at the cursor, regardless of received responses.
    #[inline]
    pub(in crate::qp) const fn packet(&self) -> u32 {
        self.packet
    }

    /// Whether the request to send next is the oldest one.
    #[inline]
    pub(super) const fn is_at_front(&self) -> bool {
        self.request == 0
    }

    /// Returns the next packet of the request at the cursor. Received packets of a READ response are not requested
    /// again.
    #[inline]
    pub(super) fn next_packet(&self, entry: &SendEntry) -> u32 {
        if entry.needs_response() { self.packet.max(entry.received_packets) } else { self.packet }
    }

    /// Moves to the next packet of the request.
    #[inline]
    pub(in crate::qp) fn advance_packet(&mut self) {
        self.packet += 1;
    }

    /// Moves behind the packet that is sent: to the next request if it was the last one of its request, and otherwise
    /// to `next_packet`.
    #[inline]
    pub(super) fn advance(&mut self, was_last: bool, next_packet: u32) {
        if was_last {
            self.request += 1;
            self.packet = 0;
        } else {
            self.packet = next_packet;
        }
    }

    /// Moves behind the first `acked` packets of the oldest request, because acknowledged packets are not retransmitted.
    #[inline]
    pub(in crate::qp) fn skip_acknowledged(&mut self, acked: u32) {
        if self.request == 0 && self.packet < acked {
            self.packet = acked;
        }
    }

    /// Moves back to a packet of the oldest request.
    #[inline]
    pub(super) fn go_back(&mut self, packet: u32) {
        *self = Cursor { request: 0, packet };
    }

    /// Follows the removal of the oldest request from the send queue.
    #[inline]
    pub(super) fn remove_front(&mut self) {
        if self.request == 0 {
            self.packet = 0;
        } else {
            self.request -= 1;
        }
    }
}
