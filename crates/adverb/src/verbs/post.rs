//! Posting: how requests get to the device, and their memory to where it waits for the completion.

use std::sync::{MutexGuard, PoisonError};

use adverb_proto::vocabulary as plain;
use adverb_proto::vocabulary::{Destination, QpState, Segment, SendFlags, SendOperation, Transport};
use adverb_wire::GRH_LEN;

use super::completion::{RequestId, RequestIds};
use super::in_flight::{InFlight, Posting};
use super::{PostError, QueuePair, Recipient, RecvRequest, SendRequest};
use crate::backend::{self, PostFailure, opcode};
use crate::error::{Error, Result};
use crate::memory::{Payload, Piece};

/// Room for requests of several segments, and for batches, kept so that posting doesn't allocate.
#[derive(Default)]
pub(super) struct Scratch {
    segments: Vec<Segment>,
    /// How many segments each request of a batch has.
    counts: Vec<usize>,
    sends: Vec<SendRequest>,
    recvs: Vec<RecvRequest>,
    list: backend::RequestList,
}

impl QueuePair {
    /// Posts a send request.
    ///
    /// # Errors
    ///
    /// If the queue is full, the request doesn't fit the queue pair, or the device refuses. The request comes back with
    /// the error; see [`PostError`] for when it doesn't.
    #[inline]
    pub fn post_send(&self, request: SendRequest) -> Result<RequestId, PostError<SendRequest>> {
        let mut queue = self.send.lock();
        if !(self.state.is_ready_to_send() && queue.has_room(1) && self.may_send(&request)) {
            return Err(self.refuse_send(&mut queue, request));
        }
        let SendRequest { operation, mut flags, payload, tag, recipient } = request;
        if queue.must_signal(flags.contains(SendFlags::SIGNALED)) {
            flags.insert(SendFlags::SIGNALED);
        }
        let wr_id = queue.id(0);
        let opcode = completed_opcode(&operation);
        if let Payload::Window(_) = payload {
            let request = InFlight { payload, tag, opcode, _recipient: None };
            let plain = plain::SendRequest { wr_id, operation, flags, segments: &[], destination: None };
            return self.post_window(queue, request, plain);
        }
        let posted = self.with_segments(payload, |segments, payload| {
            let destination = recipient.as_ref().map(destination);
            // The memory is put away first: the completion may come before posting returns.
            let recipient = recipient.as_ref().map(|recipient| recipient.address.clone());
            queue.push(InFlight { payload, tag, opcode, _recipient: recipient });
            self.backend.post_send(&plain::SendRequest { wr_id, operation, flags, segments, destination })
        });
        match posted {
            Ok(()) => Ok(RequestId(wr_id)),
            Err(failure) => {
                let refused = SendRequest { operation, flags, payload: Payload::Empty, tag, recipient };
                Err(self.not_posted("posting a send request", failure, vec![refused], |count| {
                    self.send.retract(&mut queue, count)
                }))
            }
        }
    }

