//! The responder of unreliable connections (vol. 1, 9.8.2; `rxe_resp.c`). It sends no responses, and drops a message of
//! which a packet is missing.

use adverb_wire::{NakCode, Send, Uc, Write};

use super::responder::{CurrentMessage, RequestError};
use super::{Context, QueuePair, Received};
use crate::memory::Memory;
use crate::mutation::mutant;
use crate::trace::{DropReason, EventSink};

/// The distance below the expected sequence number within which packets are late or duplicates. At a larger distance,
/// so many packets are missing that the numbers have wrapped, and the packet is a new one.
const LATE_RANGE: i32 = 1 << 16;

impl QueuePair {
    /// Handles a packet of an unreliable connection whose addresses and ICRC have been checked.
    pub(crate) fn handle_unreliable<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        uc: &Uc,
        memory: &mut impl Memory,
    ) {
        self.establish(cx);
        let psn = packet.header.psn;
        let ahead = psn.since(self.responder.expected);
        let is_late = (-LATE_RANGE..0).contains(&ahead) && !mutant!(LateUcPacketAccepted);
        if is_late {
            // A late packet would be delivered out of order, and a duplicate would be delivered twice.
            cx.stats.duplicate_requests += 1;
            return self.drop_packet(cx, packet, DropReason::PsnBelowExpected);
        }
        let has_gap = ahead != 0 && !mutant!(IgnoreUcGap);
        if has_gap {
            let missing = if mutant!(LossesUncounted) { 0 } else { ahead.max(0).unsigned_abs() };
            cx.stats.packets_missing += u64::from(missing);
            self.drop_current_message(cx);
        }
        self.responder.expected = psn;
        if starts_message(uc) {
            // A message starts here, even if packets before it are missing (vol. 1, 9.8.2).
            self.drop_current_message(cx);
            self.responder.awaiting_start = false;
        }
        if self.responder.awaiting_start {
            self.responder.expected = psn + 1;
            return self.drop_packet(cx, packet, DropReason::OutOfSequence);
        }
        let executed = match *uc {
            Uc::Send(send) => self.execute_send_packet(cx, packet, send, memory),
            Uc::Write(write) => self.execute_write_packet(cx, packet, write, memory),
        };
        let Err(error) = executed else { return };
        self.responder.expected = psn + 1;
        let reason = match error {
            RequestError::Rnr => DropReason::NoReceivePosted,
            // Access to local memory failed: the error is reported, and nothing more can be received (vol. 1, 9.9.3).
            RequestError::Fatal(NakCode::RemoteOperational, status) => {
                if let CurrentMessage::Send { .. } = self.responder.current {
                    self.fail_receive(cx, status);
                }
                return self.fail(cx);
            }
            RequestError::Fatal(..) => DropReason::InvalidRequest,
        };
        // The rest of the message is dropped, too. The next message uses its receive request, if it had one.
        cx.stats.messages_dropped += u64::from(!mutant!(LossesUncounted));
        self.responder.current = CurrentMessage::None;
        self.responder.awaiting_start = true;
        self.drop_packet(cx, packet, reason);
    }

    /// Drops the current message, if there is one, because its next packet is missing.
    fn drop_current_message<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        if !matches!(self.responder.current, CurrentMessage::None) {
            cx.stats.messages_dropped += u64::from(!mutant!(LossesUncounted));
            self.responder.current = CurrentMessage::None;
        }
        self.responder.awaiting_start = true;
    }
}

/// Whether a packet starts a message.
const fn starts_message(uc: &Uc) -> bool {
    matches!(uc, Uc::Send(Send::First | Send::Only(_)) | Uc::Write(Write::First(_) | Write::Only(..)))
}
