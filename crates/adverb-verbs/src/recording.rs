//! Recordings of a device's requests, packets and completions.
//!
//! [`Device::recording`] starts a recording. The events are stored in a ring buffer, which keeps the last ones and counts
//! those that it overwrites. While no recording is in progress, the software NIC executes about 30 instructions per message
//! at each end to check for one. During a recording, an event takes about 45 instructions, and a message has about 7 events
//! at both ends together.
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! use adverb::verbs::SoftDevice;
//!
//! let device = SoftDevice::loopback().open()?;
//! let active = device.recording().start()?;
//! // … connect queue pairs, post requests, poll completions …
//! let recording = active.stop();
//! for recorded in &recording.events {
//!     println!("{:>12} {}", recorded.time.as_nanos(), recorded.event);
//! }
//! # }
//! # Ok::<(), adverb::Error>(())
//! ```
//!
//! # Flight recorder
//!
//! A device can record all the time, and stop by itself at the first failure, so that the events before the failure are
//! not overwritten ([`RecordingBuilder::stop_on_failure`]). [`RecordingBuilder::on_stop`] sets a function that receives
//! the recording, for example to write it to a file.
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! use adverb::verbs::SoftDevice;
//!
//! let device = SoftDevice::loopback().open()?;
//! let active = device
//!     .recording()
//!     .capacity(10_000)
//!     .stop_on_failure()
//!     .on_stop(|recording| {
//!         for recorded in &recording.events {
//!             eprintln!("{:>12} {}", recorded.time.as_nanos(), recorded.event);
//!         }
//!     })
//!     .start()?;
//! assert!(!active.is_stopped());
//! # }
//! # Ok::<(), adverb::Error>(())
//! ```
//!
//! # Recorded events
//!
//! | event | software NIC | rdma-core |
//! |---|---|---|
//! | request posted | yes | yes, except [raw](crate::raw) requests |
//! | packet sent, received, dropped or retransmitted; acknowledgement, timer | yes | no: the NIC does not report them |
//! | request completed | when the NIC completes it | when the completion is polled |
//! | completion polled | yes | yes, except by [`poll_raw`](crate::CompletionQueue::poll_raw) |
//! | queue pair connected, state changed | yes | if the program changed the state through this crate |
//! | completion event, asynchronous event | when the NIC delivers it | when the program consumes it |
//!
//! With rdma-core, each send queue, receive queue and completion queue has a ring buffer of its own, which it allocates
//! at its first event. The recording contains the events of all of them, ordered by time.

use std::fmt;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use adverb_proto::explain::Call;
use adverb_proto::trace::{Recorder, RecorderOptions, StopOn};
use parking_lot::Mutex;

use crate::deadline::Deadline;
use crate::device::Device;
use crate::error::{Error, Limit, Result, call_failed};
use crate::os::wait_either;
use crate::queue_pair::QueuePair;
use crate::recorder::StopSignal;

pub use adverb_proto::trace::{
    ClockOrigin, DropReason, Queue, RecordedEvent, Recording, RecvQueueId, RetryCause, StopCause, TimerKind,
    TraceEvent,
};
pub use adverb_proto::types::{Segment, SendFlags};
pub use adverb_proto::{Cq, QueueEvent, Srq, Time};

/// The number of events that a recording keeps by default: they take 1 MiB. With 8 times as many, a 64-byte message took a
/// fifth more CPU time, because the events no longer fit the L2 cache of 2 MiB (`cargo xtask bench soft`).
const DEFAULT_CAPACITY: usize = 1 << 13;

/// A function that receives a recording that stopped by itself.
type OnStop = Box<dyn FnOnce(Recording) + Send>;

impl Device {
    /// Returns a builder of a recording of the device's events.
    ///
    /// A device has at most one recording in progress. See [`recording`](crate::recording) for examples and for the events
    /// that each kind of device records.
    pub fn recording(&self) -> RecordingBuilder {
        RecordingBuilder {
            device: self.clone(),
            options: RecorderOptions { capacity: DEFAULT_CAPACITY, ..RecorderOptions::default() },
            foreign: None,
            on_stop: Mutex::new(None),
        }
    }
}

/// A builder of recordings, returned by [`Device::recording`].
#[must_use = "a builder does nothing until `start` is called"]
pub struct RecordingBuilder {
    device: Device,
    options: RecorderOptions,
    /// The name of a queue pair that belongs to another device.
    foreign: Option<String>,
    /// The function that receives the recording, behind a lock, so that the builder is `Sync`.
    on_stop: Mutex<Option<OnStop>>,
}

impl RecordingBuilder {
    /// Sets the number of events that the recording keeps. The default is 8192, the maximum 16,777,216.
    ///
    /// An event takes up to 128 bytes. Recording is cheapest if the events fit the processor's L2 cache. With rdma-core,
    /// the number applies to each queue separately.
    pub fn capacity(mut self, events: usize) -> RecordingBuilder {
        self.options.capacity = events;
        self
    }

