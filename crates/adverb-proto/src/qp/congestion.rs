//! What a queue pair does about congestion: as a receiver it notifies, as a sender it keeps to its pace (Annex A17.9).

use adverb_wire::{Header, Operation, Rc};

use super::{Context, QueuePair, TxPacket, TxPayload};
use crate::congestion::{CNP_INTERVAL, Congestion, Pacer};
use crate::mutation::mutant;
use crate::trace::{EventSink, TimerKind, TraceEvent};
use crate::types::Transport;

impl QueuePair {
    /// Whether switches may mark its packets, because it heeds that.
    pub(crate) const fn is_ecn_capable(&self) -> bool {
        // Datagrams have no one peer to be slow with.
        !matches!((self.config.congestion, self.config.transport), (Congestion::None, _) | (_, Transport::Ud))
    }

    /// A packet came that a congested switch has marked: its sender must hear of it, at most once in a while
    /// (Annex A17.9).
    pub(crate) fn handle_mark<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        cx.stats.ecn_marked_packets += 1;
        let due = cx.now >= self.next_cnp_at || mutant!(CnpForEveryMark);
        if due && self.config.transport != Transport::Ud && !mutant!(NeverSendCnp) {
            self.cnp_due = true;
        }
    }

    /// A congestion notification has come.
    pub(crate) fn handle_cnp<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        cx.stats.cnps_received += 1;
        if let Congestion::Dcqcn(params) = self.config.congestion
            && self.is_ecn_capable()
            && !mutant!(IgnoreCnp)
        {
            self.pacer.get_or_insert_with(|| Box::new(Pacer::new(cx.now, params))).handle_cnp(cx.now);
        }
        cx.event(|| TraceEvent::CnpReceived {
            qpn: self.qpn,
            rate: self.pacer.as_ref().map(|pacer| pacer.rate()),
        });
    }

    /// A timer has fired.
    pub(crate) fn handle_timeout<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        if let Some(pacer) = &mut self.pacer
            && pacer.paused
        {
            if !pacer.must_wait(cx.now) {
                cx.event(|| TraceEvent::TimerExpired { qpn: self.qpn, timer: TimerKind::Pacing });
            } else if self.requester.is_oldest_packet_next(&self.send_queue) {
                // What the pace holds back can't be acknowledged.
                self.requester.restart_timer(cx.now);
            }
        }
        self.handle_requester_timeout(cx);
    }

    /// The next packet, unless it must wait. Acknowledgements needn't: they are short, and a peer waits for them.
    pub(super) fn poll_paced<S: EventSink>(&mut self, cx: &mut Context<'_, S>) -> Option<TxPacket> {
        if self.pacer.as_mut()?.must_wait(cx.now) {
            let only = self.responder.responses.is_only_ack_or_nak();
            return if only { self.next_response(cx) } else { None };
        }
        let tx_packet = self.poll_packet(cx)?;
        if !matches!(tx_packet.header.operation, Operation::Rc(Rc::Acknowledge(_))) {
            // It may have gone into error meanwhile, and lost its pacer.
            if let Some(pacer) = &mut self.pacer {
                pacer.sent(cx.now, tx_packet.payload_len);
            }
        }
        Some(tx_packet)
    }

    /// A congestion notification for the peer.
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
