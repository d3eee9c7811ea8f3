//! What happens to a device outside any completion queue.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use adverb_proto::types::Qpn;

use super::Device;
use crate::error::Result;

/// What happened to a device, a port or a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The device has failed: everything on it is lost.
    DeviceFatal,
    /// A port carries data now.
    PortActive(u8),
    /// A port has lost its link.
    PortError(u8),
    /// A port's addresses have changed: an index may mean another now.
    GidsChanged(u8),
    /// A completion queue has overflowed or failed.
    CompletionQueueError,
    /// A queue pair has failed.
    QueuePairFatal(Qpn),
    /// A queue pair has failed, because its peer's request made no sense.
    QueuePairRequestError(Qpn),
    /// A queue pair has failed, because its peer's request wasn't allowed.
    QueuePairAccessError(Qpn),
    /// A queue pair's first packet came before it was ready to send.
    Established(Qpn),
    /// A queue pair has finished what it was told to finish.
    SendQueueDrained(Qpn),
    /// A queue pair that failed has taken its last receive from its shared receive queue.
    LastReceiveReached(Qpn),
    /// A shared receive queue, by its [id](super::SharedReceiveQueue::id), has failed.
    SharedReceiveQueueError(u32),
    /// A shared receive queue, by its [id](super::SharedReceiveQueue::id), has fewer requests left than its limit.
    SharedReceiveQueueLimit(u32),
    /// Something else, by rdma-core's number.
    Other(u32),
}

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
