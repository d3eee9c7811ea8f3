//! Asynchronous events of objects and ports, which completion queues don't report.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use adverb_proto::explain::Call;
use adverb_proto::types::{DeviceEvent, Qpn};
use adverb_sys as sys;

use super::Device;
use super::completion_queue::wait_readable;
use crate::error::{Result, call_failed};

impl Device {
    pub(in crate::backend) fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context and its descriptor live as long as the device, which is borrowed.
        unsafe { BorrowedFd::borrow_raw((*self.context.as_ptr()).async_fd) }
    }

    /// Waits for an event, copies it and acknowledges it. Returns `None` if the timeout expires first, or if another
    /// caller reads the event.
    pub(in crate::backend) fn wait_event(&self, timeout: Option<Duration>) -> Result<Option<DeviceEvent>> {
        // SAFETY: the context is open.
        if !wait_readable(unsafe { (*self.context.as_ptr()).async_fd }, timeout)? {
            return Ok(None);
        }
        let mut event = sys::ibv_async_event::zeroed();
        // SAFETY: the context is open, and the event may be written.
        let code = unsafe { self.library.ibv_get_async_event(self.context.as_ptr(), &mut event) };
        if code != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                // Another caller read the event.
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(call_failed(Call::Poll, format!("reading an event of {}", self.name), error)),
            };
        }
        let copied = copy(&event);
        // The event is acknowledged at once, because an object with an unacknowledged event can't be destroyed.
        // SAFETY: the event was just read, and is acknowledged once.
        unsafe { self.library.ibv_ack_async_event(&mut event) };
        Ok(Some(copied))
    }
}

/// Copies an event. It isn't acknowledged yet, so its object still exists.
fn copy(event: &sys::ibv_async_event) -> DeviceEvent {
    // SAFETY: the type of the event determines the valid member of the union. This is called only for events of queue
    // pairs, whose destruction waits for the acknowledgement.
    let qpn = || Qpn::truncate(unsafe { (*event.element.qp).qp_num });
    // SAFETY: as above, for shared receive queues. Their context is the number that they were created with.
    let queue = || u32::try_from(unsafe { (*event.element.srq).srq_context.addr() }).unwrap_or(0);
    // SAFETY: as above, for ports.
    let port = || u8::try_from(unsafe { event.element.port_num }).unwrap_or(0);
    match event.event_type {
        sys::IBV_EVENT_CQ_ERR => DeviceEvent::CompletionQueueError,
        sys::IBV_EVENT_QP_FATAL => DeviceEvent::QueuePairFatal(qpn()),
        sys::IBV_EVENT_QP_REQ_ERR => DeviceEvent::QueuePairRequestError(qpn()),
        sys::IBV_EVENT_QP_ACCESS_ERR => DeviceEvent::QueuePairAccessError(qpn()),
        sys::IBV_EVENT_COMM_EST => DeviceEvent::Established(qpn()),
        sys::IBV_EVENT_SQ_DRAINED => DeviceEvent::SendQueueDrained(qpn()),
        sys::IBV_EVENT_QP_LAST_WQE_REACHED => DeviceEvent::LastReceiveReached(qpn()),
        sys::IBV_EVENT_SRQ_ERR => DeviceEvent::SharedReceiveQueueError(queue()),
        sys::IBV_EVENT_SRQ_LIMIT_REACHED => DeviceEvent::SharedReceiveQueueLimit(queue()),
        sys::IBV_EVENT_DEVICE_FATAL => DeviceEvent::DeviceFatal,
        sys::IBV_EVENT_PORT_ACTIVE => DeviceEvent::PortActive(port()),
        sys::IBV_EVENT_PORT_ERR => DeviceEvent::PortError(port()),
        sys::IBV_EVENT_GID_CHANGE => DeviceEvent::GidsChanged(port()),
        code => DeviceEvent::Other(code),
    }
}
