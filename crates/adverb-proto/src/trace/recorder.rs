//! The recorder: a ring buffer of events that is switched on and off at run time.

use std::collections::VecDeque;

use adverb_wire::Qpn;

use super::recording::{ClockOrigin, RecordedEvent, Recording, StopCause};
use super::{EventSink, TimerKind, TraceEvent};
use crate::Time;
use crate::types::Status;

/// An [`EventSink`] that stores the last events in a ring buffer.
///
/// A new recorder is off: a device checks this once per call, and creates no events. [`start`](Recorder::start)
/// allocates the buffer; recording itself allocates nothing, except for connections of queue pairs and for the first
/// packets of the connection manager. A full buffer overwrites its oldest events and counts them.
///
/// ```
/// use adverb_proto::trace::{ClockOrigin, Recorder, RecorderOptions};
/// use adverb_proto::{Device, Time};
///
/// let mut device = Device::new(Recorder::default());
/// device.sink_mut().start(&RecorderOptions::default())?;
/// device.record_connections(Time::ZERO);
/// // … the device works …
/// let recording = device.sink_mut().stop("soft0", ClockOrigin::default()).unwrap();
/// assert_eq!(recording.events.len(), 0);
/// # Ok::<(), adverb_proto::trace::InvalidCapacity>(())
/// ```
#[derive(Debug, Default)]
pub struct Recorder {
    mode: Mode,
    ring: Vec<Slot>,
    capacity: usize,
    /// The index of the next event. At the end of a full ring, the next event is stored at the start.
    next: usize,
    /// The number of times that `next` returned to the start of the ring.
    laps: u64,
    qps: Vec<Qpn>,
    stop_on: StopOn,
    stopped: Option<StopCause>,
    /// The numbers, times and events of the last connections: later events are hard to read without them.
    connections: VecDeque<(u64, Time, TraceEvent)>,
    payload_limit: usize,
    payloads: Payloads,
    /// The number and the payload limit of the last packet, until its payload is stored.
    last_packet: Option<(u64, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Mode {
    #[default]
    Off,
    /// The events of all queue pairs are recorded, with payload only of the connection manager's packets.
    Plain,
    /// Only the events of selected queue pairs are recorded, or payload of all packets is recorded, or both.
    Selective,
}

/// An event in the ring, in two cache lines. The fields of most events are in the first one.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Slot {
    time: Time,
    event: TraceEvent,
}

/// The options of a [`Recorder`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecorderOptions {
    /// The number of events that the recorder keeps.
    pub capacity: usize,
    /// The number of payload bytes that the recorder keeps of each packet. The default is 0: payload can contain
    /// secrets. Packets of the connection manager are an exception; the recorder keeps the headers of their messages.
    pub payload_limit: usize,
    /// The queue pairs to record. An empty list selects all. Events that belong to no queue pair are always recorded.
    pub qps: Vec<Qpn>,
    /// The event at which the recorder stops by itself.
    pub stop_on: StopOn,
}

impl Default for RecorderOptions {
    fn default() -> RecorderOptions {
        RecorderOptions { capacity: 1 << 16, payload_limit: 0, qps: Vec::new(), stop_on: StopOn::Manual }
    }
}

/// The event at which a recorder stops by itself, so that the events before it are not overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StopOn {
    /// The recorder stops only at [`Recorder::stop`].
    #[default]
    Manual,
    /// The recorder stops at the first completion that failed, or when the
    /// [device fails](Recorder::stop_at_device_failure). Flushed requests don't count: an application that closes a
    /// queue pair flushes its requests.
    Failure,
    /// The recorder stops at a failure as with [`Failure`](StopOn::Failure), or at the first acknowledgement timeout.
    FailureOrTimeout,
}

/// The error of [`Recorder::start`]: the capacity is 0 or exceeds [`Recorder::MAX_CAPACITY`], or there is not enough
/// memory for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidCapacity {
    /// The requested capacity.
    pub capacity: usize,
}

