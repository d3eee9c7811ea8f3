//! Posting of requests.

use std::iter;
use std::mem::ManuallyDrop;

use adverb_proto::explain::Call;
use adverb_proto::types as plain;
use adverb_proto::types::{Answer, ExtendedOperation, QpState, Segment, SendFlags, SendOperation, Transport};
use adverb_wire::GRH_LEN;
use parking_lot::MutexGuard;

use super::QueuePair;
use crate::backend::{self, PostErrno, PostFailure, SendList, opcode};
use crate::completion_queue::Attached;
use crate::device::UdDestination;
use crate::error::{DomainObject, Error, Feature, Limit, MessageLimit, Result, call_failed};
use crate::memory::{Buffer, Payload, PayloadSegment};
use crate::request::{
    self, Batch, InFlight, PostError, Posting, RecvRequest, RequestIds, Scratch, SendRequest,
};
use crate::request_id::RequestId;

/// The error of posting a request that borrows its memory.
pub(super) struct BorrowedPostError {
    pub(super) error: Error,
    /// The request, if the device may have accepted it despite the error.
    pub(super) posted: Option<RequestId>,
}

impl BorrowedPostError {
    fn new<R>(PostError { error, requests }: PostError<R>, id: RequestId) -> BorrowedPostError {
        BorrowedPostError { error, posted: requests.is_empty().then_some(id) }
    }
}

impl From<Error> for BorrowedPostError {
    fn from(error: Error) -> BorrowedPostError {
        BorrowedPostError { error, posted: None }
    }
}

impl QueuePair {
    /// Posts a send request.
    ///
    /// # Errors
    ///
    /// Returns [`Error::QueueFull`] if the queue is full, [`Error::WrongState`] if the queue pair is not ready to send,
    /// [`Error::InvalidRequest`], [`Error::LimitExceeded`], [`Error::MessageTooLong`] or [`Error::ForeignDomain`] if
    /// the request is invalid for the queue pair, [`Error::Unsupported`] if the device doesn't support ATOMIC WRITE or
    /// FLUSH, and [`Error::CallFailed`] if the operation fails. The error contains the request; see [`PostError`] for the
    /// exception.
    #[inline]
    pub fn post_send(&self, request: SendRequest) -> Result<RequestId, PostError<SendRequest>> {
        // A request on the fast path is taken apart: its parts move straight to the device's list and to the ring.
        // They are `ManuallyDrop`, because a value with a destructor would have to be in memory.
        let SendRequest { operation, flags, payload, tag, destination } = request;
        let (payload, destination) = (ManuallyDrop::new(payload), ManuallyDrop::new(destination));
        let mut queue = self.send.lock();
        let Posting { ring, signals, id_base, stats, scratch, recorder } = &mut *queue;
        if let Some(segment) = self.fast_path_segment(operation, flags, &payload, &destination)
            && self.state.is_ready_to_send()
            // Requests are recorded on the slow path.
            && !recorder.is_on()
            && let Some(vacancy) = ring.vacancy()
        {
            let (wr_id, flags) = (*id_base | u64::from(vacancy.position()), signals.set(flags));
            // The memory is stored first: the completion may arrive before posting returns.
            let (payload, opcode) = (ManuallyDrop::into_inner(payload), operation.completed().code());
            vacancy.fill(InFlight { payload, tag, opcode, address_handle: None });
            stats.posted += 1;
            let (segments, destination) = (&[segment], None);
            let request = plain::SendRequest { wr_id, tag, operation, flags, segments, destination };
            return match self.backend.post_send(&mut scratch.send, &request) {
                Ok(()) => {
                    drop(queue);
                    Ok(RequestId(wr_id))
                }
                // A new request, because a reference to the operation would keep it out of registers.
                Err(errno) => {
                    let (payload, destination) = (Payload::Empty, None);
                    let request = SendRequest { operation, flags, payload, tag, destination };
                    Err(self.retract_send(queue, errno, request))
                }
            };
        }
        let (payload, destination) =
            (ManuallyDrop::into_inner(payload), ManuallyDrop::into_inner(destination));
        self.post_send_slow(queue, SendRequest { operation, flags, payload, tag, destination })
    }

