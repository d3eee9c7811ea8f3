//! The packets of requests.

#![deny(clippy::wildcard_enum_match_arm)]

use adverb_wire::{CompareSwap, FetchAdd, Flush, Header, Operation, Psn, Rc, Reth, Send, Write};

use crate::mutation::mutant;
use crate::qp::segments::SegmentError;
use crate::qp::send_queue::{LocalFailure, SendEntry};
use crate::qp::{Context, QueuePair, TxPacket, TxPayload};
use crate::trace::{EventSink, TraceEvent};
use crate::types::{LocalMemory, RemoteAddress, SendFlags, SendOperation};

/// A request packet that is sent.
struct Sent {
    psn: Psn,
    /// The sequence number after the packet and its response.
    end_psn: Psn,
    /// The next packet of the request.
    next_packet: u32,
    /// Whether this is the last packet of its request.
    last: bool,
    /// Whether the packet needs a response.
    needs_response: bool,
    /// The number of the request.
    request: u32,
    solicited: bool,
    payload_len: u32,
}

impl QueuePair {
    /// Builds the packet at the cursor, and advances the cursor.
    #[inline(always)]
    pub(super) fn emit_request<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        cursor: usize,
    ) -> Option<TxPacket> {
        let mtu = self.mtu;
        let requester = &mut self.requester;
        let entry = self.send_queue.get_mut(cursor)?;
        if !entry.is_started() {
            entry.packets = packets(entry, mtu);
            entry.first_psn = requester.window.unsent();
            requester.messages.record_started(1);
        }
        let entry = self.send_queue.get(cursor)?;
        let packet = requester.cursor.next_packet(entry);
        let psn = entry.first_psn + packet;
        let part = requester.responses.part_len(entry, packet, entry.packets);
        if entry.needs_response() && psn == requester.window.unsent() {
            requester.responses.add(part);
            // Each part is a message to the peer.
            requester.messages.record_started(u32::from(packet > 0));
        }
        let last = packet + part == entry.packets;
        let offset = packet * mtu;
        let length = (entry.length - offset).min(mtu);
        let reth = |remote: RemoteAddress| Reth { va: remote.addr, rkey: remote.rkey, length: entry.length };
        let first = packet == 0;
        let rc = match entry.operation {
            SendOperation::Send => Rc::Send(send(first, last, None)),
            SendOperation::SendWithImm(immediate) => Rc::Send(send(first, last, Some(immediate))),
            SendOperation::SendInvalidate(key) => match (first, last) {
                (true, true) => Rc::SendOnlyInvalidate(key),
                (false, true) => Rc::SendLastInvalidate(key),
                _ => Rc::Send(send(first, last, None)),
            },
            SendOperation::Write(remote) => Rc::Write(write(first, last, reth(remote), None)),
            SendOperation::WriteWithImm(remote, immediate) => {
                Rc::Write(write(first, last, reth(remote), Some(immediate)))
            }
            // A retransmitted READ continues after the received packets (vol. 1, 9.7.5).
            SendOperation::Read(remote) => Rc::ReadRequest(Reth {
                va: if mutant!(ReadRetryDiscardsProgress) {
                    remote.addr
                } else {
                    remote.addr.wrapping_add(u64::from(offset))
                },
                rkey: remote.rkey,
                length: (entry.length - offset).min(part.saturating_mul(mtu)),
            }),
            SendOperation::CompareSwap { remote, compare, swap } => {
                Rc::CompareSwap(CompareSwap { va: remote.addr, rkey: remote.rkey, swap, compare })
            }
            SendOperation::FetchAdd { remote, add } => {
                Rc::FetchAdd(FetchAdd { va: remote.addr, rkey: remote.rkey, add })
            }
            SendOperation::AtomicWrite { remote, .. } => {
                Rc::AtomicWrite(Reth { va: remote.addr, rkey: remote.rkey, length: 8 })
            }
            SendOperation::Flush(flush) => Rc::Flush(Flush {
                global: flush.global,
                persistent: flush.persistent,
                whole_region: flush.whole_region,
                range: Reth { va: flush.remote.addr, rkey: flush.remote.rkey, length: flush.length },
            }),
            SendOperation::LocalInvalidate(_) | SendOperation::BindWindow(_) => return None,
        };
        let payload = match entry.operation.local_memory() {
            LocalMemory::None => entry.operation.word().map_or(TxPayload::Spans, TxPayload::Word),
            LocalMemory::Target | LocalMemory::Word => TxPayload::Spans,
            LocalMemory::Source => match entry.segments.inline() {
                Some(first) => TxPayload::Inline { first, offset, length },
                None => {
                    let (keys, pd) = (&*cx.keys, self.config.pd);
                    let gathered =
                        self.send_queue.segments.gather(entry.segments, offset, length, keys, pd, cx.spans);
                    if let Err(error) = gathered {
                        cx.spans.clear();
                        return self.fail_gather(cx, cursor, error);
                    }
                    TxPayload::Spans
                }
            },
        };
        let needs_response = entry.needs_response();
        let sent = Sent {
            psn,
            // A READ uses the sequence numbers of its response packets (vol. 1, 9.7.3).
            end_psn: psn + part,
            next_packet: packet + part,
            last,
            needs_response,
            request: entry.number,
            solicited: last && entry.consumes_receive() && entry.has(SendFlags::SOLICITED),
            payload_len: match payload {
                TxPayload::Word(_) => 8,
                _ if needs_response => 0,
                TxPayload::Spans | TxPayload::Inline { .. } => length,
            },
        };
        Some(self.finish_packet(cx, sent, rc, payload))
    }

    /// Updates the state for a request packet that is sent, and returns the packet.
    #[inline(always)]
    fn finish_packet<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        Sent { psn, end_psn, next_packet, last, needs_response, request, solicited, payload_len }: Sent,
        rc: Rc,
        payload: TxPayload,
    ) -> TxPacket {
        let requester = &mut self.requester;
        let retransmitted = psn != requester.window.unsent();
        requester.cursor.advance(last, next_packet);
        requester.window.record_sent(end_psn);
        if retransmitted {
            cx.stats.retransmitted_packets += 1;
        }
        requester.timer.start(cx.now);
        let ack_request = requester.window.requests_ack(last || needs_response, self.config.window);
        let header = Header { ack_request, solicited, ..self.header(psn, Operation::Rc(rc)) };
        cx.event(|| TraceEvent::PacketSent {
            qpn: self.qpn,
            request: Some(request),
            header,
            payload_len,
            is_retransmission: retransmitted,
        });
        TxPacket { header, payload, payload_len }
    }

    /// Fails the request at the cursor, which has an invalid segment. The request completes after the earlier ones.
    fn fail_gather<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        cursor: usize,
        error: SegmentError,
    ) -> Option<TxPacket> {
        let failure = LocalFailure::from(error);
        if cursor == 0 {
            self.fail_front(cx, failure.into());
        } else if let Some(entry) = self.send_queue.get_mut(cursor) {
            entry.failed = Some(failure);
        }
        None
    }
}

/// Returns the number of sequence numbers of a request: at least one, even if the request is empty (vol. 1, 9.7.3).
#[inline]
pub(in crate::qp) fn packets(entry: &SendEntry, mtu: u32) -> u32 {
    // Most messages are short, and this avoids a division.
    if entry.length <= mtu { 1 } else { entry.length.div_ceil(mtu) }
}

/// Returns the operation of a SEND packet (vol. 1, 9.4.1).
pub(in crate::qp) const fn send(first: bool, last: bool, immediate: Option<u32>) -> Send {
    match (first, last) {
        (true, true) => Send::Only(immediate),
        (true, false) => Send::First,
        (false, true) => Send::Last(immediate),
        (false, false) => Send::Middle,
    }
}

/// Returns the operation of a WRITE packet (vol. 1, 9.4.3).
pub(in crate::qp) const fn write(first: bool, last: bool, reth: Reth, immediate: Option<u32>) -> Write {
    match (first, last) {
        (true, true) => Write::Only(reth, immediate),
        (true, false) => Write::First(reth),
        (false, true) => Write::Last(immediate),
        (false, false) => Write::Middle,
    }
}
