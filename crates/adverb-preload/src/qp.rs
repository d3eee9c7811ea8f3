//! Queue pairs.

use std::cell::UnsafeCell;
use std::ptr::NonNull;

use adverb_proto::QpConfig;
use adverb_proto::types::{Gid, Qpn, Transport};
use adverb_soft::MAX_INLINE;
use adverb_sys::*;
use libc::{c_int, c_uint};
use parking_lot::{Mutex, RawMutex};

use crate::acks::Acks;
use crate::calls::{explain, invalid};
use crate::context::{self, Member, Object};
use crate::cq::CompletionQueue;
use crate::entry::{Pointee, Purpose, errno_of, errno_result, fail, object};
use crate::modify::Attributes;
use crate::nic::{Listed, OpenNic};
use crate::pd::ProtectionDomain;
use crate::qp_ex::{self, Batch};
use crate::query::{MAX_SGE, MAX_WR};
use crate::report::Kind;
use crate::srq::SharedReceiveQueue;

#[repr(C)]
pub(crate) struct QueuePair {
    base: UnsafeCell<ibv_qp_ex>,
    pub(crate) member: Member,
    pub(crate) nic: &'static OpenNic,
    pub(crate) qpn: Qpn,
    pub(crate) transport: Transport,
    /// The attributes that it was created with.
    pub(crate) init: ibv_qp_init_attr,
    /// The attributes that it was modified with.
    pub(crate) attributes: Mutex<Attributes>,
    /// Whether the program asked for the operations of `ibv_wr_*`.
    is_extended: bool,
    /// The requests between `ibv_wr_start` and `ibv_wr_complete`, guarded by `batching`.
    pub(crate) batch: UnsafeCell<Batch>,
    /// Held from `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`.
    pub(crate) batching: RawMutex,
    pub(crate) acks: Acks,
}

impl QueuePair {
    /// Returns the queue pair behind a program's pointer.
    ///
    /// # Safety
    ///
    /// The queue pair is alive.
    #[inline]
    pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a QueuePair {
        // SAFETY: as the caller says; the struct starts with `base`, which starts with an `ibv_qp`.
        unsafe { &*qp.cast() }
    }

    /// Returns the pointer that programs have.
    pub(crate) fn as_ptr(&self) -> *mut ibv_qp {
        self.base.get().cast()
    }

    /// Creates a queue pair, and writes its capacities to the attributes. `send_ops` are the operations of `ibv_wr_*`
    /// that the program wants to use.
    fn create(
        pd: *mut ibv_pd,
        init: &mut ibv_qp_init_attr,
        send_ops: Option<u64>,
    ) -> Result<*mut ibv_qp, c_int> {
        // SAFETY: the domain is alive.
        let (domain, context) = unsafe { (ProtectionDomain::of(pd), (*pd).context) };
        let transport = match init.qp_type {
            IBV_QPT_RC => Transport::Rc,
            IBV_QPT_UC => Transport::Uc,
            IBV_QPT_UD => Transport::Ud,
            other => return Err(explain(libc::EOPNOTSUPP, format_args!("qp_type is {other}"))),
        };
        if let Some(ops) = send_ops.filter(|ops| ops & !qp_ex::supported(transport) != 0) {
            return Err(explain(libc::EOPNOTSUPP, format_args!("send_ops_flags is {ops:#x}")));
        }
        let cap = &mut init.cap;
        for (name, value, max) in [
            ("max_send_wr", cap.max_send_wr, MAX_WR),
            ("max_recv_wr", cap.max_recv_wr, MAX_WR),
            ("max_send_sge", cap.max_send_sge, MAX_SGE),
            ("max_recv_sge", cap.max_recv_sge, MAX_SGE),
            ("max_inline_data", cap.max_inline_data, MAX_INLINE),
        ] {
            if value > max {
                return Err(invalid(format_args!("{name} is {value}, but the maximum is {max}")));
            }
        }
        if init.send_cq.is_null() || init.recv_cq.is_null() {
            return Err(invalid("send_cq or recv_cq is NULL"));
        }
        // SAFETY: the queues are alive.
        let (send_cq, recv_cq) =
            unsafe { (CompletionQueue::of(init.send_cq), CompletionQueue::of(init.recv_cq)) };
        domain.member.check_context(&send_cq.member)?;
        domain.member.check_context(&recv_cq.member)?;
        let mut config = QpConfig::new(transport, domain.pd, send_cq.cq, recv_cq.cq);
        if init.srq.is_null() {
            config.max_recv_wr = cap.max_recv_wr;
        } else {
            // SAFETY: the queue is alive.
            let srq = unsafe { SharedReceiveQueue::of(init.srq) };
            domain.member.check_context(&srq.member)?;
            config.srq = Some(srq.srq);
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        config.max_send_wr = cap.max_send_wr;
        config.max_send_sge = cap.max_send_sge;
        config.max_recv_sge = cap.max_recv_sge;
        config.max_inline = cap.max_inline_data;
        config.signal_all = init.sq_sig_all != 0;
        let nic = domain.nic;
        let qpn = nic.nic.create_qp(config).map_err(errno_of)?;
        // SAFETY: the context of a domain that can be used is open.
        let member = unsafe { Member::new(context) };
        let mut base = ibv_qp_ex::zeroed();
        base.qp_base.context = context;
        base.qp_base.qp_context = init.qp_context;
        base.qp_base.pd = pd;
        (base.qp_base.send_cq, base.qp_base.recv_cq) = (init.send_cq, init.recv_cq);
        base.qp_base.srq = init.srq;
        base.qp_base.handle = member.handle;
        base.qp_base.qp_num = qpn.get();
        base.qp_base.state = IBV_QPS_RESET;
        base.qp_base.qp_type = init.qp_type;
        base.qp_base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        base.qp_base.cond = libc::PTHREAD_COND_INITIALIZER;
        qp_ex::fill(&mut base);
        let this = &*Box::leak(Box::new(QueuePair {
            base: UnsafeCell::new(base),
            member,
            nic,
            qpn,
            transport,
            init: *init,
            attributes: Mutex::default(),
            is_extended: send_ops.is_some(),
            batch: UnsafeCell::default(),
            batching: <RawMutex as parking_lot::lock_api::RawMutex>::INIT,
            acks: Acks::default(),
        }));
        nic.objects.lock().qps.insert(qpn.get(), Listed(NonNull::from(this)));
        context::add(this);
        Ok(this.as_ptr())
    }

    /// Removes the queue pair's completions, as drivers do.
    pub(crate) fn discard_completions(&self) {
        for cq in [self.init.send_cq, self.init.recv_cq] {
            // SAFETY: completion queues outlive the queue pairs that use them.
            let cq = unsafe { CompletionQueue::of(cq) };
            self.nic.nic.discard_completions(cq.cq, self.qpn);
        }
    }

    fn destroy(qp: *mut ibv_qp) -> Result<(), c_int> {
        // SAFETY: the queue pair is alive.
        let this = unsafe { QueuePair::of(qp) };
        context::release(this)?;
        this.acks.wait();
        // SAFETY: `create` made it with a box, and the program doesn't use it any more.
        drop(unsafe { Box::from_raw(qp.cast::<QueuePair>()) });
        Ok(())
    }
}

impl Object for QueuePair {
    fn member(&self) -> &Member {
        &self.member
    }