    /// Posts several send requests with one doorbell. After an error, the first requests may have been posted, and the
    /// error contains the others.
    ///
    /// ```no_run
    /// # use adverb::verbs::{QueuePair, SendRequest};
    /// # use adverb::memory::{Buffer, RemoteMemory};
    /// # fn example(queue_pair: &QueuePair, chunks: Vec<Buffer>, table: RemoteMemory) -> adverb::verbs::Result<()> {
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
    /// Returns the same errors as [`post_send`](QueuePair::post_send). If a request is invalid for the queue pair, or
    /// the queue doesn't have enough free entries for all requests, no request is posted.
    #[inline]
    pub fn post_sends(
        &self,
        requests: impl IntoIterator<Item = SendRequest>,
    ) -> Result<RequestIds, PostError<SendRequest>> {
        // No lock is held here: the iterator is the caller's code and may itself poll or post.
        let mut batch = self.take_batch(&mut self.send.lock());
        for request in requests {
            let SendRequest { operation, flags, payload, tag, destination } = request;
            let (payload, destination) = (ManuallyDrop::new(payload), ManuallyDrop::new(destination));
            let Some(segment) = self.fast_path_segment(operation, flags, &payload, &destination) else {
                let (payload, destination) =
                    (ManuallyDrop::into_inner(payload), ManuallyDrop::into_inner(destination));
                batch.add_slow(SendRequest { operation, flags, payload, tag, destination });
                continue;
            };
            let (segments, destination) = (&[segment], None);
            batch.list.add(&plain::SendRequest { wr_id: 0, tag, operation, flags, segments, destination });
            let opcode = operation.completed().code();
            // The place is reserved first, so that the request is written straight to it.
            batch.in_flight.extend(iter::once_with(|| {
                let payload = ManuallyDrop::into_inner(payload);
                InFlight { payload, tag, opcode, address_handle: None }
            }));
        }
        self.post_batch(self.send.lock(), batch)
    }

    /// Posts a request that is off the fast path, or that can't be posted.
    #[cold]
    fn post_send_slow(
        &self,
        mut queue: MutexGuard<'_, Posting>,
        request: SendRequest,
    ) -> Result<RequestId, PostError<SendRequest>> {
        let mut batch = self.take_batch(&mut queue);
        batch.add_slow(request);
        let id = RequestId(queue.id(0));
        self.post_batch(queue, batch).map(|_| id)
    }

    /// Returns an empty batch.
    #[inline]
    fn take_batch(&self, queue: &mut Posting) -> Box<Batch> {
        let batch = queue.scratch.batch.take();
        batch.unwrap_or_else(|| Box::new(Batch::new(self.domain.device().backend())))
    }

    /// Posts a batch.
    fn post_batch(
        &self,
        mut guard: MutexGuard<'_, Posting>,
        mut batch: Box<Batch>,
    ) -> Result<RequestIds, PostError<SendRequest>> {
        let queue = &mut *guard;
        let count = u32::try_from(batch.list.len()).unwrap_or(u32::MAX);
        let checked = self
            .check_send_queue(queue, count)
            .and_then(|()| batch.slow.iter().try_for_each(|(_, request)| self.check_send(request)));
        if let Err(error) = checked {
            let in_flight = std::mem::take(&mut batch.in_flight);
            return Err(PostError { error, requests: batch.into_requests(0, in_flight) });
        }
        if !batch.slow.is_empty() {
            batch.encode_slow(&mut queue.scratch.segments);
            if batch.slow.iter().any(|(_, request)| request.operation.extended().is_some()) {
                return self.post_checked_batch(queue, batch, count, backend::QueuePair::post_extended_sends);
            }
        }
        self.post_checked_batch(queue, batch, count, backend::QueuePair::post_sends)
    }

    /// Posts the `count` requests of a batch with the function `post` of the backend.
    #[inline(always)]
    fn post_checked_batch(
        &self,
        queue: &mut Posting,
        mut batch: Box<Batch>,
        count: u32,
        post: impl FnOnce(&backend::QueuePair, &mut SendList) -> Result<(), PostErrno>,
    ) -> Result<RequestIds, PostError<SendRequest>> {
        let ids = RequestIds::new(queue, count);
        batch.list.finish(ids.clone(), |flags| queue.signals.set(flags));
        if queue.recorder.is_on() {
            batch.list.set_tags(batch.in_flight.iter().map(|request| request.tag));
        }
        // The memory is stored first: completions may arrive before posting returns.
        queue.push_all(&mut batch.in_flight);
        // The time is read before posting, so that it is earlier than those of the completions.
        let recorded_at = queue.recorder.time();
        let posted = post(&self.backend, &mut batch.list);
        if let Some(time) = recorded_at {
            let (len, failure) = (batch.list.len(), posted.err());
            let failure = failure.map(|errno| PostFailure::new(errno, batch.list.posted_count()));
            let left = failure.map_or(0, |failure| failure.unposted_count(len));
            self.record_sends(&mut queue.recorder, time, &batch.list, len - left);
        }
        match posted {
            Ok(()) => {
                batch.clear();
                queue.scratch.batch = Some(batch);
                Ok(ids)
            }
            Err(errno) => Err(self.retract_batch(queue, errno, *batch)),
        }
    }

