//! Poller threads.

use std::any::Any;
use std::fmt;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adverb_proto::explain::Call;
use adverb_proto::types::ArmFor;

use super::CompletionQueue;
use crate::error::{Error, Result, WithCauses, call_failed};
use crate::logging::log_without_unwinding;
use crate::os::{OwnerProcess, wait_either};
use crate::request::Completion;

/// A thread that polls a completion queue and calls a function, the handler, with each completion.
/// [`CompletionQueue::start_poller`] starts a poller.
///
/// After each completion the poller spins for a short time, which is fastest under load, and then sleeps until an
/// event if the queue was created with [events](crate::CompletionQueueBuilder::events). A queue without events is
/// polled at intervals that grow to a millisecond.
///
/// A queue has at most one poller. A caller that also [waits](CompletionQueue::wait) for or
/// [polls](CompletionQueue::poll) completions of the queue competes with the poller, and may receive none.
/// [`QueuePair::drain`](crate::QueuePair::drain) works together with a poller.
///
/// # Stopping
///
/// [`stop`](Poller::stop) wakes the thread, which handles the completions that are available and then exits. `stop`
/// waits for the exit and returns the handler. Dropping the poller does the same without returning the handler. In a
/// forked child, which doesn't have the thread, dropping the poller has no effect.
///
/// # Panics of the handler
///
/// If the handler panics, the completion that it was called with is dropped, which frees its buffers. The panic is
/// caught and counted, and the poller continues with the next completion. [`stats`](Poller::stats) returns the number
/// of panics, and [`PollerExit`] contains the message of the last panic. (With `panic = "abort"` the process aborts.)
#[must_use = "dropping a poller stops it"]
pub struct Poller<H> {
    thread: Option<JoinHandle<PollerExit<H>>>,
    shared: Arc<Shared>,
    /// The process that has the thread.
    owner: OwnerProcess,
}

/// The handler and the statistics of a poller that has stopped.
#[derive(Debug)]
#[non_exhaustive]
pub struct PollerExit<H> {
    /// The handler.
    pub handler: H,
    /// The final statistics.
    pub stats: PollerStats,
    /// The error of the device that stopped the poller, or `None` if the device did not fail.
    pub error: Option<Error>,
    /// The message of the handler's last panic, if it panicked.
    pub last_panic: Option<String>,
}

/// Statistics of a poller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PollerStats {
    /// The number of completions that the handler was called with.
    pub completion_count: u64,
    /// The number of panics of the handler.
    pub panic_count: u64,
    /// The number of times that the thread slept.
    pub sleep_count: u64,
}

/// Options of a poller, passed to [`CompletionQueue::start_poller_with`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct PollerOptions {
    name: String,
    spin: Duration,
}

impl Default for PollerOptions {
    fn default() -> PollerOptions {
        PollerOptions { name: "adverb-poller".to_owned(), spin: Duration::from_micros(50) }
    }
}

impl PollerOptions {
    /// Creates options with the default values.
    pub fn new() -> PollerOptions {
        PollerOptions::default()
    }

    /// Sets the name of the thread. The default is `adverb-poller`.
    pub fn name(mut self, name: impl Into<String>) -> PollerOptions {
        self.name = name.into();
        self
    }

    /// Sets the maximum time to spin after a completion before sleeping. The default is 50 µs. The poller spins for a
    /// shorter time if the next completions usually arrive later than that.
    pub fn max_spin(mut self, spin: Duration) -> PollerOptions {
        self.spin = spin;
        self
    }
}

impl CompletionQueue {
    /// Starts a thread that calls `handler` with each completion of this queue.
    ///
    /// ```no_run
    /// # use adverb::verbs::{CompletionQueue, SendRequest, QueuePair};
    /// # fn example(completions: &CompletionQueue) -> adverb::verbs::Result<()> {
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// let poller = completions.start_poller(move |completion| sender.send(completion).expect("the receiver is alive"))?;
    /// // … post requests, and take their completions from `receiver` …
    /// let stopped = poller.stop()?;
    /// println!("{} completions", stopped.stats.completion_count);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if the queue already has a poller, and [`Error::CallFailed`] if the thread can't
    /// be started.
    pub fn start_poller<H>(&self, handler: H) -> Result<Poller<H>>
    where
        H: FnMut(Completion) + Send + 'static,
    {
        self.start_poller_with(&PollerOptions::default(), handler)
    }

