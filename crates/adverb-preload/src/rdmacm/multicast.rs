//! Multicast groups.

use std::net::SocketAddr;

use adverb_proto::types::Gid;
use adverb_sys::*;
use libc::{c_int, c_void, sockaddr};

use super::channel::Event;
use super::dispatch::address_of;
use super::id::{Id, Stage};
use super::{Status, address, status};
use crate::qp::{ibv_attach_mcast, ibv_detach_mcast};

/// A multicast group that an identifier joined.
#[derive(Debug)]
pub(super) struct Group {
    addr: SocketAddr,
    gid: ibv_gid,
    /// Whether the queue pair receives the group's datagrams.
    is_attached: bool,
    /// Whether the program only sends to the group.
    is_send_only: bool,
}

impl Group {
    pub(super) fn leave(self, id: &Id) {
        if let Some(qp) = id.qp().filter(|_| self.is_attached) {
            // SAFETY: the queue pair is alive.
            unsafe { ibv_detach_mcast(qp, &raw const self.gid, 0) };
        }
    }
}

impl Id {
    fn join(&self, addr: SocketAddr, is_send_only: bool, context: *mut c_void) -> Result<(), c_int> {
        let traffic_class = {
            let mut state = self.state.lock();
            if !self.is_datagram() || matches!(state.stage, Stage::Idle) {
                return Err(libc::EINVAL);
            }
            if !addr.ip().is_multicast() {
                return Err(libc::EINVAL);
            }
            let gid = Gid::from(addr.ip()).bytes().into();
            state.groups.push(Group { addr, gid, is_attached: false, is_send_only });
            state.options.traffic_class
        };
        let mut ud = rdma_ud_param::zeroed();
        ud.ah_attr = address_of(Gid::from(addr.ip()), traffic_class);
        (ud.qp_num, ud.qkey) = (MULTICAST_QPN, RDMA_UDP_QKEY);
        self.put(Event::new(self, RDMA_CM_EVENT_MULTICAST_JOIN, 0).with_context(ud, context));
        self.complete()
    }

    fn leave(&self, addr: SocketAddr) -> Result<(), c_int> {
        let group = {
            let mut state = self.state.lock();
            let at = state.groups.iter().position(|group| group.addr.ip() == addr.ip());
            state.groups.swap_remove(at.ok_or(libc::EADDRNOTAVAIL)?)
        };
        group.leave(self);
        Ok(())
    }
}

/// Attaches the queue pair to the group that an event reports.
pub(super) fn complete(id: &Id, event: &mut rdma_cm_event) {
    // SAFETY: the parameters of a multicast event are those of datagrams.
    let gid = unsafe { event.param.ud.ah_attr.grh.dgid };
    let Some(qp) = id.qp() else { return };
    let mut state = id.state.lock();
    let group = state.groups.iter_mut().find(|group| group.gid == gid && !group.is_attached);
    let Some(group) = group.filter(|group| !group.is_send_only) else { return };
    // SAFETY: the queue pair is alive.
    match unsafe { ibv_attach_mcast(qp, &raw const gid, 0) } {
        0 => group.is_attached = true,
        errno => (event.event, event.status) = (RDMA_CM_EVENT_MULTICAST_ERROR, -errno),
    }
}

entry! {
    /// Joins a multicast group.
    fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> Status {
        // SAFETY: the identifier is alive, and the address is complete.
        status(unsafe { address::read(addr).and_then(|addr| Id::of(id).join(addr, false, context)) })
    }

    /// Joins a multicast group, or only sends to it.
    fn rdma_join_multicast_ex(
        id: *mut rdma_cm_id,
        mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
        context: *mut c_void,
    ) -> Status {
        // SAFETY: the attributes are valid for reads.
        let attr = unsafe { *mc_join_attr };
        let needed = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask != needed || attr.join_flags > RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER {
            return crate::entry::fail(libc::EINVAL);
        }
        let is_send_only = attr.join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
        // SAFETY: the identifier is alive, and the address is complete.
        status(unsafe { address::read(attr.addr).and_then(|addr| Id::of(id).join(addr, is_send_only, context)) })
    }

    /// Leaves a multicast group.
    fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> Status {
        // SAFETY: the identifier is alive, and the address is complete.
        status(unsafe { address::read(addr).and_then(|addr| Id::of(id).leave(addr)) })
    }
}

/// The number of the queue pair that stands for all members of a group.
const MULTICAST_QPN: u32 = 0xff_ffff;
