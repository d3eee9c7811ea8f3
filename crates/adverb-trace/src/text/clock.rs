//! The times of a listing.

use adverb_proto::Time;

use crate::clock::Clocks;
use crate::model::{DeviceId, Trace};

/// The times of a trace, relative to the first event on each clock.
pub(super) struct Times<'a> {
    trace: &'a Trace,
    pub(super) clocks: Clocks,
    /// The time of the first event on each clock, in nanoseconds of its host.
    origins: Vec<u64>,
}

/// A time in nanoseconds since the first event, which is written in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Micros(u64);

impl<'a> Times<'a> {
    pub(super) fn new(trace: &'a Trace) -> Times<'a> {
        let clocks = Clocks::new(trace);
        let mut origins = vec![u64::MAX; clocks.count()];
        for event in &trace.events {
            if let Some(origin) = origins.get_mut(clocks.of(event.device)) {
                *origin = (*origin).min(trace.host_nanos(event.device, event.time));
            }
        }
        Times { trace, clocks, origins }
    }

    /// Returns a time relative to the first event on its clock. A connection that was established before is at 0.
    pub(super) fn micros(&self, device: DeviceId, time: Time) -> Micros {
        let origin = self.origins.get(self.clocks.of(device)).copied().unwrap_or(0);
        Micros(self.trace.host_nanos(device, time).saturating_sub(origin))
    }
}

impl core::fmt::Display for Micros {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(&format!("{}.{:03}", self.0 / 1000, self.0 % 1000))
    }
}
