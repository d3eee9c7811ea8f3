//! The requester: turns send requests into packets (vol. 1, 9.7.3; `rxe_req.c`).

use core::time::Duration;

use adverb_wire::{CompareSwap, FetchAdd, Flush, Header, Operation, Psn, Rc, Reth, Send, Write};

use super::segments::SegmentError;
use super::send_queue::{LocalFailure, SendEntry, SendQueue};
use super::{Context, MAX_UNACKED, QueuePair, ReadyToSend, TxPacket, TxPayload};
use crate::Time;
use crate::mutation::mutant;
use crate::trace::{EventSink, RetryCause, TimerKind, TraceEvent};
use crate::types::{QpState, SendFlags, SendOperation, Status};

/// The state of a requester. The front of the send queue is always the oldest unacknowledged request, so a
/// retransmission starts there.
#[derive(Debug, Default)]
pub(super) struct Requester {
    /// The oldest unacknowledged sequence number.
    pub(super) unacked: Psn,
    /// The first sequence number that was never sent.
    pub(super) unsent: Psn,
    /// The index in the send queue of the request to send next.
    pub(super) cursor: usize,
    /// The next packet of that request.
    pub(super) packet: u32,
    /// The number of outstanding READs (or parts of READs), atomics, FLUSHes and ATOMIC WRITEs.
    pub(super) reads: u32,
    max_reads: u32,
    /// The number of response packets to these outstanding requests that were not received yet.
    pub(super) response_packets: u32,
    /// The number of packets in a part of a READ.
    pub(super) read_part: u32,
    /// The number of the next message (vol. 1, 9.7.7: send sequence number).
    next_ssn: Psn,
    /// The number of messages of the requests that were removed from the send queue.
    pub(super) completed: Psn,
    /// The last message for which the peer has a receive, or `None` if this queue pair does not use credits or the
    /// peer sends none.
    pub(super) credit_limit: Option<Psn>,
    /// The number of packets since the last acknowledgement request.
    since_ack_request: u32,
    /// The number of requests of the current batch that are not started: they are not held back.
    batch_left: u32,
    /// Whether the request that was started last is short.
    is_short: bool,
    timeout: Option<Duration>,
    retry_count: u8,
    rnr_retry: u8,
    retries_left: u8,
    rnr_retries_left: u8,
    /// The end of the RNR backoff, during which no request is sent.
    pub(super) rnr_until: Option<Time>,
    /// The time at which the acknowledgement timeout expires.
    pub(super) ack_deadline: Option<Time>,
    /// Whether a NAK caused a retransmission, and no packet has been acknowledged since. Further NAKs for the same
    /// packet are caused by the same loss.
    pub(super) recovering: bool,
    /// Whether the event of the drained send queue was generated.
    pub(super) drained: bool,
    /// Whether the requester may send.
    pub(super) running: bool,
    /// Whether the last packet of the oldest request was polled, on a transport without acknowledgements.
    pub(super) last_packet_polled: bool,
}

/// The maximum number of packets between acknowledgement requests, so that a long message is acknowledged before its
/// end.
const ACK_REQUEST_INTERVAL: u32 = 32;

impl Requester {
    pub(super) fn start(&mut self, ready_to_send: &ReadyToSend, credits: bool, read_part: u32) {
        *self = Requester {
            read_part,
            unacked: ready_to_send.psn,
            unsent: ready_to_send.psn,
            max_reads: u32::from(ready_to_send.max_rd_atomic),
            next_ssn: Psn::ZERO + 1,
            credit_limit: credits.then_some(Psn::ZERO),
            // Code 0 means no timeout (vol. 1, 9.7.6).
            timeout: (ready_to_send.timeout.code() != 0).then(|| ready_to_send.timeout.duration()),
            retry_count: ready_to_send.retry_count,
            rnr_retry: ready_to_send.rnr_retry,
            retries_left: ready_to_send.retry_count,
            rnr_retries_left: ready_to_send.rnr_retry,
            running: true,
            ..Requester::default()
        };
    }

