//! The recorder of requests and completions on devices that don't record them themselves.
//!
//! Each queue adds events to its own ring buffer, under the lock that it holds anyway ([`QueueRecorder`]). The
//! [`DeviceRecorder`] starts and stops the queues' recorders, and merges their events by time. State changes and
//! asynchronous events, which are rare, have one more ring buffer.

#![cfg_attr(not(feature = "ibv"), allow(dead_code, reason = "only devices of rdma-core are recorded here"))]

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, PipeWriter, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use adverb_proto::explain::Call;
use adverb_proto::trace::{EventSink, Recorder, RecorderOptions, Recording, StopCause, StopOn, TraceEvent};
use adverb_proto::types::{DeviceEvent, Qpn};
use adverb_proto::{QueueEvent, Srq, Time};
use parking_lot::Mutex;

use crate::error::{Error, Result, call_failed};
use crate::os::clock_origin;

/// A descriptor that becomes readable when a recorder stops by itself, and stays readable.
pub(crate) type StopSignal = Arc<dyn AsFd + Send + Sync>;

/// Returns the error of starting a second recording of a device.
pub(crate) fn already_recording(device: &str) -> Error {
    Error::InvalidRequest {
        reason: format!("{device} is being recorded already: stop that recording first").into(),
    }
}

/// The recorder of a device.
#[derive(Debug)]
pub(crate) struct DeviceRecorder {
    /// Whether a recording is in progress. Every post and every poll that finds completions reads this.
    is_on: AtomicBool,
    /// The origin of the events' times.
    start: Instant,
    active: Mutex<Option<Active>>,
}

/// A recording that was started.
#[derive(Debug)]
struct Active {
    options: RecorderOptions,
    /// The ring buffers of queues, including the last ones that were destroyed meanwhile.
    queues: Vec<Arc<Mutex<Recorder>>>,
    /// The number of events in discarded ring buffers.
    discarded_count: u64,
    /// Events of state changes, and asynchronous events.
    control: Recorder,
    /// The `Connected` events of queue pairs that were connected before the recording.
    earlier: VecDeque<(Time, TraceEvent)>,
    /// The queue pairs with a `Connected` event.
    described: BTreeSet<Qpn>,
    stop_cause: Option<StopCause>,
    /// A pipe that is written to when the recorder stops by itself.
    stopped: PipeWriter,
}

impl Active {
    /// Discards the oldest ring buffers of destroyed queues, because peers determine how many queue pairs a program has
    /// had.
    fn discard_destroyed(&mut self) {
        let is_destroyed = |queue: &Arc<Mutex<Recorder>>| Arc::strong_count(queue) == 1;
        let mut excess = self
            .queues
            .iter()
            .filter(|queue| is_destroyed(queue))
            .count()
            .saturating_sub(MAX_DESTROYED_QUEUES);
        let discarded_count = &mut self.discarded_count;
        self.queues.retain(|queue| {
            let is_kept = excess == 0 || !is_destroyed(queue);
            if !is_kept {
                excess -= 1;
                *discarded_count += queue.lock().event_count();
            }
            is_kept
        });
    }
}

/// The maximum number of destroyed queues whose ring buffers are kept.
const MAX_DESTROYED_QUEUES: usize = 64;

/// The maximum number of connections that are described although they were established before the recording.
const MAX_EARLIER: usize = 1 << 15;

impl Default for DeviceRecorder {
    fn default() -> DeviceRecorder {
        DeviceRecorder { is_on: AtomicBool::new(false), start: Instant::now(), active: Mutex::new(None) }
    }
}

impl DeviceRecorder {
    pub(crate) fn start(&self, device: &str, options: &RecorderOptions) -> Result<StopSignal> {
        let action = || format!("starting a recording of {device}");
        let mut active = self.active.lock();
        if active.is_some() {
            return Err(already_recording(device));
        }
        let (reader, stopped) = io::pipe().map_err(|error| call_failed(Call::System, action(), error))?;
        let mut control = Recorder::default();
        // No packets are recorded.
        let options = RecorderOptions { payload_limit: 0, ..options.clone() };
        control.start(&options).map_err(|error| {
            call_failed(Call::System, action(), io::Error::new(io::ErrorKind::InvalidInput, error))
        })?;
        *active = Some(Active {
            options,
            queues: Vec::new(),
            discarded_count: 0,
            control,
            earlier: VecDeque::new(),
            described: BTreeSet::new(),
            stop_cause: None,
            stopped,
        });
        self.is_on.store(true, Ordering::Relaxed);
        Ok(Arc::new(reader))
    }

