//! Completion queues: what became of requests.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::completion::{Completion, RequestId};
use super::deadline::Deadline;
use super::in_flight::{Completing, InFlight, Posting, queue};
use super::poller::WakerCell;
use super::shared_receive_queue::{SharedTable, shared_queue_of};
use super::{CompletionQueueStats, Device, QueueStats, SharedReceiveQueue};
use crate::backend::{self, RawOutcome, flag};
use crate::error::{Error, Result};
use crate::memory::Payload;

/// A completion queue: tells what became of the requests of the queue pairs that use it. Cloning gives another handle
/// to it.
///
/// It can't overflow: each queue pair reserves room for all of its requests when it is created.
#[derive(Clone)]
pub struct CompletionQueue(Arc<Inner>);

struct Inner {
    device: Device,
    backend: backend::CompletionQueue,
    state: Mutex<State>,
    /// Told when completions were kept, or when nobody waits for events any more.
    news: Condvar,
    /// Told when completions were kept, too.
    poller: WakerCell,
}

/// What is behind the lock. It is taken by polling, and by queue pairs that come and go; posting never takes it.
#[derive(Default)]
struct State {
    /// The queues whose completions come here, by the number in their ids.
    queues: Vec<Entry>,
    /// Numbers that nobody has.
    free: Vec<u32>,
    /// The shared receive queues whose completions may come here.
    shared: Vec<SharedEntry>,
    /// How many completions the queue pairs may make at once.
    reserved: u32,
    /// Completions that came while somebody waited for another.
    ready: Vec<Completion>,
    /// Whether somebody waits for an event. Others then wait for news of that one: an event wakes just one.
    someone_waits: bool,
    /// How many of those others there are.
    others_wait: u32,
    /// Completions of requests that aren't known: of queue pairs that are gone.
    stale: u64,
    /// Completions that came.
    polled: u64,
    /// The most that came at once.
    high_water: usize,
}

#[derive(Default)]
struct Entry {
    /// Counts how often the number was used, so that a completion of an earlier owner is known as such.
    generation: u32,
    queue: Option<Completing>,
}

/// A shared receive queue, and by how many queue pairs it is used that complete here.
struct SharedEntry {
    id: u32,
    users: u32,
    depth: u32,
    table: SharedTable,
}

impl CompletionQueue {
    /// Takes the completions that there are, adds them to `out`, and says how many. It doesn't wait.
    ///
    /// # Errors
    ///
    /// If the device can't be asked.
    #[inline]
    pub fn poll(&self, out: &mut Vec<Completion>) -> Result<usize> {
        let mut state = self.lock();
        let before = out.len();
        if !state.ready.is_empty() {
            out.append(&mut state.ready);
        }
        self.poll_device(&mut state, out)?;
        Ok(out.len() - before)
    }

    /// Waits for the completion of one request. Others that come meanwhile are kept for [`poll`](CompletionQueue::poll)
    /// and other waiters.
    ///
    /// `Duration::MAX` is no limit, and cheaper than one: with events, a single system call waits and takes the event.
    ///
    /// # Errors
    ///
    /// If it doesn't come in time, or the device can't be asked.
    pub fn wait(&self, id: RequestId, timeout: Duration) -> Result<Completion> {
        let mut deadline = None;
        loop {
            if let Some(completion) = self.find(id)? {
                return Ok(completion);
            }
            let deadline = deadline.get_or_insert_with(|| Deadline::new(timeout));
            if !self.pause(deadline, |ready| ready.iter().any(|completion| completion.id == id))? {
                return Err(Error::Timeout { timeout, waiting: "waiting for a completion" });
            }
        }
    }

