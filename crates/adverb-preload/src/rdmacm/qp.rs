//! Queue pairs and shared receive queues of identifiers.

use std::ptr::null_mut;

use adverb_sys::*;
use libc::c_int;

use super::id::Id;
use super::{Status, status};
use crate::entry::{errno, fail};
use crate::modify::ibv_modify_qp;
use crate::{cq, qp, srq};

impl Id {
    /// Creates a queue pair with plain attributes, in the default protection domain if `pd` is NULL.
    ///
    /// # Safety
    ///
    /// The objects that the attributes name are alive.
    pub(super) unsafe fn create_qp(&self, pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> Result<(), c_int> {
        // SAFETY: the fields of an identifier with a device don't change.
        let (context, default_pd) = unsafe { ((*self.as_ptr()).verbs, (*self.as_ptr()).pd) };
        let pd = if pd.is_null() { default_pd } else { pd };
        // SAFETY: the domain is alive.
        if context.is_null() || pd.is_null() || unsafe { (*pd).context } != context {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller says.
        unsafe { self.create_qp_with(init, pd, |init| qp::ibv_create_qp(pd, init)) }
    }

    /// Creates a queue pair, with completion queues if the program names none, and prepares it for the connection.
    ///
    /// # Safety
    ///
    /// The objects that the attributes name are alive.
    unsafe fn create_qp_with(
        &self,
        init: &mut ibv_qp_init_attr,
        pd: *mut ibv_pd,
        create: impl FnOnce(&mut ibv_qp_init_attr) -> *mut ibv_qp,
    ) -> Result<(), c_int> {
        if self.qp().is_some() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program uses the identifier in one thread while it creates a queue pair; its queues are alive.
        unsafe {
            let base = self.as_ptr();
            if init.send_cq.is_null() {
                if (*base).send_cq.is_null() {
                    ((*base).send_cq_channel, (*base).send_cq) = self.create_cq(init.cap.max_send_wr)?;
                }
                init.send_cq = (*base).send_cq;
            }
            if init.recv_cq.is_null() {
                if (*base).recv_cq.is_null() {
                    ((*base).recv_cq_channel, (*base).recv_cq) = self.create_cq(init.cap.max_recv_wr)?;
                }
                init.recv_cq = (*base).recv_cq;
            }
            if init.srq.is_null() {
                init.srq = (*base).srq;
            }
            let qp = create(init);
            let prepared = if qp.is_null() { Err(errno()) } else { self.prepare(qp) };
            if let Err(errno) = prepared {
                if !qp.is_null() {
                    qp::ibv_destroy_qp(qp);
                }
                self.destroy_cqs();
                return Err(errno);
            }
            (*base).qp = qp;
            (*base).pd = pd;
        }
        Ok(())
    }

    /// Moves a new queue pair to its first state: INIT, or RTS if it is for datagrams.
    fn prepare(&self, qp: *mut ibv_qp) -> Result<(), c_int> {
        let states: &[ibv_qp_state] = match self.is_datagram() {
            true => &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS],
            false => &[IBV_QPS_INIT],
        };
        for next in states {
            let (mut attr, mask) = self.qp_attributes(*next)?;
            // SAFETY: the queue pair is alive.
            match unsafe { ibv_modify_qp(qp, &raw mut attr, mask) } {
                0 => {}
                errno => return Err(errno),
            }
        }
        Ok(())
    }

    /// Creates a completion queue with a channel.
    fn create_cq(&self, depth: u32) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), c_int> {
        let depth = c_int::try_from(depth.max(1)).map_err(|_| libc::EINVAL)?;
        // SAFETY: the context is open.
        unsafe {
            let context = (*self.as_ptr()).verbs;
            let channel = cq::ibv_create_comp_channel(context);
            if channel.is_null() {
                return Err(errno());
            }
            let queue = cq::ibv_create_cq(context, depth, self.as_ptr().cast(), channel, 0);
            if queue.is_null() {
                let errno = errno();
                cq::ibv_destroy_comp_channel(channel);
                return Err(errno);
            }
            Ok((channel, queue))
        }
    }

