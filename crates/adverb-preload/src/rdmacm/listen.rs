//! Listening for requests, and the devices.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use adverb_proto::cm::{BindAddr, ListenParams};
use adverb_proto::types::Transport;
use adverb_soft::CmEventChannel;
use adverb_sys::*;
use adverb_wire::cm::ServiceId;
use libc::c_int;

use super::channel::{self, Channel};
use super::id::{Id, Stage};
use super::manager::{Listener, Manager};
use super::{Status, errno_of, status};
use crate::entry::fail;
use crate::nic::Listed;

impl Id {
    fn listen(&self, backlog: c_int) -> Result<(), c_int> {
        let manager = Manager::get()?;
        if self.state.lock().stage == Stage::Idle {
            self.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        }
        if self.state.lock().stage != Stage::Bound {
            return Err(libc::EINVAL);
        }
        let local = self.local().ok_or(libc::EINVAL)?;
        let ignores_v4 = self.state.lock().options.family_only;
        let bind = match local {
            SocketAddr::V4(addr) if addr.ip().is_unspecified() => BindAddr::AnyV4,
            // No request is for this address.
            SocketAddr::V6(addr) if addr.ip().is_unspecified() && ignores_v4 && manager.local().is_ipv4() => {
                BindAddr::Address(Ipv6Addr::UNSPECIFIED.into())
            }
            SocketAddr::V6(addr) if addr.ip().is_unspecified() => BindAddr::Any,
            _ => BindAddr::Address(manager.local()),
        };
        let (service, transport) = match self.is_datagram() {
            true => (ServiceId::udp_port(local.port()), Transport::Ud),
            false => (ServiceId::tcp_port(local.port()), Transport::Rc),
        };
        let backlog = usize::try_from(backlog).ok().filter(|backlog| (1..MAX_BACKLOG).contains(backlog));
        let backlog = backlog.unwrap_or(MAX_BACKLOG);
        let events = Arc::new(CmEventChannel::new().map_err(|_| libc::EMFILE)?);
        manager.watch(&events)?;
        // The lock keeps the dispatching thread from handling the first request before the listener is in the table.
        let mut table = manager.table.lock();
        let params = ListenParams { service, bind, transport, backlog };
        let listener = manager.cm().listen(params, &events).map_err(errno_of)?;
        self.state.lock().backlog = backlog;
        table.listeners.insert(listener, Listener { id: Listed(NonNull::from(self)), events });
        drop(table);
        self.state.lock().stage = Stage::Listening(listener);
        Ok(())
    }

    /// Waits for a request to an endpoint that listens, and creates the queue pair of its identifier.
    fn get_request(&self) -> Result<*mut rdma_cm_id, c_int> {
        let (is_sync, qp_init) = {
            let state = self.state.lock();
            (state.is_sync, state.qp_init)
        };
        if !is_sync {
            return Err(libc::EINVAL);
        }
        self.acknowledge_last();
        // SAFETY: the channel of an identifier is alive.
        let event = unsafe { Channel::of((*self.as_ptr()).channel) }.next()?;
        // SAFETY: the event was reported and isn't acknowledged; the program doesn't know its identifier yet.
        unsafe {
            let (kind, failed, id) = ((*event).event, (*event).status, (*event).id);
            if kind != RDMA_CM_EVENT_CONNECT_REQUEST || failed != 0 {
                channel::acknowledge(event);
                return Err(if failed == 0 { libc::EINVAL } else { failed.abs() });
            }
            if let Some(mut qp_init) = qp_init {
                let created = Id::of(id).create_qp((*self.as_ptr()).pd, &mut qp_init);
                if let Err(errno) = created {
                    channel::acknowledge(event);
                    _ = Id::destroy(id);
                    return Err(errno);
                }
            }
            (*id).event = event;
            Ok(id)
        }
    }
}

entry! {
    /// Listens for requests.
    fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> Status {
        // SAFETY: the identifier is alive.
        status(unsafe { Id::of(id) }.listen(backlog))
    }

    /// Waits for the next request to an endpoint.
    fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> Status {
        // SAFETY: the identifier is alive.
        let requested = unsafe { Id::of(listen) }.get_request();
        // SAFETY: the pointer is valid for writes.
        status(requested.map(|requested| unsafe { id.write(requested) }))
    }

    /// Returns the contexts of all devices and their number, which is 1: the software NIC.
    fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
        let manager = match Manager::get() {
            Ok(manager) => manager,
            Err(errno) => return fail(errno),
        };
        // SAFETY: the function has no preconditions.
        let list = unsafe { libc::calloc(2, size_of::<*mut ibv_context>()) }.cast::<*mut ibv_context>();
        if list.is_null() {
            return fail(libc::ENOMEM);
        }
        // SAFETY: the list has room for two pointers, and the other pointer is NULL or valid for writes.
        unsafe {
            list.write(manager.context());
            list.add(1).write(null_mut());
            if !num_devices.is_null() {
                num_devices.write(1);
            }
        }
        list
    }

    /// Frees a list of contexts.
    fn rdma_free_devices(list: *mut *mut ibv_context) {
        // SAFETY: the list was allocated by `rdma_get_devices`.
        unsafe { libc::free(list.cast()) };
    }
}

/// The backlog of a listener that asks for none or for more, as in Linux.
const MAX_BACKLOG: usize = 1024;
