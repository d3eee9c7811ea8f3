//! Devices by clock: times of two devices are comparable only if the devices have one clock.

use std::collections::HashMap;

use adverb_proto::Time;

use crate::model::{DeviceId, Trace};

/// The clocks of a trace's devices.
pub(crate) struct Clocks {
    /// The clock of each device.
    of_device: Vec<usize>,
    /// The first device of each clock.
    first: Vec<DeviceId>,
}

impl Clocks {
    pub(crate) fn new(trace: &Trace) -> Clocks {
        let mut by_host = HashMap::new();
        let mut clocks = Clocks { of_device: Vec::new(), first: Vec::new() };
        for (index, device) in trace.devices().iter().enumerate() {
            let next = clocks.first.len();
            let clock = match device.clock.host_id {
                0 => next,
                host_id => *by_host.entry(host_id).or_insert(next),
            };
            if clock == next {
                clocks.first.push(DeviceId(index));
            }
            clocks.of_device.push(clock);
        }
        clocks
    }

    /// Returns the number of clocks.
    pub(crate) fn count(&self) -> usize {
        self.first.len()
    }

    pub(crate) fn of(&self, device: DeviceId) -> usize {
        self.of_device.get(device.0).copied().unwrap_or_default()
    }

    pub(crate) fn devices(&self, clock: usize) -> impl Iterator<Item = DeviceId> {
        (0..self.of_device.len()).filter(move |index| self.of_device[*index] == clock).map(DeviceId)
    }

    /// Returns a device's time in nanoseconds since the Unix epoch. All devices of a clock have the Unix time of the
    /// clock's first device, so their times keep their order.
    pub(crate) fn unix_nanos(&self, trace: &Trace, device: DeviceId, time: Time) -> u64 {
        let Some(origin) = self.first.get(self.of(device)).and_then(|first| trace.device(*first)) else {
            return 0;
        };
        let since_origin =
            i128::from(trace.host_nanos(device, time)) - i128::from(origin.clock.monotonic_nanos);
        let nanos = i128::from(origin.clock.unix_nanos) + since_origin;
        u64::try_from(nanos.max(0)).unwrap_or(u64::MAX)
    }
}