    /// Destroys the completion queues that the library created.
    fn destroy_cqs(&self) {
        // SAFETY: the queues are alive, and no queue pair uses them.
        unsafe {
            let base = &mut *self.as_ptr();
            for (channel, queue) in [
                (&mut base.send_cq_channel, &mut base.send_cq),
                (&mut base.recv_cq_channel, &mut base.recv_cq),
            ] {
                let (channel, queue) =
                    (std::mem::replace(channel, null_mut()), std::mem::replace(queue, null_mut()));
                if !queue.is_null() {
                    cq::ibv_destroy_cq(queue);
                    cq::ibv_destroy_comp_channel(channel);
                }
            }
        }
    }

    pub(super) fn destroy_qp(&self) {
        if let Some(qp) = self.qp() {
            // SAFETY: the queue pair is alive, and the program doesn't use it any more.
            unsafe {
                qp::ibv_destroy_qp(qp);
                (*self.as_ptr()).qp = null_mut();
            }
            self.destroy_cqs();
        }
    }

    pub(super) fn destroy_srq(&self) {
        // SAFETY: the queue is NULL or alive, and the program doesn't use it any more.
        unsafe {
            let queue = std::mem::replace(&mut (*self.as_ptr()).srq, null_mut());
            if !queue.is_null() {
                srq::ibv_destroy_srq(queue);
            }
        }
    }

    fn create_srq(&self, pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> Result<(), c_int> {
        // SAFETY: the program uses the identifier in one thread meanwhile, and the attributes are valid.
        unsafe {
            let base = self.as_ptr();
            let pd = if pd.is_null() { (*base).pd } else { pd };
            if !(*base).srq.is_null() || pd.is_null() || (*pd).context != (*base).verbs {
                return Err(libc::EINVAL);
            }
            let queue = srq::ibv_create_srq(pd, init);
            if queue.is_null() {
                return Err(errno());
            }
            ((*base).srq, (*base).pd) = (queue, pd);
        }
        Ok(())
    }
}

entry! {
    /// Creates the queue pair of an identifier.
    fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> Status {
        // SAFETY: the identifier is alive, and the attributes are valid for reads and writes.
        status(unsafe { Id::of(id).create_qp(pd, &mut *qp_init_attr) })
    }

    /// Creates the queue pair of an identifier, with extended attributes.
    fn rdma_create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> Status {
        // SAFETY: the identifier is alive. The attributes are valid for reads and writes up to the fields that the mask
        // names, and begin like the plain ones.
        let created = unsafe {
            let this = Id::of(id);
            let context = (*id).verbs;
            if (*attr).comp_mask & IBV_QP_INIT_ATTR_PD == 0 || (*attr).pd.is_null() {
                (*attr).comp_mask |= IBV_QP_INIT_ATTR_PD;
                (*attr).pd = (*id).pd;
            }
            let pd = (*attr).pd;
            if context.is_null() || pd.is_null() || (*pd).context != context {
                return fail(libc::EINVAL);
            }
            this.create_qp_with(&mut *attr.cast(), pd, |_| qp::create_qp_ex(context, attr))
        };
        status(created)
    }

    /// Destroys the queue pair of an identifier.
    fn rdma_destroy_qp(id: *mut rdma_cm_id) {
        // SAFETY: the identifier is alive.
        unsafe { Id::of(id) }.destroy_qp();
    }

    /// Creates the shared receive queue of an identifier.
    fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> Status {
        // SAFETY: the identifier is alive.
        status(unsafe { Id::of(id) }.create_srq(pd, attr))
    }

    /// Creates the shared receive queue of an identifier, of the basic type.
    fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> Status {
        // SAFETY: the identifier is alive, and the attributes are valid for reads up to the fields that the mask names.
        let (id, mask) = unsafe { (Id::of(id), (*attr).comp_mask) };
        // SAFETY: as above.
        if mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && unsafe { (*attr).srq_type } != IBV_SRQT_BASIC {
            return fail(libc::EOPNOTSUPP);
        }
        // SAFETY: as above.
        let pd = if mask & IBV_SRQ_INIT_ATTR_PD != 0 { unsafe { (*attr).pd } } else { null_mut() };
        status(id.create_srq(pd, attr.cast()))
    }

    /// Destroys the shared receive queue of an identifier.
    fn rdma_destroy_srq(id: *mut rdma_cm_id) {
        // SAFETY: the identifier is alive.
        unsafe { Id::of(id) }.destroy_srq();
    }
}
