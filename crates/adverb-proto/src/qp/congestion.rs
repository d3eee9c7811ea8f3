//! Congestion control of a queue pair: a receiver sends CNPs, and a sender paces its packets (Annex A17.9).

use adverb_wire::{Header, Operation, Rc};

use super::{Context, QueuePair, TxPacket, TxPayload};
use crate::congestion::{CNP_INTERVAL, Congestion, Pacer};
use crate::mutation::mutant;
use crate::trace::{EventSink, TimerKind, TraceEvent};
use crate::types::Transport;

impl QueuePair {
    /// Whether switches may mark the queue pair's packets, because it reacts to CNPs.
    pub(crate) const fn is_ecn_capable(&self) -> bool {
        // A datagram queue pair sends to many peers, so it has no single rate to reduce.
        !matches!((self.config.congestion, self.config.transport), (Congestion::None, _) | (_, Transport::Ud))
    }

    /// Handles a packet that a congested switch marked: schedules a CNP to the sender, at most one per interval (Annex
    /// A17.9).
    pub(crate) fn handle_mark<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        cx.stats.ecn_marked_packets += 1;
        let is_due = cx.now >= self.next_cnp_at || mutant!(CnpForEveryMark);
        let sends_cnps = self.config.transport != Transport::Ud && !mutant!(NeverSendCnp);
        if is_due && sends_cnps {
            self.cnp_due = true;
        }
    }

    pub(crate) fn handle_cnp<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        cx.stats.cnps_received += 1;
        let reacts = self.is_ecn_capable() && !mutant!(IgnoreCnp);
        if let Congestion::Dcqcn(params) = self.config.congestion
            && reacts
        {
            self.pacer.get_or_insert_with(|| Box::new(Pacer::new(cx.now, params))).handle_cnp(cx.now);
        }
        cx.event(|| TraceEvent::CnpReceived {
            qpn: self.qpn,
            rate: self.pacer.as_ref().map(|pacer| pacer.rate()),
        });
    }

    /// Handles an expired timer.
    pub(crate) fn handle_timeout<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        if let Some(pacer) = &mut self.pacer
            && pacer.paused
        {
            if !pacer.pause_if_early(cx.now) {
                cx.event(|| TraceEvent::TimerExpired { qpn: self.qpn, timer: TimerKind::Pacing });
            } else if self.requester.is_oldest_packet_next(&self.send_queue) {
                // A packet that pacing delays can't be acknowledged.
                self.requester.restart_timer(cx.now);
            }
        }
        self.handle_requester_timeout(cx);
    }

    /// Returns the next packet, if pacing allows it. Acknowledgements are not paced, because they are short and the
    /// peer waits for them.
    pub(super) fn poll_paced<S: EventSink>(&mut self, cx: &mut Context<'_, S>) -> Option<TxPacket> {
        if self.pacer.as_mut()?.pause_if_early(cx.now) {
            let is_only_ack = self.responder.responses.is_only_ack_or_nak();
            return if is_only_ack { self.next_response(cx) } else { None };
        }
        let tx_packet = self.poll_packet(cx)?;
        if !matches!(tx_packet.header.operation, Operation::Rc(Rc::Acknowledge(_))) {
            // The queue pair may have moved to the error state meanwhile, and dropped its pacer.
            if let Some(pacer) = &mut self.pacer {
                pacer.record_sent(cx.now, tx_packet.payload_len);
            }
        }
        Some(tx_packet)
    }

    /// Returns a CNP for the peer.
    pub(super) fn next_cnp<S: EventSink>(&mut self, cx: &mut Context<'_, S>) -> TxPacket {
        cx.stats.cnps_sent += 1;
        self.next_cnp_at = cx.now + CNP_INTERVAL;
        let header = Header { pkey: self.pkey, ..Header::cnp(self.remote_qpn) };
        cx.event(|| TraceEvent::PacketSent {
            qpn: self.qpn,
            request: None,
            header,
            payload_len: 0,
            is_retransmission: false,
        });
        TxPacket { header, payload: TxPayload::Spans, payload_len: 0 }
    }
}