    /// Starts a thread like [`start_poller`](CompletionQueue::start_poller), with options.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`start_poller`](CompletionQueue::start_poller).
    pub fn start_poller_with<H>(&self, options: &PollerOptions, handler: H) -> Result<Poller<H>>
    where
        H: FnMut(Completion) + Send + 'static,
    {
        let start_error = |error| call_failed(Call::System, "starting a poller", error);
        let (reader, writer) = io::pipe().map_err(start_error)?;
        let waker = Arc::new(Waker { is_asleep: AtomicBool::new(false), reader, writer });
        let slot = self.waker_cell().register(&waker, self)?;
        let shared =
            Arc::new(Shared { waker, is_stopping: AtomicBool::new(false), counts: Counts::default() });
        let worker = Worker {
            pace: Pace::new(options.spin),
            shared: Arc::clone(&shared),
            handler,
            batch: Vec::new(),
            last_panic: None,
            slot,
        };
        let thread = std::thread::Builder::new()
            .name(options.name.clone())
            .spawn(move || worker.run())
            .map_err(start_error)?;
        Ok(Poller { thread: Some(thread), shared, owner: OwnerProcess::current() })
    }
}

impl<H> Poller<H> {
    /// Stops the poller: the thread handles the completions that are available and exits. The call waits for the thread
    /// to exit.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if the handler calls this method, because a thread can't wait for its own
    /// exit; the poller stops nevertheless. Returns the same error in a forked child, where the call has no effect
    /// because the thread belongs to the parent process.
    pub fn stop(mut self) -> Result<PollerExit<H>> {
        let reject = |reason: &'static str| Err(Error::InvalidRequest { reason: reason.into() });
        if !self.owner.is_current() {
            return reject(
                "a poller can be stopped only by the process that started it, not by a forked child",
            );
        }
        let Some(thread) = self.thread.take_if(|thread| !is_current(thread)) else {
            return reject("a handler cannot stop its own poller: drop the poller instead");
        };
        self.shared.request_stop();
        // The thread catches the handler's panics: this one is the library's own.
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Whether the poller has stopped because the device failed. [`stop`](Poller::stop) returns the device's error.
    pub fn has_failed(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Returns the current statistics.
    pub fn stats(&self) -> PollerStats {
        self.shared.counts.get()
    }
}

impl<H> Drop for Poller<H> {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.owner.is_current() {
            // A forked child doesn't have the thread, so it can neither join nor detach it.
            std::mem::forget(thread);
            return;
        }
        self.shared.request_stop();
        // A handler that drops its own poller can't wait for it.
        if !is_current(&thread) {
            drop(thread.join());
        }
    }
}

fn is_current<T>(thread: &JoinHandle<T>) -> bool {
    thread.thread().id() == std::thread::current().id()
}

impl<H> fmt::Debug for Poller<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// State shared by the thread and its owner.
struct Shared {
    waker: Arc<Waker>,
    /// Whether a stop was requested.
    is_stopping: AtomicBool,
    counts: Counts,
}

impl Shared {
    fn request_stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }
}

/// The counters behind [`PollerStats`].
#[derive(Default)]
struct Counts {
    completions: AtomicU64,
    panics: AtomicU64,
    sleeps: AtomicU64,
}

impl Counts {
    fn get(&self) -> PollerStats {
        PollerStats {
            completion_count: self.completions.load(Ordering::Relaxed),
            panic_count: self.panics.load(Ordering::Relaxed),
            sleep_count: self.sleeps.load(Ordering::Relaxed),
        }
    }
}

/// A pipe that wakes a sleeping poller.
struct Waker {
    /// Whether the poller sleeps or is about to sleep. The poller sets the flag before its last poll. The thread that
    /// wakes the poller clears the flag and writes a byte to the pipe; otherwise the poller clears it. Thus the pipe
    /// contains at most one byte.
    is_asleep: AtomicBool,
    /// The pipe's reader. It lives as long as the writer, because writing to a pipe without a reader fails.
    reader: PipeReader,
    writer: PipeWriter,
}

