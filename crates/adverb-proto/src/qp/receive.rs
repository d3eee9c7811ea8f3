//! What SEND and WRITE do at the responder of a connection, packet by packet (vol. 1, 9.7.4 and 9.8.2; `rxe_resp.c`), and
//! the receive requests that messages use up.

use adverb_wire::{NakCode, Reth, Send, Write};

use super::recv_queue::RecvEntry;
use super::responder::{BROKEN, Current, DENIED, INVALID, MAX_LENGTH, Refusal, Writing};
use super::{Context, QueuePair, Received};
use crate::event::QueueEvent;
use crate::memory::{Memory, Range};
use crate::mutation::mutant;
use crate::srq::{SharedQueue, Srq, Taken};
use crate::trace::{EventSink, Queue, TraceEvent};
use crate::types::{Access, CompletedOperation, Failure, Status, Success};

/// Where in its message a packet says that it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) first: bool,
    pub(super) last: bool,
}

/// What the end of a SEND brings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tail {
    pub(super) immediate: Option<u32>,
    pub(super) invalidate: Option<u32>,
}

impl QueuePair {
    /// A packet of a SEND.
    pub(super) fn execute_send_packet<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        send: Send,
        memory: &mut impl Memory,
    ) -> Result<(), Refusal> {
        let (place, immediate) = match send {
            Send::First => (Place { first: true, last: false }, None),
            Send::Middle => (Place { first: false, last: false }, None),
            Send::Last(immediate) => (Place { first: false, last: true }, immediate),
            Send::Only(immediate) => (Place { first: true, last: true }, immediate),
        };
        let tail = Tail { immediate, invalidate: None };
        self.execute_send(cx, packet, place, tail, memory)
    }

    /// A packet of a WRITE.
    pub(super) fn execute_write_packet<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        write: Write,
        memory: &mut impl Memory,
    ) -> Result<(), Refusal> {
        let (place, reth, immediate) = match write {
            Write::First(reth) => (Place { first: true, last: false }, Some(reth), None),
            Write::Middle => (Place { first: false, last: false }, None, None),
            Write::Last(immediate) => (Place { first: false, last: true }, None, immediate),
            Write::Only(reth, immediate) => (Place { first: true, last: true }, Some(reth), immediate),
        };
        self.execute_write(cx, packet, place, reth, immediate, memory)
    }

    /// A packet's payload is as long as its place in the message says (vol. 1, 9.7.4; `rxe_resp.c`,
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

    pub(super) fn execute_send<S: EventSink>(
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
        let entry = self.front_receive(cx).ok_or(Refusal::NotReady)?;
        // From here on the receive request is in use, and shares the message's fate.
        self.responder.current = Current::Send { received };
        if u64::from(received) + payload.len() as u64 > entry.length {
            return Err(Refusal::Fatal(NakCode::InvalidRequest, Status::LocalLength));
        }
        let early = mutant!(CompleteBeforeData) && place.last;
        if !payload.is_empty() && !early {
            let (keys, pd) = (&*cx.keys, self.recv_pd);
            let segments = &self.recv_queue.segments;
            segments
                .scatter(entry.segments, received, payload, keys, pd, memory)
                .map_err(|why| Refusal::Fatal(NakCode::RemoteOperational, Status::from(why)))?;
        }
        let received = received + payload.len() as u32;
        self.responder.expected += 1;
        if !place.last {
            self.responder.current = Current::Send { received };
            return Ok(());
        }
        if let Some(key) = tail.invalidate
            && cx.keys.invalidate_remote(self.config.pd, self.qpn, key).is_err()
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
        // The last packet brings just what is left, and the others less (vol. 1, 9.7.4).
        if (place.last && length != writing.left) || (!place.last && length >= writing.left) {
            return Err(INVALID);
        }
        // The receive is looked for before any byte is placed: the packet may come again.
        if immediate.is_some() && self.front_receive(cx).is_none() {
            return Err(Refusal::NotReady);
        }
        // An empty WRITE touches nothing, so that its key means nothing (vol. 1, 9.7.4). The key of others is
        // looked up for each packet: it may have become invalid meanwhile.
        if writing.total != 0 || mutant!(CheckKeyOfZeroLength) {
            let whole = Range { addr: writing.va, length: writing.left, key: writing.rkey };
            let pd = self.config.pd;
            let checked = cx.keys.remote(pd, self.qpn, whole, Access::REMOTE_WRITE);
            #[cfg(feature = "mutants")]
            let checked = if mutant!(NoAccessRecheck) && !place.first {
                cx.keys.remote_even_if_gone(pd, self.qpn, whole, Access::REMOTE_WRITE)
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

    /// The receive request that the next message uses, or the one under way does.
    #[inline]
    pub(super) fn front_receive<S: EventSink>(&mut self, cx: &mut Context<'_, S>) -> Option<RecvEntry> {
        let front = self.recv_queue.front();
        match self.config.srq {
            Some(srq) if front.is_none() => self.take_shared(cx, srq),
            _ => front,
        }
    }

    /// Takes the oldest request of the shared queue: from now on it is this queue pair's (vol. 1, 10.2.9).
    fn take_shared<S: EventSink>(&mut self, cx: &mut Context<'_, S>, srq: Srq) -> Option<RecvEntry> {
        let queue = cx.srqs.get_mut(srq.0 as usize)?.as_mut()?;
        match queue.give_to(&mut self.recv_queue) {
            Taken::Nothing => return None,
            Taken::One => {}
            Taken::OneOfFew => {
                cx.event(|| TraceEvent::SrqLimit { srq });
                cx.queue_events.push_back(QueueEvent::SrqLimit(srq));
            }
        }
        self.recv_queue.front()
    }

    /// Gives back what was taken from a shared queue and isn't completed, because nobody will be told of it here.
    pub(crate) fn give_back(&mut self, queue: &mut SharedQueue) {
        queue.take_back(&mut self.recv_queue);
    }

    /// The receive request in use has failed.
    pub(super) fn fail_receive<S: EventSink>(&mut self, cx: &mut Context<'_, S>, status: Status) {
        if let Some(entry) = self.recv_queue.pop() {
            let failure = Failure { status, vendor_error: 0 };
            self.complete(cx, Queue::Recv, entry.number, entry.wr_id, Err(failure), false);
        }
    }
}
