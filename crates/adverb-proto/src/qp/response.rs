//! The responses of a responder: data of READs and atomics, which may be retransmitted, then acknowledgements and NAKs.

use std::collections::VecDeque;

use adverb_wire::{Aeth, Credits, NakCode, Operation, Psn, Rc, ReadResponse, Reth, RnrTimer, Syndrome};

use super::{Context, QueuePair, TxPacket, TxPayload};
use crate::memory::Range;
use crate::mutation::mutant;
use crate::trace::{EventSink, TraceEvent};
use crate::types::{Access, QpState, Status};

/// The queued responses, and the saved responses for retransmissions.
#[derive(Debug, Default)]
pub(super) struct Responses {
    /// The queued responses, in order. They are sent before `pending`.
    queue: VecDeque<QueuedResponse>,
    /// The number of queued responses that are not retransmissions.
    first_count: u32,
    /// The last responses, for retransmissions (vol. 1, 9.7.5; `rxe_resp.c`, `resp.resources`).
    saved: VecDeque<Response>,
    /// The maximum number of saved responses, and of the peer's outstanding READs and atomics.
    slots: u32,
    pub(super) pending: Pending,
}

/// A response that can be retransmitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Response {
    /// The sequence number of the request and of the response's first packet.
    pub(super) psn: Psn,
    /// The number of packets of the response.
    pub(super) packets: u32,
    /// The number of completed messages when the request was executed.
    pub(super) msn: Psn,
    pub(super) kind: ResponseKind,
}

/// The kind of a response, with its content.
#[derive(Clone, Copy, Debug)]
pub(super) enum ResponseKind {
    /// The bytes of a range, which are read when they are sent.
    Read { va: u64, rkey: u32, length: u32 },
    /// The old value of a word.
    Atomic(u64),
    /// No content.
    Empty,
}

/// A response with packets to send.
#[derive(Clone, Copy, Debug)]
struct QueuedResponse {
    psn: Psn,
    msn: Psn,
    kind: ResponseKind,
    /// Whether the first packet was sent.
    started: bool,
    /// Whether the response is not a retransmission.
    is_first: bool,
}

/// The result of a duplicate request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Retransmission {
    /// The response is retransmitted.
    Queued,
    /// The requested packets are still queued, so they are sent once.
    Pending,
    /// The response is no longer stored, or too many retransmissions are queued.
    Unavailable,
}

/// The acknowledgement or NAK to send after all queued responses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Pending {
    /// Nothing.
    #[default]
    Nothing,
    /// An acknowledgement of all packets before the expected one.
    Ack,
    /// A NAK because the expected packet is missing.
    SequenceNak,
    /// A NAK because no receive is posted for the expected packet.
    RnrNak,
    /// A NAK that ends the connection.
    Fatal { psn: Psn, code: NakCode },
}