impl core::fmt::Display for InvalidCapacity {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let max = Recorder::MAX_CAPACITY;
        write!(
            f,
            "a recorder can't keep {} events: the capacity must be 1 to {max}, and there must be enough memory",
            self.capacity
        )
    }
}

impl core::error::Error for InvalidCapacity {}

/// Payload bytes of the last packets.
#[derive(Debug, Default)]
struct Payloads {
    bytes: Vec<u8>,
    /// The number of bytes so far, also of those that were overwritten.
    written: u64,
    /// The packets' numbers, and the first byte and length of their payload.
    packets: VecDeque<(u64, u64, usize)>,
    max_packets: usize,
}

impl Recorder {
    /// The maximum number of events that a recorder keeps.
    pub const MAX_CAPACITY: usize = 1 << 24;

    /// Starts to record. A recording in progress is discarded.
    ///
    /// The caller should call [`Device::record_connections`](crate::Device::record_connections) next, so that the
    /// recording contains the queue pairs that are already connected.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidCapacity`] if the capacity is 0 or exceeds [`MAX_CAPACITY`](Recorder::MAX_CAPACITY), or if
    /// there is not enough memory.
    pub fn start(&mut self, options: &RecorderOptions) -> Result<(), InvalidCapacity> {
        let &RecorderOptions { capacity, payload_limit, ref qps, stop_on } = options;
        if !(1..=Recorder::MAX_CAPACITY).contains(&capacity) {
            return Err(InvalidCapacity { capacity });
        }
        let mut ring = Vec::new();
        ring.try_reserve_exact(capacity).map_err(|_| InvalidCapacity { capacity })?;
        let is_plain = qps.is_empty() && payload_limit == 0;
        *self = Recorder {
            mode: if is_plain { Mode::Plain } else { Mode::Selective },
            ring,
            capacity,
            qps: qps.clone(),
            stop_on,
            payload_limit,
            payloads: Payloads::new(capacity, payload_limit),
            ..Recorder::default()
        };
        Ok(())
    }

    /// Stops, and returns the recording, or `None` if the recorder was not started. The recorder is then off.
    pub fn stop(&mut self, device: &str, clock: ClockOrigin) -> Option<Recording> {
        let recording = self.snapshot(device, clock);
        *self = Recorder::default();
        recording
    }

    /// Returns a copy of the recording so far, or `None` if the recorder was not started.
    pub fn snapshot(&self, device: &str, clock: ClockOrigin) -> Option<Recording> {
        if !self.is_started() {
            return None;
        }
        let lost = self.event_count() - self.ring.len() as u64;
        let (newest, oldest) = self.ring.split_at(self.next.min(self.ring.len()));
        let in_order = oldest.iter().chain(newest);
        let events = (lost..).zip(in_order).map(|(number, &Slot { time, event })| RecordedEvent {
            time,
            event,
            payload: self.payloads.get(number),
        });
        let earlier = self.connections.iter().filter(|(number, ..)| *number < lost);
        Some(Recording {
            device: device.to_owned(),
            clock,
            earlier_connections: earlier.map(|(_, time, event)| (*time, *event)).collect(),
            events: events.collect(),
            lost_count: lost - earlier_count(&self.connections, lost),
            stop_cause: self.stopped.unwrap_or(StopCause::Manual),
        })
    }

    /// Whether a recording is in progress, or has stopped by itself.
    #[inline]
    pub fn is_started(&self) -> bool {
        self.mode != Mode::Off || self.stopped.is_some()
    }

    /// Returns the cause if the recorder has stopped by itself, or `None` otherwise.
    #[inline]
    pub fn stop_cause(&self) -> Option<StopCause> {
        self.stopped
    }

    /// Returns the number of events so far, also of those that were overwritten.
    #[inline]
    pub fn event_count(&self) -> u64 {
        self.laps * self.capacity as u64 + self.next as u64
    }