    /// Posts a receive request.
    ///
    /// # Errors
    ///
    /// Returns [`Error::QueueFull`] if the queue is full, [`Error::WrongState`] if the queue pair is in the reset or
    /// error state, [`Error::InvalidRequest`], [`Error::LimitExceeded`], [`Error::MessageTooLong`] or
    /// [`Error::ForeignDomain`] if the request is invalid for the queue pair, and [`Error::CallFailed`] if the operation
    /// fails. The error contains the request; see [`PostError`] for the exception.
    #[inline]
    pub fn post_recv(&self, request: impl Into<RecvRequest>) -> Result<RequestId, PostError<RecvRequest>> {
        let mut request = request.into();
        let Some(own) = self.recv.own() else {
            return Err(PostError { error: shared_queue_error(), requests: vec![request] });
        };
        let mut queue = own.lock();
        if let Err(error) = self.check_recv_queue(&mut queue, 1).and_then(|()| self.check_recv(&request)) {
            return Err(PostError { error, requests: vec![request] });
        }
        queue.scratch.recv_list.clear();
        let id = add_recv(&mut queue, &mut request);
        match self.post_recv_list(&mut queue) {
            Ok(()) => Ok(id),
            Err(failure) => Err(self.retract_recvs(own, &mut queue, failure, vec![request])),
        }
    }

    /// Posts several receive requests with one doorbell. After an error, the first requests may have been posted, and
    /// the error contains the others.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`post_recv`](QueuePair::post_recv). If a request is invalid for the queue pair, or
    /// the queue doesn't have enough free entries for all requests, no request is posted.
    pub fn post_recvs(
        &self,
        requests: impl IntoIterator<Item = impl Into<RecvRequest>>,
    ) -> Result<RequestIds, PostError<RecvRequest>> {
        let Some(own) = self.recv.own() else {
            let requests = requests.into_iter().map(Into::into).collect();
            return Err(PostError { error: shared_queue_error(), requests });
        };
        // No lock is held here: the iterator is the caller's code and may itself poll or post.
        let mut recvs = std::mem::take(&mut own.lock().scratch.recvs);
        recvs.clear();
        recvs.extend(requests.into_iter().map(Into::into));
        let mut queue = own.lock();
        let count = u32::try_from(recvs.len()).unwrap_or(u32::MAX);
        let checked = self
            .check_recv_queue(&mut queue, count)
            .and_then(|()| recvs.iter().try_for_each(|request| self.check_recv(request)));
        if let Err(error) = checked {
            return Err(PostError { error, requests: recvs });
        }
        let ids = RequestIds::new(&queue, count);
        queue.scratch.recv_list.clear();
        for request in &mut recvs {
            add_recv(&mut queue, request);
        }
        match self.post_recv_list(&mut queue) {
            Ok(()) => {
                recvs.clear();
                queue.scratch.recvs = recvs;
                Ok(ids)
            }
            Err(failure) => Err(self.retract_recvs(own, &mut queue, failure, recvs)),
        }
    }