impl Responses {
    pub(super) fn new(slots: u8) -> Responses {
        Responses { slots: u32::from(slots), ..Responses::default() }
    }

    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.pending != Pending::Nothing || !self.queue.is_empty()
    }

    /// Whether only an acknowledgement or a NAK must be sent.
    #[inline]
    pub(super) fn is_only_ack_or_nak(&self) -> bool {
        self.pending != Pending::Nothing && self.queue.is_empty()
    }

    /// Whether only an acknowledgement must be sent.
    #[inline]
    pub(super) fn is_only_acknowledging(&self) -> bool {
        self.pending == Pending::Ack && self.queue.is_empty()
    }

    /// Returns the number of queued and saved responses.
    pub(super) fn stored_count(&self) -> usize {
        self.queue.len() + self.saved.len()
    }

    /// Whether the peer may have another READ or atomic outstanding. A request whose response isn't sent is still
    /// outstanding.
    pub(super) fn has_slot(&self) -> bool {
        self.first_count < self.slots
    }

    /// Cancels an unsent NAK, because the expected packet has arrived.
    #[inline]
    pub(super) fn cancel_nak(&mut self) {
        if matches!(self.pending, Pending::SequenceNak | Pending::RnrNak) {
            // The canceled NAK would have acknowledged all earlier packets.
            self.pending = Pending::Ack;
        }
    }

    /// Schedules an acknowledgement of all executed packets. One acknowledgement covers many packets (vol. 1, 9.7.5),
    /// and so does a NAK.
    #[inline]
    pub(super) fn acknowledge(&mut self) {
        if self.pending == Pending::Nothing {
            self.pending = Pending::Ack;
        }
    }

    /// Queues a response, and saves it for retransmissions.
    pub(super) fn queue_response(&mut self, response: Response) {
        if self.saved.len() >= self.slots as usize {
            self.saved.pop_front();
        }
        self.saved.push_back(response);
        self.first_count += 1;
        let Response { psn, msn, kind, .. } = response;
        self.queue.push_back(QueuedResponse { psn, msn, kind, started: false, is_first: true });
        // The response acknowledges all earlier packets.
        if self.pending == Pending::Ack {
            self.pending = Pending::Nothing;
        }
    }

    /// Retransmits a saved response, if there is one.
    pub(super) fn retransmit(&mut self, psn: Psn, is_kind: impl Fn(&ResponseKind) -> bool) -> Retransmission {
        let found = self.saved.iter().find(|response| response.psn == psn && is_kind(&response.kind));
        match found {
            Some(&Response { msn, kind, .. }) => {
                self.queue_retransmission(QueuedResponse { psn, msn, kind, started: false, is_first: false })
            }
            None => Retransmission::Unavailable,
        }
    }

    /// Retransmits the response to a READ, if the READ lies within a saved READ: it must have the same key, and the
    /// address that its sequence number implies (vol. 1, 9.7.5; `rxe_resp.c`, `duplicate_request`).
    pub(super) fn retransmit_read(&mut self, psn: Psn, reth: Reth, mtu: u32) -> Retransmission {
        for response in &self.saved {
            let ResponseKind::Read { va, rkey, length } = response.kind else { continue };
            if !psn.is_within(response.psn, response.packets) || rkey != reth.rkey {
                continue;
            }
            let offset = psn.since(response.psn).unsigned_abs() * mtu;
            let Some(left) = length.checked_sub(offset) else { continue };
            if reth.length > left || (reth.length != 0 && reth.va != va.wrapping_add(u64::from(offset))) {
                continue;
            }
            let start = if mutant!(DuplicateReadFromStart) { va } else { reth.va };
            let kind = ResponseKind::Read { va: start, rkey, length: reth.length };
            let retransmission =
                QueuedResponse { psn, msn: response.msn, kind, started: false, is_first: false };
            // The message sequence number identifies the READ.
            return match self.queue.iter().position(|response| response.msn == retransmission.msn) {
                Some(index) if reth.length > 0 => self.restart_read(index, retransmission, mtu),
                _ => self.queue_retransmission(retransmission),
            };
        }
        Retransmission::Unavailable
    }

    /// Handles a duplicate of a READ whose response, or a retransmission of it, is still queued. A requester that
    /// missed a packet drops the packets after it, so the rest of the queued response would only delay the requested
    /// packets.
    fn restart_read(&mut self, index: usize, retransmission: QueuedResponse, mtu: u32) -> Retransmission {
        let queued = self.queue[index];
        let (ResponseKind::Read { length: left, .. }, ResponseKind::Read { va, rkey, length }) =
            (queued.kind, retransmission.kind)
        else {
            return Retransmission::Unavailable;
        };
        // The next byte and the end of the queued response, relative to the first byte of the duplicate.
        let next = i64::from(queued.psn.since(retransmission.psn)) * i64::from(mtu);
        let end = next + i64::from(left);
        // Retransmitted responses to earlier requests may be queued after it.
        let is_in_order = self.queue.range(index..).all(|later| later.psn.since(queued.psn) >= 0);
        if next <= 0 && end >= i64::from(length) && is_in_order {
            return Retransmission::Pending;
        }
        self.queue.remove(index);
        // All bytes that were queued are still sent.
        let length = u32::try_from(end).map_or(length, |end| end.max(length));
        let kind = ResponseKind::Read { va, rkey, length };
        self.queue.push_back(QueuedResponse { kind, is_first: queued.is_first, ..retransmission });
        Retransmission::Queued
    }

    /// Queues a retransmission, unless the queue already has two responses per slot: a peer that causes more of them
    /// retransmits requests needlessly. The limit does not apply to first responses, which have slots of their own.
    fn queue_retransmission(&mut self, retransmission: QueuedResponse) -> Retransmission {
        if self.queue.len() >= 2 * self.slots as usize {
            return Retransmission::Unavailable;
        }
        self.queue.push_back(retransmission);
        Retransmission::Queued
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.saved.clear();
        self.first_count = 0;
        self.pending = Pending::Nothing;
    }

    fn pop(&mut self) {
        if let Some(response) = self.queue.pop_front() {
            self.first_count -= u32::from(response.is_first);
        }
    }
}

impl QueuePair {
    /// Returns the next response packet, if there is one.
    pub(super) fn next_response<S: EventSink>(&mut self, cx: &mut Context<'_, S>) -> Option<TxPacket> {
        while let Some(response) = self.responder.responses.queue.front().copied() {
            let tx_packet = match response.kind {
                ResponseKind::Read { va, rkey, length } => self.next_read(cx, response, va, rkey, length),
                ResponseKind::Atomic(value) => {
                    self.responder.responses.pop();
                    let rc = Rc::AtomicAcknowledge(self.ack(response.msn), value);
                    Some(self.respond(cx, response.psn, rc, 0))
                }
                ResponseKind::Empty => {
                    self.responder.responses.pop();
                    let rc = Rc::ReadResponse(ReadResponse::Only(self.ack(response.msn)));
                    Some(self.respond(cx, response.psn, rc, 0))
                }
            };
            if tx_packet.is_some() {
                return tx_packet;
            }
        }
        self.next_acknowledge(cx)
    }