    /// Reports that the device has failed, which no completion shows. The recorder stops, unless its option is
    /// [`StopOn::Manual`].
    pub fn stop_at_device_failure(&mut self) {
        if self.mode != Mode::Off && self.stop_on != StopOn::Manual {
            self.stop_at(StopCause::Failure);
        }
    }

    /// Whether the recorder keeps payload of the packet whose event was recorded last.
    #[inline]
    pub fn wants_payload(&self) -> bool {
        cfg!(not(adverb_no_events)) && self.last_packet.is_some()
    }

    /// Stores the payload of the packet whose event was recorded last.
    #[cold]
    pub fn record_payload(&mut self, payload: &[u8]) {
        if let Some((number, limit)) = self.last_packet.take() {
            self.payloads.push(number, &payload[..payload.len().min(limit)]);
        }
    }

    /// Stores the event that `create` returns in the ring.
    ///
    /// This function is inlined where the device creates the event: the compiler then knows the variant, and writes the
    /// fields to the ring without a copy in between. The compiler can do so only if no other function takes a reference
    /// to the event, and if nothing is written between the event's creation and its assignment.
    #[inline(always)]
    fn store(&mut self, now: Time, create: impl FnOnce() -> TraceEvent, keeps_payload: bool) {
        if self.next >= self.ring.len() {
            self.open_slot();
        }
        let Some(slot) = self.ring.get_mut(self.next) else { return };
        let event = create();
        slot.event = event;
        slot.time = now;
        self.next += 1;
        match event {
            TraceEvent::PacketSent { qpn, .. } | TraceEvent::PacketReceived { qpn, .. } => {
                self.last_packet = None;
                if keeps_payload || qpn == Qpn::GSI {
                    self.expect_payload(qpn);
                }
            }
            TraceEvent::Completed { outcome: Err(failure), .. } => self.check_failure(failure.status),
            TraceEvent::TimerExpired { timer: TimerKind::AckTimeout, .. }
                if self.stop_on == StopOn::FailureOrTimeout =>
            {
                self.stop_at(StopCause::Timeout);
            }
            // The payload of a dropped packet is not that of the last recorded one.
            TraceEvent::Dropped { .. } => self.last_packet = None,
            TraceEvent::Connected { .. } => self.keep_connection(),
            _ => {}
        }
    }

    /// Adds a slot to the ring, or continues at the start of a full one. The memory is reserved, so this doesn't
    /// allocate.
    #[cold]
    #[inline(never)]
    fn open_slot(&mut self) {
        if self.ring.len() < self.capacity {
            self.ring.push(Slot { time: Time::ZERO, event: TraceEvent::Doorbell { qpn: Qpn::GSI } });
        } else {
            self.next = 0;
            self.laps += 1;
        }
    }

    /// Prepares for the payload of the packet whose event was stored last.
    #[cold]
    #[inline(never)]
    fn expect_payload(&mut self, qpn: Qpn) {
        let limit = if qpn == Qpn::GSI { GSI_PAYLOAD_LIMIT } else { self.payload_limit };
        self.last_packet = (limit > 0).then_some((self.event_count() - 1, limit));
    }

    /// Copies the event that was stored last, a [`TraceEvent::Connected`], to `connections`.
    #[cold]
    #[inline(never)]
    fn keep_connection(&mut self) {
        let Some(&Slot { time, event }) = self.next.checked_sub(1).and_then(|last| self.ring.get(last))
        else {
            return;
        };
        // Peers determine the number of connections, so it is limited.
        if self.connections.len() == MAX_CONNECTIONS {
            self.connections.pop_front();
        }
        self.connections.push_back((self.event_count() - 1, time, event));
    }

    /// Stops if the recorder is to stop at a failed completion with this status.
    #[cold]
    #[inline(never)]
    fn check_failure(&mut self, status: Status) {
        if self.stop_on != StopOn::Manual && status != Status::Flushed {
            self.stop_at(StopCause::Failure);
        }
    }

