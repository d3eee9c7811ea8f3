//! Retransmissions of a requester (vol. 1, 9.7.5 and 9.7.6: go back N), and their limits.

use core::time::Duration;

use crate::mutation::mutant;
use crate::qp::{Context, QueuePair, ReadyToSend};
use crate::trace::{EventSink, RetryCause, TraceEvent};
use crate::types::Status;

/// The numbers of retries that a requester has left.
#[derive(Debug, Default)]
pub(super) struct Retries {
    /// The number of retries after timeouts and NAKs without progress.
    max_count: u8,
    /// The number of retries after RNR NAKs without progress.
    max_rnr_count: u8,
    left: u8,
    rnr_left: u8,
    /// Whether a NAK caused a retransmission, and no packet has been acknowledged since. Further NAKs for the same
    /// packet are caused by the same loss.
    is_recovering: bool,
}

/// The value of `rnr_retry` that means no limit (vol. 1, 9.7.5).
const UNLIMITED_RNR_RETRY: u8 = 7;

impl Retries {
    pub(super) fn new(ready_to_send: &ReadyToSend) -> Retries {
        let &ReadyToSend { retry_count, rnr_retry, .. } = ready_to_send;
        Retries {
            max_count: retry_count,
            max_rnr_count: rnr_retry,
            left: retry_count,
            rnr_left: rnr_retry,
            is_recovering: false,
        }
    }

    /// Handles progress after an acknowledgement: all retries are left again (vol. 1, 9.7.6).
    #[inline]
    pub(super) fn reset(&mut self) {
        self.left = self.max_count;
        self.rnr_left = self.max_rnr_count;
        self.is_recovering = false;
    }

    /// Takes a retry after a timeout or a NAK, and returns whether one was left.
    fn take(&mut self) -> bool {
        let is_left = self.left > 0;
        self.left -= u8::from(is_left);
        is_left
    }

    /// Takes a retry after an RNR NAK, and returns whether one was left.
    fn take_rnr(&mut self) -> bool {
        if self.max_rnr_count == UNLIMITED_RNR_RETRY {
            return true;
        }
        let is_left = self.rnr_left > 0;
        self.rnr_left -= u8::from(is_left);
        is_left
    }
}

impl QueuePair {
    /// Retransmits from the oldest unacknowledged packet (vol. 1, 9.7.5 and 9.7.6: go back N), or fails the oldest
    /// request if no retry is left. NAKs during an RNR backoff or a retransmission are ignored.
    pub(in crate::qp) fn retry<S: EventSink>(&mut self, cx: &mut Context<'_, S>, cause: RetryCause) {
        let requester = &mut self.requester;
        let is_nak = cause != RetryCause::Timeout;
        // NAKs during an RNR backoff are for packets after the one that got the RNR NAK. NAKs during a retransmission
        // are for packets of the first transmission.
        if is_nak && (requester.timer.is_backing_off() || requester.retries.is_recovering) {
            return;
        }
        requester.retries.is_recovering = is_nak;
        if !requester.retries.take() {
            cx.stats.retries_exceeded += 1;
            self.fail_front(cx, Status::RetryExceeded);
            return;
        }
        self.go_back(cx, cause);
        self.requester.restart_timer(cx.now);
    }

    /// Starts an RNR backoff: the peer has no receive for the oldest packet (vol. 1, 9.7.5).
    pub(in crate::qp) fn start_rnr_backoff<S: EventSink>(&mut self, cx: &mut Context<'_, S>, wait: Duration) {
        let requester = &mut self.requester;
        if requester.timer.is_backing_off() {
            return;
        }
        if !requester.retries.take_rnr() {
            cx.stats.rnr_retries_exceeded += 1;
            self.fail_front(cx, Status::RnrRetryExceeded);
            return;
        }
        requester.timer.start_backoff(cx.now + wait);
        self.go_back(cx, RetryCause::Rnr);
    }

    fn go_back<S: EventSink>(&mut self, cx: &mut Context<'_, S>, cause: RetryCause) {
        let requester = &mut self.requester;
        let unacked = requester.window.unacked();
        cx.event(|| TraceEvent::Retransmit { qpn: self.qpn, psn: unacked, cause });
        let front = self.send_queue.front();
        let mut packet = match front {
            Some(entry) if entry.is_started() && !entry.needs_response() => {
                unacked.since(entry.first_psn).unsigned_abs()
            }
            _ => 0,
        };
        if mutant!(RetransmitSkipsOnePacket) {
            let has_more = front.is_some_and(|entry| packet + 1 < entry.packets);
            packet += u32::from(has_more);
        }
        requester.window.go_back();
        requester.cursor.go_back(packet);
    }
}
