//! A queue pair: requester, responder and completer around two queues.
//!
//! This module contains the whole state of a queue pair. Shared state (keys, completion queues) is passed in. The roles
//! are those of the specification: the [requester] sends requests, the peer's [responder] executes them and responds,
//! and the [completer] turns the responses into completions.

mod completer;
mod config;
mod congestion;
mod receive;
mod recv_queue;
mod requester;
mod responder;
mod response;
mod segments;
mod send_queue;
mod state;
mod uc;
mod ud;
mod unreliable;

use std::collections::VecDeque;

use adverb_wire::{DEFAULT_PKEY, GRH_LEN, Header, Operation, Qpn, Rc};

pub use config::{
    CreateQpError, Init, ModifyError, PostError, QpConfig, ReadyToReceive, ReadyToSend, Transition,
};

use crate::Time;
use crate::congestion::Pacer;
use crate::cq::{CompletionQueue, Cq, Pushed, Timestamp};
use crate::event::QueueEvent;
use crate::memory::{Keys, Memory, Pd, Span};
use crate::mutation::mutant;
use crate::path::{AddressVector, IcrcChecker, Path, RxMeta};
use crate::srq::SharedQueue;
use crate::stats::Statistics;
use crate::trace::{EventSink, Queue, RecvQueueId, TraceEvent, record};
use crate::types::{
    Access, Completion, Destination, Failure, Gid, LocalMemory, PathMtu, QpState, RecvRequest, SendFlags,
    SendRequest, Status, Success, Transport,
};
pub(crate) use recv_queue::RecvQueue;
use requester::Requester;
use responder::Responder;
pub(crate) use send_queue::Rings;
use send_queue::{SendEntry, SendQueue};

/// The state that queue pairs share, borrowed for one step.
pub(crate) struct Context<'a, S> {
    pub(crate) now: Time,
    /// The timestamp of completions.
    pub(crate) completed_at: Timestamp,
    /// The maximum payload of a packet on the port.
    pub(crate) mtu: PathMtu,
    pub(crate) keys: &'a mut Keys,
    pub(crate) cqs: &'a mut Vec<Option<CompletionQueue>>,
    pub(crate) srqs: &'a mut Vec<Option<SharedQueue>>,
    pub(crate) stats: &'a mut Statistics,
    pub(crate) cq_events: &'a mut VecDeque<Cq>,
    pub(crate) queue_events: &'a mut VecDeque<QueueEvent>,
    /// The payload of the packet that is being built.
    pub(crate) spans: &'a mut Vec<Span>,
    pub(crate) sink: &'a mut S,
}

impl<S: EventSink> Context<'_, S> {
    /// Passes an event to the sink, if the sink uses events now.
    #[inline(always)]
    pub(crate) fn event(&mut self, event: impl FnOnce() -> TraceEvent) {
        record(self.sink, self.now, event);
    }
}

/// A received packet, either parsed or passed as header and payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<'a> {
    pub(crate) header: &'a Header,
    pub(crate) payload: &'a [u8],
}

/// A packet to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxPacket {
    pub(crate) header: Header,
    pub(crate) payload: TxPayload,
    pub(crate) payload_len: u32,
}

/// The location of the payload of a [`TxPacket`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum TxPayload {
    /// The spans of the [`Context`].
    Spans,
    /// A range of the inline bytes in the send queue.
    Inline { first: u32, offset: u32, length: u32 },
    /// The bytes themselves.
    Word([u8; 8]),
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) qpn: Qpn,
    pub(crate) config: QpConfig,
    state: QpState,
    /// The access rights of the peer.
    access: Access,
    pkey: u16,
    /// The queue key that received datagrams must have.
    qkey: u32,
    remote_qpn: Qpn,
    /// The addresses of the connection. Each datagram has its own addresses.
    path: Option<Path>,
    icrc_checker: IcrcChecker,
    /// The maximum payload of a packet.
    mtu: u32,
    send_queue: SendQueue,
    recv_queue: RecvQueue,
    /// The protection domain of receive requests.
    recv_pd: Pd,
    requester: Requester,
    responder: Responder,
    /// The multicast groups that the queue pair is attached to.
    pub(crate) groups: Vec<Gid>,
    /// Whether the queue pair is in the device's list of queue pairs that may have packets to send.
    pub(crate) queued: bool,
    /// Whether the caller has [paused](crate::Device::pause_qp) the queue pair.
    pub(crate) paused: bool,
    /// Whether the next packet should be a request rather than a response, so that both make progress.
    requests_first: bool,
    /// Whether a CNP must be sent.
    cnp_due: bool,
    /// The earliest time of the next CNP.
    next_cnp_at: Time,
    /// The rate control, if the queue pair has received a CNP and uses congestion control.
    pacer: Option<Box<Pacer>>,
    /// Whether a completion of this queue pair was lost. The queue pair moves to the error state at the end of the
    /// step.
    completion_lost: bool,
    /// The event that moved the queue pair to the error state.
    error_event: Option<QueueEvent>,
}

