//! Completion queues.

mod attached;
mod control;
pub(crate) mod poller;
mod recording;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use adverb_proto::Cq;
use adverb_proto::types::ArmFor;
use parking_lot::{Condvar, Mutex, MutexGuard};

use poller::WakerCell;

use crate::backend::{self, CompletionQueueKind, RawCompletion, RawOutcome, flag};
use crate::deadline::Deadline;
use crate::device::Device;
use crate::error::{Error, Feature, Limit, Result};
use crate::recorder::QueueRecorder;
use crate::request::{Completing, Completion};
use crate::request_id::{RequestId, shared_queue_of};
use crate::shared_receive_queue::SharedTable;
use crate::stats::CompletionQueueStats;

pub(super) use attached::{Attached, AttachedShared};

/// A completion queue: it receives the completions of the queue pairs that use it. Cloning returns another handle to
/// the same queue.
///
/// The queue can't overflow: each queue pair reserves, when it is created, an entry for every request that it may have
/// outstanding.
#[derive(Clone)]
pub struct CompletionQueue(Arc<Inner>);

struct Inner {
    device: Device,
    backend: backend::CompletionQueue,
    /// The queue's number in recordings.
    cq: Cq,
    state: Mutex<State>,
    /// Notified when completions were added to `ready`, or when the thread that waited for an event has returned.
    completions_kept: Condvar,
    /// Wakes the poller when completions were added to `ready`.
    poller: WakerCell,
}

/// The state behind the lock. Polling takes the lock, and so do creating and destroying queue pairs; posting never
/// does.
struct State {
    queues: Queues,
    /// The number of requests of all queue pairs that may complete at once.
    reserved: u32,
    /// Completions that were polled while a caller waited for another one.
    ready: Vec<Completion>,
    /// Whether a thread waits for an event. Other threads then wait for a notification by that thread, because an event
    /// wakes only one thread.
    is_event_awaited: bool,
    /// The number of threads that wait for a notification.
    notified_waiter_count: u32,
    /// The number of polled completions.
    polled: u64,
    /// The maximum number of completions that one poll returned.
    max_poll_batch: usize,
    /// The array into which the device writes completions.
    raw: [RawCompletion; 16],
    recorder: QueueRecorder,
}

/// The queues whose completions are delivered here.
#[derive(Default)]
struct Queues {
    /// Queues by the number in their identifiers.
    own: Vec<Entry>,
    /// Unused numbers.
    free: Vec<u32>,
    /// The shared receive queues whose completions may be delivered here.
    shared: Vec<SharedEntry>,
    /// The number of completions that match no request, because their queue pair was destroyed.
    stale: u64,
}

impl State {
    fn new(recorder: QueueRecorder) -> State {
        State {
            queues: Queues::default(),
            reserved: 0,
            ready: Vec::new(),
            is_event_awaited: false,
            notified_waiter_count: 0,
            polled: 0,
            max_poll_batch: 0,
            raw: [RawCompletion::EMPTY; 16],
            recorder,
        }
    }
}

#[derive(Default)]
struct Entry {
    /// Counts the uses of the number, to detect completions of an earlier owner.
    generation: u32,
    queue: Option<Completing>,
}

/// A shared receive queue, and the number of its queue pairs that complete here.
struct SharedEntry {
    id: u32,
    users: u32,
    depth: u32,
    table: SharedTable,
}

impl CompletionQueue {
    /// Moves the available completions to `out`, without waiting, and returns their number.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if polling the device fails.
    #[inline(always)]
    pub fn poll(&self, out: &mut Vec<Completion>) -> Result<usize> {
        let mut state = self.lock();
        let before = out.len();
        if !state.ready.is_empty() {
            take_ready(&mut state, out);
        }
        let polled = self.poll_device(&mut state, out);
        drop(state);
        polled?;
        Ok(out.len() - before)
    }

    /// Waits for the completion of one request. Other completions that arrive meanwhile remain available to
    /// [`poll`](CompletionQueue::poll) and to other waiting callers.
    ///
    /// A `timeout` of `None` means no limit. Waiting without a limit is also faster, because a single system call then
    /// waits for the event and consumes it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::TimedOut`] if the request doesn't complete in time, and [`Error::CallFailed`] if polling the device
    /// fails.
    #[inline]
    pub fn wait(&self, id: RequestId, timeout: impl Into<Option<Duration>>) -> Result<Completion> {
        self.wait_within(id, timeout.into().unwrap_or(Duration::MAX))
    }

