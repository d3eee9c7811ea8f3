//! The requester: turns send requests into packets (vol. 1, 9.7.3; `rxe_req.c`).
//!
//! The requester decides when the next packet may be sent; [`packet`] builds it. Each other file has one part of the
//! requester's state.

#![deny(clippy::wildcard_enum_match_arm)]

mod coalescing;
mod cursor;
mod messages;
mod packet;
mod responses;
mod retries;
mod timer;
mod window;

use super::send_queue::{SendEntry, SendQueue};
use super::{Context, MAX_UNACKED, QueuePair, ReadyToSend, TxPacket};
use crate::Time;
use crate::mutation::mutant;
use crate::trace::EventSink;
use crate::types::{QpState, SendFlags, SendOperation, Status};
use coalescing::Coalescing;
use cursor::Cursor;
use messages::Messages;
pub(super) use packet::{packets, send, write};
use responses::PendingResponses;
use retries::Retries;
use timer::RetransmitTimer;
use window::SendWindow;

/// The state of a requester.
#[derive(Debug, Default)]
pub(super) struct Requester {
    pub(super) window: SendWindow,
    pub(super) cursor: Cursor,
    pub(super) responses: PendingResponses,
    pub(super) messages: Messages,
    coalescing: Coalescing,
    timer: RetransmitTimer,
    retries: Retries,
    /// Whether the requester may send.
    pub(super) running: bool,
    /// Whether the event of the drained send queue was generated.
    pub(super) drained: bool,
    /// Whether the last packet of the oldest request was polled, on a transport without acknowledgements.
    pub(super) last_packet_polled: bool,
}

impl Requester {
    pub(super) fn start(&mut self, ready_to_send: &ReadyToSend, credits: bool, read_part: u32) {
        *self = Requester {
            window: SendWindow::new(ready_to_send.psn),
            responses: PendingResponses::new(u32::from(ready_to_send.max_rd_atomic), read_part),
            messages: Messages::new(credits),
            timer: RetransmitTimer::new(ready_to_send),
            retries: Retries::new(ready_to_send),
            running: true,
            ..Requester::default()
        };
    }

    pub(super) fn stop(&mut self) {
        self.running = false;
        self.timer.stop();
        self.responses.clear();
        self.cursor = Cursor::default();
        self.last_packet_polled = false;
    }

    #[inline]
    pub(super) fn deadline(&self) -> Option<Time> {
        self.timer.deadline()
    }

    #[inline]
    pub(super) fn has_requests(&self, queue: &SendQueue) -> bool {
        self.running && !self.timer.is_backing_off() && self.cursor.request() < queue.len()
    }

    /// Whether the oldest unacknowledged packet is the next one to send.
    pub(super) fn is_oldest_packet_next(&self, queue: &SendQueue) -> bool {
        self.cursor.is_at_front()
            && queue.front().is_some_and(|entry| {
                entry.is_started()
                    && entry.first_psn + self.cursor.next_packet(entry) == self.window.unacked()
            })
    }

    /// Restarts the acknowledgement timer, or stops it if no packet is outstanding (vol. 1, 9.7.6).
    #[inline]
    pub(super) fn restart_timer(&mut self, now: Time) {
        self.timer.restart(now, !self.window.is_empty());
    }

    /// Handles progress after an acknowledgement: resets the retry counters (vol. 1, 9.7.6), and ends an RNR backoff.
    #[inline]
    pub(super) fn progress(&mut self, now: Time) {
        self.retries.reset();
        self.timer.end_backoff();
        self.restart_timer(now);
    }

    /// Follows the removal of the oldest request from the send queue.
    #[inline]
    pub(super) fn remove_front(&mut self, entry: &SendEntry) {
        if entry.is_started() {
            self.window.acknowledge_before(entry.last_psn() + 1);
            // Each part of a READ is a message to the peer.
            let messages =
                if entry.is_read() { entry.packets.div_ceil(self.responses.read_part()) } else { 1 };
            self.messages.record_completed(messages);
            self.responses.remove(entry);
        }
        self.cursor.remove_front();
    }
}

