//! What happens to a device outside any completion queue.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use adverb_proto::types::DeviceEvent;

use super::Device;
use crate::error::Result;

impl Device {
    /// Waits for what happens to the device; `None` if nothing does in time.
    ///
    /// # Errors
    ///
    /// If the device can't be asked.
    pub fn wait_event(&self, timeout: Duration) -> Result<Option<DeviceEvent>> {
        self.backend().wait_event(Some(timeout))
    }

    /// The descriptor that becomes readable when something has happened, for any event loop. After it, call
    /// [`wait_event`](Device::wait_event) with no time to wait.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.backend().event_fd()
    }
}
