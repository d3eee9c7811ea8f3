//! Unchecked requests, as in C: Adverb doesn't own their memory, and neither checks nor counts the requests.
//!
//! This module is for libraries that track requests and memory themselves. They build requests in place in a reusable
//! list, and read completions in the memory that the device wrote. The cost is the same as with the C API.
//!
//! ```no_run
//! # use adverb::memory::{MemoryRegion, RemoteMemory};
//! # use adverb::verbs::raw::{Completions, Segment, SendFlags, SendOperation};
//! # use adverb::verbs::{CompletionQueue, QueuePair};
//! # fn example(
//! #     queue_pair: &QueuePair, queue: &CompletionQueue, region: &MemoryRegion, table: RemoteMemory,
//! # ) -> adverb::verbs::Result<()> {
//! let (mut writes, mut completions) = (queue_pair.raw_send_list(), Completions::new(16));
//! let segment = Segment { addr: region.remote().addr, length: 64, lkey: region.lkey() };
//! for n in 0..4 {
//!     writes.add(n, SendOperation::Write(table.at(n * 64)), SendFlags::SIGNALED, &[segment]);
//! }
//! // SAFETY: the region belongs to the queue pair's domain and outlives it, no code writes to it meanwhile, and only
//! // this function polls the queue, with `poll_raw`.
//! unsafe { queue_pair.post_raw_sends(&mut writes) }?;
//! writes.clear();
//! queue.poll_raw(&mut completions)?;
//! for completion in completions.iter() {
//!     println!("{}: {:?}", completion.id(), completion.outcome());
//! }
//! # Ok(())
//! # }
//! ```

use std::fmt;

use adverb_proto::explain::Call;
use adverb_proto::types::{self as plain, Destination, Failure, Qpn};

use super::QueuePair;
use crate::backend::{self, PostErrno, PostFailure, RawCompletion};
use crate::completion_queue::CompletionQueue;
use crate::device::UdDestination;
use crate::error::{Error, Result, call_failed};
use crate::request::{Success, public_outcome};
use crate::shared_receive_queue::SharedReceiveQueue;

pub use crate::request::operation::SendOperation;
pub use adverb_proto::types::{Segment, SendFlags};

/// A list of send requests that are posted together, created by [`QueuePair::raw_send_list`].
pub struct SendList(backend::SendList);

impl SendList {
    /// Adds a request. Its completion has the given `id`.
    #[inline]
    pub fn add(&mut self, id: u64, operation: SendOperation, flags: SendFlags, segments: &[Segment]) {
        self.0.add_raw(&plain::SendRequest {
            wr_id: id,
            tag: id,
            operation: operation.into(),
            flags,
            segments,
            destination: None,
        });
    }

    /// Adds a request of a UD queue pair, with its destination. The caller must keep the destination until the request
    /// has completed.
    ///
    /// # Panics
    ///
    /// Panics if the destination was created with a queue pair of another kind of device.
    #[inline]
    pub fn add_datagram(
        &mut self,
        destination: &UdDestination,
        id: u64,
        operation: SendOperation,
        flags: SendFlags,
        segments: &[Segment],
    ) {
        let handle = destination.address_handle.backend();
        let destination = Some(Destination { handle, qpn: destination.qpn, qkey: destination.qkey });
        self.0.add_raw(&plain::SendRequest {
            wr_id: id,
            tag: id,
            operation: operation.into(),
            flags,
            segments,
            destination,
        });
    }

    /// Removes all requests. Posting doesn't remove them: a list may be posted again.
    #[inline]
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// A list of receive requests that are posted together, created by [`QueuePair::raw_recv_list`].
pub struct RecvList(backend::RecvList);

impl RecvList {
    /// Adds a request. Its completion has the given `id`.
    #[inline]
    pub fn add(&mut self, id: u64, segments: &[Segment]) {
        self.0.add(&plain::RecvRequest { wr_id: id, tag: id, segments });
    }