impl QueuePair {
    pub(crate) fn new(qpn: Qpn, mut config: QpConfig, recv_pd: Pd) -> QueuePair {
        // Segments are counted in 16 bits. No application needs more segments per request.
        config.max_send_sge = config.max_send_sge.min(u32::from(u16::MAX));
        config.max_recv_sge = config.max_recv_sge.min(u32::from(u16::MAX));
        QueuePair {
            qpn,
            config,
            state: QpState::Reset,
            access: Access::empty(),
            pkey: DEFAULT_PKEY,
            qkey: 0,
            remote_qpn: Qpn::truncate(0),
            path: None,
            icrc_checker: IcrcChecker::default(),
            mtu: 256,
            send_queue: SendQueue::default(),
            recv_queue: RecvQueue::default(),
            recv_pd,
            requester: Requester::default(),
            responder: Responder::default(),
            groups: Vec::new(),
            queued: false,
            paused: false,
            requests_first: false,
            cnp_due: false,
            next_cnp_at: Time::ZERO,
            pacer: None,
            completion_lost: false,
            error_event: None,
        }
    }

    pub(crate) const fn state(&self) -> QpState {
        self.state
    }

    /// Returns the event that moved the queue pair to the error state, if there is one.
    pub(crate) const fn error_event(&self) -> Option<QueueEvent> {
        self.error_event
    }

    /// Whether a completion was lost: see [`fail_if_completion_lost`](QueuePair::fail_if_completion_lost).
    pub(crate) const fn has_lost_completion(&self) -> bool {
        self.completion_lost
    }