    pub(super) fn stop(&mut self) {
        self.running = false;
        self.rnr_until = None;
        self.ack_deadline = None;
        self.reads = 0;
        self.response_packets = 0;
        self.cursor = 0;
        self.packet = 0;
        self.last_packet_polled = false;
    }

    #[inline]
    pub(super) fn deadline(&self) -> Option<Time> {
        self.rnr_until.or(self.ack_deadline)
    }

    #[inline]
    pub(super) fn has_requests(&self, queue: &SendQueue) -> bool {
        self.running && self.rnr_until.is_none() && self.cursor < queue.len()
    }

    /// Whether the oldest unacknowledged packet is the next one to send.
    pub(super) fn is_oldest_packet_next(&self, queue: &SendQueue) -> bool {
        self.cursor == 0
            && queue.front().is_some_and(|entry| {
                entry.is_started() && entry.first_psn + self.next_packet(entry) == self.unacked
            })
    }

    /// Returns the next packet of the request at the cursor. Received packets of a READ response are not requested
    /// again.
    #[inline]
    fn next_packet(&self, entry: &SendEntry) -> u32 {
        if entry.needs_response() { self.packet.max(entry.received_packets) } else { self.packet }
    }

    /// Returns the number of packets of the next part of a READ, starting with `packet`, or 1 for another operation. A
    /// retransmitted part has the same end as before, because the peer knows only the parts that were requested
    /// (`rxe_resp.c`, `duplicate_request`).
    #[inline]
    fn part_len(&self, entry: &SendEntry, packet: u32, packets: u32) -> u32 {
        match entry.operation {
            SendOperation::Read(_) => (self.read_part - packet % self.read_part).min(packets - packet),
            _ => 1,
        }
    }

    pub(super) const fn next_psn(&self) -> Psn {
        self.unsent
    }

    /// Whether this sequence number was sent and is not acknowledged.
    #[inline]
    pub(super) fn is_in_flight(&self, psn: Psn) -> bool {
        if mutant!(PsnWithoutWrap) {
            return self.unacked.get() <= psn.get() && psn.get() < self.unsent.get();
        }
        psn.since(self.unacked) >= 0 && psn.since(self.unsent) < 0
    }

    /// Whether the peer can have completed this number of messages: at least those of the requests that were removed
    /// from the send queue, and at most those that were started. A peer counts a message when it has executed it (vol.
    /// 1, 9.7.7), and a READ when it accepts the request (C9-148; `execute` in `rxe_resp.c`). It doesn't count a
    /// duplicate request again.
    #[inline]
    pub(super) fn is_plausible(&self, msn: u32) -> bool {
        let msn = Psn::wrapping(msn);
        msn.since(self.completed) >= 0 && msn.since(self.next_ssn) < 0
    }

    /// Restarts the acknowledgement timer, or stops it if no packet is outstanding (vol. 1, 9.7.6).
    #[inline]
    pub(super) fn restart_timer(&mut self, now: Time) {
        let is_outstanding = self.unacked != self.unsent && !mutant!(TimerNotRearmed);
        self.ack_deadline = match self.timeout {
            Some(timeout) if is_outstanding => Some(now + timeout),
            _ => None,
        };
    }

    /// Handles progress after an acknowledgement: resets the retry counters (vol. 1, 9.7.6), and ends an RNR backoff.
    #[inline]
    pub(super) fn progress(&mut self, now: Time) {
        self.retries_left = self.retry_count;
        self.rnr_retries_left = self.rnr_retry;
        self.recovering = false;
        self.rnr_until = None;
        self.restart_timer(now);
    }
}

