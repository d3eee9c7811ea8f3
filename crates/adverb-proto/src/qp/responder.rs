//! The responder: executes a peer's requests (vol. 1, 9.7.4; `rxe_resp.c`).

use adverb_wire::{CompareSwap, FetchAdd, Flush, NakCode, Psn, Rc, Reth, RnrTimer, Send, Write};

use super::response::{Pending, Response, Responses, Saved};
use super::segments::Unreachable;
use super::{Context, QueuePair, Received, Receiving};
use crate::event::{DropReason, Event, Notice, Queue, Sink};
use crate::memory::{Memory, Range};
use crate::mutation::mutant;
use crate::vocabulary::{Access, CompletedOperation, Failure, QpState, Status, Success};

/// What a responder knows.
#[derive(Debug, Default)]
pub(super) struct Responder {
    /// The number of the next request packet.
    pub(super) expected: Psn,
    /// How many messages are done, at 24 bits (vol. 1, 9.7.7.1).
    pub(super) msn: Psn,
    /// The message of which packets are still to come.
    current: Current,
    /// Whether a NAK was sent for the expected packet: there is only one, until that packet comes (vol. 1,
    /// 9.7.5.2.2).
    nak_sent: bool,
    /// Whether any request has come.
    established: bool,
    pub(super) min_rnr_timer: Option<RnrTimer>,
    pub(super) responses: Responses,
}

/// The message of which packets are still to come.
#[derive(Clone, Copy, Debug, Default)]
enum Current {
    /// None: the next packet begins one.
    #[default]
    None,
    /// A SEND, of which this much has come into the oldest receive request.
    Send { received: u32 },
    /// A WRITE.
    Write(Writing),
}

/// A WRITE under way.
#[derive(Clone, Copy, Debug)]
struct Writing {
    /// Where the next byte goes.
    va: u64,
    rkey: u32,
    /// How many are still to come.
    left: u32,
    /// How many the message has.
    total: u32,
}

/// Where in its message a packet says that it is.
#[derive(Clone, Copy, Debug)]
struct Place {
    first: bool,
    last: bool,
}

/// What the end of a SEND brings.
#[derive(Clone, Copy, Debug, Default)]
struct Tail {
    immediate: Option<u32>,
    invalidate: Option<u32>,
}

/// How a packet was executed.
#[derive(Clone, Copy, Debug)]
enum Done {
    /// An acknowledgement will do.
    Executed,
    /// Its answer is on its way.
    Answered,
}

/// Why a request isn't executed.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// No receive is posted: the peer may try again.
    NotReady,
    /// The connection ends. The receive request in use, if there is one, completes with the status.
    Fatal(NakCode, Status),
}

/// The request makes no sense here (vol. 1, 9.7.4.1: invalid request).
const INVALID: Refusal = Refusal::Fatal(NakCode::InvalidRequest, Status::RemoteInvalidRequest);
/// The memory doesn't allow it.
const DENIED: Refusal = Refusal::Fatal(NakCode::RemoteAccess, Status::RemoteAccess);
/// The memory allows it, and can't do it.
const BROKEN: Refusal = Refusal::Fatal(NakCode::RemoteOperational, Status::LocalQpOperation);

impl Responder {
    pub(super) fn start(&mut self, receiving: &Receiving) {
        *self = Responder {
            expected: receiving.psn,
            min_rnr_timer: Some(receiving.min_rnr_timer),
            responses: Responses::new(receiving.max_dest_rd_atomic),
            ..Responder::default()
        };
    }

    #[inline]
    pub(super) fn has_answers(&self) -> bool {
        self.responses.is_pending()
    }

    pub(super) const fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Says nothing more.
    pub(super) fn silence(&mut self) {
        self.responses.clear();
        self.current = Current::None;
    }
}

