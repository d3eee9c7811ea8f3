//! Recordings of a NIC's events.

use std::sync::Arc;

use adverb_proto::trace::{ClockOrigin, RecorderOptions, Recording, StopCause};

use super::Nic;
use crate::channel::Channel;
use crate::error::Error;

impl Nic {
    /// Starts to record the NIC's events, such as posted requests, packets and polled completions. If the recorder stops
    /// by itself ([`RecorderOptions::stop_on`]), it adds an event to `stopped`.
    ///
    /// While no recording is in progress, each call only checks for one, and creates no events.
    ///
    /// ```
    /// use adverb_proto::trace::{ClockOrigin, RecorderOptions};
    /// use adverb_soft::{Nic, NicOptions};
    ///
    /// let nic = Nic::open(NicOptions::loopback())?;
    /// nic.start_recording(&RecorderOptions::default(), None)?;
    /// // … requests are posted and completions are polled …
    /// let recording = nic.stop_recording("soft0", ClockOrigin::default()).unwrap();
    /// assert_eq!(recording.lost_count, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::AlreadyRecording`] if a recording is in progress, [`Error::InvalidRecorderCapacity`] if the
    /// capacity is invalid, and [`Error::NicFailed`] if the NIC has failed.
    pub fn start_recording(
        &self,
        options: &RecorderOptions,
        stopped: Option<Arc<Channel>>,
    ) -> Result<(), Error> {
        self.call_engine(|engine| {
            if engine.device.sink().is_started() {
                return Err(Error::AlreadyRecording);
            }
            engine.device.sink_mut().start(options).map_err(Error::InvalidRecorderCapacity)?;
            engine.events.set_recorder_channel(stopped);
            let now = engine.now();
            engine.device.record_connections(now);
            Ok(())
        })
    }

    /// Stops recording, and returns the recording of the device with this name, or `None` if no recording was started.
    /// `clock` describes the [origin of the NIC's clock](Nic::clock_origin).
    pub fn stop_recording(&self, device: &str, clock: ClockOrigin) -> Option<Recording> {
        let mut engine = self.shared.engine.lock();
        engine.events.set_recorder_channel(None);
        engine.device.sink_mut().stop(device, clock)
    }

    /// Returns a copy of the recording so far, or `None` if no recording was started. The NIC continues to record.
    pub fn snapshot_recording(&self, device: &str, clock: ClockOrigin) -> Option<Recording> {
        self.shared.engine.lock().device.sink().snapshot(device, clock)
    }

    /// Returns the cause if the recorder has stopped by itself, or `None` otherwise.
    pub fn recording_stop_cause(&self) -> Option<StopCause> {
        self.shared.engine.lock().device.sink().stop_cause()
    }
}
