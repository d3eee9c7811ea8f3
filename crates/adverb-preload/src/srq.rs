//! Shared receive queues.

use std::cell::UnsafeCell;
use std::ptr::NonNull;

use adverb_proto::{Srq, SrqConfig};
use adverb_sys::*;
use libc::c_int;

use crate::acks::Acks;
use crate::calls::invalid;
use crate::context::{self, Member, Object};
use crate::entry::{Pointee, Purpose, errno_of, errno_result, fail, object};
use crate::nic::{Listed, OpenNic};
use crate::pd::ProtectionDomain;
use crate::post;
use crate::query::{MAX_SGE, MAX_WR};
use crate::report::Kind;

#[repr(C)]
pub(crate) struct SharedReceiveQueue {
    base: UnsafeCell<ibv_srq>,
    pub(crate) member: Member,
    pub(crate) nic: &'static OpenNic,
    pub(crate) srq: Srq,
    max_wr: u32,
    max_sge: u32,
    pub(crate) acks: Acks,
}

impl SharedReceiveQueue {
    /// Returns the queue behind a program's pointer.
    ///
    /// # Safety
    ///
    /// The queue is alive.
    #[inline]
    pub(crate) unsafe fn of<'a>(srq: *mut ibv_srq) -> &'a SharedReceiveQueue {
        // SAFETY: as the caller says; the struct starts with `base`.
        unsafe { &*srq.cast() }
    }

    /// Returns the pointer that programs have.
    pub(crate) fn as_ptr(&self) -> *mut ibv_srq {
        self.base.get()
    }

    fn create(pd: *mut ibv_pd, init: &mut ibv_srq_init_attr) -> Result<*mut ibv_srq, c_int> {
        // SAFETY: the domain is alive.
        let (domain, context) = unsafe { (ProtectionDomain::of(pd), (*pd).context) };
        let attr = &mut init.attr;
        if attr.max_wr == 0 || attr.max_wr > MAX_WR || attr.max_sge > MAX_SGE {
            return Err(invalid(format_args!(
                "max_wr is {} and max_sge {}, but the maximum is {MAX_WR} and {MAX_SGE}",
                attr.max_wr, attr.max_sge
            )));
        }
        attr.max_sge = attr.max_sge.max(1);
        let nic = domain.nic;
        let mut config = SrqConfig::new(domain.pd);
        (config.max_wr, config.max_sge) = (attr.max_wr, attr.max_sge);
        let srq = nic.nic.create_srq(config).map_err(errno_of)?;
        // SAFETY: the context of a domain that can be used is open.
        let member = unsafe { Member::new(context) };
        let mut base = ibv_srq::zeroed();
        (base.context, base.srq_context, base.pd) = (context, init.srq_context, pd);
        base.handle = member.handle;
        base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        base.cond = libc::PTHREAD_COND_INITIALIZER;
        let this = &*Box::leak(Box::new(SharedReceiveQueue {
            base: UnsafeCell::new(base),
            member,
            nic,
            srq,
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            acks: Acks::default(),
        }));
        nic.objects.lock().srqs.insert(srq, Listed(NonNull::from(this)));
        context::add(this);
        Ok(this.as_ptr())
    }

    fn destroy(srq: *mut ibv_srq) -> Result<(), c_int> {
        // SAFETY: the queue is alive.
        let this = unsafe { SharedReceiveQueue::of(srq) };
        context::release(this)?;
        this.acks.wait();
        // SAFETY: `create` made it with a box, and the program doesn't use it any more.
        drop(unsafe { Box::from_raw(srq.cast::<SharedReceiveQueue>()) });
        Ok(())
    }
}

impl Object for SharedReceiveQueue {
    fn member(&self) -> &Member {
        &self.member
    }

    fn kind(&self) -> Option<Kind> {
        Some(Kind::SharedReceiveQueue)
    }

    fn release(&self) -> Result<(), c_int> {
        self.nic.nic.destroy_srq(self.srq).map_err(errno_of)?;
        self.nic.objects.lock().srqs.remove(&self.srq);
        self.member.context().forget_events(|event| {
            // SAFETY: such an event has this member.
            crate::event::is_of_srq(event.event_type) && unsafe { event.element.srq } == self.as_ptr()
        });
        Ok(())
    }
}

impl Pointee for ibv_srq {
    /// # Safety
    ///
    /// The object is alive.
    #[inline]
    unsafe fn check(this: *mut ibv_srq, purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says.
        unsafe { SharedReceiveQueue::of(this) }.member.check(purpose)
    }
}

entry! {
    /// Creates a shared receive queue.
    fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
        // SAFETY: the attributes are valid for reads and writes.
        object(SharedReceiveQueue::create(pd, unsafe { &mut *srq_init_attr }))
    }

    /// Sets the limit of a shared receive queue. The queue can't be resized.
    fn ibv_modify_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr, srq_attr_mask: c_int) -> c_int {
        // SAFETY: the queue is alive, and the attributes are valid for reads.
        let (this, limit) = unsafe { (SharedReceiveQueue::of(srq), (*srq_attr).srq_limit) };
        if srq_attr_mask & IBV_SRQ_MAX_WR != 0 {
            return fail(libc::EOPNOTSUPP);
        }
        if srq_attr_mask & IBV_SRQ_LIMIT != 0 {
            return errno_result(this.nic.nic.arm_srq(this.srq, limit).map_err(errno_of));
        }
        0
    }

    /// Queries a shared receive queue.
    fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int {
        // SAFETY: the queue is alive.
        let this = unsafe { SharedReceiveQueue::of(srq) };
        let Some(status) = this.nic.nic.query_srq(this.srq) else { return fail(libc::EINVAL) };
        let attr = ibv_srq_attr { max_wr: this.max_wr, max_sge: this.max_sge, srq_limit: status.limit };
        // SAFETY: the attributes are valid for writes.
        unsafe { srq_attr.write(attr) };
        0
    }
}

destructors! {
    /// Destroys a shared receive queue, after its events are acknowledged.
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
        errno_result(SharedReceiveQueue::destroy(srq))
    }
}

operations! {
    /// Creates a shared receive queue of the basic type.
    fn create_srq_ex(_context: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
        // SAFETY: the attributes are valid for reads and writes, and begin like the plain ones.
        let (mask, pd) = unsafe { ((*attr).comp_mask, (*attr).pd) };
        // SAFETY: as above; the mask says whether the field is valid.
        let is_basic =
            mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || unsafe { (*attr).srq_type } == IBV_SRQT_BASIC;
        if mask & !(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) != 0 || !is_basic {
            return fail(libc::EOPNOTSUPP);
        }
        if mask & IBV_SRQ_INIT_ATTR_PD == 0 || pd.is_null() {
            return fail(libc::EINVAL);
        }
        // SAFETY: as above.
        object(SharedReceiveQueue::create(pd, unsafe { &mut *attr.cast() }))
    }

    /// Fails: only queues of XRC have numbers.
    fn get_srq_num(_srq: *mut ibv_srq, _srq_num: *mut u32) -> c_int {
        fail(libc::EOPNOTSUPP)
    }
}

posting! {
    /// Posts receive requests to a shared receive queue.
    fn post_srq_recv(srq: *mut ibv_srq, recv_wr: *mut ibv_recv_wr, bad_recv_wr) {
        // SAFETY: the queue is alive, and the list ends with NULL; its segments are valid for reads.
        unsafe {
            let this = SharedReceiveQueue::of(srq);
            let posted = this.nic.nic.post_srq_recvs(this.srq, post::recv_requests(recv_wr));
            post::post_result(posted, recv_wr, bad_recv_wr)
        }
    }
}