impl QueuePair {
    /// Returns the next request packet, if one may be sent now.
    #[inline]
    pub(super) fn next_request<S: EventSink>(&mut self, cx: &mut Context<'_, S>) -> Option<TxPacket> {
        if !self.requester.running || self.requester.rnr_until.is_some() {
            return None;
        }
        loop {
            let cursor = self.requester.cursor;
            let entry = self.send_queue.get(cursor)?;
            if let Some(failure) = entry.failed {
                // The request fails after the earlier ones complete, because completions are in order.
                if cursor == 0 {
                    self.fail_front(cx, failure.into());
                }
                return None;
            }
            if !entry.is_started() {
                if self.state != QpState::ReadyToSend {
                    return None;
                }
                if entry.is_local() {
                    // A retransmission of earlier requests may still need the key.
                    if cursor != 0 || !self.execute_local(cx) {
                        return None;
                    }
                    continue;
                }
                if !self.may_start(entry) {
                    return None;
                }
            }
            if !self.fits_window(entry) || !entry.is_started() && self.is_coalescing(cursor) {
                return None;
            }
            return self.emit_request(cx, cursor);
        }
    }

    /// Executes the local request at the front of the send queue. Returns whether it succeeded.
    pub(super) fn execute_local<S: EventSink>(&mut self, cx: &mut Context<'_, S>) -> bool {
        let Some(entry) = self.send_queue.front() else { return false };
        let done = match entry.operation {
            SendOperation::LocalInvalidate(key) => {
                let invalidated = cx.keys.invalidate_local(self.config.pd, self.qpn, key);
                invalidated.map_err(|_| Status::LocalQpOperation)
            }
            SendOperation::BindWindow(bind) => {
                cx.keys.bind(self.config.pd, self.qpn, &bind).map_err(|_| Status::WindowBind)
            }
            _ => Ok(()),
        };
        match done {
            Ok(()) => self.complete_front(cx),
            Err(status) => self.fail_front(cx, status),
        }
        done.is_ok()
    }

    /// Whether a request may be started.
    #[inline]
    fn may_start(&self, entry: &SendEntry) -> bool {
        let requester = &self.requester;
        // A fenced request waits for earlier READs and atomics (vol. 1, 10.8.3).
        let is_fenced = entry.has(SendFlags::FENCE) && !mutant!(IgnoreFence);
        if is_fenced && requester.reads > 0 {
            return false;
        }
        // The peer saves this number of responses for retransmissions (vol. 1, 9.7.3; `rxe_req.c`,
        // `check_init_depth`).
        let is_limit_reached = requester.reads >= requester.max_reads && !mutant!(IgnoreReadLimit);
        if entry.needs_response() && is_limit_reached {
            return false;
        }
        // Without a credit, one message may be sent as a probe if no other request is outstanding (vol. 1, 9.7.7).
        if let Some(limit) = requester.credit_limit {
            let has_credit = requester.next_ssn.since(limit) <= 0;
            if entry.consumes_receive() && !has_credit && requester.cursor != 0 {
                return false;
            }
        }
        true
    }

    /// Whether the next request is held back to be coalesced with others. If it isn't, the request counts as started.
    /// The acknowledgement of the outstanding requests ends the wait.
    #[inline]
    fn is_coalescing(&mut self, cursor: usize) -> bool {
        let (queue, requester, limit) =
            (&self.send_queue, &mut self.requester, self.config.coalesce_limit as usize);
        let is_short = |entry: &SendEntry| entry.length < self.mtu && !entry.needs_response();
        let next_is_short = queue.get(cursor).is_some_and(is_short);
        let are_short = requester.is_short && next_is_short && queue.back().is_some_and(is_short);
        let waiting = queue.len() - cursor;
        let are_enough = cursor < limit.div_ceil(2) || waiting >= limit.min(cursor);
        // Without a timer, a lost acknowledgement would never be noticed.
        if are_enough || !are_short || requester.timeout.is_none() {
            requester.batch_left = waiting as u32;
        }
        if requester.batch_left == 0 {
            return true;
        }
        requester.batch_left -= 1;
        requester.is_short = next_is_short;
        false
    }

