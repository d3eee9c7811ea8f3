//! Trace events, which are the steps of a device from a posted request to its packets and its completion, and
//! recordings of these events.
//!
//! A [`Device`](crate::Device) passes a [`TraceEvent`] for each step to its [`EventSink`]. A [`Recorder`] is a sink that
//! stores the events in a ring buffer, and that is switched on and off at run time. Its [`Recording`] is the input of
//! analysis tools.

mod event;
mod names;
mod recorder;
mod recording;

pub use event::{DropReason, Queue, RecvQueueId, RetryCause, TimerKind, TraceEvent};
pub use recorder::{InvalidCapacity, Recorder, RecorderOptions, StopOn};
pub use recording::{ClockOrigin, RecordedEvent, Recording, StopCause};

use crate::Time;

/// A receiver of trace events.
///
/// Devices are generic over the sink. The sink `()` ignores events at no cost.
pub trait EventSink {
    /// Whether the sink can use events. If this constant is `false`, the device creates no events.
    const ACTIVE: bool = true;

    /// Whether the sink uses events now. While this method returns `false`, the device creates no events.
    #[inline(always)]
    fn is_recording(&self) -> bool {
        true
    }

    /// Handles an event.
    fn event(&mut self, now: Time, event: TraceEvent);

    /// Handles the event that `create` returns, if the sink uses events now. A sink can override this method to build
    /// the event in place.
    #[inline(always)]
    fn event_with(&mut self, now: Time, create: impl FnOnce() -> TraceEvent) {
        if self.is_recording() {
            self.event(now, create());
        }
    }
}

/// Whether a sink uses events now.
///
/// `cargo xtask overhead` also builds benchmarks whose sinks use no events at all, for comparison.
#[inline(always)]
pub(crate) fn is_recording<S: EventSink>(sink: &S) -> bool {
    cfg!(not(adverb_no_events)) && S::ACTIVE && sink.is_recording()
}

/// Passes an event to a sink that uses it.
#[inline(always)]
pub(crate) fn record<S: EventSink>(sink: &mut S, now: Time, create: impl FnOnce() -> TraceEvent) {
    if cfg!(not(adverb_no_events)) && S::ACTIVE {
        sink.event_with(now, create);
    }
}

/// Ignores all events.
impl EventSink for () {
    const ACTIVE: bool = false;

    #[inline(always)]
    fn event(&mut self, _now: Time, _event: TraceEvent) {}
}

/// Stores all events, for tests.
impl EventSink for Vec<(Time, TraceEvent)> {
    fn event(&mut self, now: Time, event: TraceEvent) {
        self.push((now, event));
    }
}
