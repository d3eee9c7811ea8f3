//! Recordings of a NIC's events.

use std::sync::Arc;
use std::time::SystemTime;

use adverb_proto::trace::{ClockOrigin, RecorderOptions, Recording, StopCause};
use nix::time::{ClockId, clock_gettime};

use super::Nic;
use super::engine::Engine;
use crate::channel::Channel;
use crate::error::Error;

impl Nic {
    /// Starts to record the NIC's events, from posted requests over packets to polled completions. If the recorder stops
    /// by itself ([`RecorderOptions::stop_on`]), it adds an event to `stopped`.
    ///
    /// While no recording is in progress, events cost one branch each.
    ///
    /// ```
    /// use adverb_proto::trace::RecorderOptions;
    /// use adverb_soft::{Nic, NicOptions};
    ///
    /// let nic = Nic::open(NicOptions::loopback())?;
    /// nic.start_recording(&RecorderOptions::default(), None)?;
    /// // … requests are posted and completions are polled …
    /// let recording = nic.stop_recording("soft0").unwrap();
    /// assert_eq!(recording.lost_count, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::AlreadyRecording`] if a recording is in progress, [`Error::InvalidRecorderOptions`] if the
    /// capacity is invalid, and [`Error::NicFailed`] if the NIC has failed.
    pub fn start_recording(
        &self,
        options: &RecorderOptions,
        stopped: Option<Arc<Channel>>,
    ) -> Result<(), Error> {
        self.ask(|engine| {
            if engine.device.sink().is_started() {
                return Err(Error::AlreadyRecording);
            }
            engine.device.sink_mut().start(options).map_err(Error::InvalidRecorderOptions)?;
            engine.recorder_channel = stopped;
            let now = engine.now();
            engine.device.record_connections(now);
            Ok(())
        })
    }

    /// Stops recording, and returns the recording of the device with this name, or `None` if no recording was started.
    pub fn stop_recording(&self, device: &str) -> Option<Recording> {
        let mut engine = self.shared.engine.lock();
        engine.recorder_channel = None;
        let clock = clock_origin(&engine);
        engine.device.sink_mut().stop(device, clock)
    }

    /// Returns a copy of the recording so far, or `None` if no recording was started. The NIC goes on recording.
    pub fn recording(&self, device: &str) -> Option<Recording> {
        let engine = self.shared.engine.lock();
        engine.device.sink().recording(device, clock_origin(&engine))
    }

    /// Returns why the recorder stopped by itself, or `None` if it did not.
    pub fn recording_stop_cause(&self) -> Option<StopCause> {
        self.shared.engine.lock().device.sink().stop_cause()
    }
}

/// Returns the origin of the engine's clock on the host's clocks.
fn clock_origin(engine: &Engine) -> ClockOrigin {
    let nanos = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let elapsed = nanos(engine.start.elapsed());
    let monotonic = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| nanos(now.into()));
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanos);
    ClockOrigin {
        host_id: host_id(),
        monotonic_nanos: monotonic.saturating_sub(elapsed),
        unix_nanos: unix.saturating_sub(elapsed),
    }
}

/// Returns the identity of the host since its last boot, or 0 if the system doesn't provide it.
fn host_id() -> u128 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u128::from_str_radix(&id.trim().replace('-', ""), 16).unwrap_or(0)
}
