//! Execution of the packets of SENDs and WRITEs at the responder of a connection (vol. 1, 9.7.4 and 9.8.2;
//! `rxe_resp.c`), and the receive requests that messages consume.

use adverb_wire::{NakCode, Reth, Send, Write};

use super::recv_queue::RecvEntry;
use super::responder::{
    ACCESS_DENIED, CurrentMessage, CurrentWrite, INVALID_REQUEST, MAX_MESSAGE_SIZE, MEMORY_FAULT,
    RequestError,
};
use super::{Context, QueuePair, Received};
use crate::event::QueueEvent;
use crate::memory::{Memory, Range};
use crate::mutation::mutant;
use crate::srq::{MovedFront, SharedQueue, Srq};
use crate::trace::{EventSink, Queue, TraceEvent};
use crate::types::{Access, CompletedOperation, Failure, Status, Success};

/// The position of a packet in its message, according to its opcode.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketPosition {
    pub(super) first: bool,
    pub(super) last: bool,
}

/// The immediate data and the key to invalidate, which the last packet of a SEND may carry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SendEnd {
    pub(super) immediate: Option<u32>,
    pub(super) invalidate: Option<u32>,
}

impl QueuePair {
    pub(super) fn execute_send_packet<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        send: Send,
        memory: &mut impl Memory,
    ) -> Result<(), RequestError> {
        let (position, immediate) = match send {
            Send::First => (PacketPosition { first: true, last: false }, None),
            Send::Middle => (PacketPosition { first: false, last: false }, None),
            Send::Last(immediate) => (PacketPosition { first: false, last: true }, immediate),
            Send::Only(immediate) => (PacketPosition { first: true, last: true }, immediate),
        };
        let end = SendEnd { immediate, invalidate: None };
        self.execute_send(cx, packet, position, end, memory)
    }

    pub(super) fn execute_write_packet<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        write: Write,
        memory: &mut impl Memory,
    ) -> Result<(), RequestError> {
        let (position, reth, immediate) = match write {
            Write::First(reth) => (PacketPosition { first: true, last: false }, Some(reth), None),
            Write::Middle => (PacketPosition { first: false, last: false }, None, None),
            Write::Last(immediate) => (PacketPosition { first: false, last: true }, None, immediate),
            Write::Only(reth, immediate) => {
                (PacketPosition { first: true, last: true }, Some(reth), immediate)
            }
        };
        self.execute_write(cx, packet, position, reth, immediate, memory)
    }

    /// Checks that the payload length matches the position (vol. 1, 9.7.4; `rxe_resp.c`, `check_length`): FIRST and
    /// MIDDLE fill the path MTU, LAST is not empty, ONLY may be empty.
    fn check_payload_len(&self, position: PacketPosition, payload_len: usize) -> Result<(), RequestError> {
        let mtu = self.mtu as usize;
        let fits = match (position.first, position.last) {
            (_, false) => payload_len == mtu,
            (false, true) => (1..=mtu).contains(&payload_len),
            (true, true) => payload_len <= mtu,
        };
        if fits { Ok(()) } else { Err(INVALID_REQUEST) }
    }

    pub(super) fn execute_send<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        position: PacketPosition,
        end: SendEnd,
        memory: &mut impl Memory,
    ) -> Result<(), RequestError> {
        let received = match (position.first, self.responder.current) {
            (true, CurrentMessage::None) => 0,
            (false, CurrentMessage::Send { received }) => received,
            _ => return Err(INVALID_REQUEST),
        };
        let payload = packet.payload;
        self.check_payload_len(position, payload.len())?;
        let entry = self.front_receive(cx).ok_or(RequestError::Rnr)?;
        // From here on the message uses the receive request, which fails if the message fails. Unreliable connections
        // drop an invalid message instead, and keep the request.
        self.responder.current = CurrentMessage::Send { received };
        if u64::from(received) + payload.len() as u64 > entry.length {
            return Err(RequestError::Fatal(NakCode::InvalidRequest, Status::LocalLength));
        }
        let early = mutant!(CompleteBeforeData) && position.last;
        if !payload.is_empty() && !early {
            let (keys, pd) = (&*cx.keys, self.recv_pd);
            let segments = &self.recv_queue.segments;
            segments
                .scatter(entry.segments, received, payload, keys, pd, memory)
                .map_err(|error| RequestError::Fatal(NakCode::RemoteOperational, Status::from(error)))?;
        }
        let received = received + payload.len() as u32;
        self.responder.expected += 1;
        if !position.last {
            self.responder.current = CurrentMessage::Send { received };
            return Ok(());
        }
        if let Some(key) = end.invalidate
            && cx.keys.invalidate_remote(self.config.pd, self.qpn, key).is_err()
        {
            // The NAK carries this packet's sequence number, because the packet wasn't executed completely.
            self.responder.expected = self.responder.expected - 1;
            return Err(RequestError::Fatal(NakCode::RemoteAccess, Status::RemoteInvalidRequest));
        }
        self.responder.current = CurrentMessage::None;
        self.responder.msn += 1;
        let operation = CompletedOperation::Recv {
            immediate: end.immediate,
            invalidated: end.invalidate,
            source: None,
            has_grh: false,
        };
        self.complete_recv(cx, Success { operation, length: received }, packet.header.solicited);
        Ok(())
    }

    pub(super) fn complete_recv<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        success: Success,
        solicited: bool,
    ) {
        if let Some(entry) = self.recv_queue.pop() {
            self.complete(cx, Queue::Recv, entry.number, entry.wr_id, Ok(success), solicited);
        }
    }

    fn execute_write<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        position: PacketPosition,
        reth: Option<Reth>,
        immediate: Option<u32>,
        memory: &mut impl Memory,
    ) -> Result<(), RequestError> {
        let mut write = match (reth, self.responder.current) {
            (Some(reth), CurrentMessage::None) => {
                CurrentWrite { va: reth.va, rkey: reth.rkey, left: reth.length, total: reth.length }
            }
            (None, CurrentMessage::Write(write)) => write,
            _ => return Err(INVALID_REQUEST),
        };
        self.check_access(Access::REMOTE_WRITE)?;
        let payload = packet.payload;
        let length = payload.len() as u32;
        self.check_payload_len(position, payload.len())?;
        if write.total > MAX_MESSAGE_SIZE {
            return Err(INVALID_REQUEST);
        }
        // The last packet has exactly the remaining bytes, and other packets have fewer (vol. 1, 9.7.4).
        if (position.last && length != write.left) || (!position.last && length >= write.left) {
            return Err(INVALID_REQUEST);
        }
        // The receive is looked up before any byte is written, because the peer retransmits the packet after an RNR
        // NAK.
        if immediate.is_some() && self.front_receive(cx).is_none() {
            return Err(RequestError::Rnr);
        }
        // An empty WRITE accesses no memory, so its key is not checked (vol. 1, 9.7.4). Other keys are looked up for
        // each packet, because they may have become invalid.
        let needs_key = write.total != 0 || mutant!(CheckKeyOfZeroLength);
        if needs_key {
            let whole = Range { addr: write.va, length: write.left, key: write.rkey };
            let pd = self.config.pd;
            let checked = cx.keys.remote(pd, self.qpn, whole, Access::REMOTE_WRITE);
            #[cfg(feature = "mutants")]
            let checked = if mutant!(NoAccessRecheck) && !position.first {
                cx.keys.remote_ignoring_deregistration(pd, self.qpn, whole, Access::REMOTE_WRITE)
            } else {
                checked
            };
            let mut span = checked.map_err(|_| ACCESS_DENIED)?;
            span.length = length;
            span.offset += u64::from(mutant!(LastPacketMisplaced) && position.last && !position.first);
            if length > 0 {
                memory.write(span, payload).map_err(|_| MEMORY_FAULT)?;
            }
        }
        write.va = write.va.wrapping_add(u64::from(length));
        write.left -= length;
        self.responder.expected += 1;
        if !position.last {
            self.responder.current = CurrentMessage::Write(write);
            return Ok(());
        }
        self.responder.current = CurrentMessage::None;
        self.responder.msn += 1;
        if let Some(immediate) = immediate {
            let operation = CompletedOperation::RecvWrite { immediate };
            let success = Success { operation, length: write.total };
            self.complete_recv(cx, success, packet.header.solicited);
        }
        Ok(())
    }

    /// Returns the receive request of the current message, or of the next one.
    #[inline]
    pub(super) fn front_receive<S: EventSink>(&mut self, cx: &mut Context<'_, S>) -> Option<RecvEntry> {
        let front = self.recv_queue.front();
        match self.config.srq {
            Some(srq) if front.is_none() => self.take_from_srq(cx, srq),
            _ => front,
        }
    }

    /// Takes the oldest request of the shared queue, which then belongs to this queue pair (vol. 1, 10.2.9).
    fn take_from_srq<S: EventSink>(&mut self, cx: &mut Context<'_, S>, srq: Srq) -> Option<RecvEntry> {
        let queue = cx.srqs.get_mut(srq.0 as usize)?.as_mut()?;
        match queue.move_front_to(&mut self.recv_queue) {
            MovedFront::Nothing => return None,
            MovedFront::One => {}
            MovedFront::BelowLimit => {
                cx.event(|| TraceEvent::SrqLimit { srq });
                cx.queue_events.push_back(QueueEvent::SrqLimit(srq));
            }
        }
        self.recv_queue.front()
    }

    /// Returns the request in use to the shared queue, because this queue pair will not complete it.
    pub(crate) fn return_to_srq(&mut self, queue: &mut SharedQueue) {
        queue.return_front_of(&mut self.recv_queue);
    }

    /// Fails the receive request in use.
    pub(super) fn fail_receive<S: EventSink>(&mut self, cx: &mut Context<'_, S>, status: Status) {
        if let Some(entry) = self.recv_queue.pop() {
            let failure = Failure { status, vendor_error: 0 };
            self.complete(cx, Queue::Recv, entry.number, entry.wr_id, Err(failure), false);
        }
    }
}
