//! The responses that a requester waits for.

use crate::qp::send_queue::SendEntry;

/// The outstanding requests that need a response of their own: READs (or parts of READs), atomics, FLUSHes and ATOMIC
/// WRITEs.
#[derive(Debug, Default)]
pub(in crate::qp) struct PendingResponses {
    /// The number of these requests.
    count: u32,
    /// The number of requests whose responses the peer saves.
    max_count: u32,
    /// The number of response packets to these requests that were not received yet.
    packets: u32,
    /// The number of packets in a part of a READ.
    read_part: u32,
}

impl PendingResponses {
    pub(super) fn new(max_count: u32, read_part: u32) -> PendingResponses {
        PendingResponses { count: 0, max_count, packets: 0, read_part }
    }

    /// Returns the number of packets in a part of a READ.
    #[inline]
    pub(in crate::qp) const fn read_part(&self) -> u32 {
        self.read_part
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the peer saves no responses of further requests.
    #[inline]
    pub(super) const fn is_limit_reached(&self) -> bool {
        self.count >= self.max_count
    }

    /// Returns the number of packets of the next part of a READ, starting with `packet`, or 1 for another operation. A
    /// retransmitted part has the same end as before, because the peer knows only the parts that were requested
    /// (`rxe_resp.c`, `duplicate_request`).
    #[inline]
    pub(super) fn part_len(&self, entry: &SendEntry, packet: u32, packets: u32) -> u32 {
        if entry.is_read() { (self.read_part - packet % self.read_part).min(packets - packet) } else { 1 }
    }

    /// Whether the responses to a request, or to a part with this number of packets, fit beside the outstanding ones. Up
    /// to two parts are outstanding, each in one of the peer's slots.
    #[inline]
    pub(super) fn fits(&self, part: u32, is_started: bool) -> bool {
        let is_full = self.packets.saturating_add(part) > 2 * self.read_part;
        let has_no_slot = is_started && self.is_limit_reached();
        self.packets == 0 || !(is_full || has_no_slot)
    }

    /// Adds a request, or a part of a READ, with this number of response packets.
    #[inline]
    pub(super) fn add(&mut self, part: u32) {
        self.count += 1;
        self.packets += part;
    }

    /// Records that a response packet was received.
    #[inline]
    pub(in crate::qp) fn record_packet(&mut self) {
        self.packets = self.packets.saturating_sub(1);
    }

    /// Records that all packets of a part were received, and that its READ has further parts.
    #[inline]
    pub(in crate::qp) fn record_part(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    /// Removes a request that is no longer outstanding, if it needed a response.
    #[inline]
    pub(super) fn remove(&mut self, entry: &SendEntry) {
        self.count -= u32::from(entry.needs_response()).min(self.count);
    }

    /// Stops waiting for responses.
    pub(super) fn clear(&mut self) {
        (self.count, self.packets) = (0, 0);
    }
}
