//! Shared receive queues.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adverb_proto::explain::Call;
use adverb_sys::{self as sys, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

use super::request_list::{Chain, RecvList};
use super::{ProtectionDomain, check};
use crate::backend::PostErrno;
use crate::error::{Result, call_failed};

pub(crate) struct SharedReceiveQueue {
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) handle: NonNull<ibv_srq>,
    destroyed: AtomicBool,
}

// SAFETY: libibverbs' shared receive queues may be used from any thread.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: as above. Posting locks its shared state.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// Creates a queue, and returns it with the maximum number of segments of a request. Events of the queue contain
    /// `id`.
    pub(in crate::backend) fn new(
        domain: &Arc<ProtectionDomain>,
        depth: u32,
        segments: u32,
        id: u32,
    ) -> Result<(SharedReceiveQueue, u32)> {
        let mut attr = ibv_srq_init_attr::zeroed();
        attr.srq_context = std::ptr::without_provenance_mut(id as usize);
        attr.attr.max_wr = depth;
        attr.attr.max_sge = segments;
        let device = &domain.device;
        // SAFETY: the domain exists, and the attributes may be written.
        let handle = unsafe { device.library.ibv_create_srq(domain.handle.as_ptr(), &mut attr) };
        let action = || format!("creating a shared receive queue of depth {depth} on {}", device.name);
        let handle = NonNull::new(handle)
            .ok_or_else(|| call_failed(Call::Create, action(), io::Error::last_os_error()))?;
        let queue =
            SharedReceiveQueue { domain: Arc::clone(domain), handle, destroyed: AtomicBool::new(false) };
        Ok((queue, attr.attr.max_sge))
    }

    #[inline]
    pub(crate) fn post_recvs(&self, list: &mut RecvList) -> Result<(), PostErrno> {
        list.post(|Chain { first, bad }| {
            // SAFETY: the queue exists. The chain, and the memory that it refers to, are valid for the library.
            unsafe { sys::ibv_post_srq_recv(self.handle.as_ptr(), first, bad) }
        })
    }

    /// Requests an event for when fewer than `limit` requests remain.
    pub(in crate::backend) fn arm(&self, limit: u32) -> Result<()> {
        let mut attr = ibv_srq_attr::zeroed();
        attr.srq_limit = limit;
        let library = self.domain.device.library;
        // SAFETY: the queue exists, and the attribute in the mask is set.
        let code = unsafe { library.ibv_modify_srq(self.handle.as_ptr(), &mut attr, sys::IBV_SRQ_LIMIT) };
        check(Call::Query, code, || "setting the limit of a shared receive queue".to_owned())
    }

    pub(in crate::backend) fn destroy(&self) -> Result<()> {
        if !self.domain.device.is_owned() || self.destroyed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // SAFETY: the flag makes sure that the queue is destroyed once. The queue pairs that used it are destroyed,
        // because they hold it.
        let code = unsafe { self.domain.device.library.ibv_destroy_srq(self.handle.as_ptr()) };
        check(Call::Destroy, code, || "destroying a shared receive queue".to_owned())
    }
}