    fn wait_within(&self, id: RequestId, timeout: Duration) -> Result<Completion> {
        let mut deadline = None;
        loop {
            if let Some(completion) = self.find(id)? {
                return Ok(completion);
            }
            let deadline = deadline.get_or_insert_with(|| Deadline::new(timeout));
            if !self.wait_once(deadline, |ready| ready.iter().any(|completion| completion.id == id))? {
                return Err(Error::TimedOut { timeout, action: "waiting for a completion".into() });
            }
        }
    }

    /// Waits until completions are available, moves them to `out` and returns their number. Returns 0 if the timeout
    /// expires first.
    ///
    /// The caller sleeps if the queue was created with [events](CompletionQueueBuilder::events); otherwise it polls
    /// repeatedly. As with [`wait`](CompletionQueue::wait), `None` means no limit.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if polling the device fails.
    #[inline]
    pub fn poll_timeout(
        &self,
        out: &mut Vec<Completion>,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<usize> {
        self.poll_within(out, timeout.into().unwrap_or(Duration::MAX))
    }

    fn poll_within(&self, out: &mut Vec<Completion>, timeout: Duration) -> Result<usize> {
        let mut deadline = None;
        loop {
            let count = self.poll(out)?;
            if count > 0 {
                return Ok(count);
            }
            let deadline = deadline.get_or_insert_with(|| Deadline::new(timeout));
            if !self.wait_once(deadline, |ready| !ready.is_empty())? {
                return Ok(0);
            }
        }
    }

    /// Requests one event for the next completion, or for the next solicited completion.
    ///
    /// A completion that is already in the queue raises no event. Poll once more after arming, and only then wait for
    /// [`event_fd`](CompletionQueue::event_fd) to become readable.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the operation fails.
    pub fn arm(&self, arm_for: ArmFor) -> Result<()> {
        self.0.backend.arm(arm_for)
    }

    /// Returns the file descriptor that becomes readable when an event is pending, for use in an event loop, or
    /// `None` if the queue was created without events. The descriptor is non-blocking. Call
    /// [`try_event`](CompletionQueue::try_event) when it is readable.
    ///
    /// Don't use the descriptor and [`wait`](CompletionQueue::wait) on the same queue at the same time: each of them
    /// consumes events that the other waits for.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.backend.event_fd()
    }

    /// Waits for an event, and consumes and acknowledges it. Returns `false` if the timeout expires first. A `timeout`
    /// of `None` means no limit.
    ///
    /// This method is for programs that [arm](CompletionQueue::arm) the queue themselves.
    /// [`wait`](CompletionQueue::wait) and [`poll_timeout`](CompletionQueue::poll_timeout) arm it as needed, and poll
    /// first, which is faster.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if the queue was created without events, and [`Error::CallFailed`] if the operation
    /// fails.
    #[inline]
    pub fn wait_event(&self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        self.wait_event_within(timeout.into().unwrap_or(Duration::MAX))
    }

