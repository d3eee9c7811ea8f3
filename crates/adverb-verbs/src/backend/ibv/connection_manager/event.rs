//! Events of librdmacm, which are copied and acknowledged here, before other code uses them.

use std::io;
use std::ptr::NonNull;

use adverb_proto::explain::Call;
use adverb_proto::types::{Qpn, RejectReason};
use adverb_sys::{self as sys, rdma_cm_event};

use super::{Identifier, decode_address};
use crate::backend::connection_manager::{
    self as plain, Depths, Event, Purpose, Request, sidr_reject_reason,
};
use crate::error::{Result, call_failed};

impl Identifier {
    pub(in crate::backend) fn try_event(&self) -> Result<Option<Event>> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the channel exists, and the event may be written. The event is acknowledged below.
        let code = unsafe { self.library.rdma_get_cm_event(self.channel.handle.as_ptr(), &mut event) };
        if code != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(call_failed(Call::Poll, "reading an event of the connection manager", error)),
            };
        }
        // SAFETY: the event was read, and isn't acknowledged yet. Its parameters are those of a connection or of
        // datagrams, according to the purpose of the identifier. Both start with the private data.
        let (event, private_data) = unsafe {
            let copy: rdma_cm_event = *event;
            let (data, len) = match self.purpose {
                Purpose::Connections => (copy.param.conn.private_data, copy.param.conn.private_data_len),
                Purpose::Datagrams => (copy.param.ud.private_data, copy.param.ud.private_data_len),
            };
            let private_data = if data.is_null() || len == 0 {
                Vec::new()
            } else {
                std::slice::from_raw_parts(data.cast::<u8>(), len.into()).to_vec()
            };
            // The event is acknowledged at once, because an identifier with an unacknowledged event can't be destroyed.
            self.library.rdma_ack_cm_event(event);
            (copy, private_data)
        };
        Ok(Some(match event.event {
            sys::RDMA_CM_EVENT_UNREACHABLE if self.purpose == Purpose::Datagrams && event.status > 0 => {
                let status = u8::try_from(event.status).unwrap_or(0);
                Event::Rejected { reason: sidr_reject_reason(status), private_data }
            }
            sys::RDMA_CM_EVENT_ESTABLISHED if self.purpose == Purpose::Datagrams && event.status == 0 => {
                // SAFETY: the identifier is for datagrams, so its events have these parameters.
                let found = unsafe { event.param.ud };
                Event::ServiceResolved {
                    qpn: Qpn::truncate(found.qp_num),
                    qkey: found.qkey,
                    address: decode_address(&found.ah_attr),
                    private_data,
                }
            }
            sys::RDMA_CM_EVENT_CONNECT_REQUEST => {
                let Some(handle) = NonNull::new(event.id) else { return Ok(Some(Event::Other)) };
                // SAFETY: the identifier was created for the request, and nothing else uses it yet. The kernel creates
                // no event of it before it is accepted (ucma_event_handler in the kernel's ucma.c).
                let identifier = unsafe { Identifier::adopt(self.library, handle, self.purpose) }?;
                let depths = match self.purpose {
                    Purpose::Connections => {
                        // SAFETY: the identifier is for connections, so its events have these parameters.
                        let parameters = unsafe { event.param.conn };
                        Depths {
                            max_dest_rd_atomic: parameters.responder_resources,
                            max_rd_atomic: parameters.initiator_depth,
                        }
                    }
                    Purpose::Datagrams => Depths { max_dest_rd_atomic: 0, max_rd_atomic: 0 },
                };
                Event::Request(Request {
                    identifier: plain::Identifier::Ibv(identifier),
                    depths,
                    private_data,
                })
            }
            sys::RDMA_CM_EVENT_REJECTED => {
                let reason = u16::try_from(event.status).unwrap_or(0);
                Event::Rejected { reason: RejectReason::from_code(reason), private_data }
            }
            sys::RDMA_CM_EVENT_ADDR_ERROR
            | sys::RDMA_CM_EVENT_ROUTE_ERROR
            | sys::RDMA_CM_EVENT_CONNECT_ERROR
            | sys::RDMA_CM_EVENT_UNREACHABLE => Event::Failed(failure(event.status)),
            sys::RDMA_CM_EVENT_ADDR_RESOLVED
            | sys::RDMA_CM_EVENT_ROUTE_RESOLVED
            | sys::RDMA_CM_EVENT_CONNECT_RESPONSE
            | sys::RDMA_CM_EVENT_ESTABLISHED
                if event.status != 0 =>
            {
                Event::Failed(failure(event.status))
            }
            sys::RDMA_CM_EVENT_ADDR_RESOLVED => Event::AddressResolved,
            sys::RDMA_CM_EVENT_ROUTE_RESOLVED => Event::RouteResolved,
            sys::RDMA_CM_EVENT_CONNECT_RESPONSE => Event::Response { private_data },
            sys::RDMA_CM_EVENT_ESTABLISHED => Event::Established,
            sys::RDMA_CM_EVENT_DISCONNECTED => Event::Disconnected,
            sys::RDMA_CM_EVENT_DEVICE_REMOVAL => Event::DeviceRemoved,
            sys::RDMA_CM_EVENT_ADDR_CHANGE => Event::AddressChanged,
            sys::RDMA_CM_EVENT_TIMEWAIT_EXIT => Event::TimewaitExit,
            _ => Event::Other,
        }))
    }
}

/// Returns the error of a status, which is a negated error number. A status of 0 is treated as a timeout.
fn failure(status: libc::c_int) -> io::Error {
    match status {
        0 => io::Error::from_raw_os_error(libc::ETIMEDOUT),
        status => io::Error::from_raw_os_error(status.abs()),
    }
}
