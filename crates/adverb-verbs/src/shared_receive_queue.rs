//! Shared receive queues.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adverb_proto::Srq;
use adverb_proto::explain::Call;
use adverb_proto::trace::{EventSink, RecvQueueId, TraceEvent};
use adverb_proto::types::{self as plain, Segment};

use crate::backend::{self, PostFailure, RawOutcome, RecvList, flag};
use crate::device::ProtectionDomain;
use crate::error::{Error, Limit, Result, WithCauses, call_failed};
use crate::memory::{Payload, PayloadSegment};
use crate::recorder::QueueRecorder;
use crate::request::{Completion, PostError, RecvRequest};
use crate::request_id::{RequestId, SHARED};

/// A receive queue that several queue pairs share: each message that one of them receives consumes a receive request of
/// the queue. Cloning returns another handle to the same queue.
///
/// Completions are delivered to the receive completion queue of the queue pair that received the message. That
/// completion queue reserves entries for the whole shared receive queue when the queue pair is created.
#[derive(Clone)]
pub struct SharedReceiveQueue(Arc<Inner>);

struct Inner {
    domain: ProtectionDomain,
    backend: Arc<backend::SharedReceiveQueue>,
    table: SharedTable,
    id: u32,
    depth: u32,
    segments: u32,
}

/// The requests of a shared receive queue, which complete in any order.
pub(super) type SharedTable = Arc<Mutex<Table>>;

pub(super) struct Table {
    slots: Box<[Slot]>,
    /// The unused slots.
    free: Vec<u16>,
    id_base: u64,
    /// Flags that all outcomes of this queue have.
    flags: u32,
    segments: Vec<Segment>,
    list: RecvList,
    recorder: QueueRecorder,
}

#[derive(Default)]
struct Slot {
    /// The number of the slot's uses, to detect completions of an earlier request.
    generation: u16,
    request: Option<(Payload, u64)>,
}

impl Table {
    fn new(depth: u32, id: u32, device: &backend::Device) -> Table {
        Table {
            slots: (0..depth).map(|_| Slot::default()).collect(),
            free: (0..=u16::MAX).take(depth as usize).rev().collect(),
            id_base: SHARED | u64::from(id) << 32,
            flags: 0,
            segments: Vec::new(),
            list: device.recv_list(),
            recorder: QueueRecorder::new(device.recorder()),
        }
    }

    /// Returns the identifier of the request in a slot.
    fn id(&self, slot: u16) -> u64 {
        self.id_base | u64::from(self.slots[usize::from(slot)].generation) << 16 | u64::from(slot)
    }

    /// Completes a request. Returns whether it exists.
    pub(super) fn complete(
        &mut self,
        wr_id: u64,
        mut outcome: RawOutcome,
        out: &mut Vec<Completion>,
    ) -> bool {
        let [.., g0, g1, s0, s1] = wr_id.to_be_bytes();
        let (generation, number) = (u16::from_be_bytes([g0, g1]), u16::from_be_bytes([s0, s1]));
        let Some(slot) = self.slots.get_mut(usize::from(number)).filter(|slot| slot.generation == generation)
        else {
            return false;
        };
        let Some((payload, tag)) = slot.request.take() else { return false };
        slot.generation = generation.wrapping_add(1);
        self.free.push(number);
        outcome.flags |= self.flags;
        out.push(Completion { id: RequestId(wr_id), tag, payload, outcome });
        true
    }

    /// Makes completions report the sender: a UD queue pair uses the queue.
    pub(super) fn mark_datagrams(&mut self) {
        self.flags = flag::DATAGRAM;
    }
}

impl SharedReceiveQueue {
    /// Posts a receive request.
    ///
    /// # Errors
    ///
    /// Returns [`Error::QueueFull`] if the queue is full, [`Error::LimitExceeded`], [`Error::InvalidRequest`] or
    /// [`Error::ForeignDomain`] if the request is invalid for the queue, and [`Error::CallFailed`] if the operation fails.
    /// The error contains the request; see [`PostError`] for the exception.
    pub fn post_recv(&self, request: impl Into<RecvRequest>) -> Result<RequestId, PostError<RecvRequest>> {
        let request = request.into();
        let mut table = self.lock();
        if let Err(error) = self.check(&request) {
            return Err(PostError { error, requests: vec![request] });
        }
        let Some(slot) = table.free.pop() else {
            let error = Error::QueueFull { queue: "shared receive", depth: self.0.depth };
            return Err(PostError { error, requests: vec![request] });
        };
        let id = table.id(slot);
        let Table { list, segments, recorder, .. } = &mut *table;
        segments.clear();
        segments.extend(request.payload.segments().iter().map(PayloadSegment::segment));
        list.clear();
        list.add(&plain::RecvRequest { wr_id: id, tag: request.tag, segments });
        // The time is read before posting, so that it is earlier than the completion's.
        let recorded_at = recorder.time();
        let posted =
            self.0.backend.post_recvs(list).map_err(|errno| PostFailure::new(errno, list.posted_count()));
        // The device may have accepted the request, unless it reports that it rejected it.
        let rejected = matches!(&posted, Err(failure) if failure.posted_count == Some(0));
        if let (Some(time), false) = (recorded_at, rejected) {
            let (queue, request) = (RecvQueueId::Srq(Srq::from_number(self.0.id)), list.posted_request(0));
            let event = TraceEvent::posted_recv(queue, request.wr_id as u32, &request);
            recorder.record(None, || None, |recorder| recorder.event(time, event));
        }
        if rejected {
            table.free.push(slot);
        }
        let unposted = if rejected {
            vec![request]
        } else {
            table.slots[usize::from(slot)].request = Some((request.payload, request.tag));
            Vec::new()
        };
        match posted {
            Ok(()) => Ok(RequestId(id)),
            Err(failure) => {
                let action = "posting a receive request to a shared receive queue";
                let error = call_failed(Call::Post, action, failure.error);
                Err(PostError { error, requests: unposted })
            }
        }
    }

