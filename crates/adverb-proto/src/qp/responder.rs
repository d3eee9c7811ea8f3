//! The responder: executes a peer's requests (vol. 1, 9.7.4; `rxe_resp.c`).

use adverb_wire::{CompareSwap, FetchAdd, Flush, NakCode, Psn, Rc, Reth, RnrTimer, Send, Write};

use super::receive::{PacketPosition, SendEnd};
use super::response::{Pending, Response, ResponseKind, Responses, Retransmission};
use super::{Context, QueuePair, ReadyToReceive, Received};
use crate::event::QueueEvent;
use crate::memory::{Memory, Range, Span};
use crate::mutation::mutant;
use crate::trace::{DropReason, EventSink, TraceEvent};
use crate::types::{Access, QpState, Status};

/// The state of a responder.
#[derive(Debug, Default)]
pub(super) struct Responder {
    /// The sequence number of the next request packet.
    pub(super) expected: Psn,
    /// The number of completed messages, in 24 bits (vol. 1, 9.7.7).
    pub(super) msn: Psn,
    /// The message that is partially received.
    pub(super) current: CurrentMessage,
    /// Whether all packets of an unreliable connection are dropped until a message starts, because a packet is missing
    /// or the current message was invalid or had no receive.
    pub(super) awaiting_start: bool,
    /// Whether a NAK was sent for the expected packet. Only one is sent until that packet arrives (vol. 1, 9.7.5).
    nak_sent: bool,
    /// Whether the last response carried no credits, so that the peer may wait for one.
    pub(super) no_credit: bool,
    /// Whether a request has been received.
    established: bool,
    pub(super) min_rnr_timer: Option<RnrTimer>,
    pub(super) responses: Responses,
}

/// The message that is partially received.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum CurrentMessage {
    /// No message: the next packet starts one.
    #[default]
    None,
    /// A SEND, with the number of bytes that were written to the oldest receive request.
    Send { received: u32 },
    /// A WRITE.
    Write(CurrentWrite),
}

/// A partially received WRITE.
#[derive(Clone, Copy, Debug)]
pub(super) struct CurrentWrite {
    /// The address of the next byte.
    pub(super) va: u64,
    pub(super) rkey: u32,
    /// The number of bytes that were not received yet.
    pub(super) left: u32,
    /// The length of the message in bytes.
    pub(super) total: u32,
}

/// The result of executing a packet.
#[derive(Clone, Copy, Debug)]
enum Execution {
    /// The packet needs only an acknowledgement.
    Executed,
    /// The packet's response is queued.
    Responded,
}

/// The reason for not executing a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestError {
    /// No receive is posted. The peer may retransmit the request.
    Rnr,
    /// An error that ends a reliable connection. The receive request in use, if there is one, completes with the
    /// status. An unreliable connection ends only if its own memory access failed, and otherwise drops the message.
    Fatal(NakCode, Status),
}

/// An invalid request (vol. 1, 9.7.4).
pub(super) const INVALID_REQUEST: RequestError =
    RequestError::Fatal(NakCode::InvalidRequest, Status::RemoteInvalidRequest);
/// A request that violates access rights.
pub(super) const ACCESS_DENIED: RequestError =
    RequestError::Fatal(NakCode::RemoteAccess, Status::RemoteAccess);
/// A request that has the access rights, but whose memory access failed.
pub(super) const MEMORY_FAULT: RequestError =
    RequestError::Fatal(NakCode::RemoteOperational, Status::LocalQpOperation);

impl Responder {
    pub(super) fn start(&mut self, ready_to_receive: &ReadyToReceive) {
        *self = Responder {
            expected: ready_to_receive.psn,
            min_rnr_timer: Some(ready_to_receive.min_rnr_timer),
            responses: Responses::new(ready_to_receive.max_dest_rd_atomic),
            ..Responder::default()
        };
    }

    #[inline]
    pub(super) fn has_responses(&self) -> bool {
        self.responses.is_pending()
    }

    pub(super) const fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Discards all responses and the current message.
    pub(super) fn clear(&mut self) {
        self.responses.clear();
        self.current = CurrentMessage::None;
    }
}