    /// Posts several send requests with one doorbell: all of them, or on an error the first few.
    ///
    /// ```no_run
    /// # use adverb::verbs::{QueuePair, SendRequest};
    /// # use adverb::memory::{Buffer, RemoteMemory};
    /// # fn example(queue_pair: &QueuePair, chunks: Vec<Buffer>, table: RemoteMemory) -> adverb::Result<()> {
    /// let writes = (0..).zip(chunks).map(|(n, chunk)| SendRequest::write(chunk, table.at(n * 4096)));
    /// for id in queue_pair.post_sends(writes)? {
    ///     println!("{id:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`post_send`](QueuePair::post_send). If the requests don't all fit the queue and the queue pair, none is
    /// posted.
    pub fn post_sends(
        &self,
        requests: impl IntoIterator<Item = SendRequest>,
    ) -> Result<RequestIds, PostError<SendRequest>> {
        // The iterator is the caller's code, and may poll or post itself: no lock is held while it runs.
        let mut sends = std::mem::take(&mut self.scratch().sends);
        sends.clear();
        sends.extend(requests);
        let mut queue = self.send.lock();
        let mut scratch = self.scratch();
        let Scratch { segments, counts, list, .. } = &mut *scratch;
        let count = u32::try_from(sends.len()).unwrap_or(u32::MAX);
        let checked = self
            .check_send_queue(&mut queue, count)
            .and_then(|()| sends.iter().try_for_each(|request| self.check_send(request)));
        if let Err(error) = checked {
            return Err(PostError { error, requests: sends });
        }
        segments.clear();
        counts.clear();
        let ids = RequestIds::new(&queue, count);
        for request in sends.iter_mut() {
            if queue.must_signal(request.flags.contains(SendFlags::SIGNALED)) {
                request.flags.insert(SendFlags::SIGNALED);
            }
            let pieces = request.payload.pieces();
            segments.extend(pieces.iter().map(Piece::segment));
            counts.push(pieces.len());
            if let Payload::Window(window) = &request.payload {
                window.lower(&request.operation, list);
            }
            // The memory is put away first: completions may come before posting returns.
            let payload = std::mem::take(&mut request.payload);
            let recipient = request.recipient.as_ref().map(|recipient| recipient.address.clone());
            queue.push(InFlight {
                payload,
                tag: request.tag,
                opcode: completed_opcode(&request.operation),
                _recipient: recipient,
            });
        }
        let mut rest = &segments[..];
        let plain = sends.iter().zip(&*counts).zip(ids.clone()).map(|((request, count), id)| {
            let segments;
            (segments, rest) = rest.split_at(*count);
            plain::SendRequest {
                wr_id: id.0,
                operation: request.operation,
                flags: request.flags,
                segments,
                destination: request.recipient.as_ref().map(destination),
            }
        });
        match self.backend.post_sends(list, plain) {
            Ok(()) => {
                sends.clear();
                scratch.sends = sends;
                Ok(ids)
            }
            Err(failure) => Err(self.not_posted("posting send requests", failure, sends, |count| {
                self.send.retract(&mut queue, count)
            })),
        }
    }

    /// Posts a receive request.
    ///
    /// # Errors
    ///
    /// If the queue is full, the request doesn't fit the queue pair, or the device refuses. The request comes back with
    /// the error; see [`PostError`] for when it doesn't.
    #[inline]
    pub fn post_recv(&self, request: impl Into<RecvRequest>) -> Result<RequestId, PostError<RecvRequest>> {
        let request = request.into();
        let Some(own) = self.recv.own() else {
            return Err(PostError { error: shared_elsewhere(), requests: vec![request] });
        };
        let mut queue = own.lock();
        if let Err(error) = self.check_recv_queue(&mut queue, 1).and_then(|()| self.check_recv(&request)) {
            return Err(PostError { error, requests: vec![request] });
        }
        let RecvRequest { payload, tag } = request;
        let wr_id = queue.id(0);
        let posted = self.with_segments(payload, |segments, payload| {
            // The memory is put away first: the completion may come before posting returns.
            queue.push(InFlight { payload, tag, opcode: opcode::RECV, _recipient: None });
            self.backend.post_recv(&plain::RecvRequest { wr_id, segments })
        });
        match posted {
            Ok(()) => Ok(RequestId(wr_id)),
            Err(failure) => {
                let refused = RecvRequest { payload: Payload::Empty, tag };
                Err(self.not_posted("posting a receive request", failure, vec![refused], |count| {
                    own.retract(&mut queue, count)
                }))
            }
        }
    }