    /// Stops, and returns the recording, or `None` if no recording was started.
    pub(crate) fn stop(&self, device: &str) -> Option<Recording> {
        let mut guard = self.active.lock();
        let mut active = guard.take()?;
        self.is_on.store(false, Ordering::Relaxed);
        drop(guard);
        let recording = self.merge(device, &active);
        // Queues keep their recorders; stopping one frees its ring buffer.
        for queue in &active.queues {
            drop(queue.lock().stop(device, recording.clock));
        }
        drop(active.control.stop(device, recording.clock));
        Some(recording)
    }

    /// Returns a copy of the recording so far, or `None` if no recording was started.
    pub(crate) fn snapshot(&self, device: &str) -> Option<Recording> {
        self.active.lock().as_ref().map(|active| self.merge(device, active))
    }

    /// Returns the cause if the recorder stopped by itself, or `None` otherwise.
    pub(crate) fn stop_cause(&self) -> Option<StopCause> {
        self.active.lock().as_ref()?.stop_cause
    }

    /// Records a rare event.
    #[inline]
    pub(crate) fn record(&self, event: impl FnOnce() -> TraceEvent) {
        if self.is_on() {
            self.record_control(event());
        }
    }

    /// Records an asynchronous event, if it belongs to a queue.
    pub(crate) fn record_device_event(&self, event: DeviceEvent) {
        let event = match event {
            DeviceEvent::QueuePairFatal(qpn) => QueueEvent::Fatal(qpn),
            DeviceEvent::QueuePairRequestError(qpn) => QueueEvent::RequestError(qpn),
            DeviceEvent::QueuePairAccessError(qpn) => QueueEvent::AccessError(qpn),
            DeviceEvent::Established(qpn) => QueueEvent::Established(qpn),
            DeviceEvent::SendQueueDrained(qpn) => QueueEvent::SendQueueDrained(qpn),
            DeviceEvent::LastReceiveReached(qpn) => QueueEvent::LastReceiveReached(qpn),
            DeviceEvent::SharedReceiveQueueLimit(id) => QueueEvent::SrqLimit(Srq::from_number(id)),
            DeviceEvent::DeviceFatal => return self.stop_at_device_failure(),
            _ => return,
        };
        self.record(|| TraceEvent::QueueEventDelivered { event });
    }

    /// Stops the recording if failures stop it, because no completion reports the failure of the device.
    #[cold]
    fn stop_at_device_failure(&self) {
        let stops =
            self.active.lock().as_ref().is_some_and(|active| active.options.stop_on != StopOn::Manual);
        if stops {
            self.stop_at(StopCause::Failure);
        }
    }

    #[cold]
    fn record_control(&self, event: TraceEvent) {
        let mut active = self.active.lock();
        let Some(active) = active.as_mut() else { return };
        if let TraceEvent::Connected { qpn, .. } = event {
            active.described.insert(qpn);
        }
        let now = self.now();
        if active.control.is_recording() {
            active.control.event(now, event);
        }
    }

    #[inline(always)]
    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    #[cold]
    fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    /// Creates the ring buffer of a queue that has none in this recording, and describes the connection of its queue
    /// pair.
    fn add_queue(
        &self,
        qpn: Option<Qpn>,
        connection: impl FnOnce() -> Option<TraceEvent>,
    ) -> Option<Arc<Mutex<Recorder>>> {
        let mut active = self.active.lock();
        let active = active.as_mut().filter(|active| active.stop_cause.is_none())?;
        let mut options = active.options.clone();
        let is_selected = |qpn| options.qps.is_empty() || options.qps.contains(&qpn);
        if qpn.is_none_or(is_selected) {
            if let Some(qpn) = qpn
                && let Some(connection) = connection()
                && active.described.insert(qpn)
            {
                if active.earlier.len() == MAX_EARLIER {
                    active.earlier.pop_front();
                }
                active.earlier.push_back((self.now(), connection));
            }
        } else {
            // The queue records nothing.
            options.capacity = 1;
        }
        let mut recorder = Recorder::default();
        recorder.start(&options).ok()?;
        let recorder = Arc::new(Mutex::new(recorder));
        active.discard_destroyed();
        active.queues.push(Arc::clone(&recorder));
        Some(recorder)
    }

    /// Stops the recording because of a recorded event or a failure of the device, and reports it by the pipe.
    #[cold]
    fn stop_at(&self, cause: StopCause) {
        let mut active = self.active.lock();
        let Some(active) = active.as_mut().filter(|active| active.stop_cause.is_none()) else { return };
        self.is_on.store(false, Ordering::Relaxed);
        active.stop_cause = Some(cause);
        // The pipe is empty, and the active recording holds its reader.
        if let Err(error) = active.stopped.write_all(&[1]) {
            crate::logging::log_without_unwinding(
                || tracing::error!(%error, "reporting that a recording has stopped failed"),
            );
        }
    }