    /// Sets the number of payload bytes that the recording keeps of each packet. The default is 0, because payload can
    /// contain secrets. Of the connection manager's packets, the recording always keeps the headers of their messages.
    ///
    /// With rdma-core this option has no effect: packets are not recorded.
    pub fn payload_limit(mut self, bytes: usize) -> RecordingBuilder {
        self.options.payload_limit = bytes;
        self
    }

    /// Adds queue pairs to record. By default, all queue pairs of the device are recorded.
    ///
    /// Events that belong to no queue pair are recorded in any case.
    ///
    /// ```
    /// # #[cfg(feature = "soft")] {
    /// use adverb::verbs::{SoftDevice, Transport};
    ///
    /// let device = SoftDevice::loopback().open()?;
    /// let (domain, completions) =
    ///     (device.create_protection_domain()?, device.completion_queue(256).create()?);
    /// let queue_pair = domain.queue_pair(Transport::Rc).completion_queue(&completions).create()?;
    /// let active = device.recording().queue_pairs([&queue_pair]).start()?;
    /// # }
    /// # Ok::<(), adverb::Error>(())
    /// ```
    pub fn queue_pairs<'a>(
        mut self,
        queue_pairs: impl IntoIterator<Item = &'a QueuePair>,
    ) -> RecordingBuilder {
        for queue_pair in queue_pairs {
            if !queue_pair.protection_domain().device().is(&self.device) {
                self.foreign = Some(queue_pair.name());
            }
            self.options.qps.push(queue_pair.qpn());
        }
        self
    }

    /// Stops the recording at the first completion that failed. Flushed requests don't count, because a program that closes
    /// a queue pair flushes its requests.
    pub fn stop_on_failure(mut self) -> RecordingBuilder {
        if self.options.stop_on == StopOn::Manual {
            self.options.stop_on = StopOn::Failure;
        }
        self
    }

    /// Stops the recording at the first acknowledgement timeout, or at the first completion that failed, whichever happens
    /// first.
    ///
    /// With rdma-core, only failed completions stop the recording: the NIC does not report timeouts.
    pub fn stop_on_timeout(mut self) -> RecordingBuilder {
        self.options.stop_on = StopOn::FailureOrTimeout;
        self
    }

    /// Sets a function that receives the recording if it [stops by itself](RecordingBuilder::stop_on_failure).
    ///
    /// The function is called at most once, on a thread that [`start`](RecordingBuilder::start) creates for it. No lock is
    /// held, so the function may use the device. [`ActiveRecording::stop`] returns the recording nevertheless.
    pub fn on_stop(mut self, function: impl FnOnce(Recording) + Send + 'static) -> RecordingBuilder {
        self.on_stop = Mutex::new(Some(Box::new(function)));
        self
    }

    /// Starts the recording. It begins with a [`Connected`](TraceEvent::Connected) event for each connected queue pair;
    /// with rdma-core, for each that is used during the recording.
    ///
    /// # Errors
    ///
    /// Returns [`Error::LimitExceeded`] if the capacity is 0 or larger than its maximum, [`Error::InvalidRequest`] if
    /// a recording of the device is in progress, if a queue pair belongs to another device, or if there is a function
    /// for a recording that never stops by itself, and [`Error::CallFailed`] if the operation fails.
    pub fn start(self) -> Result<ActiveRecording> {
        let RecordingBuilder { device, options, foreign, on_stop } = self;
        let on_stop = on_stop.into_inner();
        if !(1..=Recorder::MAX_CAPACITY).contains(&options.capacity) {
            return Err(Error::LimitExceeded {
                limit: Limit::RecordingCapacity,
                requested: options.capacity as u64,
                max: Recorder::MAX_CAPACITY as u64,
            });
        }
        if let Some(queue_pair) = foreign {
            let reason = format!("{queue_pair} does not belong to {}: record its own device", device.name());
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        if on_stop.is_some() && options.stop_on == StopOn::Manual {
            let reason =
                "a recording with `on_stop` must stop by itself: call `stop_on_failure` or `stop_on_timeout`";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        let stopped = device.backend().start_recording(device.name(), &options)?;
        // If the thread can't be started, dropping `active` stops the recording.
        let mut active = ActiveRecording { device, stopped, watcher: None, is_over: false };
        if let Some(on_stop) = on_stop {
            active.watcher = Some(active.watch(on_stop)?);
        }
        Ok(active)
    }
}

impl fmt::Debug for RecordingBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingBuilder")
            .field("device", &self.device)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// A recording in progress, returned by [`RecordingBuilder::start`].
///
/// Dropping it stops the recording and discards the events. If the recording has stopped by itself, dropping it first waits
/// for the [function](RecordingBuilder::on_stop) that receives the recording.
#[must_use = "dropping an active recording discards its events"]
pub struct ActiveRecording {
    device: Device,
    stopped: StopSignal,
    watcher: Option<Watcher>,
    /// Whether the recording was stopped and returned.
    is_over: bool,
}

/// The thread that calls the function of [`RecordingBuilder::on_stop`].
struct Watcher {
    thread: JoinHandle<()>,
    /// The pipe that ends the thread: the thread waits for a byte in it, or for the recording to stop by itself.
    cancel: PipeWriter,
}

impl ActiveRecording {
    /// Stops the recording and returns it.
    ///
    /// If the recording has stopped by itself, this call waits for the [function](RecordingBuilder::on_stop) that receives the
    /// recording.
    ///
    /// In a forked child, the returned recording is empty: the one in progress belongs to the parent process.
    pub fn stop(mut self) -> Recording {
        self.end().unwrap_or_else(|| self.empty())
    }

    /// Returns a copy of the recording so far. The recording continues. In a forked child, the copy is empty.
    pub fn snapshot(&self) -> Recording {
        let recording = if self.device.is_owned() {
            self.device.backend().snapshot_recording(self.device.name())
        } else {
            None
        };
        recording.unwrap_or_else(|| self.empty())
    }

    /// Whether the recording has stopped by itself.
    pub fn is_stopped(&self) -> bool {
        self.stop_cause().is_some()
    }

    /// Returns the cause if the recording has stopped by itself, or `None` if it is still in progress.
    pub fn stop_cause(&self) -> Option<StopCause> {
        if self.device.is_owned() { self.device.backend().recording_stop_cause() } else { None }
    }

    /// Waits until the recording stops by itself. Returns `false` if the timeout expires first. A `timeout` of
    /// `None` means no limit.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if waiting fails.
    pub fn wait_stopped(&self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        let deadline = Deadline::new(timeout);
        loop {
            let left = deadline.left();
            let limit = (left != Duration::MAX).then_some(left);
            let is_stopped = wait_either(self.stopped.as_fd(), None, limit)
                .map_err(|error| call_failed(Call::Poll, "waiting for a recording to stop", error))?;
            if is_stopped || left.is_zero() {
                return Ok(is_stopped);
            }
        }
    }

    fn empty(&self) -> Recording {
        Recording::new(self.device.name(), ClockOrigin::default(), Vec::new())
    }

    /// Starts the thread that waits for the recording to stop by itself.
    fn watch(&self, on_stop: OnStop) -> Result<Watcher> {
        let start_error = |error| call_failed(Call::System, "starting the thread of a recording", error);
        let (canceled, cancel) = io::pipe().map_err(start_error)?;
        let (device, stopped) = (self.device.clone(), Arc::clone(&self.stopped));
        let run = move || {
            if wait_for_stop(&stopped, &canceled)
                && let Some(recording) = device.backend().snapshot_recording(device.name())
            {
                on_stop(recording);
            }
        };
        let thread =
            std::thread::Builder::new().name("adverb-record".to_owned()).spawn(run).map_err(start_error)?;
        Ok(Watcher { thread, cancel })
    }

    /// Ends the recording and returns it, unless it has ended before.
    fn end(&mut self) -> Option<Recording> {
        if std::mem::replace(&mut self.is_over, true) || !self.device.is_owned() {
            // A forked child doesn't have the thread, so it can neither join nor detach it.
            if let Some(Watcher { thread, .. }) = self.watcher.take() {
                std::mem::forget(thread);
            }
            return None;
        }
        if let Some(Watcher { thread, mut cancel }) = self.watcher.take() {
            // Closing the pipe is not enough: forked children have copies of it. The write can't fail, because the
            // thread, or this process, has the other end.
            _ = cancel.write_all(&[1]);
            // The function may own the active recording, and a thread can't wait for itself. A panic of the function
            // ends only its thread.
            if thread.thread().id() != std::thread::current().id() {
                drop(thread.join());
            }
        }
        self.device.backend().stop_recording(self.device.name())
    }
}

/// Waits until the recording stops by itself, or is ended. Returns whether it stopped by itself.
fn wait_for_stop(stopped: &StopSignal, canceled: &PipeReader) -> bool {
    loop {
        match wait_either(stopped.as_fd(), Some(canceled.as_fd()), None) {
            // The recording may have stopped by itself before it was ended.
            Ok(true) => {
                let is_stopped = wait_either(stopped.as_fd(), None, Some(Duration::ZERO));
                return is_stopped.unwrap_or(false);
            }
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "waiting for a recording to stop failed");
                return false;
            }
        }
    }
}

impl Drop for ActiveRecording {
    fn drop(&mut self) {
        drop(self.end());
    }
}

impl fmt::Debug for ActiveRecording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActiveRecording").field("device", &self.device).finish_non_exhaustive()
    }
}

// These auto traits are part of the API.
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<RecordingBuilder>();
    shared_between_threads::<ActiveRecording>();
};
