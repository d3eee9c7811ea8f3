//! The requester of unreliable connections and datagrams: each packet is sent once, and a request completes when its
//! last packet was sent (vol. 1, 9.8.2 and 9.8.3; `rxe_req.c`).

#![deny(clippy::wildcard_enum_match_arm)]

use adverb_wire::{Header, Operation, Reth, Uc, Ud};

use super::requester::{packets, send, write};
use super::send_queue::{LocalFailure, SendEntry};
use super::{Context, QueuePair, TxPacket, TxPayload};
use crate::trace::{EventSink, TraceEvent};
use crate::types::{QpState, RemoteAddress, SendFlags, SendOperation, Transport};

/// The bit of a request's queue key that selects the sending queue pair's own key instead. Keys with this bit are
/// reserved for privileged users (vol. 1, 10.2.5; `rxe_req.c`, `init_req_packet`).
const USE_OWN_QKEY: u32 = 1 << 31;

impl QueuePair {
    /// Returns the next packet, if there is one.
    pub(super) fn next_unreliable<S: EventSink>(&mut self, cx: &mut Context<'_, S>) -> Option<TxPacket> {
        self.complete_polled(cx);
        if !self.requester.running {
            return None;
        }
        loop {
            let entry = self.send_queue.front()?;
            if !entry.is_started() {
                if self.state != QpState::ReadyToSend {
                    return None;
                }
                if entry.is_local() {
                    if self.execute_local(cx) {
                        continue;
                    }
                    return None;
                }
            }
            return self.emit_unreliable(cx);
        }
    }

    /// Completes the request whose last packet was polled. At this time the caller has sent the packet, so the
    /// application may change the bytes: a caller that polls another packet has sent the previous one.
    pub(crate) fn complete_polled<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        if self.requester.last_packet_polled {
            self.requester.last_packet_polled = false;
            self.complete_front(cx);
            self.report_if_drained(cx);
        }
    }

    /// Whether the request whose last packet was polled will produce a completion.
    #[inline]
    pub(crate) fn is_completing(&self) -> bool {
        let is_signaled = |entry: &SendEntry| entry.has(SendFlags::SIGNALED);
        self.requester.last_packet_polled
            && (self.config.signal_all || self.send_queue.front().is_some_and(is_signaled))
    }

    /// Builds the next packet of the request at the front of the send queue.
    fn emit_unreliable<S: EventSink>(&mut self, cx: &mut Context<'_, S>) -> Option<TxPacket> {
        let (mtu, psn) = (self.mtu, self.requester.window.unsent());
        let entry = self.send_queue.front_mut()?;
        if !entry.is_started() {
            entry.packets = packets(entry, mtu);
            entry.first_psn = psn;
        }
        let entry = *entry;
        let packet = self.requester.cursor.packet();
        let last = packet + 1 == entry.packets;
        let offset = packet * mtu;
        let length = (entry.length - offset).min(mtu);
        let header = self.unreliable_header(&entry, packet == 0, last)?;
        let payload = match entry.segments.inline() {
            Some(first) => TxPayload::Inline { first, offset, length },
            None => {
                let (keys, pd) = (&*cx.keys, self.config.pd);
                let segments = &self.send_queue.segments;
                if let Err(error) = segments.gather(entry.segments, offset, length, keys, pd, cx.spans) {
                    cx.spans.clear();
                    // If the message was started, the peer has a part of it, and drops the part when another message
                    // starts.
                    self.fail_front(cx, LocalFailure::from(error).into());
                    return None;
                }
                TxPayload::Spans
            }
        };
        self.requester.window.record_unreliable();
        self.requester.cursor.advance_packet();
        self.requester.last_packet_polled = last;
        if let Some(destination) = self.send_queue.destination() {
            let path = &destination.handle;
            cx.event(|| TraceEvent::DatagramAddrs {
                qpn: self.qpn,
                source: path.source(),
                destination: path.destination(),
            });
        }
        cx.event(|| TraceEvent::PacketSent {
            qpn: self.qpn,
            request: Some(entry.number),
            header,
            payload_len: length,
            is_retransmission: false,
        });
        Some(TxPacket { header, payload, payload_len: length })
    }

    fn unreliable_header(&self, entry: &SendEntry, first: bool, last: bool) -> Option<Header> {
        let reth = |remote: RemoteAddress| Reth { va: remote.addr, rkey: remote.rkey, length: entry.length };
        let immediate = entry.operation.immediate();
        let psn = self.requester.window.unsent();
        let header = match self.config.transport {
            Transport::Ud => {
                let destination = self.send_queue.destination()?;
                let requested = destination.qkey;
                let qkey = if requested & USE_OWN_QKEY != 0 { self.qkey } else { requested };
                let datagram = Ud { qkey, source_qp: self.qpn, immediate };
                let header = self.header(psn, Operation::Ud(datagram));
                Header { dest_qp: destination.qpn, ..header }
            }
            Transport::Rc | Transport::Uc => {
                let operation = match entry.operation {
                    SendOperation::Send | SendOperation::SendWithImm(_) => {
                        Uc::Send(send(first, last, immediate))
                    }
                    SendOperation::Write(remote) | SendOperation::WriteWithImm(remote, _) => {
                        Uc::Write(write(first, last, reth(remote), immediate))
                    }
                    SendOperation::SendInvalidate(_)
                    | SendOperation::Read(_)
                    | SendOperation::CompareSwap { .. }
                    | SendOperation::FetchAdd { .. }
                    | SendOperation::AtomicWrite { .. }
                    | SendOperation::Flush(_)
                    | SendOperation::LocalInvalidate(_)
                    | SendOperation::BindWindow(_) => {
                        debug_assert!(false, "posting rejects what only a reliable connection supports");
                        return None;
                    }
                };
                self.header(psn, Operation::Uc(operation))
            }
        };
        let solicited = last && entry.consumes_receive() && entry.has(SendFlags::SOLICITED);
        Some(Header { solicited, ..header })
    }
}