    fn kind(&self) -> Option<Kind> {
        Some(Kind::QueuePair)
    }

    fn release(&self) -> Result<(), c_int> {
        self.nic.nic.destroy_qp(self.qpn);
        self.discard_completions();
        self.nic.objects.lock().qps.remove(&self.qpn.get());
        self.member.context().forget_events(|event| {
            // SAFETY: an event of a queue pair has the member `qp`.
            crate::event::is_of_qp(event.event_type) && unsafe { event.element.qp } == self.as_ptr()
        });
        if let Some(path) = self.attributes.lock().path.take() {
            path.close(self.nic);
        }
        Ok(())
    }
}

impl Pointee for ibv_qp {
    /// # Safety
    ///
    /// The object is alive.
    #[inline]
    unsafe fn check(this: *mut ibv_qp, purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says.
        unsafe { QueuePair::of(this) }.member.check(purpose)
    }
}

impl Pointee for ibv_qp_ex {
    /// # Safety
    ///
    /// The object is alive.
    #[inline]
    unsafe fn check(this: *mut ibv_qp_ex, purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says.
        unsafe { QueuePair::of(this.cast()) }.member.check(purpose)
    }
}

entry! {
    /// Creates a queue pair.
    fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
        // SAFETY: the attributes are valid for reads and writes.
        object(QueuePair::create(pd, unsafe { &mut *qp_init_attr }, None))
    }

    /// Returns the queue pair for `ibv_wr_*`, or NULL if it was created without these operations.
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex, Infallible {
        // SAFETY: the queue pair is alive.
        if unsafe { QueuePair::of(qp) }.is_extended { qp.cast() } else { std::ptr::null_mut() }
    }

    /// Attaches a queue pair to a multicast group.
    fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
        // SAFETY: the queue pair is alive, and the GID is valid for reads.
        let (this, gid) = unsafe { (QueuePair::of(qp), Gid::new((*gid).octets())) };
        errno_result(this.nic.nic.attach_multicast(this.qpn, gid).map_err(errno_of))
    }

    /// Detaches a queue pair from a multicast group.
    fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
        // SAFETY: the queue pair is alive, and the GID is valid for reads.
        let (this, gid) = unsafe { (QueuePair::of(qp), Gid::new((*gid).octets())) };
        errno_result(this.nic.nic.detach_multicast(this.qpn, gid).map_err(errno_of))
    }

    /// Fails: the software NIC has no enhanced connection establishment.
    fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
        fail(libc::EOPNOTSUPP)
    }

    /// Fails: the software NIC has no enhanced connection establishment.
    fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
        // SAFETY: the options are valid for writes.
        unsafe { ece.write(ibv_ece::zeroed()) };
        fail(libc::EOPNOTSUPP)
    }

    /// Returns whether data is written in order: the software NIC promises nothing.
    fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: ibv_wr_opcode, _flags: u32) -> c_uint {
        0
    }
}

destructors! {
    /// Destroys a queue pair, after its events are acknowledged.
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
        errno_result(QueuePair::destroy(qp))
    }
}

operations! {
    /// Creates a queue pair with extended attributes.
    fn create_qp_ex(_context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
        // SAFETY: the attributes are valid for reads and writes, up to the fields that the mask names, and begin like the
        // plain ones.
        let (mask, pd) = unsafe { ((*attr).comp_mask, (*attr).pd) };
        let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        if mask & !known != 0 {
            return fail(libc::EOPNOTSUPP);
        }
        if mask & IBV_QP_INIT_ATTR_PD == 0 || pd.is_null() {
            return fail(libc::EINVAL);
        }
        // SAFETY: as above; the mask says that the field exists.
        if mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && unsafe { (*attr).create_flags } != 0 {
            return fail(libc::EOPNOTSUPP);
        }
        let has_send_ops = mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        // SAFETY: as above.
        let send_ops = has_send_ops.then(|| unsafe { (*attr).send_ops_flags });
        // SAFETY: as above.
        object(QueuePair::create(pd, unsafe { &mut *attr.cast() }, send_ops))
    }
}