    /// Returns the next packet of a READ response. The key is looked up for each packet, because it may have become
    /// invalid.
    fn next_read<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        response: QueuedResponse,
        va: u64,
        rkey: u32,
        left: u32,
    ) -> Option<TxPacket> {
        let length = left.min(self.mtu);
        if length > 0 {
            let range = Range { addr: va, length, key: rkey };
            match cx.keys.remote(self.config.pd, self.qpn, range, Access::REMOTE_READ) {
                Ok(span) => cx.spans.push(span),
                Err(_) => return self.deny_read(cx, response),
            }
        }
        let last = length == left;
        let aeth = self.ack(response.msn);
        let rc = Rc::ReadResponse(match (response.started, last) {
            (false, true) => ReadResponse::Only(aeth),
            (false, false) => ReadResponse::First(aeth),
            (true, false) => ReadResponse::Middle,
            (true, true) => ReadResponse::Last(aeth),
        });
        if last {
            self.responder.responses.pop();
        } else if let Some(front) = self.responder.responses.queue.front_mut() {
            front.started = true;
            front.psn += 1;
            front.kind =
                ResponseKind::Read { va: va.wrapping_add(u64::from(length)), rkey, length: left - length };
        }
        Some(self.respond(cx, response.psn, rc, length))
    }

    /// Ends a response whose memory key has become invalid.
    fn deny_read<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        response: QueuedResponse,
    ) -> Option<TxPacket> {
        if self.state == QpState::Error {
            // The NAK that ended the connection is still sent.
            let pending = self.responder.responses.pending;
            self.responder.responses.clear();
            self.responder.responses.pending = pending;
            return None;
        }
        let is_refused = response.is_first || mutant!(RefuseDuplicateRead);
        if is_refused {
            // The request was accepted, but its response can't be sent anymore (vol. 1, 9.7.5).
            self.responder.responses.clear();
            self.send_fatal_nak(cx, response.psn, NakCode::RemoteAccess, Status::RemoteAccess);
            return None;
        }
        // The response was sent before. A requester that received it may have completed the READ and let this side
        // release the memory, after it had retransmitted the request. In that case the NAK is stale, and the requester
        // drops it. Otherwise, the NAK informs the requester that no response will arrive.
        self.responder.responses.pop();
        cx.stats.fatal_naks_sent += 1;
        let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
        cx.event(|| TraceEvent::NakSent { qpn: self.qpn, psn: response.psn, syndrome });
        // `response.msn` includes the READ. A NAK counts only the messages before the request that failed.
        let aeth = Aeth { syndrome, msn: (response.msn - 1).get() };
        Some(self.respond(cx, response.psn, Rc::Acknowledge(aeth), 0))
    }

    /// Returns the acknowledgement or NAK that follows all queued responses.
    fn next_acknowledge<S: EventSink>(&mut self, cx: &mut Context<'_, S>) -> Option<TxPacket> {
        let pending = core::mem::take(&mut self.responder.responses.pending);
        let Aeth { syndrome, msn } = self.ack(self.responder.msn);
        let expected = self.responder.expected;
        let (psn, syndrome) = match pending {
            Pending::Nothing => return None,
            Pending::Ack if mutant!(AckPsnTooHigh) => (expected, syndrome),
            Pending::Ack => (expected - 1, syndrome),
            Pending::SequenceNak => (expected, Syndrome::Nak(NakCode::SequenceError)),
            Pending::RnrNak => {
                let timer = self.responder.min_rnr_timer.or(RnrTimer::new(0))?;
                (expected, Syndrome::RnrNak(timer))
            }
            Pending::Fatal { psn, code } => (psn, Syndrome::Nak(code)),
        };
        if !matches!(syndrome, Syndrome::Ack(_)) {
            cx.event(|| TraceEvent::NakSent { qpn: self.qpn, psn, syndrome });
        }
        Some(self.respond(cx, psn, Rc::Acknowledge(Aeth { syndrome, msn }), 0))
    }

    /// Returns a positive acknowledgement header, with credits if the queue pair uses them (vol. 1, 9.7.7).
    fn ack(&mut self, msn: Psn) -> Aeth {
        let credits = if self.config.credits && self.config.srq.is_none() {
            self.responder.no_credit = self.recv_queue.len() == 0;
            Credits::at_most(u32::try_from(self.recv_queue.len()).unwrap_or(u32::MAX))
        } else {
            Credits::UNLIMITED
        };
        Aeth { syndrome: Syndrome::Ack(credits), msn: msn.get() }
    }

    fn respond<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        psn: Psn,
        rc: Rc,
        payload_len: u32,
    ) -> TxPacket {
        let header = self.header(psn, Operation::Rc(rc));
        cx.event(|| TraceEvent::PacketSent {
            qpn: self.qpn,
            request: None,
            header,
            payload_len,
            is_retransmission: false,
        });
        TxPacket { header, payload: TxPayload::Spans, payload_len }
    }
}