    /// Requests one [`SharedReceiveQueueLimit`](crate::DeviceEvent::SharedReceiveQueueLimit) event. The device raises
    /// the event when fewer than `limit` requests remain.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the operation fails, for example because `limit` exceeds the depth.
    pub fn arm(&self, limit: u32) -> Result<()> {
        self.0.backend.arm(limit)
    }

    /// Returns the number that identifies the queue in device events.
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// Returns the maximum number of outstanding requests.
    pub fn depth(&self) -> u32 {
        self.0.depth
    }

    /// Returns the number of outstanding requests, including requests that queue pairs have consumed but not yet
    /// completed.
    pub fn outstanding_recv_count(&self) -> u32 {
        self.0.depth - u32::try_from(self.lock().free.len()).unwrap_or(0)
    }

    fn check(&self, request: &RecvRequest) -> Result<()> {
        if !request.payload.segments().iter().all(PayloadSegment::is_locally_writable) {
            let reason = "a receive request requires memory with LOCAL_WRITE access";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        self.0.domain.check_payload(&request.payload, || format!("shared receive queue {}", self.0.id))?;
        let (requested, max) = (request.payload.segments().len() as u64, u64::from(self.0.segments));
        if requested > max {
            return Err(Error::LimitExceeded { limit: Limit::Segments, requested, max });
        }
        Ok(())
    }

    pub(super) fn table(&self) -> &SharedTable {
        &self.0.table
    }

    pub(super) fn backend(&self) -> &Arc<backend::SharedReceiveQueue> {
        &self.0.backend
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.domain.device().is_owned() {
            return;
        }
        let destroyed = self.backend.destroy();
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let left: Vec<_> = table.slots.iter_mut().filter_map(|slot| slot.request.take()).collect();
        drop(table);
        if let Err(error) = destroyed {
            // The device may still use the memory, so it is leaked. This happens before logging, because a log
            // subscriber may panic.
            let requests = left.len();
            std::mem::forget(left);
            tracing::error!(error = %WithCauses(&error), requests, "destroying a shared receive queue failed; its buffers are leaked");
        }
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue").field("depth", &self.0.depth).finish_non_exhaustive()
    }
}

/// A builder of shared receive queues, returned by [`ProtectionDomain::shared_receive_queue`].
#[must_use = "a builder does nothing until `create` is called"]
#[derive(Clone, Debug)]
pub struct SharedReceiveQueueBuilder {
    domain: ProtectionDomain,
    depth: u32,
    segments: u32,
}

impl ProtectionDomain {
    /// Returns a builder of a shared receive queue for `depth` requests.
    pub fn shared_receive_queue(&self, depth: u32) -> SharedReceiveQueueBuilder {
        SharedReceiveQueueBuilder::new(self, depth)
    }
}

impl SharedReceiveQueueBuilder {
    pub(super) fn new(domain: &ProtectionDomain, depth: u32) -> SharedReceiveQueueBuilder {
        SharedReceiveQueueBuilder { domain: domain.clone(), depth, segments: 1 }
    }

    /// Sets the maximum number of scatter/gather elements (segments of memory) of a request. The default is 1.
    pub fn max_sge(mut self, segments: u32) -> SharedReceiveQueueBuilder {
        self.segments = segments;
        self
    }

    /// Creates the shared receive queue.
    ///
    /// # Errors
    ///
    /// Returns [`Error::LimitExceeded`] if the depth is 0 or larger than 65,536, or if a limit of a software device is
    /// exceeded, and [`Error::CallFailed`] if the device can't create the queue.
    pub fn create(self) -> Result<SharedReceiveQueue> {
        const MAX_DEPTH: u32 = 1 << 16;
        if self.depth == 0 || self.depth > MAX_DEPTH {
            return Err(Error::LimitExceeded {
                limit: Limit::SharedReceiveQueueDepth,
                requested: self.depth.into(),
                max: MAX_DEPTH.into(),
            });
        }
        static NEXT_ID: AtomicU32 = AtomicU32::new(1);
        // The top bits of the request ids have other meanings.
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 2);
        let (backend, segments) =
            self.domain.backend().shared_receive_queue(self.depth, self.segments, id)?;
        let table = Table::new(self.depth, id, self.domain.device().backend());
        Ok(SharedReceiveQueue(Arc::new(Inner {
            domain: self.domain,
            backend: Arc::new(backend),
            table: Arc::new(Mutex::new(table)),
            id,
            depth: self.depth,
            segments,
        })))
    }
}

impl SharedReceiveQueue {
    /// Returns the protection domain that the queue belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.0.domain
    }
}

// These auto traits are part of the API.
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<SharedReceiveQueue>();
};