    /// Waits until there are completions, takes them, adds them to `out`, and says how many. 0 if none came in time.
    ///
    /// A queue that was made with [events](CompletionQueueBuilder::events) sleeps meanwhile; others are asked over and
    /// over. As with [`wait`](CompletionQueue::wait), `Duration::MAX` is no limit.
    ///
    /// # Errors
    ///
    /// If the device can't be asked.
    pub fn poll_timeout(&self, out: &mut Vec<Completion>, timeout: Duration) -> Result<usize> {
        let mut deadline = None;
        loop {
            let count = self.poll(out)?;
            if count > 0 {
                return Ok(count);
            }
            let deadline = deadline.get_or_insert_with(|| Deadline::new(timeout));
            if !self.pause(deadline, |ready| !ready.is_empty())? {
                return Ok(0);
            }
        }
    }

    /// Asks for an event at the next completion, or with `solicited_only` at the next that its sender marked.
    ///
    /// A completion that is there already makes no event: poll once more after this, and only then wait for
    /// [`event_fd`](CompletionQueue::event_fd) to become readable.
    ///
    /// # Errors
    ///
    /// If the device can't be asked.
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        self.0.backend.arm(solicited_only)
    }

    /// The descriptor that becomes readable when there is an event, for any event loop; `None` if the queue was made
    /// without events. It doesn't block. After it, call [`take_event`](CompletionQueue::take_event).
    ///
    /// Who uses it doesn't also [wait](CompletionQueue::wait) for the queue: an event that one takes the other misses.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.backend.event_fd()
    }

    /// Waits for an event, takes and acknowledges it; `false` if none came in time. `Duration::MAX` is no limit.
    ///
    /// For programs that [arm](CompletionQueue::arm) the queue themselves. [`wait`](CompletionQueue::wait) and
    /// [`poll_timeout`](CompletionQueue::poll_timeout) do that where they have to, and look first, which is faster.
    ///
    /// # Errors
    ///
    /// If the device can't be asked, or the queue was made without events.
    pub fn wait_event(&self, timeout: Duration) -> Result<bool> {
        if timeout == Duration::MAX {
            // A signal may end the wait though nothing has come.
            while !self.0.backend.wait_event(None)? {}
            return Ok(true);
        }
        let deadline = Deadline::new(timeout);
        loop {
            let left = deadline.left();
            if self.0.backend.wait_event(Some(left))? {
                return Ok(true);
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// Takes and acknowledges an event, if there is one; says whether there was.
    ///
    /// # Errors
    ///
    /// If the device can't be asked, or the queue was made without events.
    pub fn take_event(&self) -> Result<bool> {
        self.0.backend.take_event()
    }

    /// How many completions fit.
    pub fn depth(&self) -> u32 {
        self.0.backend.depth()
    }

    /// How many completions came for requests that aren't known, because their queue pair was destroyed.
    pub fn stale(&self) -> u64 {
        self.lock().stale
    }

    /// What it has done.
    pub fn stats(&self) -> CompletionQueueStats {
        let state = self.lock();
        CompletionQueueStats {
            polled: state.polled,
            stale: state.stale,
            high_water: u32::try_from(state.high_water).unwrap_or(u32::MAX),
            reserved: state.reserved,
        }
    }

    /// The device that it belongs to.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Waits for an event, or for news from who waits for one, or a moment where there are none; not at all if what is
    /// waited for is among those kept. `false` if the deadline has passed.
    fn pause(&self, deadline: &Deadline, is_there: impl Fn(&[Completion]) -> bool) -> Result<bool> {
        let left = deadline.left();
        if left.is_zero() {
            return Ok(false);
        }
        if !self.0.backend.has_events() {
            std::thread::yield_now();
            return Ok(true);
        }
        let mut state = self.lock();
        // Another may have kept it since the last look, and told nobody who waits now.
        if is_there(&state.ready) {
            return Ok(true);
        }
        if state.someone_waits {
            state.others_wait += 1;
            let waited = self.0.news.wait_timeout(state, left);
            waited.unwrap_or_else(PoisonError::into_inner).0.others_wait -= 1;
            return Ok(true);
        }
        state.someone_waits = true;
        drop(state);
        let waited = self.arm_and_wait(left, is_there);
        let mut state = self.lock();
        state.someone_waits = false;
        // Another takes over.
        self.tell_others(&state);
        waited?;
        Ok(true)
    }

    /// Waits for an event. Only one thread does so at a time, and that one arms: an event that another took, or that
    /// another's arming was for, would be missed.
    fn arm_and_wait(&self, left: Duration, is_there: impl Fn(&[Completion]) -> bool) -> Result<()> {
        self.0.backend.arm(false)?;
        // What came before the arming makes no event: look again before waiting.
        let mut state = self.lock();
        self.gather_into(&mut state)?;
        if is_there(&state.ready) {
            return Ok(());
        }
        drop(state);
        self.0.backend.wait_event(limit(left))?;
        Ok(())
    }

    /// Has those who wait for news look.
    fn tell_others(&self, state: &State) {
        // It would be a system call even if nobody waits.
        if state.others_wait > 0 {
            self.0.news.notify_all();
        }
    }

    /// The completion of a request, if it has come.
    fn find(&self, id: RequestId) -> Result<Option<Completion>> {
        let mut state = self.lock();
        self.gather_into(&mut state)?;
        let at = state.ready.iter().position(|completion| completion.id == id);
        Ok(at.map(|at| state.ready.remove(at)))
    }

    /// Takes what the device has, and keeps it for those who ask.
    pub(super) fn gather(&self) -> Result<()> {
        self.gather_into(&mut self.lock())
    }

    /// Takes what the device has, with the lock that the caller has.
    ///
    /// This also comes before a number or room is given to a queue pair: completions that an earlier owner left behind
    /// take up room, and numbers come round again, so that they could be taken for the new owner's.
    fn gather_into(&self, state: &mut State) -> Result<()> {
        let mut ready = std::mem::take(&mut state.ready);
        let before = ready.len();
        let polled = self.poll_device(state, &mut ready);
        if ready.len() > before {
            self.tell_others(state);
            self.0.poller.wake();
        }
        state.ready = ready;
        polled
    }

    /// Takes what the device has.
    fn poll_device(&self, state: &mut State, out: &mut Vec<Completion>) -> Result<()> {
        let State { queues, shared, stale, polled, high_water, .. } = state;
        let count = self.0.backend.poll(|mut completion| {
            if completion.outcome.flags & flag::UNUSUAL != 0 {
                completion.outcome.flags = self.look_at(completion.outcome);
            }
            if let Some(id) = shared_queue_of(completion.wr_id) {
                let entry = shared.iter().find(|entry| entry.id == id);
                let known = entry.is_some_and(|entry| {
                    let mut table = entry.table.lock().unwrap_or_else(PoisonError::into_inner);
                    table.complete(completion.wr_id, completion.outcome, out)
                });
                *stale += u64::from(!known);
                return;
            }
            let id = Id::from(completion.wr_id);
            let entry = queues.get_mut(id.number()).filter(|entry| entry.generation == id.generation());
            let known = entry
                .and_then(|entry| entry.queue.as_mut())
                .is_some_and(|queue| queue.complete_up_to(id.position, completion.outcome, out));
            if !known {
                *stale += 1;
            }
        })?;
        *polled += count as u64;
        if count > *high_water {
            *high_water = count;
        }
        Ok(())
    }

    /// Looks at an outcome with unusual flags, and says which it should have: the device may have its own way, and a key
    /// may have been invalidated.
    #[cold]
    fn look_at(&self, mut outcome: RawOutcome) -> u32 {
        self.0.backend.correct(&mut outcome);
        self.0.device.windows().look_at(&outcome);
        outcome.flags
    }

    /// Makes room for a queue pair's queue, and gives it what its ids begin with.
    pub(super) fn attach(&self, depth: u32) -> Result<Attached> {
        let mut state = self.lock();
        self.gather_into(&mut state)?;
        self.reserve(&mut state, depth)?;
        let number = state.free.pop().unwrap_or_else(|| {
            state.queues.push(Entry::default());
            // Fewer than 2²¹, so that the top bit of an id tells those of shared receive queues.
            u32::try_from(state.queues.len() - 1).expect("there are fewer queue pairs than that")
        });
        let entry = &mut state.queues[number as usize];
        entry.generation = (entry.generation + 1) & GENERATION_MASK;
        let owner = number << GENERATION_BITS | entry.generation;
        let (posting, completing) = queue(depth, u64::from(owner) << 32);
        entry.queue = Some(completing);
        Ok(Attached { completion_queue: self.clone(), number, depth, posting: Mutex::new(posting) })
    }

    /// Makes room for a shared receive queue, of which any request may complete here.
    pub(super) fn attach_shared(&self, queue: &SharedReceiveQueue) -> Result<AttachedShared> {
        let mut state = self.lock();
        match state.shared.iter_mut().find(|entry| entry.id == queue.id()) {
            Some(entry) => entry.users += 1,
            None => {
                self.gather_into(&mut state)?;
                self.reserve(&mut state, queue.depth())?;
                let (id, depth, table) = (queue.id(), queue.depth(), Arc::clone(queue.table()));
                state.shared.push(SharedEntry { id, users: 1, depth, table });
            }
        }
        Ok(AttachedShared { completion_queue: self.clone(), queue: queue.clone() })
    }

    fn reserve(&self, state: &mut State, depth: u32) -> Result<()> {
        let room = self.depth() - state.reserved;
        if depth > room {
            return Err(Error::Limit {
                what: "the number of requests that may complete at once".into(),
                asked: u64::from(state.reserved) + u64::from(depth),
                most: u64::from(self.depth()),
                hint: "make the completion queue as deep as all queues that use it together".into(),
            });
        }
        state.reserved += depth;
        Ok(())
    }

    /// Does something while nobody can reserve room, with how much is; and takes what the device has first.
    pub(super) fn with_reserved<T>(&self, work: impl FnOnce(u32) -> Result<T>) -> Result<T> {
        let mut state = self.lock();
        self.gather_into(&mut state)?;
        work(state.reserved)
    }

    /// Whether there can be a completion queue of this depth.
    pub(super) fn check_depth(&self, depth: u32) -> Result<()> {
        check_depth(&self.0.device, depth)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where its poller leaves its waker.
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

/// A queue whose completions come to a completion queue, until it is dropped: the end where requests are posted. The
/// other end is the completion queue's.
pub(super) struct Attached {
    completion_queue: CompletionQueue,
    number: u32,
    depth: u32,
    posting: Mutex<Posting>,
}

impl Attached {
    /// The lock of whoever posts. It stays usable when somebody panicked with it: what it holds is whole between any two
    /// of its methods.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Posting> {
        self.posting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn completion_queue(&self) -> &CompletionQueue {
        &self.completion_queue
    }

    /// Makes it a queue for datagrams, whose completions say who sent.
    pub(super) fn carry_datagrams(&self) {
        self.completing(Completing::carry_datagrams);
    }

    /// Takes out all requests, oldest first. Nobody may post meanwhile, or what is posted may be taken out too.
    pub(super) fn take_all(&self) -> Vec<Payload> {
        self.completing(Completing::take_all).unwrap_or_default()
    }

    /// Takes back the requests that were posted last, because the device didn't take them; the last comes first.
    #[cold]
    pub(super) fn retract(&self, posting: &mut Posting, count: usize) -> Vec<InFlight> {
        let take = |queue: &mut Completing| (0..count).map_while(|_| queue.retract(posting)).collect();
        self.completing(take).unwrap_or_default()
    }

    /// What it has done.
    pub(super) fn stats(&self) -> QueueStats {
        let posting = self.lock().stats;
        QueueStats::new(posting, self.completing(|queue| queue.stats).unwrap_or_default())
    }

    /// Does something with the other end.
    fn completing<T>(&self, work: impl FnOnce(&mut Completing) -> T) -> Option<T> {
        let mut state = self.completion_queue.lock();
        state.queues[self.number as usize].queue.as_mut().map(work)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if !self.completion_queue.device().is_ours() {
            return;
        }
        let mut state = self.completion_queue.lock();
        state.queues[self.number as usize].queue = None;
        state.free.push(self.number);
        state.reserved -= self.depth;
    }
}

/// A shared receive queue whose completions may come to a completion queue, until it is dropped.
pub(super) struct AttachedShared {
    completion_queue: CompletionQueue,
    pub(super) queue: SharedReceiveQueue,
}

impl AttachedShared {
    pub(super) fn completion_queue(&self) -> &CompletionQueue {
        &self.completion_queue
    }
}

impl Drop for AttachedShared {
    fn drop(&mut self) {
        if !self.completion_queue.device().is_ours() {
            return;
        }
        let mut state = self.completion_queue.lock();
        let Some(at) = state.shared.iter().position(|entry| entry.id == self.queue.id()) else { return };
        let entry = &mut state.shared[at];
        entry.users -= 1;
        if entry.users == 0 {
            let depth = entry.depth;
            state.shared.swap_remove(at);
            state.reserved -= depth;
        }
    }
}

/// A time limit as the engines want it: none, if it never comes.
fn limit(left: Duration) -> Option<Duration> {
    (left != Duration::MAX).then_some(left)
}

/// What a work-request id says: whose it is, and which request.
struct Id {
    /// The queue's number in its completion queue, and the number's generation.
    owner: u32,
    position: u32,
}

const GENERATION_BITS: u32 = 10;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

impl Id {
    #[inline]
    fn from(wr_id: u64) -> Id {
        let [a, b, c, d, e, f, g, h] = wr_id.to_be_bytes();
        Id { owner: u32::from_be_bytes([a, b, c, d]), position: u32::from_be_bytes([e, f, g, h]) }
    }

    fn number(&self) -> usize {
        (self.owner >> GENERATION_BITS) as usize
    }

    fn generation(&self) -> u32 {
        self.owner & GENERATION_MASK
    }
}

fn check_depth(device: &Device, depth: u32) -> Result<()> {
    let most = device.attributes().max_completions;
    if (1..=most).contains(&depth) {
        return Ok(());
    }
    Err(Error::Limit {
        what: "the depth of a completion queue".into(),
        asked: depth.into(),
        most: most.into(),
        hint: "it must be at least 1".into(),
    })
}

/// Makes a completion queue: see [`Device::completion_queue`].
#[must_use = "nothing is made until `create` is called"]
#[derive(Clone, Debug)]
pub struct CompletionQueueBuilder {
    device: Device,
    depth: u32,
    events: bool,
    vector: u32,
}

impl CompletionQueueBuilder {
    pub(super) fn new(device: &Device, depth: u32) -> CompletionQueueBuilder {
        CompletionQueueBuilder { device: device.clone(), depth, events: false, vector: 0 }
    }

    /// Lets the queue make events, so that one can sleep until there are completions.
    pub fn events(mut self) -> CompletionQueueBuilder {
        self.events = true;
        self
    }

    /// Which of the device's [interrupts](super::DeviceAttributes::completion_vectors) makes the events: 0 unless set. Queues
    /// whose threads run on different processors want different ones.
    pub fn vector(mut self, vector: u32) -> CompletionQueueBuilder {
        self.vector = vector;
        self
    }

    /// Makes it.
    ///
    /// # Errors
    ///
    /// If the depth is 0 or more than the device can, there is no such vector, or the device has no more.
    pub fn create(self) -> Result<CompletionQueue> {
        check_depth(&self.device, self.depth)?;
        let vectors = self.device.attributes().completion_vectors;
        if self.vector >= vectors.max(1) {
            return Err(Error::Limit {
                what: "the number of a completion vector".into(),
                asked: self.vector.into(),
                most: vectors.saturating_sub(1).into(),
                hint: "they count from 0".into(),
            });
        }
        let backend = self.device.backend().completion_queue(self.depth, self.events, self.vector)?;
        Ok(CompletionQueue(Arc::new(Inner {
            device: self.device,
            backend,
            state: Mutex::default(),
            news: Condvar::new(),
            poller: WakerCell::default(),
        })))
    }
}

// What the compiler finds out here is part of the API.
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<CompletionQueue>();
};