    /// Posts a send request that borrows its memory.
    pub(super) fn post_borrowed_send(
        &self,
        operation: SendOperation,
        flags: SendFlags,
        buffer: &Buffer,
    ) -> Result<RequestId, BorrowedPostError> {
        self.check_borrowed(buffer)?;
        let segment = buffer.segment();
        if self.transport == Transport::Ud || !operation.is_supported(self.transport) {
            let reason = "requests in a scope require a connected queue pair, and READ requires RC";
            return Err(Error::InvalidRequest { reason: reason.into() }.into());
        }
        if segment.length > self.max_message_size {
            let (len, max) = (segment.length.into(), self.max_message_size.into());
            return Err(Error::MessageTooLong { len, max, limit: MessageLimit::QueuePair }.into());
        }
        let mut queue = self.send.lock();
        let mut batch = self.take_batch(&mut queue);
        let (segments, destination) = (&[segment], None);
        batch.list.add(&plain::SendRequest { wr_id: 0, tag: 0, operation, flags, segments, destination });
        let (payload, opcode) = (Payload::Empty, operation.completed().code());
        batch.in_flight.push(InFlight { payload, tag: 0, opcode, address_handle: None });
        let id = RequestId(queue.id(0));
        match self.post_batch(queue, batch) {
            Ok(_) => Ok(id),
            Err(error) => Err(BorrowedPostError::new(error, id)),
        }
    }

    /// Posts a receive request that borrows its memory.
    pub(super) fn post_borrowed_recv(&self, buffer: &Buffer) -> Result<RequestId, BorrowedPostError> {
        self.check_borrowed(buffer)?;
        if self.transport == Transport::Ud {
            let reason = "requests in a scope require a connected queue pair";
            return Err(Error::InvalidRequest { reason: reason.into() }.into());
        }
        let own = self.recv.own().ok_or_else(shared_queue_error)?;
        let mut queue = own.lock();
        self.check_recv_queue(&mut queue, 1)?;
        let wr_id = queue.id(0);
        queue.scratch.recv_list.clear();
        queue.scratch.recv_list.add(&plain::RecvRequest { wr_id, tag: 0, segments: &[buffer.segment()] });
        queue.push(InFlight { payload: Payload::Empty, tag: 0, opcode: opcode::RECV, address_handle: None });
        match self.post_recv_list(&mut queue) {
            Ok(()) => Ok(RequestId(wr_id)),
            Err(failure) => {
                let rejected = vec![RecvRequest { payload: Payload::Empty, tag: 0 }];
                let error = self.retract_recvs(own, &mut queue, failure, rejected);
                Err(BorrowedPostError::new(error, RequestId(wr_id)))
            }
        }
    }

    /// Posts the receive requests of the queue's list.
    #[inline]
    fn post_recv_list(&self, queue: &mut Posting) -> Result<(), PostFailure> {
        // The time is read before posting, so that it is earlier than those of the completions.
        let recorded_at = queue.recorder.time();
        let list = &mut queue.scratch.recv_list;
        let posted = self.backend.post_recvs(list);
        let posted = posted.map_err(|errno| PostFailure::new(errno, list.posted_count()));
        if let Some(time) = recorded_at {
            let left = posted.as_ref().err().map_or(0, |failure| failure.unposted_count(list.len()));
            self.record_recvs(&mut queue.recorder, time, list, list.len() - left);
        }
        posted
    }

    /// Checks that a borrowed buffer belongs to the queue pair's domain.
    fn check_borrowed(&self, buffer: &Buffer) -> Result<()> {
        if *buffer.domain() == self.domain {
            return Ok(());
        }
        Err(self.domain.foreign_domain_error(DomainObject::Memory, buffer.domain(), self.name()))
    }

    /// Returns the name of the queue pair in errors.
    pub(crate) fn name(&self) -> String {
        format!("queue pair {}", self.qpn())
    }

    /// Checks that `count` send requests may be posted now.
    #[inline]
    fn check_send_queue(&self, queue: &mut Posting, count: u32) -> Result<()> {
        let state = self.state.get();
        if state != QpState::ReadyToSend {
            return Err(Error::WrongState { action: "posting a send request", state });
        }
        if !queue.has_free_slots(count) {
            return Err(Error::QueueFull { queue: "send", depth: queue.depth() });
        }
        Ok(())
    }

    /// Returns the segment of a request on the fast path: a SEND or WRITE of one segment on a reliable connection that
    /// suits the queue pair. Other requests are checked in detail.
    #[inline(always)]
    fn fast_path_segment(
        &self,
        operation: SendOperation,
        flags: SendFlags,
        payload: &Payload,
        destination: &Option<UdDestination>,
    ) -> Option<Segment> {
        if !request::is_on_fast_path(&operation)
            || destination.is_some()
            || flags.contains(SendFlags::INLINE)
            || self.transport != Transport::Rc
        {
            return None;
        }
        let Payload::One(piece) = payload else { return None };
        let segment = piece.segment();
        (segment.length <= self.max_message_size && *piece.domain() == self.domain).then_some(segment)
    }