    #[cold]
    fn stop_at(&mut self, cause: StopCause) {
        self.mode = Mode::Off;
        self.stopped = Some(cause);
    }
}

/// Returns the number of connection events before the event with this number. They are kept outside of the ring.
fn earlier_count(connections: &VecDeque<(u64, Time, TraceEvent)>, number: u64) -> u64 {
    connections.iter().filter(|(connection, ..)| *connection < number).count() as u64
}

impl EventSink for Recorder {
    #[inline(always)]
    fn is_recording(&self) -> bool {
        cfg!(not(adverb_no_events)) && self.mode != Mode::Off
    }

    #[cold]
    #[inline(never)]
    fn event(&mut self, now: Time, event: TraceEvent) {
        if !self.qps.is_empty() && event.qpn().is_some_and(|qpn| !self.qps.contains(&qpn)) {
            self.last_packet = None;
            return;
        }
        self.store(now, || event, self.payload_limit > 0);
    }

    #[inline(always)]
    fn event_with(&mut self, now: Time, create: impl FnOnce() -> TraceEvent) {
        if self.mode == Mode::Plain {
            self.store(now, create, false);
        } else if self.mode == Mode::Selective {
            self.event(now, create());
        }
    }
}

impl Payloads {
    fn new(capacity: usize, limit: usize) -> Payloads {
        if limit == 0 {
            // The buffer is allocated with the first packet of the connection manager.
            return Payloads { max_packets: MAX_GSI_PACKETS, ..Payloads::default() };
        }
        let bytes = capacity.saturating_mul(limit).clamp(MIN_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES);
        let packets = VecDeque::with_capacity(capacity);
        Payloads { bytes: vec![0; bytes], packets, max_packets: capacity, written: 0 }
    }

    fn push(&mut self, number: u64, payload: &[u8]) {
        if self.bytes.is_empty() {
            self.bytes = vec![0; MIN_PAYLOAD_BYTES];
        }
        let size = self.bytes.len();
        let payload = &payload[..payload.len().min(size)];
        let at = (self.written % size as u64) as usize;
        let head = payload.len().min(size - at);
        self.bytes[at..at + head].copy_from_slice(&payload[..head]);
        self.bytes[..payload.len() - head].copy_from_slice(&payload[head..]);
        if self.packets.len() == self.max_packets {
            self.packets.pop_front();
        }
        self.packets.push_back((number, self.written, payload.len()));
        self.written += payload.len() as u64;
    }

    fn get(&self, number: u64) -> Option<Box<[u8]>> {
        let index = self.packets.binary_search_by_key(&number, |(number, ..)| *number).ok()?;
        let (_, first, len) = *self.packets.get(index)?;
        let size = self.bytes.len() as u64;
        if self.written - first > size {
            return None;
        }
        Some((first..first + len as u64).map(|at| self.bytes[(at % size) as usize]).collect())
    }
}

/// The maximum number of connection events that are kept beside the ring. A connection has up to two.
const MAX_CONNECTIONS: usize = 1 << 15;

/// The number of payload bytes that the recorder keeps of a connection manager's packet: the header of the management
/// datagram, and the first fields of the message, before private data.
const GSI_PAYLOAD_LIMIT: usize = 36;

/// The maximum number of connection manager packets whose payload is kept, if the recorder keeps no other payload.
const MAX_GSI_PACKETS: usize = MIN_PAYLOAD_BYTES / GSI_PAYLOAD_LIMIT;

/// The minimum size of the payload buffer in bytes.
const MIN_PAYLOAD_BYTES: usize = 64 << 10;