    /// Returns the path of the packet that was polled last.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self.config.transport {
            Transport::Rc | Transport::Uc => self.path.as_ref(),
            Transport::Ud => self.send_queue.destination().map(|destination| &destination.handle),
        }
    }

    pub(crate) fn send_queue_len(&self) -> usize {
        self.send_queue.len()
    }

    /// Acquires rings for the send queue, if it has none.
    #[inline]
    pub(crate) fn acquire_rings(&mut self, rings: &mut Rings) {
        self.send_queue.acquire_rings(rings);
    }

    /// Releases the rings of the send queue, if no request is outstanding.
    #[inline]
    pub(crate) fn release(&mut self, rings: &mut Rings) {
        self.send_queue.release(rings);
    }

    pub(crate) fn recv_queue_len(&self) -> usize {
        self.recv_queue.len()
    }

    /// Returns the number of queued and saved responses.
    pub(crate) fn response_count(&self) -> usize {
        self.responder.responses.stored_count()
    }

    pub(crate) fn inline(&self, first: u32, offset: u32, length: u32) -> (&[u8], &[u8]) {
        self.send_queue.inline(first, offset, length)
    }

    /// Whether the state allows the queue pair to receive packets.
    #[inline]
    pub(crate) const fn can_receive(&self) -> bool {
        !matches!(self.state, QpState::Reset | QpState::Init | QpState::Error)
    }

    /// Whether a packet with these addresses is for this queue pair: from the connection's peer, or any datagram.
    #[inline]
    pub(crate) fn is_peer(&self, rx_meta: &RxMeta) -> bool {
        match &self.path {
            Some(path) => {
                rx_meta.source.ip() == path.destination().ip()
                    && rx_meta.destination.ip() == path.source().ip()
            }
            None => true,
        }
    }

    /// Whether this partition key is of the same partition, and at most one of the two keys is of a limited member
    /// (vol. 1, 10.9.3).
    #[inline]
    pub(crate) const fn is_in_partition(&self, pkey: u16) -> bool {
        const FULL: u16 = 0x8000;
        pkey & !FULL == self.pkey & !FULL && (pkey | self.pkey) & FULL != 0
    }

    /// Returns the checker of received ICRCs.
    #[inline]
    pub(crate) const fn icrc_checker(&mut self) -> &mut IcrcChecker {
        &mut self.icrc_checker
    }

    /// Returns the time of the earliest timer.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Time> {
        let deadline = self.requester.deadline();
        match &self.pacer {
            None => deadline,
            Some(pacer) => deadline.into_iter().chain(pacer.deadline()).min(),
        }
    }

    /// Whether [`poll_transmit`](QueuePair::poll_transmit) may return a packet.
    #[inline]
    pub(crate) fn may_transmit(&self) -> bool {
        if self.paused {
            return false;
        }
        if self.pacer.as_ref().is_some_and(|pacer| pacer.paused) {
            return self.cnp_due || self.responder.responses.is_only_ack_or_nak();
        }
        self.cnp_due || self.responder.has_responses() || self.requester.has_requests(&self.send_queue)
    }

    /// Whether the queue pair has an acknowledgement to send, and nothing else.
    pub(crate) fn is_only_acknowledging(&self) -> bool {
        !self.cnp_due
            && self.responder.responses.is_only_acknowledging()
            && !self.requester.has_requests(&self.send_queue)
    }

    /// Handles a packet of the queue pair's transport.
    #[inline]
    pub(crate) fn handle_packet<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        rx_meta: &RxMeta,
        received: Received<'_>,
        memory: &mut impl Memory,
    ) {
        cx.completed_at = rx_meta.received_at.unwrap_or(cx.now.into());
        if let Operation::Ud(_) = received.header.operation {
            let &RxMeta { source, destination, .. } = rx_meta;
            cx.event(|| TraceEvent::DatagramAddrs { qpn: self.qpn, source, destination });
        }
        cx.event(|| self.received_event(received));
        if rx_meta.is_ecn_marked {
            self.handle_mark(cx);
        }
        match &received.header.operation {
            Operation::Rc(rc @ (Rc::Acknowledge(_) | Rc::AtomicAcknowledge(..) | Rc::ReadResponse(_))) => {
                self.handle_response(cx, received, rc, memory);
            }
            Operation::Rc(rc) => self.handle_request(cx, received, rc, memory),
            Operation::Uc(uc) => self.handle_unreliable(cx, received, uc, memory),
            Operation::Ud(datagram) => self.handle_datagram(cx, rx_meta, received, datagram, memory),
            Operation::Cnp => {}
        }
    }

    /// Returns the trace event of a received packet.
    #[inline(always)]
    pub(crate) fn received_event(&self, received: Received<'_>) -> TraceEvent {
        let Received { header, payload } = received;
        // A response belongs to an outstanding send request.
        let request = match &header.operation {
            Operation::Rc(Rc::Acknowledge(_) | Rc::AtomicAcknowledge(..) | Rc::ReadResponse(_)) => {
                self.send_queue.number_at(header.psn)
            }
            _ => None,
        };
        TraceEvent::PacketReceived {
            qpn: self.qpn,
            request,
            header: *header,
            payload_len: payload.len() as u32,
        }
    }

    /// Checks a send request and adds it to the send queue.
    pub(crate) fn post_send<S: EventSink, Handle: AddressVector>(
        &mut self,
        cx: &mut Context<'_, S>,
        request: &SendRequest<'_, Handle>,
        inline: Option<&[u8]>,
    ) -> Result<(), PostError> {
        if !self.state.may_post_send() {
            return Err(PostError::WrongState(self.state));
        }
        if self.send_queue.len() >= self.config.max_send_wr as usize {
            return Err(PostError::QueueFull);
        }
        let length = self.check_send(request, inline)?;
        let destination = self.check_destination(request)?;
        let segments = match inline {
            Some(bytes) => self.send_queue.push_inline(bytes),
            None => self.send_queue.segments.push(request.segments),
        };
        if let Some(destination) = destination {
            self.send_queue.push_destination(destination);
        }
        let &SendRequest { wr_id, operation, flags, .. } = request;
        let number = self.send_queue.push(SendEntry::new(wr_id, operation, flags, segments, length));
        cx.event(|| TraceEvent::PostedSend {
            qpn: self.qpn,
            request: number,
            wr_id,
            tag: request.tag,
            operation,
            flags,
            length,
            sge_count: request.segments.len() as u16,
            first_sge: request.segments.first().copied(),
        });
        if matches!(self.state, QpState::Error | QpState::SendQueueError) {
            self.flush_sends(cx);
        }
        if S::ACTIVE && !self.queued && self.may_transmit() {
            cx.event(|| TraceEvent::Doorbell { qpn: self.qpn });
        }
        Ok(())
    }

    /// Returns the destination of a datagram, or `None` for a connection.
    #[inline]
    fn check_destination<Handle: AddressVector>(
        &self,
        request: &SendRequest<'_, Handle>,
    ) -> Result<Option<Destination<Path>>, PostError> {
        match (self.config.transport, &request.destination) {
            (Transport::Rc | Transport::Uc, None) => Ok(None),
            (Transport::Ud, Some(Destination { handle, qpn, qkey })) => {
                let path = *handle.path().ok_or(PostError::InvalidDestination)?;
                Ok(Some(Destination { handle: path, qpn: *qpn, qkey: *qkey }))
            }
            _ => Err(PostError::InvalidDestination),
        }
    }

    /// Returns the number of bytes of a request, if the request is valid (vol. 1, 9.7.2 and 10.8.2).
    #[inline(always)]
    fn check_send<Handle>(
        &self,
        request: &SendRequest<'_, Handle>,
        inline: Option<&[u8]>,
    ) -> Result<u32, PostError> {
        if request.flags.contains(SendFlags::INLINE) != inline.is_some() {
            return Err(PostError::InvalidInline);
        }
        if request.segments.len() > self.config.max_send_sge as usize {
            return Err(PostError::TooManySegments);
        }
        let total = match inline {
            Some(bytes) if bytes.len() <= self.config.max_inline as usize => bytes.len() as u64,
            Some(_) => return Err(PostError::InvalidInline),
            None => request.segments.iter().map(|segment| u64::from(segment.length)).sum(),
        };
        if !request.operation.is_supported(self.config.transport) {
            return Err(PostError::Unsupported);
        }
        match request.operation.local_memory() {
            LocalMemory::Source => {}
            // The other operations send no bytes of their segments.
            _ if inline.is_some() => return Err(PostError::InvalidInline),
            LocalMemory::Target => {}
            LocalMemory::Word if total != 8 => return Err(PostError::InvalidLength),
            LocalMemory::Word => {}
            LocalMemory::None if !request.segments.is_empty() => return Err(PostError::TooManySegments),
            LocalMemory::None => {}
        }
        // Half of the sequence numbers must stay unused, so that old and new packets can be distinguished (vol. 1,
        // 9.7.2). A datagram is one packet (vol. 1, 9.8.3).
        let max_length = match self.config.transport {
            Transport::Ud => u64::from(self.mtu),
            Transport::Rc | Transport::Uc => {
                MAX_MESSAGE_SIZE.min(u64::from(self.mtu) * u64::from(MAX_UNACKED))
            }
        };
        if total > max_length {
            return Err(PostError::InvalidLength);
        }
        Ok(total as u32)
    }

    /// Checks a receive request and adds it to the receive queue.
    pub(crate) fn post_recv<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        request: &RecvRequest<'_>,
    ) -> Result<(), PostError> {
        if !self.state.may_post_recv() {
            return Err(PostError::WrongState(self.state));
        }
        if self.config.srq.is_some() {
            return Err(PostError::HasSharedReceiveQueue);
        }
        if self.recv_queue.len() >= self.config.max_recv_wr as usize {
            return Err(PostError::QueueFull);
        }
        if request.segments.len() > self.config.max_recv_sge as usize {
            return Err(PostError::TooManySegments);
        }
        // Every datagram has a GRH (vol. 1, 11.4.1), so a shorter buffer can receive nothing.
        if self.config.transport == Transport::Ud && request.length() < GRH_LEN as u64 {
            return Err(PostError::InvalidLength);
        }
        let number = self.recv_queue.push(request);
        cx.event(|| TraceEvent::posted_recv(RecvQueueId::Qp(self.qpn), number, request));
        if self.state == QpState::Error {
            self.flush_receives(cx);
        } else if self.responder.no_credit && self.can_receive() {
            // A peer without credits only sends occasional probes. An unsolicited acknowledgement gives it a credit
            // again (vol. 1, 9.7.7).
            self.responder.no_credit = false;
            self.responder.responses.acknowledge();
        }
        Ok(())
    }

    /// Returns the next packet to send, if there is one.
    #[inline]
    pub(crate) fn poll_transmit<S: EventSink>(&mut self, cx: &mut Context<'_, S>) -> Option<TxPacket> {
        cx.spans.clear();
        if self.cnp_due {
            self.cnp_due = false;
            return Some(self.next_cnp(cx));
        }
        if self.pacer.is_some() { self.poll_paced(cx) } else { self.poll_packet(cx) }
    }

    #[inline]
    fn poll_packet<S: EventSink>(&mut self, cx: &mut Context<'_, S>) -> Option<TxPacket> {
        if self.config.transport != Transport::Rc {
            return self.next_unreliable(cx);
        }
        // Requests and responses alternate, starting with a request: an application may wait for its result, and an
        // acknowledgement, which is shorter, can be in the same GSO batch only if it is the last packet.
        let has_responses = self.responder.has_responses();
        let polls_request = self.requests_first || !has_responses;
        self.requests_first = !(polls_request && has_responses);
        if polls_request && let Some(tx_packet) = self.next_request(cx) {
            return Some(tx_packet);
        }
        if !self.responder.has_responses() {
            return None;
        }
        self.next_response(cx)
    }

    /// Returns the header of a packet to the peer.
    #[inline]
    fn header(&self, psn: adverb_wire::Psn, operation: Operation) -> Header {
        Header { pkey: self.pkey, ..Header::new(self.remote_qpn, psn, operation) }
    }

    /// Adds the completion of a send request to its completion queue, if the request is signaled or failed.
    fn complete_send<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        entry: &SendEntry,
        outcome: Result<(), Status>,
    ) {
        // Failed requests complete even if they are unsignaled (vol. 1, 10.7.3).
        let is_failed = outcome.is_err() && !mutant!(SilentFailure);
        let is_signaled = self.config.signal_all || entry.has(SendFlags::SIGNALED);
        if !is_signaled && !is_failed {
            cx.event(|| TraceEvent::CompletedUnsignaled { qpn: self.qpn, request: entry.number });
            return;
        }
        let outcome = match outcome {
            Ok(()) => Ok(Success { operation: entry.completed(), length: entry.length }),
            Err(status) => Err(Failure { status, vendor_error: 0 }),
        };
        self.complete(cx, Queue::Send, entry.number, entry.wr_id, outcome, false);
    }

    fn complete<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        queue: Queue,
        request: u32,
        wr_id: u64,
        outcome: Result<Success, Failure>,
        solicited: bool,
    ) {
        let cq = match queue {
            Queue::Send => self.config.send_cq,
            Queue::Recv => self.config.recv_cq,
        };
        cx.event(|| TraceEvent::Completed { qpn: self.qpn, queue, request, wr_id, cq, outcome });
        cx.stats.completions += 1;
        let completion = Completion { wr_id, qpn: self.qpn, outcome };
        let pushed = match cx.cqs.get_mut(cq.0 as usize) {
            Some(Some(cq)) => {
                if mutant!(DoubleCompletion) && wr_id.is_multiple_of(7) {
                    cq.push(completion, solicited, cx.completed_at);
                }
                cq.push(completion, solicited, cx.completed_at)
            }
            // Completion queues in use aren't destroyed.
            _ => Pushed::Lost,
        };
        match pushed {
            Pushed::Added => {}
            Pushed::Event => cx.cq_events.push_back(cq),
            Pushed::Overflow | Pushed::Lost => {
                // A lost completion breaks the guarantee that each request has one, so the queue pair moves to the
                // error state. Other queue pairs of the completion queue follow with their next completion (vol. 1,
                // 10.8.3).
                if pushed == Pushed::Overflow {
                    cx.queue_events.push_back(QueueEvent::CqOverflow(cq));
                }
                cx.stats.completions_lost += 1;
                self.completion_lost = true;
            }
        }
    }
}

/// The maximum message size (vol. 1, 9.7.2): 2³¹ bytes.
const MAX_MESSAGE_SIZE: u64 = 1 << 31;

/// The maximum number of unacknowledged sequence numbers: less than half of all (vol. 1, 9.7.2).
const MAX_UNACKED: u32 = (1 << 23) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_queue_pair_is_at_most_a_kibibyte() {
        // The rings are not included: an idle queue pair has none.
        assert!(size_of::<QueuePair>() <= 1024, "{}", size_of::<QueuePair>());
    }

    #[test]
    fn send_entry_is_at_most_80_bytes() {
        assert!(size_of::<SendEntry>() <= 80, "{}", size_of::<SendEntry>());
    }
}