    /// Returns the events of all ring buffers, ordered by time.
    fn merge(&self, device: &str, active: &Active) -> Recording {
        let clock = clock_origin(self.start);
        let mut merged = Recording::new(device, clock, Vec::new());
        merged.earlier_connections.extend(&active.earlier);
        merged.lost_count = active.discarded_count;
        let queues = active.queues.iter().filter_map(|queue| queue.lock().snapshot(device, clock));
        for mut recording in active.control.snapshot(device, clock).into_iter().chain(queues) {
            merged.events.append(&mut recording.events);
            merged.earlier_connections.append(&mut recording.earlier_connections);
            merged.lost_count += recording.lost_count;
        }
        // The sort is stable, so the events of a ring buffer keep their order.
        merged.events.sort_by_key(|event| event.time);
        merged.stop_cause = active.stop_cause.unwrap_or(StopCause::Manual);
        merged
    }
}

/// The recorder of a queue or completion queue, behind the lock of the queue.
#[derive(Debug)]
pub(crate) struct QueueRecorder {
    /// The device's recorder, or one that is never started if the backend records the events itself.
    device: Arc<DeviceRecorder>,
    /// The ring buffer of the last recording in which the queue had events.
    ring: Option<Arc<Mutex<Recorder>>>,
}

impl QueueRecorder {
    pub(crate) fn new(device: Option<&Arc<DeviceRecorder>>) -> QueueRecorder {
        /// A recorder that is never started. It replaces an `Option` in each queue, which every post would check.
        static OFF: LazyLock<Arc<DeviceRecorder>> = LazyLock::new(Arc::default);
        QueueRecorder { device: Arc::clone(device.unwrap_or_else(|| &OFF)), ring: None }
    }

