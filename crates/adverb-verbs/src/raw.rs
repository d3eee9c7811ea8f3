//! Requests as C would post them: nothing is kept, nothing is checked, nothing is counted.
//!
//! For layers that keep their own books, and know that they are right. Requests are made in place, in a list that is used
//! again and again, and completions are read where the device put them; beside C's this costs nothing.
//!
//! ```no_run
//! # use adverb::memory::{MemoryRegion, RemoteMemory};
//! # use adverb::verbs::raw::{Completions, Segment, SendFlags, SendList, SendOperation};
//! # use adverb::verbs::{CompletionQueue, QueuePair};
//! # fn example(
//! #     queue_pair: &QueuePair, queue: &CompletionQueue, region: &MemoryRegion, table: RemoteMemory,
//! # ) -> adverb::Result<()> {
//! let (mut writes, mut completions) = (SendList::new(), Completions::new(16));
//! let segment = Segment { addr: region.remote().addr, length: 64, lkey: region.lkey() };
//! for n in 0..4 {
//!     writes.add(n, SendOperation::Write(table.at(n * 64)), SendFlags::SIGNALED, &[segment]);
//! }
//! // SAFETY: the region is of the queue pair's domain and outlives it, nobody writes to it meanwhile, the queue is polled raw
//! // and by us alone.
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

use adverb_proto::types::{self as plain, Destination, Failure, Qpn, Success};

pub use adverb_proto::types::{Segment, SendFlags, SendOperation};

use super::{CompletionQueue, QueuePair, SharedReceiveQueue, UdDestination};
use crate::backend::{self, PostFailure, RawCompletion};
use crate::error::{Error, Result};

/// Send requests that are posted together.
#[derive(Default)]
pub struct SendList(backend::SendList);

impl SendList {
    /// An empty list.
    pub fn new() -> SendList {
        SendList::default()
    }

    /// Adds a request. Its completion will carry `id`.
    ///
    /// # Panics
    ///
    /// If the operation is one that this list can't say: binding a window, ATOMIC WRITE, FLUSH.
    #[inline]
    pub fn add(&mut self, id: u64, operation: SendOperation, flags: SendFlags, segments: &[Segment]) {
        self.add_plain(&plain::SendRequest { wr_id: id, operation, flags, segments, destination: None });
    }

    /// Adds a request of a datagram queue pair: who posts it keeps the recipient until it has completed.
    ///
    /// # Panics
    ///
    /// As [`add`](SendList::add).
    #[inline]
    pub fn add_datagram(
        &mut self,
        recipient: &UdDestination,
        id: u64,
        operation: SendOperation,
        flags: SendFlags,
        segments: &[Segment],
    ) {
        let handle = recipient.address.backend();
        let destination = Some(Destination { handle, qpn: recipient.qpn, qkey: recipient.qkey });
        self.add_plain(&plain::SendRequest { wr_id: id, operation, flags, segments, destination });
    }

    #[inline(always)]
    fn add_plain(&mut self, request: &plain::SendRequest<'_, &backend::AddressHandle>) {
        assert!(
            !matches!(request.operation, SendOperation::BindWindow(_)),
            "a window is bound with `SendRequest::bind`"
        );
        self.0.add(request);
    }

    /// Forgets all requests. Posting doesn't: a list may be posted again.
    #[inline]
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Receive requests that are posted together.
#[derive(Default)]
pub struct RecvList(backend::RecvList);

impl RecvList {
    /// An empty list.
    pub fn new() -> RecvList {
        RecvList::default()
    }

    /// Adds a request. Its completion will carry `id`.
    #[inline]
    pub fn add(&mut self, id: u64, segments: &[Segment]) {
        self.0.add(&plain::RecvRequest { wr_id: id, segments });
    }

