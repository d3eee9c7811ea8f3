//! Recordings: the events that a recorder stored.

use super::TraceEvent;
use crate::Time;

/// The events of a device that were recorded, oldest first.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Recording {
    /// The name of the device.
    pub device: String,
    /// The origin of the device's clock.
    pub clock: ClockOrigin,
    /// The [`Connected`](TraceEvent::Connected) events that are missing in [`events`](Recording::events), because the ring
    /// buffer overwrote them. On a device of rdma-core, this list also has the events of queue pairs that were connected
    /// before the recording began.
    pub earlier_connections: Vec<(Time, TraceEvent)>,
    /// The events.
    pub events: Vec<RecordedEvent>,
    /// The number of events that were overwritten because the ring buffer was full, without those in
    /// [`earlier_connections`](Recording::earlier_connections).
    pub lost_count: u64,
    /// The cause of the recording's end.
    pub stop_cause: StopCause,
}

/// An event of a [`Recording`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedEvent {
    /// The time, on the device's clock.
    pub time: Time,
    /// The event.
    pub event: TraceEvent,
    /// The first bytes of the packet's payload, if the event is a packet and its payload was recorded.
    pub payload: Option<Box<[u8]>>,
}

/// The cause of a recording's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopCause {
    /// The application stopped or copied the recording.
    Manual,
    /// A request or the device failed.
    Failure,
    /// An acknowledgement timeout expired.
    Timeout,
}

/// The origin of a device's clock ([`Time::ZERO`]), as the host's clocks show it.
///
/// Two recordings with the same nonzero `host_id` have one clock, and their events can be put in order. The clocks of
/// two hosts differ by an unknown offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClockOrigin {
    /// The identity of the host since its last boot, or 0 if it is unknown.
    pub host_id: u128,
    /// The host's monotonic clock, in nanoseconds.
    pub monotonic_nanos: u64,
    /// The time since the Unix epoch, in nanoseconds.
    pub unix_nanos: u64,
}

impl Recording {
    /// Creates a recording from its events, for a device that doesn't record them itself, such as one of rdma-core.
    pub fn new(device: &str, clock: ClockOrigin, events: Vec<RecordedEvent>) -> Recording {
        Recording {
            device: device.to_owned(),
            clock,
            earlier_connections: Vec::new(),
            events,
            lost_count: 0,
            stop_cause: StopCause::Manual,
        }
    }
}
