//! The completer: turns the peer's responses into completions (vol. 1, 9.7.6; `rxe_comp.c`).

use adverb_wire::{Aeth, Credits, NakCode, Psn, Rc, ReadResponse, Syndrome};

use super::segments::SegmentError;
use super::{Context, QueuePair, Received};
use crate::memory::Memory;
use crate::mutation::mutant;
use crate::trace::{DropReason, EventSink, RetryCause, TraceEvent};
use crate::types::{Answer, QpState, Status, Transport};

/// An implied NAK: a response arrived, but an earlier response is missing.
struct ImpliedNak;

enum ResponseContent<'a> {
    /// Bytes of a READ, or the empty response to a FLUSH or an ATOMIC WRITE.
    Read { position: Position, payload: &'a [u8] },
    /// The value of the word before an atomic operation.
    Atomic(u64),
}

/// The position of a packet in a READ response, according to its opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Position {
    First,
    Middle,
    Last,
    Only,
}

impl QueuePair {
    /// Handles a response whose addresses and ICRC have been checked.
    pub(crate) fn handle_response<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        rc: &Rc,
        memory: &mut impl Memory,
    ) {
        if !matches!(self.state, QpState::ReadyToSend | QpState::SendQueueDrained) {
            return self.drop_packet(cx, packet, DropReason::WrongState);
        }
        let psn = packet.header.psn;
        let payload = packet.payload;
        match rc {
            Rc::Acknowledge(aeth) => self.handle_acknowledge(cx, packet, psn, *aeth),
            Rc::ReadResponse(response) => {
                let (position, aeth) = match *response {
                    ReadResponse::First(aeth) => (Position::First, Some(aeth)),
                    ReadResponse::Middle => (Position::Middle, None),
                    ReadResponse::Last(aeth) => (Position::Last, Some(aeth)),
                    ReadResponse::Only(aeth) => (Position::Only, Some(aeth)),
                };
                self.handle_content(
                    cx,
                    packet,
                    psn,
                    aeth,
                    ResponseContent::Read { position, payload },
                    memory,
                );
            }
            Rc::AtomicAcknowledge(aeth, value) => {
                self.handle_content(cx, packet, psn, Some(*aeth), ResponseContent::Atomic(*value), memory);
            }
            // The responder handles requests.
            _ => {}
        }
        self.report_if_drained(cx);
    }

    /// Handles an acknowledgement or a NAK (vol. 1, 9.7.5).
    fn handle_acknowledge<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        psn: Psn,
        aeth: Aeth,
    ) {
        if !self.requester.messages.is_plausible(aeth.msn) {
            return self.drop_mismatched(cx, packet);
        }
        if !self.requester.window.is_in_flight(psn) {
            // The latest acknowledgement may be repeated to carry new credits (vol. 1, 9.7.7: unsolicited
            // acknowledgements).
            if let Syndrome::Ack(credits) = aeth.syndrome
                && psn + 1 == self.requester.window.unacked()
                && self.config.credits
            {
                return self.update_credits(credits, aeth.msn);
            }
            return self.drop_packet(cx, packet, DropReason::StaleResponse);
        }
        if let Syndrome::Nak(_) | Syndrome::RnrNak(_) = aeth.syndrome {
            cx.event(|| TraceEvent::NakReceived { qpn: self.qpn, psn, syndrome: aeth.syndrome });
        }
        match aeth.syndrome {
            Syndrome::Ack(credits) => {
                self.update_credits(credits, aeth.msn);
                if self.acknowledge(cx, psn).is_err() {
                    self.handle_implied_nak(cx);
                }
            }
            Syndrome::RnrNak(_) if mutant!(RnrNakIsAck) => {
                let _ = self.acknowledge(cx, psn);
            }
            Syndrome::RnrNak(timer) => {
                cx.stats.rnr_naks_received += 1;
                match self.acknowledge_before(cx, psn) {
                    Ok(()) => self.start_rnr_backoff(cx, timer.duration()),
                    Err(ImpliedNak) => self.handle_implied_nak(cx),
                }
            }
            Syndrome::Nak(NakCode::SequenceError) => {
                cx.stats.sequence_naks_received += 1;
                match self.acknowledge_before(cx, psn) {
                    Ok(()) => self.retry(cx, RetryCause::SequenceNak),
                    Err(ImpliedNak) => self.handle_implied_nak(cx),
                }
            }
            Syndrome::Nak(code) => {
                cx.stats.fatal_naks_received += 1;
                // The statuses are those of vol. 1, 9.7.5.
                let status = match code {
                    NakCode::InvalidRequest => Status::RemoteInvalidRequest,
                    NakCode::RemoteAccess => Status::RemoteAccess,
                    NakCode::RemoteOperational => Status::RemoteOperation,
                    NakCode::InvalidRdRequest => Status::RemoteInvalidRdRequest,
                    NakCode::SequenceError => unreachable!("matched above"),
                };
                match self.acknowledge_before(cx, psn) {
                    Ok(()) => self.fail_front(cx, status),
                    // The peer won't respond anymore; the request fails when its retries are exceeded.
                    Err(ImpliedNak) => self.handle_implied_nak(cx),
                }
            }
            Syndrome::Reserved(_) => self.drop_packet(cx, packet, DropReason::ReservedSyndrome),
        }
    }

    /// Handles a response to a READ, an atomic, a FLUSH or an ATOMIC WRITE (vol. 1, 9.7.5 and 9.7.6).
    fn handle_content<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: Received<'_>,
        psn: Psn,
        aeth: Option<Aeth>,
        content: ResponseContent<'_>,
        memory: &mut impl Memory,
    ) {
        if !self.requester.window.is_in_flight(psn) {
            return self.drop_packet(cx, packet, DropReason::StaleResponse);
        }
        if !self.matches_request(psn, &content)
            || aeth.is_some_and(|aeth| !self.requester.messages.is_plausible(aeth.msn))
        {
            return self.drop_mismatched(cx, packet);
        }
        // A response acknowledges all earlier packets (vol. 1, 9.7.5). A MIDDLE response has no message sequence
        // number, so it is too easily forged for that: it is accepted only if all earlier packets are acknowledged.
        if aeth.is_none() && psn != self.requester.window.unacked() {
            return self.handle_implied_nak(cx);
        }
        if self.acknowledge_before(cx, psn).is_err() {
            return self.handle_implied_nak(cx);
        }
        match aeth.map(|aeth| (aeth.syndrome, aeth.msn)) {
            None => {}
            Some((Syndrome::Ack(credits), msn)) => self.update_credits(credits, msn),
            // A response must not carry a NAK (vol. 1, 9.7.6).
            Some(_) => return self.fail_front(cx, Status::BadResponse),
        }
        match content {
            ResponseContent::Read { position, payload } => {
                self.handle_read_response(cx, position, payload, memory);
            }
            ResponseContent::Atomic(value) => self.handle_atomic_response(cx, value, memory),
        }
    }

    /// Whether the outstanding request with this sequence number expects a response of this kind.
    fn matches_request(&self, psn: Psn, content: &ResponseContent<'_>) -> bool {
        let mut started =
            (0..).map_while(|index| self.send_queue.get(index)).take_while(|entry| entry.is_started());
        let entry = started.find(|entry| psn.since(entry.last_psn()) <= 0);
        entry.is_some_and(|entry| match entry.operation.answer() {
            Answer::Atomic => matches!(content, ResponseContent::Atomic(_)),
            Answer::Read | Answer::EmptyRead => matches!(content, ResponseContent::Read { .. }),
            Answer::None | Answer::Acknowledgement => false,
        })
    }

    /// Drops a response that doesn't match the outstanding requests. If the peer sends only such responses, the
    /// acknowledgement timeout expires, as if they were lost.
    fn drop_mismatched<S: EventSink>(&mut self, cx: &mut Context<'_, S>, packet: Received<'_>) {
        cx.stats.mismatched_responses += 1;
        self.drop_packet(cx, packet, DropReason::MismatchedResponse);
    }

    /// Writes the bytes of a READ response to the segments of the request at the front of the send queue. FLUSH and
    /// ATOMIC WRITE have an empty response.
    fn handle_read_response<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        position: Position,
        payload: &[u8],
        memory: &mut impl Memory,
    ) {
        let mtu = self.mtu;
        let Some(entry) = self.send_queue.front().copied() else { return };
        let expected = match entry.operation.answer() {
            Answer::Read => {
                (entry.length - (entry.received_packets * mtu).min(entry.length)).min(mtu) as usize
            }
            Answer::EmptyRead => 0,
            Answer::None | Answer::Acknowledgement | Answer::Atomic => {
                return self.fail_front(cx, Status::BadResponse);
            }
        };
        let last = entry.received_packets + 1 == entry.packets;
        // Each part of a READ has a response of its own.
        let part = self.requester.responses.read_part();
        let ends_part = last || (entry.received_packets + 1).is_multiple_of(part);
        let begins_part = entry.received_packets.is_multiple_of(part);
        // After a restart within the response, some peers start with FIRST or ONLY, because the restarted request is a
        // request of its own. Other peers continue with MIDDLE or LAST (vol. 1, 9.7.5; `rxe_resp.c`, `read_reply`).
        let fits = match position {
            Position::First => !ends_part,
            Position::Middle => !ends_part && !begins_part,
            Position::Last => ends_part && !begins_part,
            Position::Only => ends_part,
        };
        if !fits || payload.len() != expected {
            return self.fail_front(cx, Status::BadResponse);
        }
        if !payload.is_empty() {
            let (keys, pd) = (&*cx.keys, self.config.pd);
            let offset = entry.received_packets * mtu;
            let scattered =
                self.send_queue.segments.scatter(entry.segments, offset, payload, keys, pd, memory);
            if let Err(error) = scattered {
                return self.fail_scatter(cx, error);
            }
        }
        self.requester.responses.record_packet();
        if ends_part && !last {
            self.requester.responses.record_part();
        }
        if last {
            self.complete_front(cx);
        } else if let Some(entry) = self.send_queue.front_mut() {
            entry.received_packets += 1;
            let window = &mut self.requester.window;
            window.acknowledge_before(window.unacked() + 1);
            // The cursor needs no update, because it skips the received packets.
        }
        self.requester.progress(cx.now);
        cx.event(|| TraceEvent::Acknowledged { qpn: self.qpn, psn: self.requester.window.unacked() });
    }

    fn handle_atomic_response<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        value: u64,
        memory: &mut impl Memory,
    ) {
        let Some(entry) = self.send_queue.front().copied() else { return };
        if entry.operation.answer() != Answer::Atomic {
            return self.fail_front(cx, Status::BadResponse);
        }
        let (keys, pd) = (&*cx.keys, self.config.pd);
        let bytes = value.to_ne_bytes();
        if let Err(error) = self.send_queue.segments.scatter(entry.segments, 0, &bytes, keys, pd, memory) {
            return self.fail_scatter(cx, error);
        }
        self.requester.responses.record_packet();
        self.complete_front(cx);
        self.requester.progress(cx.now);
        cx.event(|| TraceEvent::Acknowledged { qpn: self.qpn, psn: self.requester.window.unacked() });
    }

    fn fail_scatter<S: EventSink>(&mut self, cx: &mut Context<'_, S>, error: SegmentError) {
        let status = match error {
            SegmentError::Denied => Status::LocalProtection,
            SegmentError::TooLong => Status::LocalLength,
            SegmentError::Fault => Status::LocalQpOperation,
        };
        self.fail_front(cx, status);
    }

    /// Acknowledges all packets before `psn`, which is in flight.
    fn acknowledge_before<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        psn: Psn,
    ) -> Result<(), ImpliedNak> {
        if psn == self.requester.window.unacked() { Ok(()) } else { self.acknowledge(cx, psn - 1) }
    }

    /// Acknowledges all packets up to `psn`, which is in flight, because acknowledgements are cumulative (vol. 1,
    /// 9.7.5). Returns an error if a response is missing, whose request must be retransmitted.
    fn acknowledge<S: EventSink>(&mut self, cx: &mut Context<'_, S>, psn: Psn) -> Result<(), ImpliedNak> {
        let before = self.requester.window.unacked();
        let mut outcome = Ok(());
        while let Some(entry) = self.send_queue.front() {
            if !entry.is_started() || self.requester.window.unacked().since(psn) > 0 {
                break;
            }
            let is_nak_implied = entry.needs_response() && !mutant!(IgnoreImpliedNak);
            if is_nak_implied {
                outcome = Err(ImpliedNak);
                break;
            }
            let is_complete = psn.since(entry.last_psn()) >= 0 || mutant!(FirstPacketCompletesMessage);
            if is_complete {
                self.complete_front(cx);
            } else {
                let unacked = psn + 1;
                self.requester.window.acknowledge_before(unacked);
                self.requester.cursor.skip_acknowledged(unacked.since(entry.first_psn).unsigned_abs());
            }
        }
        if self.requester.window.unacked() != before {
            self.requester.progress(cx.now);
            cx.event(|| TraceEvent::Acknowledged { qpn: self.qpn, psn: self.requester.window.unacked() });
        }
        outcome
    }

    fn handle_implied_nak<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        cx.stats.implied_naks += 1;
        self.retry(cx, RetryCause::ImpliedNak);
    }

    /// Updates the credit limit: the number of messages that the peer has completed, plus the credits (vol. 1, 9.7.7).
    /// Queue pairs without credits ignore it.
    #[inline]
    fn update_credits(&mut self, credits: Credits, msn: u32) {
        if self.config.credits {
            let limit = credits.count().map(|count| Psn::wrapping(msn) + count);
            self.requester.messages.set_credit_limit(limit);
        }
    }

    /// Completes the request at the front of the send queue.
    #[inline]
    pub(super) fn complete_front<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        if let Some(entry) = self.pop_front() {
            self.complete_send(cx, &entry, Ok(()));
        }
    }

    /// Fails the request at the front of the send queue. A reliable connection moves to the error state; on other
    /// transports, only the send queue fails.
    pub(super) fn fail_front<S: EventSink>(&mut self, cx: &mut Context<'_, S>, status: Status) {
        if let Some(entry) = self.pop_front() {
            self.complete_send(cx, &entry, Err(status));
        }
        match self.config.transport {
            Transport::Rc => self.fail(cx),
            Transport::Uc | Transport::Ud => self.enter_send_queue_error(cx),
        }
    }

    #[inline]
    fn pop_front(&mut self) -> Option<super::SendEntry> {
        let entry = self.send_queue.pop()?;
        self.requester.remove_front(&entry);
        Some(entry)
    }
}
