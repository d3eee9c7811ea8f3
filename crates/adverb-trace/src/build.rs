//! Builds traces from recordings.

use adverb_proto::trace::Recording;

use crate::model::{Device, Trace};

impl Trace {
    /// Builds a trace from the recordings of one or more devices. Packets and messages of two recorded ends are matched
    /// by queue pair numbers and sequence numbers.
    pub fn new(recordings: impl IntoIterator<Item = Recording>) -> Trace {
        let mut trace = Trace::default();
        for recording in recordings {
            trace.devices.push(Device {
                name: recording.device,
                clock: recording.clock,
                connections: Vec::new(),
                lost_count: recording.lost_count,
                stop_cause: recording.stop_cause,
            });
        }
        trace
    }
}