impl QueuePair {
    /// Returns the next request packet, if one may be sent now.
    #[inline]
    pub(super) fn next_request<S: EventSink>(&mut self, cx: &mut Context<'_, S>) -> Option<TxPacket> {
        if !self.requester.running || self.requester.timer.is_backing_off() {
            return None;
        }
        loop {
            let cursor = self.requester.cursor.request();
            let entry = self.send_queue.get(cursor)?;
            if let Some(failure) = entry.failed {
                // The request fails after the earlier ones complete, because completions are in order.
                if cursor == 0 {
                    self.fail_front(cx, failure.into());
                }
                return None;
            }
            if !entry.is_started() {
                if self.state != QpState::ReadyToSend {
                    return None;
                }
                if entry.is_local() {
                    // A retransmission of earlier requests may still need the key.
                    if cursor != 0 || !self.execute_local(cx) {
                        return None;
                    }
                    continue;
                }
                if !self.may_start(entry) {
                    return None;
                }
            }
            if !self.fits_window(entry) || !entry.is_started() && self.hold_back(cursor) {
                return None;
            }
            return self.emit_request(cx, cursor);
        }
    }

    /// Executes the local request at the front of the send queue. Returns whether it succeeded.
    pub(super) fn execute_local<S: EventSink>(&mut self, cx: &mut Context<'_, S>) -> bool {
        let Some(entry) = self.send_queue.front() else { return false };
        let done = match entry.operation {
            SendOperation::LocalInvalidate(key) => {
                let invalidated = cx.keys.invalidate_local(self.config.pd, self.qpn, key);
                invalidated.map_err(|_| Status::LocalQpOperation)
            }
            SendOperation::BindWindow(bind) => {
                cx.keys.bind(self.config.pd, self.qpn, &bind).map_err(|_| Status::WindowBind)
            }
            SendOperation::Send
            | SendOperation::SendWithImm(_)
            | SendOperation::SendInvalidate(_)
            | SendOperation::Write(_)
            | SendOperation::WriteWithImm(..)
            | SendOperation::Read(_)
            | SendOperation::CompareSwap { .. }
            | SendOperation::FetchAdd { .. }
            | SendOperation::AtomicWrite { .. }
            | SendOperation::Flush(_) => Ok(()),
        };
        match done {
            Ok(()) => self.complete_front(cx),
            Err(status) => self.fail_front(cx, status),
        }
        done.is_ok()
    }

    /// Whether a request may be started.
    #[inline]
    fn may_start(&self, entry: &SendEntry) -> bool {
        let requester = &self.requester;
        // A fenced request waits for earlier READs and atomics (vol. 1, 10.8.3).
        let is_fenced = entry.has(SendFlags::FENCE) && !mutant!(IgnoreFence);
        if is_fenced && !requester.responses.is_empty() {
            return false;
        }
        // The peer saves this number of responses for retransmissions (vol. 1, 9.7.3; `rxe_req.c`,
        // `check_init_depth`).
        let is_limit_reached = requester.responses.is_limit_reached() && !mutant!(IgnoreReadLimit);
        if entry.needs_response() && is_limit_reached {
            return false;
        }
        // Without a credit, one message may be sent as a probe if no other request is outstanding (vol. 1, 9.7.7).
        let needs_credit = !requester.messages.has_credit() && entry.consumes_receive();
        !needs_credit || requester.cursor.is_at_front()
    }

    /// Decides whether the next request is held back to be coalesced with others: see [`Coalescing::hold_back`].
    #[inline]
    fn hold_back(&mut self, cursor: usize) -> bool {
        let limit = self.config.coalesce_limit as usize;
        let has_timer = self.requester.timer.is_enabled();
        self.requester.coalescing.hold_back(&self.send_queue, cursor, limit, self.mtu, has_timer)
    }

    /// Whether the next packet of this request fits into the window. Retransmitted packets always do.
    #[inline]
    fn fits_window(&self, entry: &SendEntry) -> bool {
        let requester = &self.requester;
        let next = requester.cursor.next_packet(entry);
        if entry.is_started() && entry.first_psn + next != requester.window.unsent() {
            return true;
        }
        let unacked = requester.window.len();
        let wanted = if entry.needs_response() {
            let part = requester.responses.part_len(entry, next, packets(entry, self.mtu));
            if !requester.responses.fits(part, entry.is_started()) {
                return false;
            }
            part
        } else if entry.is_started() {
            1
        } else {
            packets(entry, self.mtu)
        };
        unacked == 0 || (unacked < self.config.window.max(1) && unacked.saturating_add(wanted) <= MAX_UNACKED)
    }
}