    /// Posts several receive requests with one doorbell: all of them, or on an error the first few.
    ///
    /// # Errors
    ///
    /// As [`post_recv`](QueuePair::post_recv). If the requests don't all fit the queue and the queue pair, none is
    /// posted.
    pub fn post_recvs(
        &self,
        requests: impl IntoIterator<Item = impl Into<RecvRequest>>,
    ) -> Result<RequestIds, PostError<RecvRequest>> {
        let Some(own) = self.recv.own() else {
            let requests = requests.into_iter().map(Into::into).collect();
            return Err(PostError { error: shared_elsewhere(), requests });
        };
        // The iterator is the caller's code, and may poll or post itself: no lock is held while it runs.
        let mut recvs = std::mem::take(&mut self.scratch().recvs);
        recvs.clear();
        recvs.extend(requests.into_iter().map(Into::into));
        let mut queue = own.lock();
        let mut scratch = self.scratch();
        let Scratch { segments, counts, list, .. } = &mut *scratch;
        let count = u32::try_from(recvs.len()).unwrap_or(u32::MAX);
        let checked = self
            .check_recv_queue(&mut queue, count)
            .and_then(|()| recvs.iter().try_for_each(|request| self.check_recv(request)));
        if let Err(error) = checked {
            return Err(PostError { error, requests: recvs });
        }
        segments.clear();
        counts.clear();
        let ids = RequestIds::new(&queue, count);
        for request in recvs.iter_mut() {
            let pieces = request.payload.pieces();
            segments.extend(pieces.iter().map(Piece::segment));
            counts.push(pieces.len());
            // The memory is put away first: completions may come before posting returns.
            let payload = std::mem::take(&mut request.payload);
            queue.push(InFlight { payload, tag: request.tag, opcode: opcode::RECV, _recipient: None });
        }
        let mut rest = &segments[..];
        let plain = counts.iter().zip(ids.clone()).map(|(count, id)| {
            let segments;
            (segments, rest) = rest.split_at(*count);
            plain::RecvRequest { wr_id: id.0, segments }
        });
        match self.backend.post_recvs(list, plain) {
            Ok(()) => {
                recvs.clear();
                scratch.recvs = recvs;
                Ok(ids)
            }
            Err(failure) => Err(self.not_posted("posting receive requests", failure, recvs, |count| {
                own.retract(&mut queue, count)
            })),
        }
    }

    /// Whether `count` send requests may be posted now.
    #[inline]
    fn check_send_queue(&self, queue: &mut Posting, count: u32) -> Result<()> {
        let state = self.state.get();
        if state != QpState::ReadyToSend {
            let hint = match state {
                QpState::Error => "it has failed: an earlier completion says why",
                _ => "connect it first",
            };
            return Err(Error::WrongState { action: "posting a send request", state, hint });
        }
        if !queue.has_room(count) {
            return Err(Error::QueueFull { queue: "send", depth: queue.depth() });
        }
        Ok(())
    }

    /// Whether a send request fits the queue pair: at once for the usual one, and for others by looking closely.
    #[inline]
    fn may_send(&self, request: &SendRequest) -> bool {
        let plain_send_or_write = matches!(
            request.operation,
            SendOperation::Send
                | SendOperation::SendImmediate(_)
                | SendOperation::Write(_)
                | SendOperation::WriteImmediate(..)
        );
        let usual = self.transport == Transport::Rc
            && plain_send_or_write
            && request.recipient.is_none()
            && !request.flags.contains(SendFlags::INLINE);
        match &request.payload {
            Payload::One(piece) if usual => piece.len() <= self.max_message as usize,
            _ => self.check_send(request).is_ok(),
        }
    }

    /// Why a send request can't be posted.
    #[cold]
    fn refuse_send(&self, queue: &mut Posting, request: SendRequest) -> PostError<SendRequest> {
        let checked = self.check_send_queue(queue, 1).and_then(|()| self.check_send(&request));
        // What didn't fit a moment ago may fit now, if completions came between: then the queue was full.
        let full = Error::QueueFull { queue: "send", depth: queue.depth() };
        PostError { error: checked.err().unwrap_or(full), requests: vec![request] }
    }

