//! Posting: how requests get to the device, and their memory to where it waits for the completion.

use std::sync::{MutexGuard, PoisonError};

use adverb_proto::vocabulary as plain;
use adverb_proto::vocabulary::{Destination, QpState, Segment, SendFlags, SendOperation, Transport};
use adverb_wire::GRH_LEN;

use super::completion::{RequestId, RequestIds};
use super::in_flight::InFlight;
use super::{PostError, QueuePair, Recipient, RecvRequest, SendRequest};
use crate::backend::{self, CompletionKind, PostFailure};
use crate::error::{Error, Result};
use crate::memory::{Payload, Piece};

/// Room for requests of several segments, and for batches, kept so that posting doesn't allocate.
#[derive(Default)]
pub(super) struct Scratch {
    segments: Vec<Segment>,
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
        if let Err(error) = self.check_send_queue(&queue, 1).and_then(|()| self.check_send(&request)) {
            return Err(PostError { error, requests: vec![request] });
        }
        let flags = flags(&request, &queue, 0);
        let id = queue.id(0);
        let plain = |segments| plain::SendRequest {
            wr_id: id,
            operation: request.operation,
            flags,
            segments,
            destination: destination(&request),
        };
        let posted = match &request.payload {
            Payload::Empty => self.backend.post_send(&plain(&[])),
            Payload::One(piece) => self.backend.post_send(&plain(&[piece.segment()])),
            Payload::Many(pieces) => {
                let segments = &mut self.scratch().segments;
                segments.clear();
                segments.extend(pieces.iter().map(Piece::segment));
                self.backend.post_send(&plain(segments))
            }
        };
        match posted {
            Ok(()) => {
                push_send(&mut queue, request, flags);
                Ok(RequestId(id))
            }
            Err(failure) => {
                Err(self.not_posted("posting a send request", failure, vec![request], |request| {
                    push_send(&mut queue, request, flags);
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
        let mut queue = self.send.lock();
        let mut scratch = self.scratch();
        let Scratch { segments, sends, list, .. } = &mut *scratch;
        sends.clear();
        sends.extend(requests);
        let count = u32::try_from(sends.len()).unwrap_or(u32::MAX);
        let checked = self
            .check_send_queue(&queue, count)
            .and_then(|()| sends.iter().try_for_each(|request| self.check_send(request)));
        if let Err(error) = checked {
            return Err(PostError { error, requests: std::mem::take(sends) });
        }
        segments.clear();
        segments.extend(sends.iter().flat_map(|request| request.payload.pieces()).map(Piece::segment));
        let ids = RequestIds::new(&queue, count);
        let mut unsignaled = 0;
        for request in sends.iter_mut() {
            request.flags = flags(request, &queue, unsignaled);
            unsignaled = if request.flags.contains(SendFlags::SIGNALED) { 0 } else { unsignaled + 1 };
        }
        let mut rest = &segments[..];
        let plain = sends.iter().zip(0..).map(|(request, ahead)| {
            let segments;
            (segments, rest) = rest.split_at(request.payload.pieces().len());
            plain::SendRequest {
                wr_id: queue.id(ahead),
                operation: request.operation,
                flags: request.flags,
                segments,
                destination: destination(request),
            }
        });
        match self.backend.post_sends(list, plain) {
            Ok(()) => {
                for request in sends.drain(..) {
                    let flags = request.flags;
                    push_send(&mut queue, request, flags);
                }
                Ok(ids)
            }
            Err(failure) => {
                let requests = std::mem::take(sends);
                Err(self.not_posted("posting send requests", failure, requests, |request| {
                    let flags = request.flags;
                    push_send(&mut queue, request, flags);
                }))
            }
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
        let Some(queue) = self.recv.own() else {
            return Err(PostError { error: shared_elsewhere(), requests: vec![request] });
        };
        let mut queue = queue.lock();
        if let Err(error) = self.check_recv_queue(&queue, 1).and_then(|()| self.check_recv(&request)) {
            return Err(PostError { error, requests: vec![request] });
        }
        let id = queue.id(0);
        let plain = |segments| plain::RecvRequest { wr_id: id, segments };
        let posted = match &request.payload {
            Payload::Empty => self.backend.post_recv(&plain(&[])),
            Payload::One(piece) => self.backend.post_recv(&plain(&[piece.segment()])),
            Payload::Many(pieces) => {
                let segments = &mut self.scratch().segments;
                segments.clear();
                segments.extend(pieces.iter().map(Piece::segment));
                self.backend.post_recv(&plain(segments))
            }
        };
        match posted {
            Ok(()) => {
                push_recv(&mut queue, request);
                Ok(RequestId(id))
            }
            Err(failure) => {
                Err(self.not_posted("posting a receive request", failure, vec![request], |request| {
                    push_recv(&mut queue, request);
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
        let Some(queue) = self.recv.own() else {
            let requests = requests.into_iter().map(Into::into).collect();
            return Err(PostError { error: shared_elsewhere(), requests });
        };
        let mut queue = queue.lock();
        let mut scratch = self.scratch();
        let Scratch { segments, recvs, list, .. } = &mut *scratch;
        recvs.clear();
        recvs.extend(requests.into_iter().map(Into::into));
        let count = u32::try_from(recvs.len()).unwrap_or(u32::MAX);
        let checked = self
            .check_recv_queue(&queue, count)
            .and_then(|()| recvs.iter().try_for_each(|request| self.check_recv(request)));
        if let Err(error) = checked {
            return Err(PostError { error, requests: std::mem::take(recvs) });
        }
        segments.clear();
        segments.extend(recvs.iter().flat_map(|request| request.payload.pieces()).map(Piece::segment));
        let ids = RequestIds::new(&queue, count);
        let mut rest = &segments[..];
        let plain = recvs.iter().zip(0..).map(|(request, ahead)| {
            let segments;
            (segments, rest) = rest.split_at(request.payload.pieces().len());
            plain::RecvRequest { wr_id: queue.id(ahead), segments }
        });
        match self.backend.post_recvs(list, plain) {
            Ok(()) => {
                recvs.drain(..).for_each(|request| push_recv(&mut queue, request));
                Ok(ids)
            }
            Err(failure) => {
                let requests = std::mem::take(recvs);
                Err(self.not_posted("posting receive requests", failure, requests, |request| {
                    push_recv(&mut queue, request);
                }))
            }
        }
    }

    /// Whether `count` send requests may be posted now.
    #[inline]
    fn check_send_queue(&self, queue: &InFlight, count: u32) -> Result<()> {
        let state = self.state.get();
        if state != QpState::ReadyToSend {
            let hint = match state {
                QpState::Error => "it has failed: an earlier completion says why",
                _ => "connect it first",
            };
            return Err(Error::WrongState { action: "posting a send request", state, hint });
        }
        if queue.room() < count {
            return Err(Error::QueueFull { queue: "send", depth: queue.depth() });
        }
        Ok(())
    }

    /// What of a send request doesn't fit the queue pair.
    #[inline]
    fn check_send(&self, request: &SendRequest) -> Result<()> {
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
                request.recipient.is_none().then_some("a datagram needs a recipient: call `to`")
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
    fn check_recv_queue(&self, queue: &InFlight, count: u32) -> Result<()> {
        let state = self.state.get();
        if matches!(state, QpState::Reset | QpState::Error) {
            let hint = "nothing would come of it";
            return Err(Error::WrongState { action: "posting a receive request", state, hint });
        }
        if queue.room() < count {
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

    /// The error for requests of which the device took some, or perhaps some: those count as posted.
    #[cold]
    fn not_posted<R>(
        &self,
        action: &str,
        failure: PostFailure,
        mut requests: Vec<R>,
        posted: impl FnMut(R),
    ) -> PostError<R> {
        let PostFailure { error, posted: count } = failure;
        let rest = requests.split_off(count.unwrap_or(requests.len()).min(requests.len()));
        requests.into_iter().for_each(posted);
        let hint = match count {
            None => {
                "the device doesn't say how much it took: what was posted is kept until the queue pair is gone"
            }
            Some(_) => "",
        };
        let action = format!("{action} to queue pair {}", self.qpn());
        PostError { error: Error::Verb { action, error, hint: hint.into() }, requests: rest }
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

/// The flags of a request that comes after `unsignaled` others of the same batch that ask for no completion.
#[inline]
fn flags(request: &SendRequest, queue: &InFlight, unsignaled: u32) -> SendFlags {
    if queue.must_signal(unsignaled) { request.flags | SendFlags::SIGNALED } else { request.flags }
}

#[inline]
fn push_send(queue: &mut InFlight, request: SendRequest, flags: SendFlags) {
    let kind = request.kind();
    let recipient = request.recipient.map(|recipient| recipient.address);
    queue.push(request.payload, request.tag, kind, flags.contains(SendFlags::SIGNALED), recipient);
}

#[inline]
fn destination(request: &SendRequest) -> Option<Destination<&backend::AddressHandle>> {
    let Recipient { address, qpn, qkey } = request.recipient.as_ref()?;
    Some(Destination { handle: address.backend(), qpn: *qpn, qkey: *qkey })
}

#[inline]
fn push_recv(queue: &mut InFlight, request: RecvRequest) {
    queue.push(request.payload, request.tag, CompletionKind::Recv, true, None);
}
