//! Asynchronous events of objects and ports, which completion queues don't report.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use adverb_proto::QueueEvent;
use adverb_proto::explain::Call;
use adverb_proto::types::DeviceEvent;
use adverb_soft::NicEvent;

use super::Device;
use crate::error::{Result, call_failed};
use crate::os::wait_either;

impl Device {
    pub(in crate::backend) fn event_fd(&self) -> BorrowedFd<'_> {
        self.nic.event_fd()
    }

    /// Waits for an event, and returns it. Returns `None` if the timeout expires first.
    pub(in crate::backend) fn wait_event(&self, timeout: Option<Duration>) -> Result<Option<DeviceEvent>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let is_over = left.is_some_and(|left| left.is_zero());
            let is_readable = wait_either(self.nic.event_fd(), None, left).map_err(|error| {
                call_failed(Call::Poll, format!("waiting for an event of {}", self.name), error)
            })?;
            // The event may have been discarded with its object.
            if let Some(event) = self.nic.next_event() {
                return Ok(Some(self.convert_event(event)));
            }
            if is_over && !is_readable {
                return Ok(None);
            }
        }
    }

    /// Converts an event to the form that all backends share.
    pub(super) fn convert_event(&self, event: NicEvent) -> DeviceEvent {
        let NicEvent::Queue(event) = event else { return DeviceEvent::DeviceFatal };
        match event {
            QueueEvent::CqOverflow(_) => DeviceEvent::CompletionQueueError,
            QueueEvent::Established(qpn) => DeviceEvent::Established(qpn),
            QueueEvent::SrqLimit(srq) => {
                let shared = self.shared.lock();
                let id = shared.get(&srq).copied().unwrap_or(0);
                DeviceEvent::SharedReceiveQueueLimit(id)
            }
            QueueEvent::LastReceiveReached(qpn) => DeviceEvent::LastReceiveReached(qpn),
            QueueEvent::SendQueueDrained(qpn) => DeviceEvent::SendQueueDrained(qpn),
            QueueEvent::RequestError(qpn) => DeviceEvent::QueuePairRequestError(qpn),
            QueueEvent::AccessError(qpn) => DeviceEvent::QueuePairAccessError(qpn),
            QueueEvent::Fatal(qpn) => DeviceEvent::QueuePairFatal(qpn),
            _ => DeviceEvent::Other(u32::MAX),
        }
    }
}