    /// Removes all requests. Posting doesn't remove them: a list may be posted again.
    #[inline]
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl QueuePair {
    /// Creates an empty list of send requests. It can be posted to this queue pair and to others of the same device.
    pub fn raw_send_list(&self) -> SendList {
        SendList(self.domain.device().backend().send_list())
    }

    /// Creates an empty list of receive requests. It can be posted to the queues of the same device.
    pub fn raw_recv_list(&self) -> RecvList {
        RecvList(self.domain.device().backend().recv_list())
    }

    /// Posts send requests with one doorbell, without checking or tracking them.
    ///
    /// # Safety
    ///
    /// - Until a request has completed, or the queue pair has been destroyed, its memory stays registered and
    ///   allocated, no code writes to the bytes that the request reads, and no code reads or writes the bytes that the
    ///   request writes.
    /// - Every segment lies in memory that is registered in this queue pair's protection domain, and has that memory's
    ///   lkey. An lkey is unique within one device only: the same number may be the lkey of memory that safe code uses
    ///   as a `[u8]`.
    /// - With [`INLINE`](SendFlags::INLINE), `addr` is dereferenced while the request is posted, and `lkey` is ignored:
    ///   the `length` bytes at that address of this process can be read, and no thread writes to them meanwhile.
    /// - A datagram has a destination ([`add_datagram`](SendList::add_datagram)) that was created with this queue
    ///   pair's protection domain, and that isn't dropped before the request has completed.
    /// - From the first raw request on, the completions of this queue pair's send queue are taken only with
    ///   [`poll_raw`](CompletionQueue::poll_raw), and never by `poll`, `wait`, a [`Poller`](crate::Poller),
    ///   [`drain`](QueuePair::drain) or [`begin_drain`](QueuePair::begin_drain): those functions interpret every id as the
    ///   id of a safe request, and return the memory of that request. So a queue pair with safe requests must not share
    ///   that completion queue.
    /// - The queue pair is connected (or, for datagrams, in the state RTS), and never has more requests outstanding
    ///   than its depth.
    ///
    /// # Errors
    ///
    /// Returns the device's error if the device rejects a request, with the number of requests that were posted, if the
    /// device reports it.
    #[inline]
    pub unsafe fn post_raw_sends(&self, list: &mut SendList) -> Result<(), RawPostError> {
        self.backend.post_sends(&mut list.0).map_err(|errno| RawPostError::new(errno, list.0.posted_count()))
    }

    /// Posts receive requests with one doorbell, without checking or tracking them.
    ///
    /// # Safety
    ///
    /// The requirements of [`post_raw_sends`](QueuePair::post_raw_sends) apply, with the completions of the receive
    /// queue. The queue pair has no shared receive queue.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`post_raw_sends`](QueuePair::post_raw_sends).
    #[inline]
    pub unsafe fn post_raw_recvs(&self, list: &mut RecvList) -> Result<(), RawPostError> {
        self.backend.post_recvs(&mut list.0).map_err(|errno| RawPostError::new(errno, list.0.posted_count()))
    }
}

impl SharedReceiveQueue {
    /// Posts receive requests with one doorbell, without checking or tracking them.
    ///
    /// # Safety
    ///
    /// The requirements of [`QueuePair::post_raw_sends`] apply, with the receive completions of all queue pairs that
    /// use this queue, and with the protection domain of this queue.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`QueuePair::post_raw_sends`].
    #[inline]
    pub unsafe fn post_raw_recvs(&self, list: &mut RecvList) -> Result<(), RawPostError> {
        self.backend()
            .post_recvs(&mut list.0)
            .map_err(|errno| RawPostError::new(errno, list.0.posted_count()))
    }
}

impl CompletionQueue {
    /// Polls completions as the device wrote them, up to the capacity of `completions`, and returns their number. They
    /// replace the completions of the last call.
    ///
    /// This call also consumes the completions of safe requests. Such a completion is lost, and the request keeps its
    /// memory until its queue pair has been destroyed.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the device can't be polled.
    #[inline]
    pub fn poll_raw(&self, completions: &mut Completions) -> Result<usize> {
        let polled = self.backend().poll(&mut completions.slots);
        completions.len = *polled.as_ref().unwrap_or(&0);
        polled
    }
}

/// The completions that [`CompletionQueue::poll_raw`] polled last, as the device wrote them.
pub struct Completions {
    slots: Box<[RawCompletion]>,
    len: usize,
}

impl Completions {
    /// Creates an empty list with the given capacity, or with a capacity of 1 if `capacity` is 0.
    pub fn new(capacity: usize) -> Completions {
        Completions { slots: vec![RawCompletion::EMPTY; capacity.max(1)].into(), len: 0 }
    }

    /// Returns the completions that were polled last, in order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Completion<'_>> {
        self.slots[..self.len].iter().map(Completion)
    }
}

/// A completion, as the device wrote it.
#[derive(Clone, Copy)]
pub struct Completion<'a>(&'a RawCompletion);

impl Completion<'_> {
    /// Returns the id that the request was posted with.
    #[inline]
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Whether the request succeeded.
    #[inline]
    pub fn is_ok(&self) -> bool {
        self.0.outcome.status == 0
    }

    /// Returns the number of the request's queue pair. The number is meaningless if the completion queue was created
    /// with timestamps.
    pub fn qpn(&self) -> Qpn {
        Qpn::truncate(self.0.outcome.qpn)
    }

    /// Returns the outcome of the request. The sender in the outcome of a receive is valid only for datagrams.
    pub fn outcome(&self) -> std::result::Result<Success, Failure> {
        public_outcome(self.0.outcome.decode(true))
    }
}

/// The error of posting raw requests. `Display` and [`source`](std::error::Error::source) are those of the cause.
#[derive(Debug)]
pub struct RawPostError {
    /// The cause.
    pub error: Error,
    /// The number of requests that were posted before the failure. The value is `None` if the device doesn't report the
    /// number: any number of requests may have been posted.
    pub posted_count: Option<usize>,
}

impl RawPostError {
    #[cold]
    fn new(errno: PostErrno, posted_count: Option<usize>) -> RawPostError {
        let PostFailure { error, posted_count } = PostFailure::new(errno, posted_count);
        RawPostError { error: call_failed(Call::Post, "posting raw requests", error), posted_count }
    }
}

impl fmt::Display for RawPostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for RawPostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<RawPostError> for Error {
    fn from(error: RawPostError) -> Error {
        error.error
    }
}

impl fmt::Debug for SendList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendList").field("len", &self.0.len()).finish()
    }
}

impl fmt::Debug for RecvList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvList").finish_non_exhaustive()
    }
}

impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Debug for Completion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("id", &self.id()).field("outcome", &self.outcome()).finish()
    }
}

// These auto traits are part of the API.
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<SendList>();
    shared_between_threads::<RecvList>();
    shared_between_threads::<Completions>();
};
