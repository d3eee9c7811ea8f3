//! Recordings, which the NIC creates itself.

use std::sync::Arc;

use adverb_proto::explain::Call;
use adverb_proto::trace::{RecorderOptions, Recording, StopCause};
use adverb_soft::Channel;

use super::{Device, nic_error};
use crate::error::{Result, call_failed};
use crate::os::clock_origin;
use crate::recorder::{StopSignal, already_recording};

impl Device {
    pub(in crate::backend) fn start_recording(
        &self,
        name: &str,
        options: &RecorderOptions,
    ) -> Result<StopSignal> {
        let action = || format!("starting a recording of {name}");
        let channel = Channel::new().map_err(|error| call_failed(Call::System, action(), error))?;
        let channel = Arc::new(channel);
        self.nic.start_recording(options, Some(Arc::clone(&channel))).map_err(|error| match error {
            adverb_soft::Error::AlreadyRecording => already_recording(name),
            error => nic_error(Call::System, error, action()),
        })?;
        Ok(channel)
    }

    pub(in crate::backend) fn stop_recording(&self, name: &str) -> Option<Recording> {
        self.nic.stop_recording(name, clock_origin(self.nic.clock_origin()))
    }

    pub(in crate::backend) fn snapshot_recording(&self, name: &str) -> Option<Recording> {
        self.nic.snapshot_recording(name, clock_origin(self.nic.clock_origin()))
    }

    pub(in crate::backend) fn recording_stop_cause(&self) -> Option<StopCause> {
        self.nic.recording_stop_cause()
    }
}