    /// Posts a request with a window.
    #[cold]
    fn post_window(
        &self,
        mut queue: MutexGuard<'_, Posting>,
        request: InFlight,
        plain: plain::SendRequest<'_, &backend::AddressHandle>,
    ) -> Result<RequestId, PostError<SendRequest>> {
        let list = &mut self.scratch().list;
        if let Payload::Window(window) = &request.payload {
            window.lower(&plain.operation, list);
        }
        let (operation, flags, tag) = (plain.operation, plain.flags, request.tag);
        // The window is put away first: the completion may come before posting returns.
        queue.push(request);
        match self.backend.post_sends(list, std::iter::once(plain)) {
            Ok(()) => Ok(RequestId(plain.wr_id)),
            Err(failure) => {
                let refused = SendRequest { operation, flags, payload: Payload::Empty, tag, recipient: None };
                Err(self.not_posted("posting a send request", failure, vec![refused], |count| {
                    self.send.retract(&mut queue, count)
                }))
            }
        }
    }

    /// What of a send request doesn't fit the queue pair.
    fn check_send(&self, request: &SendRequest) -> Result<()> {
        if let Payload::Window(window) = &request.payload {
            return self.check_window(request, window);
        }
        if let Some(flaw) = request.flaw() {
            return Err(Error::InvalidRequest { reason: flaw.into() });
        }
        if let Some(reason) = self.unsuitable(request) {
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        let inlined = request.flags.contains(SendFlags::INLINE);
        let most = if inlined { self.limits.inline } else { self.max_message };
        check_payload(&request.payload, self.limits.send_segments, most)
    }

    /// What of a send request doesn't fit the queue pair's transport.
    #[inline]
    fn unsuitable(&self, request: &SendRequest) -> Option<&'static str> {
        if self.transport == Transport::Rc {
            return request
                .recipient
                .is_some()
                .then_some("only datagrams have a recipient: a connection has its peer");
        }
        match (self.transport, &request.operation) {
            (Transport::Ud, SendOperation::Send | SendOperation::SendImmediate(_)) => {
                let Some(recipient) = &request.recipient else {
                    return Some("a datagram needs a recipient: call `to`");
                };
                // A device's own part of the library would take another's handle for one of its own.
                let ours = recipient.address.backend().is_of(self.domain.backend());
                (!ours)
                    .then_some("the recipient is of another protection domain: make it with this queue pair")
            }
            (Transport::Ud, _) => {
                Some("datagrams can only be sent: reading, writing and atomics need a connection")
            }
            (
                _,
                SendOperation::Read(_) | SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. },
            ) => Some("reading and atomics need a reliable connection"),
            (_, SendOperation::SendInvalidate(_)) => Some("invalidating needs a reliable connection"),
            _ => request
                .recipient
                .is_some()
                .then_some("only datagrams have a recipient: a connection has its peer"),
        }
    }

    /// Whether `count` receive requests may be posted now.
    #[inline]
    fn check_recv_queue(&self, queue: &mut Posting, count: u32) -> Result<()> {
        let state = self.state.get();
        if matches!(state, QpState::Reset | QpState::Error) {
            let hint = "nothing would come of it";
            return Err(Error::WrongState { action: "posting a receive request", state, hint });
        }
        if !queue.has_room(count) {
            return Err(Error::QueueFull { queue: "receive", depth: queue.depth() });
        }
        Ok(())
    }

    /// What of a receive request doesn't fit the queue pair.
    #[inline]
    fn check_recv(&self, request: &RecvRequest) -> Result<()> {
        if !request.payload.pieces().iter().all(Piece::is_locally_writable) {
            let reason = "a receive needs memory with the right LOCAL_WRITE";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        // A datagram that doesn't fit makes some devices fail the whole queue pair (rxe does), and any peer can send
        // one.
        let least = GRH_LEN + usize::from(self.port.active_mtu.bytes());
        if self.transport == Transport::Ud && request.payload.len() < least {
            let reason = format!("a datagram needs room for {least} bytes: 40, and the port's MTU");
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        check_payload(&request.payload, self.limits.recv_segments, u32::MAX)
    }

    /// The error for requests of which the device took some, or perhaps some: those count as posted. `retract` takes back
    /// so many that were put away.
    #[cold]
    fn not_posted<R: Refused>(
        &self,
        action: &str,
        failure: PostFailure,
        mut requests: Vec<R>,
        retract: impl FnOnce(usize) -> Vec<InFlight>,
    ) -> PostError<R> {
        let PostFailure { error, posted } = failure;
        let mut rest = requests.split_off(posted.unwrap_or(requests.len()).min(requests.len()));
        // The last that was put away comes back first.
        let retracted = retract(rest.len());
        for (request, InFlight { payload, .. }) in rest.iter_mut().rev().zip(retracted) {
            request.take_back(payload);
        }
        let hint = match posted {
            None => {
                "the device doesn't say how much it took: what was posted is kept until the queue pair is gone"
            }
            Some(_) => "",
        };
        let action = format!("{action} to queue pair {}", self.qpn());
        PostError { error: Error::Verb { action, error, hint: hint.into() }, requests: rest }
    }

    /// Does something with a request's memory and its plain form, which are apart so that the memory can be put away.
    #[inline]
    fn with_segments<T>(&self, payload: Payload, work: impl FnOnce(&[Segment], Payload) -> T) -> T {
        match &payload {
            Payload::Empty | Payload::Window(_) => work(&[], payload),
            Payload::One(piece) => work(&[piece.segment()], payload),
            Payload::Many(pieces) => {
                let mut scratch = self.scratch();
                let segments = &mut scratch.segments;
                segments.clear();
                segments.extend(pieces.iter().map(Piece::segment));
                work(segments, payload)
            }
        }
    }

    fn scratch(&self) -> MutexGuard<'_, Scratch> {
        // Whoever uses it clears it first, so that a panic leaves nothing behind that matters.
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error of who posts a receive to a queue pair that has none of its own.
#[cold]
fn shared_elsewhere() -> Error {
    let reason = "this queue pair takes its receives from a shared receive queue: post them there";
    Error::InvalidRequest { reason: reason.into() }
}

#[inline]
fn check_payload(payload: &Payload, segments: u32, most: u32) -> Result<()> {
    let pieces = payload.pieces();
    if pieces.len() > segments as usize {
        return Err(Error::Limit {
            what: "the number of segments of a request".into(),
            asked: pieces.len() as u64,
            most: segments.into(),
            hint: "create the queue pair with more `segments`".into(),
        });
    }
    let len = payload.len() as u64;
    if len > u64::from(most) {
        return Err(Error::TooLong { len, most: most.into() });
    }
    Ok(())
}

/// To whom a datagram goes, in plain form.
#[inline]
fn destination(recipient: &Recipient) -> Destination<&backend::AddressHandle> {
    Destination { handle: recipient.address.backend(), qpn: recipient.qpn, qkey: recipient.qkey }
}

/// What the completion of an operation will say.
#[inline]
fn completed_opcode(operation: &SendOperation) -> u32 {
    match operation {
        SendOperation::Write(_) | SendOperation::WriteImmediate(..) => opcode::WRITE,
        SendOperation::Read(_) => opcode::READ,
        SendOperation::CompareSwap { .. } => opcode::COMPARE_SWAP,
        SendOperation::FetchAdd { .. } => opcode::FETCH_ADD,
        SendOperation::LocalInvalidate(_) => opcode::LOCAL_INVALIDATE,
        SendOperation::BindWindow(_) => opcode::BIND_WINDOW,
        _ => opcode::SEND,
    }
}

/// A request that the device didn't take, and that gets its memory back.
trait Refused {
    fn take_back(&mut self, payload: Payload);
}

impl Refused for SendRequest {
    fn take_back(&mut self, payload: Payload) {
        self.payload = payload;
    }
}

impl Refused for RecvRequest {
    fn take_back(&mut self, payload: Payload) {
        self.payload = payload;
    }
}