    fn wait_event_within(&self, timeout: Duration) -> Result<bool> {
        if timeout == Duration::MAX {
            // A signal may end the wait without an event.
            while !self.0.backend.wait_event(None)? {}
            self.record_event();
            return Ok(true);
        }
        let deadline = Deadline::new(timeout);
        loop {
            let left = deadline.left();
            if self.0.backend.wait_event(Some(left))? {
                self.record_event();
                return Ok(true);
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// Consumes and acknowledges a pending event without waiting. Returns whether an event was pending.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if the queue was created without events, and [`Error::CallFailed`] if the operation
    /// fails.
    pub fn try_event(&self) -> Result<bool> {
        let is_pending = self.0.backend.try_event()?;
        if is_pending {
            self.record_event();
        }
        Ok(is_pending)
    }

    /// Returns the number of entries of the queue.
    pub fn depth(&self) -> u32 {
        self.0.backend.depth()
    }

    /// Returns the number of polled completions that match no request, because their queue pair was destroyed.
    pub fn stale_completion_count(&self) -> u64 {
        self.lock().queues.stale
    }

    /// Returns the statistics of the queue.
    pub fn stats(&self) -> CompletionQueueStats {
        let state = self.lock();
        CompletionQueueStats {
            polled_completion_count: state.polled,
            stale_completion_count: state.queues.stale,
            max_poll_batch: u32::try_from(state.max_poll_batch).unwrap_or(u32::MAX),
            reserved_depth: state.reserved,
        }
    }

    /// Returns the device that the queue belongs to.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Waits once: for an event or, if another thread waits for the event, for a notification by that thread. Yields
    /// instead if the queue has no events. Doesn't wait if `is_available` accepts the kept completions. Returns `false`
    /// if the deadline has passed.
    fn wait_once(&self, deadline: &Deadline, is_available: impl Fn(&[Completion]) -> bool) -> Result<bool> {
        let left = deadline.left();
        if left.is_zero() {
            return Ok(false);
        }
        if !self.0.backend.has_events() {
            std::thread::yield_now();
            return Ok(true);
        }
        let mut state = self.lock();
        // Another thread may have kept the completion since the last poll. Its notification is already past.
        if is_available(&state.ready) {
            return Ok(true);
        }
        if state.is_event_awaited {
            state.notified_waiter_count += 1;
            self.0.completions_kept.wait_for(&mut state, left);
            state.notified_waiter_count -= 1;
            return Ok(true);
        }
        state.is_event_awaited = true;
        drop(state);
        let waited = self.arm_and_wait(left, is_available);
        let mut state = self.lock();
        state.is_event_awaited = false;
        // One of the notified threads waits for the next event.
        self.notify_waiters(&state);
        waited?;
        Ok(true)
    }

    /// Arms the queue and waits for an event. Only one thread does so at a time: otherwise a thread could consume the
    /// event for which another thread armed the queue, and the other thread would miss it.
    fn arm_and_wait(&self, left: Duration, is_available: impl Fn(&[Completion]) -> bool) -> Result<()> {
        self.0.backend.arm(ArmFor::Any)?;
        // A completion that arrived before arming raises no event: poll before waiting.
        let mut state = self.lock();
        self.fetch_completions_locked(&mut state)?;
        if is_available(&state.ready) {
            return Ok(());
        }
        drop(state);
        if self.0.backend.wait_event(limit(left))? {
            self.record_event();
        }
        Ok(())
    }

    /// Wakes the threads that wait for a notification.
    fn notify_waiters(&self, state: &State) {
        // Notifying is a system call even without waiting threads.
        if state.notified_waiter_count > 0 {
            self.0.completions_kept.notify_all();
        }
    }

    /// Returns the completion of a request, if it is available.
    fn find(&self, id: RequestId) -> Result<Option<Completion>> {
        let mut state = self.lock();
        self.fetch_completions_locked(&mut state)?;
        let at = state.ready.iter().position(|completion| completion.id == id);
        Ok(at.map(|at| state.ready.remove(at)))
    }

    /// Drops the kept completions of these requests.
    pub(super) fn discard(&self, requests: &[RequestId]) {
        if !requests.is_empty() {
            self.lock().ready.retain(|completion| !requests.contains(&completion.id));
        }
    }

    /// Polls the device and keeps the completions for later callers.
    pub(super) fn fetch_completions(&self) -> Result<()> {
        self.fetch_completions_locked(&mut self.lock())
    }

    /// Polls the device with the caller's lock, and keeps the completions.
    ///
    /// Attaching a queue pair calls this function first: old completions occupy entries, and because numbers are reused,
    /// they could be mistaken for completions of the new queue pair.
    fn fetch_completions_locked(&self, state: &mut State) -> Result<()> {
        let mut ready = std::mem::take(&mut state.ready);
        let before = ready.len();
        let polled = self.poll_device(state, &mut ready);
        if ready.len() > before {
            self.notify_waiters(state);
            self.0.poller.wake();
        }
        state.ready = ready;
        polled
    }

    /// Polls the device once, and continues if it has more completions.
    #[inline(always)]
    fn poll_device(&self, state: &mut State, out: &mut Vec<Completion>) -> Result<()> {
        let count = self.0.backend.poll(&mut state.raw)?;
        if count > 0 {
            self.match_requests(state, count, out);
        }
        if count == state.raw.len() { self.poll_rest(state, count, out) } else { Ok(()) }
    }

    /// Continues polling after the first `total` completions.
    #[inline(never)]
    fn poll_rest(&self, state: &mut State, mut total: usize, out: &mut Vec<Completion>) -> Result<()> {
        loop {
            let count = self.0.backend.poll(&mut state.raw)?;
            self.match_requests(state, count, out);
            total += count;
            state.max_poll_batch = state.max_poll_batch.max(total);
            if count < state.raw.len() {
                return Ok(());
            }
        }
    }

    /// Matches the first `count` completions in the array to their requests.
    #[inline(never)]
    fn match_requests(&self, state: &mut State, count: usize, out: &mut Vec<Completion>) {
        state.polled += count as u64;
        state.max_poll_batch = state.max_poll_batch.max(count);
        if state.recorder.is_on() {
            return self.match_and_record(state, count, out);
        }
        for completion in &state.raw[..count] {
            // Most completions report the success of a queue's oldest request.
            let queue = state.queues.own.get_mut(number_of(completion.wr_id));
            let queue = queue.and_then(|entry| entry.queue.as_mut());
            if !queue.is_some_and(|queue| queue.complete_oldest_success(completion, out)) {
                self.complete(&mut state.queues, completion, out);
            }
        }
    }

    /// Finds the request of a completion that is off the fast path.
    #[cold]
    fn complete(&self, queues: &mut Queues, completion: &RawCompletion, out: &mut Vec<Completion>) {
        let RawCompletion { wr_id, mut outcome, .. } = *completion;
        if outcome.flags & flag::SLOW_PATH != 0 {
            outcome.flags = self.handle_flags(outcome);
        }
        let known = match shared_queue_of(wr_id) {
            Some(id) => queues.shared.iter().find(|entry| entry.id == id).is_some_and(|entry| {
                let mut table = entry.table.lock().unwrap_or_else(PoisonError::into_inner);
                table.complete(wr_id, outcome, out)
            }),
            None => {
                queues.get(wr_id).is_some_and(|queue| queue.complete_up_to(position_of(wr_id), outcome, out))
            }
        };
        queues.stale += u64::from(!known);
    }

    /// Returns the normalized flags of an outcome with slow-path flags: the device may have its own format, and a key
    /// may have been invalidated.
    #[cold]
    fn handle_flags(&self, mut outcome: RawOutcome) -> u32 {
        self.0.backend.normalize(&mut outcome);
        self.0.device.windows().handle_invalidation(&outcome);
        outcome.flags
    }

    /// Calls `work` with the number of reserved entries while no queue pair can reserve more, after polling the
    /// device.
    pub(super) fn with_reserved<T>(&self, work: impl FnOnce(u32) -> Result<T>) -> Result<T> {
        let mut state = self.lock();
        self.fetch_completions_locked(&mut state)?;
        work(state.reserved)
    }

    /// Checks that the device supports a completion queue of this depth.
    pub(super) fn check_depth(&self, depth: u32) -> Result<()> {
        check_depth(&self.0.device, depth)
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// Returns the cell in which the poller leaves its waker.
    pub(super) fn waker_cell(&self) -> &WakerCell {
        &self.0.poller
    }

    pub(super) fn backend(&self) -> &backend::CompletionQueue {
        &self.0.backend
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("depth", &self.depth()).finish_non_exhaustive()
    }
}

/// Moves the kept completions to `out`.
#[cold]
fn take_ready(state: &mut State, out: &mut Vec<Completion>) {
    out.append(&mut state.ready);
}

/// Converts a time limit for the backends: `None` means no limit.
fn limit(left: Duration) -> Option<Duration> {
    (left != Duration::MAX).then_some(left)
}

impl Queues {
    /// Returns the queue that an identifier belongs to, if it still exists.
    fn get(&mut self, wr_id: u64) -> Option<&mut Completing> {
        let entry =
            self.own.get_mut(number_of(wr_id)).filter(|entry| entry.generation == generation_of(wr_id))?;
        entry.queue.as_mut()
    }
}

// The bits of a work-request id, from the top: whether it belongs to a shared receive queue; whether it belongs to
// datagrams; the queue's number in its completion queue; the number's generation; and, in the lower half, the position.
const GENERATION_BITS: u32 = 10;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;
const NUMBER_BITS: u32 = 20;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

#[inline]
fn number_of(wr_id: u64) -> usize {
    (wr_id >> (32 + GENERATION_BITS) & NUMBER_MASK) as usize
}

fn generation_of(wr_id: u64) -> u32 {
    let [a, b, c, d, ..] = wr_id.to_be_bytes();
    u32::from_be_bytes([a, b, c, d]) & GENERATION_MASK
}

fn position_of(wr_id: u64) -> u32 {
    let [.., a, b, c, d] = wr_id.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// Returns a number for a completion queue in recordings.
fn next_cq() -> Cq {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    Cq::from_number(NEXT.fetch_add(1, Ordering::Relaxed))
}

fn check_depth(device: &Device, depth: u32) -> Result<()> {
    let max = device.attributes().max_completion_queue_depth;
    if (1..=max).contains(&depth) {
        return Ok(());
    }
    Err(Error::LimitExceeded { limit: Limit::CompletionQueueDepth, requested: depth.into(), max: max.into() })
}

/// A builder of completion queues, returned by [`Device::completion_queue`].
#[must_use = "a builder does nothing until `create` is called"]
#[derive(Clone, Debug)]
pub struct CompletionQueueBuilder {
    device: Device,
    depth: u32,
    events: bool,
    vector: u32,
    kind: CompletionQueueKind,
}

impl Device {
    /// Returns a builder of a completion queue with `depth` entries.
    pub fn completion_queue(&self, depth: u32) -> CompletionQueueBuilder {
        CompletionQueueBuilder::new(self, depth)
    }
}

impl CompletionQueueBuilder {
    pub(super) fn new(device: &Device, depth: u32) -> CompletionQueueBuilder {
        CompletionQueueBuilder {
            device: device.clone(),
            depth,
            events: false,
            vector: 0,
            kind: CompletionQueueKind::Plain,
        }
    }

    /// Enables events, so that callers can sleep until completions are available.
    pub fn events(mut self) -> CompletionQueueBuilder {
        self.events = true;
        self
    }

    /// Sets the [completion vector](crate::DeviceAttributes::completion_vector_count) that raises the events. The
    /// default is 0. Queues whose threads run on different cores should use different vectors.
    pub fn completion_vector(mut self, vector: u32) -> CompletionQueueBuilder {
        self.vector = vector;
        self
    }

    /// Enables timestamps: each completion contains the time at which the device completed the request
    /// ([`Completion::timestamp`]), in ticks of the device's [clock](crate::DeviceAttributes::timestamp_clock).
    /// The sample that [`Device::query_clock`] returns converts ticks to [`Instant`](std::time::Instant)s. Polling is
    /// slightly slower with timestamps.
    ///
    /// The manual's chapter about devices (`adverb::manual::devices`) lists the drivers with timestamps, and says what
    /// the timestamps of a software device mean.
    pub fn timestamps(mut self) -> CompletionQueueBuilder {
        self.kind = CompletionQueueKind::Timestamps;
        self
    }

    /// Enables timestamps like [`timestamps`](CompletionQueueBuilder::timestamps), with the kernel's send times on a
    /// software device: the timestamp of a datagram is the time at which the kernel passed it to the network interface,
    /// instead of the time before the system call. The device asks the kernel for the time of each datagram, which takes
    /// about 0.6 µs. On other devices, this is the same as `timestamps`.
    ///
    /// [`Completion::timestamp_source`] tells whether a timestamp is the kernel's. It isn't if the kernel did not return
    /// the time at once, because the network interface was busy.
    pub fn send_timestamps(mut self) -> CompletionQueueBuilder {
        self.kind = CompletionQueueKind::SendTimestamps;
        self
    }

    /// Configures the queue to poll completions one at a time through libibverbs' extended interface, as queues with
    /// [timestamps](CompletionQueueBuilder::timestamps) do. This interface is faster on some devices, but not on most.
    pub fn extended(mut self) -> CompletionQueueBuilder {
        if self.kind == CompletionQueueKind::Plain {
            self.kind = CompletionQueueKind::Extended;
        }
        self
    }

    /// Creates the completion queue.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if timestamps are enabled and the device [doesn't support
    /// them](crate::DeviceAttributes::timestamp_clock), [`Error::LimitExceeded`] if the depth is 0, if it exceeds the
    /// device's limit or if the completion vector doesn't exist, and [`Error::CallFailed`] if the operation fails.
    pub fn create(self) -> Result<CompletionQueue> {
        check_depth(&self.device, self.depth)?;
        let vectors = self.device.attributes().completion_vector_count;
        if self.vector >= vectors.max(1) {
            return Err(Error::LimitExceeded {
                limit: Limit::CompletionVector,
                requested: self.vector.into(),
                max: vectors.saturating_sub(1).into(),
            });
        }
        if self.kind.has_timestamps() && self.device.attributes().timestamp_clock.is_none() {
            return Err(self.device.unsupported(Feature::CompletionTimestamps));
        }
        let backend =
            self.device.backend().completion_queue(self.depth, self.events, self.vector, self.kind)?;
        let recorder = QueueRecorder::new(self.device.backend().recorder());
        Ok(CompletionQueue(Arc::new(Inner {
            device: self.device,
            backend,
            cq: next_cq(),
            state: Mutex::new(State::new(recorder)),
            completions_kept: Condvar::new(),
            poller: WakerCell::default(),
        })))
    }
}

// These auto traits are part of the API.
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<CompletionQueue>();
};