/// The maximum size of the payload buffer in bytes.
const MAX_PAYLOAD_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cq::Cq;
    use crate::trace::Queue;
    use crate::types::Failure;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn doorbell(qpn: u32) -> TraceEvent {
        TraceEvent::Doorbell { qpn: Qpn::truncate(qpn) }
    }

    fn failure(status: Status) -> TraceEvent {
        TraceEvent::Completed {
            qpn: Qpn::truncate(5),
            queue: Queue::Send,
            request: 0,
            wr_id: 0,
            cq: Cq(0),
            outcome: Err(Failure { status, vendor_error: 0 }),
        }
    }

    fn started(options: RecorderOptions) -> Recorder {
        let mut recorder = Recorder::default();
        assert!(!recorder.is_recording());
        recorder.start(&options).unwrap();
        assert!(recorder.is_recording());
        recorder
    }

    #[test]
    fn full_ring_keeps_the_newest_events_in_order_and_counts_the_others() {
        for count in [0, 3, 4, 5, 8, 11] {
            let mut recorder = started(RecorderOptions { capacity: 4, ..RecorderOptions::default() });
            (0..count).for_each(|nanos| recorder.event_with(at(nanos), || doorbell(7)));
            let recording = recorder.stop("soft0", ClockOrigin::default()).unwrap();
            let times: Vec<u64> = recording.events.iter().map(|event| event.time.as_nanos()).collect();
            assert_eq!(times, (count.saturating_sub(4)..count).collect::<Vec<_>>());
            assert_eq!(recording.lost_count, count.saturating_sub(4));
            assert!(recorder.stop("soft0", ClockOrigin::default()).is_none());
        }
    }

    #[test]
    fn recording_allocates_nothing_beyond_its_buffer() {
        let mut recorder = started(RecorderOptions { capacity: 4, ..RecorderOptions::default() });
        let capacity = recorder.ring.capacity();
        (0..100).for_each(|nanos| recorder.event_with(at(nanos), || doorbell(7)));
        assert_eq!(recorder.ring.capacity(), capacity);
    }

    #[test]
    fn connections_are_kept_beyond_the_ring_and_bounded() {
        let connected = |qpn: u32| TraceEvent::Connected {
            qpn: Qpn::truncate(qpn),
            transport: crate::types::Transport::Rc,
            remote_qpn: Qpn::truncate(1),
            local: ([127, 0, 0, 1], 1).into(),
            remote: ([127, 0, 0, 2], 2).into(),
            path_mtu: crate::types::PathMtu::Mtu1024,
            recv_psn: adverb_wire::Psn::ZERO,
            send_psn: None,
        };
        let mut recorder = started(RecorderOptions { capacity: 4, ..RecorderOptions::default() });
        let count = MAX_CONNECTIONS as u32 + 10;
        (0..count).for_each(|qpn| recorder.event_with(at(qpn.into()), || connected(qpn)));
        (0..4).for_each(|_| recorder.event_with(at(count.into()), || doorbell(7)));
        let recording = recorder.stop("", ClockOrigin::default()).unwrap();
        assert_eq!(recording.earlier_connections.len(), MAX_CONNECTIONS);
        let first = recording.earlier_connections.first().and_then(|(_, event)| event.qpn());
        assert_eq!(first, Some(Qpn::truncate(10)));
        assert_eq!(recording.lost_count, 10);
    }

    #[test]
    fn filter_selects_queue_pairs() {
        let qps = vec![Qpn::truncate(7)];
        let mut recorder = started(RecorderOptions { qps, ..RecorderOptions::default() });
        recorder.event_with(at(1), || doorbell(6));
        recorder.event_with(at(2), || doorbell(7));
        recorder.event_with(at(3), || TraceEvent::CqEventDelivered { cq: Cq(0) });
        let events = recorder.stop("", ClockOrigin::default()).unwrap().events;
        assert_eq!(events.iter().map(|event| event.time.as_nanos()).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn first_failure_stops_the_recorder_but_a_flush_does_not() {
        let mut recorder =
            started(RecorderOptions { stop_on: StopOn::Failure, ..RecorderOptions::default() });
        recorder.event_with(at(1), || failure(Status::Flushed));
        assert!(recorder.is_recording());
        recorder.event_with(at(2), || failure(Status::RetryExceeded));
        assert!(!recorder.is_recording());
        assert_eq!(recorder.stop_cause(), Some(StopCause::Failure));
        let recording = recorder.stop("", ClockOrigin::default()).unwrap();
        assert_eq!((recording.events.len(), recording.stop_cause), (2, StopCause::Failure));
    }

    #[test]
    fn recorder_that_is_off_or_has_stopped_creates_no_events() {
        let mut recorder = Recorder::default();
        recorder.event_with(at(1), || unreachable!("the recorder was not started"));
        recorder = started(RecorderOptions { stop_on: StopOn::Failure, ..RecorderOptions::default() });
        recorder.event_with(at(2), || failure(Status::RetryExceeded));
        recorder.event_with(at(3), || unreachable!("the recorder has stopped"));
        assert_eq!(recorder.stop("", ClockOrigin::default()).unwrap().events.len(), 1);
    }

    #[test]
    fn first_timeout_stops_a_recorder_with_that_option() {
        let timeout = TraceEvent::TimerExpired { qpn: Qpn::truncate(5), timer: TimerKind::AckTimeout };
        for (stop_on, cause) in [
            (StopOn::Failure, None),
            (StopOn::FailureOrTimeout, Some(StopCause::Timeout)),
            (StopOn::Manual, None),
        ] {
            let mut recorder = started(RecorderOptions { stop_on, ..RecorderOptions::default() });
            recorder.event_with(at(1), || timeout);
            assert_eq!(recorder.stop_cause(), cause);
        }
    }

    #[test]
    fn payload_is_kept_up_to_its_limit_and_only_of_packets() {
        let header = adverb_wire::Header::cnp(Qpn::truncate(5));
        let packet = |qpn: Qpn| TraceEvent::PacketReceived { qpn, request: None, header, payload_len: 100 };
        let mut recorder = started(RecorderOptions { payload_limit: 3, ..RecorderOptions::default() });
        recorder.event_with(at(1), || doorbell(7));
        assert!(!recorder.wants_payload());
        recorder.event_with(at(2), || packet(Qpn::truncate(7)));
        recorder.event_with(at(3), || doorbell(7));
        assert!(recorder.wants_payload());
        recorder.record_payload(b"abcdef");
        assert!(!recorder.wants_payload());
        let events = recorder.stop("", ClockOrigin::default()).unwrap().events;
        assert_eq!(events[1].payload.as_deref(), Some(&b"abc"[..]));
        assert!(events[0].payload.is_none() && events[2].payload.is_none());

        let mut recorder = started(RecorderOptions::default());
        recorder.event_with(at(1), || packet(Qpn::truncate(7)));
        assert!(!recorder.wants_payload(), "payload was not requested");
        recorder.event_with(at(2), || packet(Qpn::GSI));
        recorder.record_payload(&[9; 256]);
        let events = recorder.stop("", ClockOrigin::default()).unwrap().events;
        assert_eq!(events[1].payload.as_deref(), Some(&[9; GSI_PAYLOAD_LIMIT][..]));
    }

    #[test]
    fn overwritten_payload_is_absent() {
        let mut payloads = Payloads { bytes: vec![0; 10], max_packets: 8, ..Payloads::default() };
        payloads.push(1, b"aaaa");
        payloads.push(2, b"bbbb");
        payloads.push(3, b"cccc");
        assert_eq!(payloads.get(1), None);
        assert_eq!(payloads.get(2).as_deref(), Some(&b"bbbb"[..]));
        assert_eq!(payloads.get(3).as_deref(), Some(&b"cccc"[..]));
    }

    #[test]
    fn event_is_at_most_two_cache_lines() {
        assert!(size_of::<Slot>() <= 128, "{}", size_of::<Slot>());
    }

    #[test]
    fn capacity_is_checked() {
        for capacity in [0, Recorder::MAX_CAPACITY + 1] {
            let options = RecorderOptions { capacity, ..RecorderOptions::default() };
            assert_eq!(Recorder::default().start(&options), Err(InvalidCapacity { capacity }));
        }
    }
}