    /// Whether a recording is in progress.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.device.is_on()
    }

    /// Returns the time if a recording is in progress.
    #[inline(always)]
    pub(crate) fn time(&self) -> Option<Time> {
        if self.is_on() { Some(self.device.now()) } else { None }
    }

    /// Calls `record` with the ring buffer of the queue, if a recording is in progress. The first call in a recording
    /// allocates the ring buffer, and records the connection of the queue pair `qpn`.
    #[cold]
    pub(crate) fn record(
        &mut self,
        qpn: Option<Qpn>,
        connection: impl FnOnce() -> Option<TraceEvent>,
        record: impl FnOnce(&mut Recorder),
    ) {
        if self.ring.as_ref().is_none_or(|ring| !ring.lock().is_started()) {
            self.ring = self.device.add_queue(qpn, connection);
        }
        let Some(ring) = &self.ring else { return };
        let mut recorder = ring.lock();
        if !recorder.is_recording() {
            return;
        }
        record(&mut recorder);
        if let Some(cause) = recorder.stop_cause() {
            // The device's lock must be taken before the locks of its queues.
            drop(recorder);
            self.device.stop_at(cause);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use adverb_proto::Cq;
    use adverb_proto::trace::{Queue, StopOn};
    use adverb_proto::types::{Failure, QpState, Status};

    use super::*;

    fn polled(number: u64) -> TraceEvent {
        TraceEvent::Polled { cq: Cq::from_number(1), qpn: Qpn::truncate(5), wr_id: number }
    }

    fn record(queue: &mut QueueRecorder, number: u64) {
        let time = queue.time().unwrap_or(Time::ZERO);
        queue.record(Some(Qpn::truncate(5)), || None, |recorder| recorder.event(time, polled(number)));
    }

    fn numbers(recording: &Recording) -> Vec<u64> {
        let number = |event: &TraceEvent| match event {
            TraceEvent::Polled { wr_id, .. } => *wr_id,
            _ => u64::MAX,
        };
        recording.events.iter().map(|recorded| number(&recorded.event)).collect()
    }

    #[test]
    fn ring_buffers_of_destroyed_queues_are_bounded() {
        let device = Arc::new(DeviceRecorder::default());
        device.start("test", &RecorderOptions { capacity: 8, ..RecorderOptions::default() }).unwrap();
        let mut kept = QueueRecorder::new(Some(&device));
        record(&mut kept, 1000);
        let count = MAX_DESTROYED_QUEUES as u64 + 10;
        for number in 0..count {
            record(&mut QueueRecorder::new(Some(&device)), number);
        }
        let recording = device.stop("test").unwrap();
        // Each queue was added when the one before was already destroyed.
        assert_eq!(recording.lost_count, 9);
        assert_eq!(recording.events.len() as u64, 1 + count - 9);
        assert!(numbers(&recording).contains(&1000) && !numbers(&recording).contains(&8));
    }

    #[test]
    fn failed_device_stops_a_recording_that_stops_at_failures() {
        for (stop_on, cause) in [(StopOn::Manual, None), (StopOn::Failure, Some(StopCause::Failure))] {
            let device = DeviceRecorder::default();
            device.start("test", &RecorderOptions { stop_on, ..RecorderOptions::default() }).unwrap();
            device.record_device_event(DeviceEvent::DeviceFatal);
            assert_eq!(device.stop_cause(), cause);
        }
    }

    #[test]
    fn events_of_queues_are_merged_by_time() {
        let device = Arc::new(DeviceRecorder::default());
        let [mut one, mut other] = [(); 2].map(|()| QueueRecorder::new(Some(&device)));
        assert!(!one.is_on());
        record(&mut one, 9);
        device.start("test", &RecorderOptions::default()).unwrap();
        assert!(device.start("test", &RecorderOptions::default()).is_err());
        for number in 0..4 {
            record(if number % 2 == 0 { &mut one } else { &mut other }, number);
            std::thread::sleep(Duration::from_micros(10));
        }
        let qpn = Qpn::truncate(5);
        device.record(|| TraceEvent::StateChanged { qpn, from: QpState::Reset, to: QpState::Init });
        assert_eq!(numbers(&device.snapshot("test").unwrap()), [0, 1, 2, 3, u64::MAX]);
        // The events of a destroyed queue are kept.
        drop(other);
        assert_eq!(numbers(&device.stop("test").unwrap()), [0, 1, 2, 3, u64::MAX]);
        assert!(device.stop("test").is_none() && !one.is_on());
        // The next recording has no events of the last.
        record(&mut one, 8);
        device.start("test", &RecorderOptions::default()).unwrap();
        record(&mut one, 7);
        assert_eq!(numbers(&device.stop("test").unwrap()), [7]);
    }

    #[test]
    fn full_ring_buffers_count_overwritten_events() {
        let device = Arc::new(DeviceRecorder::default());
        let mut queue = QueueRecorder::new(Some(&device));
        device.start("test", &RecorderOptions { capacity: 4, ..RecorderOptions::default() }).unwrap();
        (0..10).for_each(|number| record(&mut queue, number));
        let recording = device.stop("test").unwrap();
        assert_eq!((numbers(&recording), recording.lost_count), (vec![6, 7, 8, 9], 6));
    }

    #[test]
    fn queue_pairs_that_are_not_selected_are_not_recorded() {
        let device = Arc::new(DeviceRecorder::default());
        let mut queue = QueueRecorder::new(Some(&device));
        let qps = vec![Qpn::truncate(6)];
        device.start("test", &RecorderOptions { qps, ..RecorderOptions::default() }).unwrap();
        (0..10).for_each(|number| record(&mut queue, number));
        let recording = device.stop("test").unwrap();
        assert_eq!((recording.events.len(), recording.lost_count), (0, 0));
    }

    #[test]
    fn first_failure_stops_all_queues() {
        let device = Arc::new(DeviceRecorder::default());
        let [mut one, mut other] = [(); 2].map(|()| QueueRecorder::new(Some(&device)));
        let options = RecorderOptions { stop_on: StopOn::Failure, ..RecorderOptions::default() };
        let stopped = device.start("test", &options).unwrap();
        let is_stopped = || crate::os::wait_either(stopped.as_fd(), None, Some(Duration::ZERO)).unwrap();
        record(&mut other, 1);
        assert!(!is_stopped() && device.stop_cause().is_none());
        let failed = TraceEvent::Completed {
            qpn: Qpn::truncate(5),
            queue: Queue::Send,
            request: 0,
            wr_id: 2,
            cq: Cq::from_number(1),
            outcome: Err(Failure { status: Status::RetryExceeded, vendor_error: 0 }),
        };
        one.record(None, || None, |recorder| recorder.event(Time::MAX, failed));
        assert!(is_stopped() && !other.is_on());
        assert_eq!(device.stop_cause(), Some(StopCause::Failure));
        record(&mut other, 3);
        let recording = device.stop("test").unwrap();
        assert_eq!(recording.stop_cause, StopCause::Failure);
        assert_eq!(recording.events.last().map(|recorded| recorded.event), Some(failed));
    }
}