    /// Whether the next packet of this request fits into the window. Retransmitted packets always do.
    #[inline]
    fn fits_window(&self, entry: &SendEntry) -> bool {
        let requester = &self.requester;
        let next = requester.next_packet(entry);
        if entry.is_started() && entry.first_psn + next != requester.unsent {
            return true;
        }
        let unacked = requester.unsent.since(requester.unacked).unsigned_abs();
        let wanted = if entry.needs_response() {
            let part = requester.part_len(entry, next, packets(entry, self.mtu));
            // Up to two parts are outstanding, each in one of the peer's slots.
            let is_full = requester.response_packets.saturating_add(part) > 2 * requester.read_part;
            let has_no_slot = entry.is_started() && requester.reads >= requester.max_reads;
            if requester.response_packets > 0 && (is_full || has_no_slot) {
                return false;
            }
            part
        } else if entry.is_started() {
            1
        } else {
            packets(entry, self.mtu)
        };
        unacked == 0 || (unacked < self.config.window.max(1) && unacked.saturating_add(wanted) <= MAX_UNACKED)
    }

    /// Builds the packet at the cursor, and advances the cursor.
    #[inline(always)]
    fn emit_request<S: EventSink>(&mut self, cx: &mut Context<'_, S>, cursor: usize) -> Option<TxPacket> {
        let mtu = self.mtu;
        let requester = &mut self.requester;
        let entry = self.send_queue.get_mut(cursor)?;
        if !entry.is_started() {
            entry.packets = packets(entry, mtu);
            entry.first_psn = requester.unsent;
            requester.next_ssn += 1;
        }
        let entry = self.send_queue.get(cursor)?;
        let packet = requester.next_packet(entry);
        let psn = entry.first_psn + packet;
        let part = requester.part_len(entry, packet, entry.packets);
        if entry.needs_response() && psn == requester.unsent {
            requester.reads += 1;
            requester.response_packets += part;
            // Each part is a message to the peer.
            requester.next_ssn += u32::from(packet > 0);
        }
        let last = packet + part == entry.packets;
        let offset = packet * mtu;
        let length = (entry.length - offset).min(mtu);
        let reth = |remote: crate::types::RemoteAddress| Reth {
            va: remote.addr,
            rkey: remote.rkey,
            length: entry.length,
        };
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
        let payload = match entry.operation {
            SendOperation::AtomicWrite { bytes, .. } => TxPayload::Word(bytes),
            _ if entry.needs_response() => TxPayload::Spans,
            _ => match entry.segments.inline() {
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
                _ => length,
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
        let retransmitted = psn != requester.unsent;
        if last {
            requester.cursor += 1;
            requester.packet = 0;
        } else {
            requester.packet = next_packet;
        }
        if end_psn.since(requester.unsent) > 0 {
            requester.unsent = end_psn;
        }
        if retransmitted {
            cx.stats.retransmitted_packets += 1;
        }
        let starts_timer = requester.ack_deadline.is_none() && !mutant!(NeverStartRetransmitTimer);
        if starts_timer {
            requester.ack_deadline = requester.timeout.map(|timeout| cx.now + timeout);
        }
        requester.since_ack_request += 1;
        let window_ends = requester.unsent.since(requester.unacked).unsigned_abs() >= self.config.window;
        let ack_request =
            last || needs_response || window_ends || requester.since_ack_request >= ACK_REQUEST_INTERVAL;
        if ack_request {
            requester.since_ack_request = 0;
        }
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

    /// Handles an expired timer of the requester.
    pub(super) fn handle_requester_timeout<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        if let Some(until) = self.requester.rnr_until {
            if until <= cx.now {
                cx.event(|| TraceEvent::TimerExpired { qpn: self.qpn, timer: TimerKind::Rnr });
                self.requester.rnr_until = None;
                // The next packet restarts the acknowledgement timer.
                self.requester.ack_deadline = None;
            }
            return;
        }
        if self.requester.ack_deadline.is_some_and(|deadline| deadline <= cx.now) {
            cx.event(|| TraceEvent::TimerExpired { qpn: self.qpn, timer: TimerKind::AckTimeout });
            cx.stats.ack_timeouts += 1;
            self.retry(cx, RetryCause::Timeout);
        }
    }

    /// Retransmits from the oldest unacknowledged packet (vol. 1, 9.7.5 and 9.7.6: go back N), or fails the oldest
    /// request if no retry is left. NAKs during an RNR backoff or a retransmission are ignored.
    pub(super) fn retry<S: EventSink>(&mut self, cx: &mut Context<'_, S>, cause: RetryCause) {
        let requester = &mut self.requester;
        if cause != RetryCause::Timeout {
            // NAKs during an RNR backoff are for packets after the one that got the RNR NAK. NAKs during a
            // retransmission are for packets of the first transmission.
            if requester.rnr_until.is_some() || requester.recovering {
                return;
            }
            requester.recovering = true;
        } else {
            requester.recovering = false;
        }
        if requester.retries_left == 0 {
            cx.stats.retries_exceeded += 1;
            self.fail_front(cx, Status::RetryExceeded);
            return;
        }
        requester.retries_left -= 1;
        self.go_back(cx, cause);
        self.requester.restart_timer(cx.now);
    }

    /// Starts an RNR backoff: the peer has no receive for the oldest packet (vol. 1, 9.7.5).
    pub(super) fn start_rnr_backoff<S: EventSink>(&mut self, cx: &mut Context<'_, S>, wait: Duration) {
        let requester = &mut self.requester;
        if requester.rnr_until.is_some() {
            return;
        }
        if requester.rnr_retry != UNLIMITED_RNR_RETRY {
            if requester.rnr_retries_left == 0 {
                cx.stats.rnr_retries_exceeded += 1;
                self.fail_front(cx, Status::RnrRetryExceeded);
                return;
            }
            requester.rnr_retries_left -= 1;
        }
        requester.rnr_until = Some(cx.now + wait);
        requester.ack_deadline = None;
        self.go_back(cx, RetryCause::Rnr);
    }

    fn go_back<S: EventSink>(&mut self, cx: &mut Context<'_, S>, cause: RetryCause) {
        let requester = &mut self.requester;
        cx.event(|| TraceEvent::Retransmit { qpn: self.qpn, psn: requester.unacked, cause });
        requester.cursor = 0;
        requester.since_ack_request = 0;
        requester.packet = match self.send_queue.front() {
            Some(entry) if entry.is_started() && !entry.needs_response() => {
                requester.unacked.since(entry.first_psn).unsigned_abs()
            }
            _ => 0,
        };
        if mutant!(RetransmitSkipsOnePacket) {
            let more = self.send_queue.front().is_some_and(|entry| requester.packet + 1 < entry.packets);
            requester.packet += u32::from(more);
        }
    }
}

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

/// The value of `rnr_retry` that means no limit (vol. 1, 9.7.5).
const UNLIMITED_RNR_RETRY: u8 = 7;

/// Returns the number of sequence numbers of a request: at least one, even if the request is empty (vol. 1, 9.7.3).
#[inline]
pub(super) fn packets(entry: &SendEntry, mtu: u32) -> u32 {
    match entry.operation {
        SendOperation::CompareSwap { .. }
        | SendOperation::FetchAdd { .. }
        | SendOperation::AtomicWrite { .. }
        | SendOperation::Flush(_) => 1,
        // Most messages are short, and this avoids a division.
        _ if entry.length <= mtu => 1,
        _ => entry.length.div_ceil(mtu),
    }
}

/// Returns the operation of a SEND packet (vol. 1, 9.4.1).
pub(super) const fn send(first: bool, last: bool, immediate: Option<u32>) -> Send {
    match (first, last) {
        (true, true) => Send::Only(immediate),
        (true, false) => Send::First,
        (false, true) => Send::Last(immediate),
        (false, false) => Send::Middle,
    }
}

/// Returns the operation of a WRITE packet (vol. 1, 9.4.3).
pub(super) const fn write(first: bool, last: bool, reth: Reth, immediate: Option<u32>) -> Write {
    match (first, last) {
        (true, true) => Write::Only(reth, immediate),
        (true, false) => Write::First(reth),
        (false, true) => Write::Last(immediate),
        (false, false) => Write::Middle,
    }
}
