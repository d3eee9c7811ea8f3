//! The responder of unreliable connections (vol. 1, 9.8.2; `rxe_resp.c`): it answers nothing, and a message of which a
//! packet is missing is dropped whole.

use adverb_wire::{NakCode, Send, Uc, Write};

use super::responder::{CurrentMessage, RequestError};
use super::{Context, QueuePair, Received};
use crate::memory::Memory;
use crate::mutation::mutant;
use crate::trace::{DropReason, EventSink};

/// Packets that come so much behind their turn are late or come again. Further behind, the peer has gone on to numbers
/// that are in use again, and the next message is a new one.
const LATE_RANGE: i32 = 1 << 16;

impl QueuePair {
    /// Takes a packet of an unreliable connection in. Its addresses and ICRC have been checked.
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
        if (-LATE_RANGE..0).contains(&ahead) && !mutant!(LateUcPacketAccepted) {
            // Delivered late it would be out of order, and delivered again it would be twice.
            cx.stats.duplicate_requests += 1;
            return self.drop_packet(cx, packet, DropReason::PsnBelowExpected);
        }
        if ahead != 0 && !mutant!(IgnoreUcGap) {
            let missing = if mutant!(LossesUncounted) { 0 } else { ahead.max(0).unsigned_abs() };
            cx.stats.packets_missing += u64::from(missing);
            self.drop_current_message(cx);
        }
        self.responder.expected = psn;
        if starts_message(uc) {
            // Whatever was before: here a message begins (vol. 1, 9.8.2).
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
            // Our own memory failed: that is told, and nothing more can be received (vol. 1, 9.9.3).
            RequestError::Fatal(NakCode::RemoteOperational, status) => {
                if let CurrentMessage::Send { .. } = self.responder.current {
                    self.fail_receive(cx, status);
                }
                return self.fail(cx);
            }
            RequestError::Fatal(..) => DropReason::InvalidRequest,
        };
        // The rest of the message goes the same way. Its receive request, if it had one, serves the next.
        cx.stats.messages_dropped += u64::from(!mutant!(LossesUncounted));
        self.responder.current = CurrentMessage::None;
        self.responder.awaiting_start = true;
        self.drop_packet(cx, packet, reason);
    }

    /// Drops the message under way, if there is one: its next packet didn't come.
    fn drop_current_message<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        if !matches!(self.responder.current, CurrentMessage::None) {
            cx.stats.messages_dropped += u64::from(!mutant!(LossesUncounted));
            self.responder.current = CurrentMessage::None;
        }
        self.responder.awaiting_start = true;
    }
}

/// Whether a packet begins a message.
const fn starts_message(uc: &Uc) -> bool {
    matches!(uc, Uc::Send(Send::First | Send::Only(_)) | Uc::Write(Write::First(_) | Write::Only(..)))
}