impl Waker {
    fn wake(&self) {
        if self.is_asleep.swap(false, Ordering::SeqCst)
            && let Err(error) = (&self.writer).write_all(&[1])
        {
            log_without_unwinding(|| tracing::error!(%error, "waking a poller failed"));
        }
    }
}

/// The cell in which a completion queue keeps the waker of its poller.
#[derive(Default)]
pub(crate) struct WakerCell(Mutex<Option<Arc<Waker>>>);

impl WakerCell {
    /// Wakes the poller, if there is one, to poll the queue.
    pub(super) fn wake(&self) {
        if let Some(waker) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake();
        }
    }

    fn register(&self, waker: &Arc<Waker>, queue: &CompletionQueue) -> Result<PollerSlot> {
        let mut cell = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cell.is_some() {
            let reason = "the completion queue already has a poller: stop it first";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        *cell = Some(Arc::clone(waker));
        Ok(PollerSlot(queue.clone()))
    }
}

/// The registration of a queue's only poller, until it is dropped.
struct PollerSlot(CompletionQueue);

impl Drop for PollerSlot {
    fn drop(&mut self) {
        *self.0.waker_cell().0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The state of the thread.
struct Worker<H> {
    pace: Pace,
    shared: Arc<Shared>,
    handler: H,
    batch: Vec<Completion>,
    last_panic: Option<String>,
    slot: PollerSlot,
}

impl<H: FnMut(Completion)> Worker<H> {
    fn run(mut self) -> PollerExit<H> {
        let error = self.work().err();
        if let Some(error) = &error {
            tracing::error!(error = %WithCauses(error), "polling the completion queue failed; the poller stops");
        }
        let stats = self.shared.counts.get();
        PollerExit { handler: self.handler, stats, error, last_panic: self.last_panic }
    }

    /// Polls until a stop is requested, or polling fails.
    fn work(&mut self) -> Result<()> {
        loop {
            // The flag is loaded before polling, so that the last poll returns all completions from before `stop`.
            let is_stopping = self.shared.is_stopping();
            let count = self.poll()?;
            if is_stopping {
                return Ok(());
            }
            if count > 0 {
                self.pace.record_completion();
            } else if self.pace.continue_spin() {
                std::hint::spin_loop();
            } else if self.sleep()? > 0 {
                self.pace.record_completion();
            }
        }
    }

    /// Polls, calls the handler with each completion, and returns their number.
    fn poll(&mut self) -> Result<usize> {
        let polled = self.slot.0.poll(&mut self.batch);
        let count = self.batch.len();
        // The batch includes completions that were polled before an error.
        for completion in self.batch.drain(..) {
            let handler = &mut self.handler;
            let called = catch_unwind(AssertUnwindSafe(|| handler(completion)));
            // The completion is counted after the call, so that a thread that reads the count also observes the
            // handler's effects.
            self.shared.counts.completions.fetch_add(1, Ordering::Release);
            if let Err(panic) = called {
                self.shared.counts.panics.fetch_add(1, Ordering::Relaxed);
                let message = message_of(panic);
                tracing::error!(message, "a poller's handler panicked");
                self.last_panic = Some(message);
            }
        }
        polled.map(|_| count)
    }

    /// Sleeps until completions may be available. Returns the number of completions that arrived before it could
    /// sleep.
    fn sleep(&mut self) -> Result<usize> {
        let queue = self.slot.0.clone();
        let waker = Arc::clone(&self.shared.waker);
        waker.is_asleep.store(true, Ordering::SeqCst);
        if queue.event_fd().is_some() {
            queue.arm(ArmFor::Any)?;
        }
        // A completion that arrived before arming raises no event, and one that another thread fetched before
        // `is_asleep` was set doesn't wake this one: poll again.
        let count = self.poll()?;
        if count == 0 && !self.shared.is_stopping() {
            self.shared.counts.sleeps.fetch_add(1, Ordering::Relaxed);
            let pause = if queue.event_fd().is_some() { None } else { Some(self.pace.pause()) };
            let waited = wait_either(waker.reader.as_fd(), queue.event_fd(), pause);
            waited.map_err(|error| call_failed(Call::Poll, "waiting for a completion", error))?;
        }
        if !waker.is_asleep.swap(false, Ordering::SeqCst) {
            // Another thread has cleared the flag and writes the byte.
            let read = (&waker.reader).read_exact(&mut [0]);
            read.map_err(|error| call_failed(Call::System, "reading the wake-up event of a poller", error))?;
        }
        while queue.event_fd().is_some() && queue.try_event()? {}
        Ok(count)
    }
}

/// Returns the message of a panic.
fn message_of(panic: Box<dyn Any + Send>) -> String {
    let message = match panic.downcast_ref::<&str>() {
        Some(message) => (*message).to_owned(),
        None => panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "(no message)".to_owned()),
    };
    // Dropping the payload may panic, too; that panic is ignored.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(panic);
    }
    message
}