    /// Checks that a send request suits the queue pair.
    fn check_send(&self, request: &SendRequest) -> Result<()> {
        if let Payload::Window(window) = &request.payload {
            return self.check_window(request, window);
        }
        if let Some(invalid_reason) = request.invalid_reason() {
            return Err(Error::InvalidRequest { reason: invalid_reason.into() });
        }
        if let Some(reason) = self.unsuitable_reason(request) {
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        if let Some(operation) = request.operation.extended() {
            self.check_extended(operation)?;
        }
        let is_inline = request.flags.contains(SendFlags::INLINE);
        // Inline bytes are copied while the request is posted: the device never uses their lkey.
        if !is_inline {
            self.domain.check_payload(&request.payload, || self.name())?;
        }
        let (max, limit) = if is_inline {
            (self.limits.inline, MessageLimit::Inline)
        } else {
            (self.max_message_size, MessageLimit::QueuePair)
        };
        check_payload(&request.payload, self.limits.send_segments, max, limit)
    }

    /// Checks that the device and its driver support an ATOMIC WRITE or a FLUSH.
    #[cold]
    fn check_extended(&self, operation: ExtendedOperation) -> Result<()> {
        let device = self.domain.device();
        let (is_supported, feature) = match operation {
            ExtendedOperation::Flush(range) => (
                device.attributes().flush.supports(range.placement()),
                if range.persistent { Feature::FlushPersistent } else { Feature::FlushGlobal },
            ),
            ExtendedOperation::AtomicWrite { .. } => {
                (device.attributes().has_atomic_write, Feature::AtomicWrite)
            }
        };
        if !is_supported {
            return Err(device.unsupported(feature));
        }
        if !self.backend.can_post(operation) {
            return Err(device.unsupported(Feature::ExtendedPost));
        }
        Ok(())
    }

    /// Returns a reason to reject a send request on the queue pair's transport.
    #[inline]
    fn unsuitable_reason(&self, request: &SendRequest) -> Option<&'static str> {
        if !request.operation.is_supported(self.transport) {
            return Some(match (self.transport, request.operation.answer()) {
                (Transport::Ud, _) => {
                    "UD supports only SEND: READ, WRITE and atomics require a connected queue pair"
                }
                (_, Answer::Read | Answer::Atomic) => "READ and atomics require an RC queue pair",
                (_, Answer::EmptyRead) => "ATOMIC WRITE and FLUSH require an RC queue pair",
                (_, Answer::None | Answer::Acknowledgement) => {
                    "SEND with invalidate requires an RC queue pair"
                }
            });
        }
        match (self.transport, &request.destination) {
            (Transport::Ud, None) => Some("a UD send request requires a destination: call `destination`"),
            // A provider would take another device's handle for its own.
            (Transport::Ud, Some(destination)) => {
                let is_own = destination.address_handle.backend().is_of(self.domain.backend());
                (!is_own).then_some(
                    "the destination belongs to another protection domain: create it with this queue pair",
                )
            }
            (Transport::Rc | Transport::Uc, Some(_)) => {
                Some("a request of a connected queue pair cannot have a destination")
            }
            (Transport::Rc | Transport::Uc, None) => None,
        }
    }

    /// Checks that `count` receive requests may be posted now.
    #[inline]
    fn check_recv_queue(&self, queue: &mut Posting, count: u32) -> Result<()> {
        let state = self.state.get();
        if matches!(state, QpState::Reset | QpState::Error) {
            return Err(Error::WrongState { action: "posting a receive request", state });
        }
        if !queue.has_free_slots(count) {
            return Err(Error::QueueFull { queue: "receive", depth: queue.depth() });
        }
        Ok(())
    }