impl QueuePair {
    /// Handles a request whose addresses and ICRC have been checked.
    pub(crate) fn handle_request<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        rc: &Rc,
        memory: &mut impl Memory,
    ) {
        self.establish(cx);
        let psn = packet.header.psn;
        let mut ahead = psn.since(self.responder.expected);
        if mutant!(PsnWithoutWrap) {
            ahead = psn.get() as i32 - self.responder.expected.get() as i32;
        }
        let is_packet_missing = ahead > 0 && !mutant!(SkipPsnCheck);
        if is_packet_missing {
            // The responder sends one NAK (vol. 1, 9.7.5).
            if self.responder.nak_sent {
                return self.drop_packet(cx, packet, DropReason::OutOfSequence);
            }
            self.responder.nak_sent = true;
            cx.stats.sequence_naks_sent += 1;
            self.responder.responses.pending = Pending::SequenceNak;
            return;
        }
        if ahead < 0 {
            return self.handle_duplicate(cx, packet, rc, memory);
        }
        if mutant!(SkipPsnCheck) {
            self.responder.expected = psn;
        }
        self.responder.nak_sent = false;
        self.responder.responses.cancel_nak();
        match self.execute(cx, packet, rc, memory) {
            // READs, atomics, FLUSHes and ATOMIC WRITEs have their own responses, which acknowledge them.
            Ok(Execution::Executed) => {
                if packet.header.ack_request {
                    self.responder.responses.acknowledge();
                }
            }
            Ok(Execution::Responded) => {}
            Err(RequestError::Rnr) => {
                cx.stats.rnr_naks_sent += 1;
                self.responder.nak_sent = true;
                self.responder.responses.pending = Pending::RnrNak;
            }
            Err(RequestError::Fatal(code, status)) => self.send_fatal_nak(cx, psn, code, status),
        }
    }

    /// Generates the established event for the first packet, if the queue pair is not ready to send yet (vol. 1,
    /// 12.9.6).
    pub(super) fn establish<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        if !self.responder.established {
            self.responder.established = true;
            if self.state == QpState::ReadyToReceive {
                cx.queue_events.push_back(QueueEvent::Established(self.qpn));
            }
        }
    }

    /// Executes the expected packet.
    fn execute<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        rc: &Rc,
        memory: &mut impl Memory,
    ) -> Result<Execution, RequestError> {
        let executed = |()| Execution::Executed;
        let responded = |()| Execution::Responded;
        match *rc {
            Rc::Send(send) => self.execute_send_packet(cx, packet, send, memory).map(executed),
            Rc::SendLastInvalidate(key) | Rc::SendOnlyInvalidate(key) => {
                let position = PacketPosition { first: matches!(rc, Rc::SendOnlyInvalidate(_)), last: true };
                let end = SendEnd { immediate: None, invalidate: Some(key) };
                self.execute_send(cx, packet, position, end, memory).map(executed)
            }
            Rc::Write(write) => self.execute_write_packet(cx, packet, write, memory).map(executed),
            Rc::ReadRequest(reth) => self.execute_read(cx, reth).map(responded),
            Rc::CompareSwap(swap) => self.execute_compare_swap(cx, swap, memory).map(responded),
            Rc::FetchAdd(add) => self.execute_fetch_add(cx, add, memory).map(responded),
            Rc::AtomicWrite(reth) => self.execute_atomic_write(cx, packet, reth, memory).map(responded),
            Rc::Flush(flush) => self.execute_flush(cx, flush, memory).map(responded),
            Rc::ReadResponse(_) | Rc::Acknowledge(_) | Rc::AtomicAcknowledge(..) => Ok(Execution::Responded),
        }
    }

    /// Checks that no message is partially received (vol. 1, 9.7.4: opcode sequence).
    fn check_idle(&self) -> Result<(), RequestError> {
        if matches!(self.responder.current, CurrentMessage::None) { Ok(()) } else { Err(INVALID_REQUEST) }
    }

    /// Checks the peer's access rights through this queue pair (vol. 1, 9.7.4; `rxe_resp.c`, `check_op_valid`).
    pub(super) fn check_access(&self, need: Access) -> Result<(), RequestError> {
        if self.access.contains(need) { Ok(()) } else { Err(INVALID_REQUEST) }
    }

    /// Checks that a slot is free for a response that may be retransmitted (vol. 1, 9.7.4).
    fn check_slot(&self) -> Result<(), RequestError> {
        if self.responder.responses.has_slot() { Ok(()) } else { Err(INVALID_REQUEST) }
    }

    fn execute_read<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        reth: Reth,
    ) -> Result<(), RequestError> {
        self.check_idle()?;
        self.check_access(Access::REMOTE_READ)?;
        self.check_slot()?;
        if reth.length > MAX_MESSAGE_SIZE {
            return Err(INVALID_REQUEST);
        }
        let needs_key = reth.length != 0 || mutant!(CheckKeyOfZeroLength);
        if needs_key {
            let range = Range { addr: reth.va, length: reth.length, key: reth.rkey };
            cx.keys
                .remote(self.config.pd, self.qpn, range, Access::REMOTE_READ)
                .map_err(|_| ACCESS_DENIED)?;
        }
        let packets = reth.length.div_ceil(self.mtu).max(1);
        self.queue_response(
            ResponseKind::Read { va: reth.va, rkey: reth.rkey, length: reth.length },
            packets,
        );
        Ok(())
    }

    /// Returns the word that an atomic or an ATOMIC WRITE accesses, after checking that the request is allowed now, and
    /// the word's alignment, bounds and access rights (vol. 1, 9.7.4).
    fn word<S: EventSink>(
        &self,
        cx: &Context<'_, S>,
        va: u64,
        key: u32,
        need: Access,
    ) -> Result<crate::memory::Span, RequestError> {
        self.check_idle()?;
        self.check_access(need)?;
        self.check_slot()?;
        if !va.is_multiple_of(8) {
            return Err(INVALID_REQUEST);
        }
        cx.keys
            .remote(self.config.pd, self.qpn, Range { addr: va, length: 8, key }, need)
            .map_err(|_| ACCESS_DENIED)
    }

    fn execute_compare_swap<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        CompareSwap { va, rkey, swap, compare }: CompareSwap,
        memory: &mut impl Memory,
    ) -> Result<(), RequestError> {
        let word = self.word(cx, va, rkey, Access::REMOTE_ATOMIC)?;
        let old = memory.compare_swap(word, compare, swap).map_err(|_| MEMORY_FAULT)?;
        self.queue_response(ResponseKind::Atomic(old), 1);
        Ok(())
    }

    fn execute_fetch_add<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        FetchAdd { va, rkey, add }: FetchAdd,
        memory: &mut impl Memory,
    ) -> Result<(), RequestError> {
        let word = self.word(cx, va, rkey, Access::REMOTE_ATOMIC)?;
        let old = memory.fetch_add(word, add).map_err(|_| MEMORY_FAULT)?;
        self.queue_response(ResponseKind::Atomic(old), 1);
        Ok(())
    }

    /// Writes eight bytes atomically (Annex A19.5; `rxe_resp.c`, `atomic_write_reply`). The access right is that of a
    /// WRITE.
    fn execute_atomic_write<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        reth: Reth,
        memory: &mut impl Memory,
    ) -> Result<(), RequestError> {
        let Some(bytes) = packet.payload.first_chunk().filter(|_| reth.length == 8) else {
            return Err(INVALID_REQUEST);
        };
        let word = self.word(cx, reth.va, reth.rkey, Access::REMOTE_WRITE)?;
        memory.write_word(word, *bytes).map_err(|_| MEMORY_FAULT)?;
        self.queue_response(ResponseKind::Empty, 1);
        Ok(())
    }

    /// Flushes earlier writes to global visibility or persistence (Annex A19.4; `rxe_resp.c`, `process_flush`).
    fn execute_flush<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        flush: Flush,
        memory: &mut impl Memory,
    ) -> Result<(), RequestError> {
        self.check_idle()?;
        let mut need = Access::empty();
        need.set(Access::FLUSH_GLOBAL, flush.global);
        need.set(Access::FLUSH_PERSISTENT, flush.persistent);
        if need.is_empty() || flush.range.length > MAX_MESSAGE_SIZE {
            return Err(INVALID_REQUEST);
        }
        self.check_access(need)?;
        self.check_slot()?;
        let pd = self.config.pd;
        if flush.whole_region {
            let whole = cx.keys.whole(pd, self.qpn, flush.range.rkey, need).map_err(|_| ACCESS_DENIED)?;
            // A span is at most 4 GiB long, so a larger region is flushed in several spans.
            let mut offset = 0;
            while offset < whole.length {
                let length = u32::try_from(whole.length - offset).unwrap_or(u32::MAX);
                let span = Span { storage: whole.storage, offset: whole.start + offset, length };
                memory.flush(span, flush.persistent).map_err(|_| MEMORY_FAULT)?;
                offset += u64::from(length);
            }
        } else {
            let Reth { va, rkey, length } = flush.range;
            let range = Range { addr: va, length, key: rkey };
            let span = cx.keys.remote(pd, self.qpn, range, need).map_err(|_| ACCESS_DENIED)?;
            memory.flush(span, flush.persistent).map_err(|_| MEMORY_FAULT)?;
        }
        self.queue_response(ResponseKind::Empty, 1);
        Ok(())
    }

    /// Queues the response to the expected packet, and saves it for retransmissions.
    fn queue_response(&mut self, kind: ResponseKind, packets: u32) {
        let responder = &mut self.responder;
        responder.msn += 1;
        if mutant!(WrongMsn) {
            responder.msn += 1;
        }
        let response = Response { psn: responder.expected, packets, msn: responder.msn, kind };
        responder.responses.queue_response(response);
        responder.expected += packets;
    }

    /// Handles a packet that was executed before (vol. 1, 9.7.5; `rxe_resp.c`, `duplicate_request`). Only a READ is
    /// executed again: its response reads the memory when it is sent.
    fn handle_duplicate<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        rc: &Rc,
        memory: &mut impl Memory,
    ) {
        cx.stats.duplicate_requests += 1;
        let psn = packet.header.psn;
        if self.execute_duplicate_if_mutated(cx, packet, rc, memory) {
            return;
        }
        let responses = &mut self.responder.responses;
        let retransmission = match *rc {
            // The acknowledgement is for the last executed packet, which is at or after this one.
            Rc::Send(_) | Rc::SendLastInvalidate(_) | Rc::SendOnlyInvalidate(_) | Rc::Write(_) => {
                responses.acknowledge();
                return;
            }
            Rc::ReadRequest(reth) => responses.retransmit_read(psn, reth, self.mtu),
            Rc::CompareSwap(_) | Rc::FetchAdd(_) => {
                responses.retransmit(psn, |kind| matches!(kind, ResponseKind::Atomic(_)))
            }
            Rc::AtomicWrite(_) | Rc::Flush(_) => {
                responses.retransmit(psn, |kind| matches!(kind, ResponseKind::Empty))
            }
            Rc::ReadResponse(_) | Rc::Acknowledge(_) | Rc::AtomicAcknowledge(..) => {
                Retransmission::Unavailable
            }
        };
        match retransmission {
            Retransmission::Queued => cx.stats.retransmitted_responses += 1,
            Retransmission::Pending => {}
            Retransmission::Unavailable => self.drop_packet(cx, packet, DropReason::DuplicateTooOld),
        }
    }

    /// Executes a duplicate again if a [mutation](crate::mutation) demands it, and returns whether it did.
    fn execute_duplicate_if_mutated<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        rc: &Rc,
        memory: &mut impl Memory,
    ) -> bool {
        let reexecute = match rc {
            Rc::CompareSwap(_) | Rc::FetchAdd(_) => mutant!(ReexecuteDuplicateAtomic),
            Rc::Write(Write::Only(_, None)) => mutant!(ReexecuteDuplicateWrite),
            Rc::Send(Send::Only(_)) => mutant!(DuplicateSendConsumesReceive),
            _ => false,
        };
        if reexecute {
            let (expected, msn) = (self.responder.expected, self.responder.msn);
            self.responder.expected = packet.header.psn;
            let _ = self.execute(cx, packet, rc, memory);
            self.responder.expected = expected;
            self.responder.msn = msn;
            self.responder.responses.acknowledge();
        }
        reexecute
    }

    /// Rejects a request with a fatal NAK, and moves the queue pair to the error state (vol. 1, 9.7.4: classes B, C and
    /// D). The responses that are still queued are sent before the NAK.
    pub(super) fn send_fatal_nak<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        psn: Psn,
        code: NakCode,
        status: Status,
    ) {
        cx.stats.fatal_naks_sent += 1;
        self.responder.responses.pending = Pending::Fatal { psn, code };
        if let CurrentMessage::Send { .. } = self.responder.current {
            self.fail_receive(cx, status);
        }
        self.responder.current = CurrentMessage::None;
        let event = match code {
            NakCode::InvalidRequest | NakCode::SequenceError | NakCode::InvalidRdRequest => {
                QueueEvent::RequestError(self.qpn)
            }
            NakCode::RemoteAccess => QueueEvent::AccessError(self.qpn),
            NakCode::RemoteOperational => QueueEvent::Fatal(self.qpn),
        };
        self.report_error(cx, event);
        self.enter_error(cx);
    }

    pub(super) fn drop_packet<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        reason: DropReason,
    ) {
        cx.stats.packets_dropped += 1;
        cx.event(|| TraceEvent::Dropped {
            qpn: self.qpn,
            psn: packet.header.psn,
            opcode: packet.header.opcode(),
            reason,
        });
    }
}

/// The maximum message size (vol. 1, 9.7.4): 2³¹ bytes.
pub(super) const MAX_MESSAGE_SIZE: u32 = 1 << 31;