/// The choice between spinning and sleeping.
struct Pace {
    max: Duration,
    /// The current time to spin, adapted to its success.
    spin: Duration,
    /// The time of the last completion since the last sleep.
    last_completion: Option<Instant>,
    /// The time at which the poller began to sleep, until a completion arrives.
    sleep_start: Option<Instant>,
    pause: Duration,
}

impl Pace {
    const MIN_PAUSE: Duration = Duration::from_micros(20);
    const MAX_PAUSE: Duration = Duration::from_millis(1);

    fn new(max: Duration) -> Pace {
        // On a single core, spinning only delays the thread that produces the completion.
        let has_one_core = std::thread::available_parallelism().is_ok_and(|count| count.get() == 1);
        let max = if has_one_core { Duration::ZERO } else { max };
        Pace { max, spin: max, last_completion: None, sleep_start: None, pause: Self::MIN_PAUSE }
    }

    /// Records the arrival of a completion.
    fn record_completion(&mut self) {
        let now = Instant::now();
        if let Some(sleep_start) = self.sleep_start.take() {
            // Spin if that would have found the completion; otherwise spin for half as long next time.
            let soon = now.saturating_duration_since(sleep_start) < self.max;
            self.spin = if soon { self.max } else { self.spin / 2 };
        }
        self.last_completion = Some(now);
        self.pause = Self::MIN_PAUSE;
    }

    /// Returns whether to poll again at once. If the spin has ended, it begins the sleep.
    fn continue_spin(&mut self) -> bool {
        let Some(last_completion) = self.last_completion else { return false };
        let now = Instant::now();
        if now.saturating_duration_since(last_completion) < self.spin {
            return true;
        }
        self.last_completion = None;
        self.sleep_start = Some(now);
        false
    }

    /// Returns the time to sleep on a queue without events.
    fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(Self::MAX_PAUSE);
        pause
    }
}

// These auto traits are part of the API.
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Poller<fn(Completion)>>();
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spin_time_adapts_to_its_success() {
        let max = Duration::from_secs(60);
        let mut pace =
            Pace { max, spin: max, last_completion: None, sleep_start: None, pause: Pace::MIN_PAUSE };
        assert!(!pace.continue_spin(), "nothing was found yet");
        pace.record_completion();
        assert!(pace.continue_spin());
        pace.sleep_start = Instant::now().checked_sub(max * 2);
        pace.record_completion();
        assert_eq!(pace.spin, max / 2);
        pace.sleep_start = Some(Instant::now());
        pace.record_completion();
        assert_eq!(pace.spin, max);
    }

    #[test]
    fn pauses_grow_to_a_limit_and_a_completion_resets_them() {
        let mut pace = Pace::new(Duration::ZERO);
        let pauses: Vec<Duration> = (0..8).map(|_| pace.pause()).collect();
        assert!(pauses.is_sorted());
        assert_eq!(pauses.first(), Some(&Pace::MIN_PAUSE));
        assert_eq!(pauses.last(), Some(&Pace::MAX_PAUSE));
        pace.record_completion();
        assert_eq!(pace.pause(), Pace::MIN_PAUSE);
    }

    #[test]
    fn the_message_of_a_panic_is_returned() {
        let message = |f: fn()| message_of(catch_unwind(f).unwrap_err());
        let messages =
            [message(|| panic!("plain")), message(|| panic!("{}", 7)), message(|| std::panic::panic_any(7))];
        assert_eq!(messages, ["plain", "7", "(no message)"]);
    }
}