    /// Forgets all requests. Posting doesn't: a list may be posted again.
    #[inline]
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl QueuePair {
    /// Posts send requests with one doorbell, and neither looks at them nor remembers them.
    ///
    /// # Safety
    ///
    /// - Until a request has completed, or the queue pair is gone, its memory stays registered and allocated, nobody
    ///   writes to what it reads, and nobody touches what it writes.
    /// - Every segment lies in memory that is registered in this queue pair's protection domain, and has that memory's lkey.
    ///   An lkey is unique within one device only: another device's may name memory here that a safe program has as a `[u8]`.
    /// - With [`INLINE`](SendFlags::INLINE), `addr` is dereferenced while the request is posted, and `lkey` is ignored: the
    ///   `length` bytes at that address of this process can be read, and no thread writes to them meanwhile.
    /// - A datagram has a recipient ([`add_datagram`](SendList::add_datagram)) that was made with this queue pair's protection domain,
    ///   and isn't dropped until then.
    /// - The completions of this queue pair's send queue are taken with [`poll_raw`](CompletionQueue::poll_raw) and in no
    ///   other way, from the first raw request on: not by `poll`, `wait`, a [`Poller`](super::Poller) or
    ///   [`drain`](QueuePair::drain), which take any id for one of their own requests', and give back its memory. So no
    ///   other queue pair that is used otherwise may share that completion queue.
    /// - The queue pair is connected (or, for datagrams, active), and never has more requests outstanding than its depth.
    ///
    /// # Errors
    ///
    /// If the device refuses: the error tells how many requests it took, if it knows.
    #[inline]
    pub unsafe fn post_raw_sends(&self, list: &mut SendList) -> Result<(), RawPostError> {
        self.backend.post_sends(&mut list.0).map_err(RawPostError::from)
    }

    /// Posts receive requests with one doorbell, and neither looks at them nor remembers them.
    ///
    /// # Safety
    ///
    /// As [`post_raw_sends`](QueuePair::post_raw_sends), with the completions of the receive queue; and the queue pair has
    /// no shared receive queue.
    ///
    /// # Errors
    ///
    /// If the device refuses: the error tells how many requests it took, if it knows.
    #[inline]
    pub unsafe fn post_raw_recvs(&self, list: &mut RecvList) -> Result<(), RawPostError> {
        self.backend.post_recvs(&mut list.0).map_err(RawPostError::from)
    }
}

impl SharedReceiveQueue {
    /// Posts receive requests with one doorbell, and neither looks at them nor remembers them.
    ///
    /// # Safety
    ///
    /// As [`QueuePair::post_raw_sends`], with the receive completions of all queue pairs that use this queue, and the
    /// protection domain of this queue.
    ///
    /// # Errors
    ///
    /// If the device refuses: the error tells how many requests it took, if it knows.
    #[inline]
    pub unsafe fn post_raw_recvs(&self, list: &mut RecvList) -> Result<(), RawPostError> {
        self.backend().post_recvs(&mut list.0).map_err(RawPostError::from)
    }
}

impl CompletionQueue {
    /// Takes completions as the device has them, as many as there are and there is room for, in place of those that were
    /// polled before, and says how many.
    ///
    /// Those of requests that were posted otherwise are taken too, and then nobody else learns of them: such a request keeps
    /// its memory until its queue pair is gone.
    ///
    /// # Errors
    ///
    /// If the device can't be asked.
    #[inline]
    pub fn poll_raw(&self, completions: &mut Completions) -> Result<usize> {
        let polled = self.backend().poll(&mut completions.room);
        completions.len = *polled.as_ref().unwrap_or(&0);
        polled
    }
}

/// Completions, as the device has them: what was [polled](CompletionQueue::poll_raw) last.
pub struct Completions {
    room: Box<[RawCompletion]>,
    len: usize,
}

impl Completions {
    /// Room for so many, at least one.
    pub fn new(room: usize) -> Completions {
        Completions { room: vec![RawCompletion::EMPTY; room.max(1)].into(), len: 0 }
    }

    /// What was polled last, in order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Completion<'_>> {
        self.room[..self.len].iter().map(Completion)
    }
}

/// A completion, where the device put it.
#[derive(Clone, Copy)]
pub struct Completion<'a>(&'a RawCompletion);

impl Completion<'_> {
    /// What the request was posted with.
    #[inline]
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Whether the request succeeded.
    #[inline]
    pub fn is_ok(&self) -> bool {
        self.0.outcome.status == 0
    }

    /// The queue pair that it is of; nothing in particular, if the completion queue was made with timestamps.
    pub fn qpn(&self) -> Qpn {
        Qpn::truncate(self.0.outcome.qpn)
    }

    /// How it ended. A receive says who sent it, which is so only for datagrams.
    pub fn outcome(&self) -> std::result::Result<Success, Failure> {
        self.0.outcome.explain(true)
    }
}

/// Posting raw requests failed.
#[derive(Debug)]
pub struct RawPostError {
    /// Why.
    pub error: Error,
    /// How many requests were posted all the same; `None` if the device doesn't say, and any may have been.
    pub posted: Option<usize>,
}

impl From<PostFailure> for RawPostError {
    #[cold]
    fn from(PostFailure { error, posted }: PostFailure) -> RawPostError {
        let action = "posting raw requests".to_owned();
        RawPostError { error: Error::Verb { action, error, hint: "".into() }, posted }
    }
}

impl fmt::Display for RawPostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for RawPostError {}

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

// What the compiler finds out here is part of the API.
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<SendList>();
    shared_between_threads::<RecvList>();
    shared_between_threads::<Completions>();
};