    /// Checks that a receive request suits the queue pair.
    #[inline]
    fn check_recv(&self, request: &RecvRequest) -> Result<()> {
        if !request.payload.segments().iter().all(PayloadSegment::is_locally_writable) {
            let reason = "a receive request requires memory with LOCAL_WRITE access";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        self.domain.check_payload(&request.payload, || self.name())?;
        // A datagram that doesn't fit makes some devices (rxe) move the queue pair to the error state, and any peer can
        // send one.
        let min_len = GRH_LEN + usize::from(self.source.port.active_mtu.bytes());
        if self.transport == Transport::Ud && request.payload.len() < min_len {
            let reason = format!(
                "a UD receive request requires at least {min_len} bytes: 40 for the GRH, and the port's MTU"
            );
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        check_payload(&request.payload, self.limits.recv_segments, u32::MAX, MessageLimit::Recv)
    }

    /// Retracts a request on the fast path that the device rejected, and returns the error. The payload of `request` is
    /// empty: the ring has it.
    #[cold]
    #[inline(never)]
    fn retract_send(
        &self,
        mut queue: MutexGuard<'_, Posting>,
        errno: PostErrno,
        request: SendRequest,
    ) -> PostError<SendRequest> {
        let failure = PostFailure::new(errno, queue.scratch.send.posted_count());
        let rejected = self.send.retract(&mut queue, failure.unposted_count(1)).pop();
        let requests = rejected.map(|InFlight { payload, .. }| SendRequest { payload, ..request });
        let requests = requests.into_iter().collect();
        PostError { error: self.post_error("posting a send request", failure), requests }
    }

    /// Retracts the requests of a batch that the device rejected, all or some of them, and returns the error.
    #[cold]
    fn retract_batch(&self, queue: &mut Posting, errno: PostErrno, batch: Batch) -> PostError<SendRequest> {
        let failure = PostFailure::new(errno, batch.list.posted_count());
        let left = failure.unposted_count(batch.list.len());
        let posted = batch.list.len() - left;
        let requests = batch.into_requests(posted, self.send.retract(queue, left));
        PostError { error: self.post_error("posting send requests", failure), requests }
    }

    /// Retracts the receive requests that the device rejected, all or some of them, and returns the error.
    #[cold]
    fn retract_recvs(
        &self,
        own: &Attached,
        queue: &mut Posting,
        failure: PostFailure,
        mut requests: Vec<RecvRequest>,
    ) -> PostError<RecvRequest> {
        let left = failure.unposted_count(requests.len());
        let mut rest = requests.split_off(requests.len() - left);
        for (request, in_flight) in rest.iter_mut().zip(own.retract(queue, left)) {
            request.payload = in_flight.payload;
        }
        PostError { error: self.post_error("posting receive requests", failure), requests: rest }
    }

    pub(super) fn post_error(&self, action: &str, failure: PostFailure) -> Error {
        call_failed(Call::Post, format!("{action} to queue pair {}", self.qpn()), failure.error)
    }
}

/// Adds a request to the list that is posted next, and moves its memory to the queue first, because the completion
/// may arrive before posting returns.
#[inline]
fn add_recv(queue: &mut Posting, request: &mut RecvRequest) -> RequestId {
    let RecvRequest { payload, tag } = request;
    let wr_id = queue.id(0);
    let Scratch { recv_list, segments: segment_buf, .. } = &mut queue.scratch;
    if let Payload::One(piece) = &*payload {
        // A slice of its own, because the compiler would keep one of several in memory, and the list would wait for it.
        recv_list.add(&plain::RecvRequest { wr_id, tag: *tag, segments: &[piece.segment()] });
    } else {
        segment_buf.clear();
        segment_buf.extend(payload.segments().iter().map(PayloadSegment::segment));
        recv_list.add(&plain::RecvRequest { wr_id, tag: *tag, segments: segment_buf });
    }
    queue.push_with(|| {
        let payload = std::mem::take(payload);
        InFlight { payload, tag: *tag, opcode: opcode::RECV, address_handle: None }
    });
    RequestId(wr_id)
}

/// Returns the error of posting a receive to a queue pair that uses a shared receive queue.
#[cold]
fn shared_queue_error() -> Error {
    let reason = "the queue pair uses a shared receive queue: post receive requests there";
    Error::InvalidRequest { reason: reason.into() }
}

#[inline]
fn check_payload(payload: &Payload, segments: u32, max: u32, limit: MessageLimit) -> Result<()> {
    let pieces = payload.segments();
    if pieces.len() > segments as usize {
        return Err(Error::LimitExceeded {
            limit: Limit::Segments,
            requested: pieces.len() as u64,
            max: segments.into(),
        });
    }
    let len = payload.len() as u64;
    if len > u64::from(max) {
        return Err(Error::MessageTooLong { len, max: max.into(), limit });
    }
    Ok(())
}
