//! Asynchronous events of devices.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use adverb_proto::types::DeviceEvent;

use super::Device;
use crate::error::Result;

impl Device {
    /// Waits for an event of the device. Returns `None` if the timeout expires first, or if another caller reads the
    /// event.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`](crate::Error::CallFailed) if the operation fails.
    pub fn wait_event(&self, timeout: impl Into<Option<Duration>>) -> Result<Option<DeviceEvent>> {
        let event = self.backend().wait_event(timeout.into())?;
        if let (Some(event), Some(recorder)) = (event, self.backend().recorder()) {
            recorder.record_device_event(event);
        }
        Ok(event)
    }

    /// Returns the file descriptor that becomes readable when an event is pending, for use in an event loop. When it
    /// is readable, call [`wait_event`](Device::wait_event) with a zero timeout.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.backend().event_fd()
    }
}