impl QueuePair {
    /// Takes a request in. Its addresses and ICRC have been checked.
    pub(crate) fn handle_request<S: Sink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        rc: &Rc,
        memory: &mut impl Memory,
    ) {
        if !self.responder.established {
            self.responder.established = true;
            if self.state == QpState::ReadyToReceive {
                cx.notices.push_back(Notice::Established(self.qpn));
            }
        }
        let psn = packet.header.psn;
        let mut ahead = psn.since(self.responder.expected);
        if mutant!(PsnWithoutWrap) {
            ahead = psn.get() as i32 - self.responder.expected.get() as i32;
        }
        if ahead > 0 && !mutant!(SkipPsnCheck) {
            // A packet is missing: say so once (vol. 1, 9.7.5.2.2).
            if self.responder.nak_sent {
                return self.drop_packet(cx, packet, DropReason::OutOfSequence);
            }
            self.responder.nak_sent = true;
            cx.stats.out_of_sequence += 1;
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
        self.responder.responses.in_sequence();
        match self.execute(cx, packet, rc, memory) {
            // READs, atomics and the like have their own answers, which acknowledge.
            Ok(Done::Executed) => {
                if packet.header.ack_request {
                    self.responder.responses.acknowledge();
                }
            }
            Ok(Done::Answered) => {}
            Err(Refusal::NotReady) => {
                cx.stats.rnr_naks_sent += 1;
                self.responder.nak_sent = true;
                self.responder.responses.pending = Pending::RnrNak;
            }
            Err(Refusal::Fatal(code, status)) => self.refuse(cx, psn, code, status),
        }
    }

    /// Does what the expected packet asks for.
    fn execute<S: Sink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        rc: &Rc,
        memory: &mut impl Memory,
    ) -> Result<Done, Refusal> {
        let place = |first, last| Place { first, last };
        let executed = |()| Done::Executed;
        let answered = |()| Done::Answered;
        match *rc {
            Rc::Send(send) => {
                let (place, immediate) = match send {
                    Send::First => (place(true, false), None),
                    Send::Middle => (place(false, false), None),
                    Send::Last(immediate) => (place(false, true), immediate),
                    Send::Only(immediate) => (place(true, true), immediate),
                };
                let tail = Tail { immediate, invalidate: None };
                self.execute_send(cx, packet, place, tail, memory).map(executed)
            }
            Rc::SendLastInvalidate(key) | Rc::SendOnlyInvalidate(key) => {
                let first = matches!(rc, Rc::SendOnlyInvalidate(_));
                let tail = Tail { immediate: None, invalidate: Some(key) };
                self.execute_send(cx, packet, place(first, true), tail, memory).map(executed)
            }
            Rc::Write(write) => {
                let (place, reth, immediate) = match write {
                    Write::First(reth) => (place(true, false), Some(reth), None),
                    Write::Middle => (place(false, false), None, None),
                    Write::Last(immediate) => (place(false, true), None, immediate),
                    Write::Only(reth, immediate) => (place(true, true), Some(reth), immediate),
                };
                self.execute_write(cx, packet, place, reth, immediate, memory).map(executed)
            }
            Rc::ReadRequest(reth) => self.execute_read(cx, reth).map(answered),
            Rc::CompareSwap(swap) => self.execute_compare_swap(cx, swap, memory).map(answered),
            Rc::FetchAdd(add) => self.execute_fetch_add(cx, add, memory).map(answered),
            Rc::AtomicWrite(reth) => self.execute_atomic_write(cx, packet, reth, memory).map(answered),
            Rc::Flush(flush) => self.execute_flush(cx, flush, memory).map(answered),
            Rc::ReadResponse(_) | Rc::Acknowledge(_) | Rc::AtomicAcknowledge(..) => Ok(Done::Answered),
        }
    }

    /// A packet's payload is as long as its place in the message says (vol. 1, 9.7.4.1.6; `rxe_resp.c`,
    /// `check_length`): FIRST and MIDDLE fill the path's MTU, LAST has something, ONLY may be empty.
    fn check_place(&self, place: Place, payload_len: usize) -> Result<(), Refusal> {
        let mtu = self.mtu as usize;
        let fits = match (place.first, place.last) {
            (_, false) => payload_len == mtu,
            (false, true) => (1..=mtu).contains(&payload_len),
            (true, true) => payload_len <= mtu,
        };
        if fits { Ok(()) } else { Err(INVALID) }
    }

    /// A message that stands alone, or begins, comes where none is under way (vol. 1, 9.7.4.1.2: opcode sequence).
    fn check_idle(&self) -> Result<(), Refusal> {
        if matches!(self.responder.current, Current::None) { Ok(()) } else { Err(INVALID) }
    }

    /// What a peer may do through this queue pair at all (vol. 1, 9.7.4.1.3; `rxe_resp.c`, `check_op_valid`).
    fn check_right(&self, need: Access) -> Result<(), Refusal> {
        if self.access.contains(need) { Ok(()) } else { Err(INVALID) }
    }

    /// A slot for an answer that may have to be given again (vol. 1, 9.7.4.1.4).
    fn check_slot(&self) -> Result<(), Refusal> {
        if self.responder.responses.has_slot() { Ok(()) } else { Err(INVALID) }
    }

    fn execute_send<S: Sink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        place: Place,
        tail: Tail,
        memory: &mut impl Memory,
    ) -> Result<(), Refusal> {
        let received = match (place.first, self.responder.current) {
            (true, Current::None) => 0,
            (false, Current::Send { received }) => received,
            _ => return Err(INVALID),
        };
        let payload = packet.payload;
        self.check_place(place, payload.len())?;
        let entry = self.recv_queue.front().ok_or(Refusal::NotReady)?;
        // From here on the receive request is in use, and shares the message's fate.
        self.responder.current = Current::Send { received };
        if u64::from(received) + payload.len() as u64 > entry.length {
            return Err(Refusal::Fatal(NakCode::InvalidRequest, Status::LocalLength));
        }
        let early = mutant!(CompleteBeforeData) && place.last;
        if !payload.is_empty() && !early {
            let (keys, pd) = (&*cx.keys, self.config.pd);
            let segments = &self.recv_queue.segments;
            segments.scatter(entry.segments, received, payload, keys, pd, memory).map_err(
                |why| match why {
                    Unreachable::Denied => {
                        Refusal::Fatal(NakCode::RemoteOperational, Status::LocalProtection)
                    }
                    Unreachable::Fault | Unreachable::TooLong => BROKEN,
                },
            )?;
        }
        let received = received + payload.len() as u32;
        self.responder.expected += 1;
        if !place.last {
            self.responder.current = Current::Send { received };
            return Ok(());
        }
        if let Some(key) = tail.invalidate
            && cx.keys.invalidate_remote(self.config.pd, key).is_err()
        {
            // The number that is refused is this packet's, which wasn't executed to its end.
            self.responder.expected = self.responder.expected - 1;
            return Err(Refusal::Fatal(NakCode::RemoteAccess, Status::RemoteInvalidRequest));
        }
        self.responder.current = Current::None;
        self.responder.msn += 1;
        let operation = CompletedOperation::Recv {
            immediate: tail.immediate,
            invalidated: tail.invalidate,
            source: None,
            has_grh: false,
        };
        self.complete_recv(cx, Success { operation, length: received }, packet.header.solicited);
        Ok(())
    }

    fn complete_recv<S: Sink>(&mut self, cx: &mut Context<'_, S>, success: Success, solicited: bool) {
        if let Some(entry) = self.recv_queue.pop() {
            self.complete(cx, self.config.recv_cq, Queue::Recv, entry.wr_id, Ok(success), solicited);
        }
    }

    fn execute_write<S: Sink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        place: Place,
        reth: Option<Reth>,
        immediate: Option<u32>,
        memory: &mut impl Memory,
    ) -> Result<(), Refusal> {
        let mut writing = match (reth, self.responder.current) {
            (Some(reth), Current::None) => {
                Writing { va: reth.va, rkey: reth.rkey, left: reth.length, total: reth.length }
            }
            (None, Current::Write(writing)) => writing,
            _ => return Err(INVALID),
        };
        self.check_right(Access::REMOTE_WRITE)?;
        let payload = packet.payload;
        let length = payload.len() as u32;
        self.check_place(place, payload.len())?;
        if writing.total > MAX_LENGTH {
            return Err(INVALID);
        }
        // The last packet brings just what is left, and the others less (vol. 1, 9.7.4.1.6).
        if (place.last && length != writing.left) || (!place.last && length >= writing.left) {
            return Err(INVALID);
        }
        // The receive is looked for before any byte is placed: the packet may come again.
        if immediate.is_some() && self.recv_queue.front().is_none() {
            return Err(Refusal::NotReady);
        }
        // An empty WRITE touches nothing, so that its key means nothing (vol. 1, 9.7.4.1.5). The key of others is
        // looked up for each packet: it may have become invalid meanwhile.
        if writing.total != 0 || mutant!(CheckKeyOfNothing) {
            let whole = Range { addr: writing.va, length: writing.left, key: writing.rkey };
            let pd = self.config.pd;
            let checked = cx.keys.remote(pd, whole, Access::REMOTE_WRITE);
            #[cfg(feature = "mutants")]
            let checked = if mutant!(NoAccessRecheck) && !place.first {
                cx.keys.remote_even_if_gone(pd, whole, Access::REMOTE_WRITE)
            } else {
                checked
            };
            let mut span = checked.map_err(|_| DENIED)?;
            span.length = length;
            span.offset += u64::from(mutant!(LastPacketMisplaced) && place.last && !place.first);
            if length > 0 {
                memory.write(span, payload).map_err(|_| BROKEN)?;
            }
        }
        writing.va = writing.va.wrapping_add(u64::from(length));
        writing.left -= length;
        self.responder.expected += 1;
        if !place.last {
            self.responder.current = Current::Write(writing);
            return Ok(());
        }
        self.responder.current = Current::None;
        self.responder.msn += 1;
        if let Some(immediate) = immediate {
            let operation = CompletedOperation::RecvWrite { immediate };
            let success = Success { operation, length: writing.total };
            self.complete_recv(cx, success, packet.header.solicited);
        }
        Ok(())
    }

    fn execute_read<S: Sink>(&mut self, cx: &mut Context<'_, S>, reth: Reth) -> Result<(), Refusal> {
        self.check_idle()?;
        self.check_right(Access::REMOTE_READ)?;
        self.check_slot()?;
        if reth.length > MAX_LENGTH {
            return Err(INVALID);
        }
        if reth.length != 0 || mutant!(CheckKeyOfNothing) {
            let range = Range { addr: reth.va, length: reth.length, key: reth.rkey };
            cx.keys.remote(self.config.pd, range, Access::REMOTE_READ).map_err(|_| DENIED)?;
        }
        let packets = reth.length.div_ceil(self.mtu).max(1);
        self.answer(Saved::Read { va: reth.va, rkey: reth.rkey, length: reth.length }, packets);
        Ok(())
    }

    /// The word of an atomic: aligned, in reach, with the right (vol. 1, 9.7.4.1.3 and 9.7.4.1.5).
    fn word<S: Sink>(
        &self,
        cx: &Context<'_, S>,
        va: u64,
        key: u32,
        need: Access,
    ) -> Result<crate::memory::Span, Refusal> {
        self.check_idle()?;
        self.check_right(need)?;
        self.check_slot()?;
        if !va.is_multiple_of(8) {
            return Err(INVALID);
        }
        cx.keys.remote(self.config.pd, Range { addr: va, length: 8, key }, need).map_err(|_| DENIED)
    }

    fn execute_compare_swap<S: Sink>(
        &mut self,
        cx: &mut Context<'_, S>,
        CompareSwap { va, rkey, swap, compare }: CompareSwap,
        memory: &mut impl Memory,
    ) -> Result<(), Refusal> {
        let word = self.word(cx, va, rkey, Access::REMOTE_ATOMIC)?;
        let old = memory.compare_swap(word, compare, swap).map_err(|_| BROKEN)?;
        self.answer(Saved::Atomic(old), 1);
        Ok(())
    }

    fn execute_fetch_add<S: Sink>(
        &mut self,
        cx: &mut Context<'_, S>,
        FetchAdd { va, rkey, add }: FetchAdd,
        memory: &mut impl Memory,
    ) -> Result<(), Refusal> {
        let word = self.word(cx, va, rkey, Access::REMOTE_ATOMIC)?;
        let old = memory.fetch_add(word, add).map_err(|_| BROKEN)?;
        self.answer(Saved::Atomic(old), 1);
        Ok(())
    }

    /// Eight bytes at once (Annex A19.5; `rxe_resp.c`, `atomic_write_reply`). The right is that of a WRITE.
    fn execute_atomic_write<S: Sink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        reth: Reth,
        memory: &mut impl Memory,
    ) -> Result<(), Refusal> {
        let Some(bytes) = packet.payload.first_chunk().filter(|_| reth.length == 8) else {
            return Err(INVALID);
        };
        let word = self.word(cx, reth.va, reth.rkey, Access::REMOTE_WRITE)?;
        memory.write_word(word, *bytes).map_err(|_| BROKEN)?;
        self.answer(Saved::Empty, 1);
        Ok(())
    }

    /// Earlier writes are brought further (Annex A19.4; `rxe_resp.c`, `process_flush`).
    fn execute_flush<S: Sink>(
        &mut self,
        cx: &mut Context<'_, S>,
        flush: Flush,
        memory: &mut impl Memory,
    ) -> Result<(), Refusal> {
        self.check_idle()?;
        let mut need = Access::empty();
        need.set(Access::FLUSH_GLOBAL, flush.global);
        need.set(Access::FLUSH_PERSISTENT, flush.persistent);
        if need.is_empty() || flush.range.length > MAX_LENGTH {
            return Err(INVALID);
        }
        self.check_right(need)?;
        self.check_slot()?;
        let pd = self.config.pd;
        if flush.whole_region {
            let region = cx.keys.whole(pd, flush.range.rkey, need).map_err(|_| DENIED)?;
            // A span is at most 4 GiB long: a larger region goes in pieces.
            let mut offset = 0;
            while offset < region.length {
                let length = u32::try_from(region.length - offset).unwrap_or(u32::MAX);
                let span = crate::memory::Span { backing: region.backing, offset, length };
                memory.flush(span, flush.persistent).map_err(|_| BROKEN)?;
                offset += u64::from(length);
            }
        } else {
            let Reth { va, rkey, length } = flush.range;
            let range = Range { addr: va, length, key: rkey };
            let span = cx.keys.remote(pd, range, need).map_err(|_| DENIED)?;
            memory.flush(span, flush.persistent).map_err(|_| BROKEN)?;
        }
        self.answer(Saved::Empty, 1);
        Ok(())
    }

    /// Keeps the answer to the expected packet, to be given now and perhaps again.
    fn answer(&mut self, saved: Saved, packets: u32) {
        let responder = &mut self.responder;
        responder.msn += 1;
        if mutant!(WrongMsn) {
            responder.msn += 1;
        }
        let response = Response { psn: responder.expected, packets, msn: responder.msn, saved };
        responder.responses.answer(response);
        responder.expected += packets;
    }

    /// A packet that was executed before (vol. 1, 9.7.5.1.4; `rxe_resp.c`, `duplicate_request`). Nothing is executed
    /// again.
    fn handle_duplicate<S: Sink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        rc: &Rc,
        memory: &mut impl Memory,
    ) {
        cx.stats.duplicate_requests += 1;
        let psn = packet.header.psn;
        if self.mutant_duplicate(cx, packet, rc, memory) {
            return;
        }
        let responses = &mut self.responder.responses;
        let replayed = match *rc {
            // The latest packet executed is acknowledged, which this one is before.
            Rc::Send(_) | Rc::SendLastInvalidate(_) | Rc::SendOnlyInvalidate(_) | Rc::Write(_) => {
                responses.acknowledge();
                return;
            }
            Rc::ReadRequest(reth) => responses.replay_read(psn, reth, self.mtu),
            Rc::CompareSwap(_) | Rc::FetchAdd(_) => {
                responses.replay(psn, |saved| matches!(saved, Saved::Atomic(_)))
            }
            Rc::AtomicWrite(_) | Rc::Flush(_) => responses.replay(psn, |saved| matches!(saved, Saved::Empty)),
            Rc::ReadResponse(_) | Rc::Acknowledge(_) | Rc::AtomicAcknowledge(..) => false,
        };
        if replayed {
            cx.stats.replays += 1;
        } else {
            self.drop_packet(cx, packet, DropReason::ForgottenDuplicate);
        }
    }

    /// Planted faults: see [`crate::mutation`].
    fn mutant_duplicate<S: Sink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        rc: &Rc,
        memory: &mut impl Memory,
    ) -> bool {
        let again = match rc {
            Rc::CompareSwap(_) | Rc::FetchAdd(_) => mutant!(ReexecuteDuplicateAtomic),
            Rc::Write(Write::Only(_, None)) => mutant!(ReexecuteDuplicateWrite),
            Rc::Send(Send::Only(_)) => mutant!(DuplicateSendConsumesReceive),
            _ => false,
        };
        if again {
            let (expected, msn) = (self.responder.expected, self.responder.msn);
            self.responder.expected = packet.header.psn;
            let _ = self.execute(cx, packet, rc, memory);
            self.responder.expected = expected;
            self.responder.msn = msn;
            self.responder.responses.acknowledge();
        }
        again
    }

    /// Refuses a request for good: the answers before it are given, then the NAK, and the queue pair is in error
    /// (vol. 1, 9.7.4.1, table 58: classes B, C and D).
    pub(super) fn refuse<S: Sink>(
        &mut self,
        cx: &mut Context<'_, S>,
        psn: Psn,
        code: NakCode,
        status: Status,
    ) {
        cx.stats.fatal_naks_sent += 1;
        self.responder.responses.pending = Pending::Fatal { psn, code };
        if let Current::Send { .. } = self.responder.current
            && let Some(entry) = self.recv_queue.pop()
        {
            let failure = Failure { status, vendor_error: 0 };
            self.complete(cx, self.config.recv_cq, Queue::Recv, entry.wr_id, Err(failure), false);
        }
        self.responder.current = Current::None;
        cx.notices.push_back(match code {
            NakCode::InvalidRequest | NakCode::SequenceError | NakCode::InvalidRdRequest => {
                Notice::RequestError(self.qpn)
            }
            NakCode::RemoteAccess => Notice::AccessError(self.qpn),
            NakCode::RemoteOperational => Notice::Fatal(self.qpn),
        });
        self.enter_error(cx);
    }

    pub(super) fn drop_packet<S: Sink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        reason: DropReason,
    ) {
        cx.stats.packets_dropped += 1;
        cx.event(|| Event::Dropped { qpn: self.qpn, psn: packet.header.psn, reason });
    }
}

/// The longest message (vol. 1, 9.7.4.1.6): 2³¹ bytes.
const MAX_LENGTH: u32 = 1 << 31;
