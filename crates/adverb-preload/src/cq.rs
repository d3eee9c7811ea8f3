//! Completion queues and completion channels.

use std::cell::UnsafeCell;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use adverb_proto::Cq;
use adverb_proto::types::{ArmFor, CompletedOperation, Completion, Failure, Qpn};
use adverb_soft::Channel;
use adverb_sys::*;
use libc::{c_int, c_uint, c_void};
use parking_lot::{Mutex, RawMutex};

use crate::acks::Acks;
use crate::calls::{explain, invalid};
use crate::context::{self, Context, Member, Object};
use crate::cq_ex::Current;
use crate::entry::{Pointee, Purpose, errno, errno_of, errno_result, fail, object};
use crate::nic::{Listed, OpenNic};
use crate::report::Kind;

#[repr(C)]
pub(crate) struct CompletionQueue {
    base: UnsafeCell<ibv_cq_ex>,
    pub(crate) member: Member,
    pub(crate) nic: &'static OpenNic,
    pub(crate) cq: Cq,
    /// The queue's own events, which its completion channel watches.
    events: Option<Arc<Channel>>,
    comp_acks: Acks,
    pub(crate) async_acks: Acks,
    /// The completion that an extended poll is at, guarded by `polling`.
    pub(crate) current: UnsafeCell<Current>,
    /// Held from the start to the end of an extended poll.
    pub(crate) polling: RawMutex,
}

/// A completion channel. Its descriptor is an epoll descriptor over the events of its queues.
#[repr(C)]
struct CompletionChannel {
    base: UnsafeCell<ibv_comp_channel>,
    generation: u32,
    /// The addresses of its queues.
    queues: Mutex<BTreeSet<usize>>,
}

impl CompletionQueue {
    /// Returns the queue behind a program's pointer.
    ///
    /// # Safety
    ///
    /// The queue is alive.
    #[inline]
    pub(crate) unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a CompletionQueue {
        // SAFETY: as the caller says; the struct starts with `base`, which starts like an `ibv_cq`.
        unsafe { &*cq.cast() }
    }

    /// Returns the pointer that programs have.
    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.base.get().cast()
    }

    /// Returns the queue in its extended form.
    pub(crate) fn extended(&self) -> *mut ibv_cq_ex {
        self.base.get()
    }

    /// Creates a queue. With `fill`, the caller fills in the operations of an extended queue.
    pub(crate) fn create(
        context: *mut ibv_context,
        attr: &ibv_cq_init_attr_ex,
        is_timed: bool,
        fill: impl FnOnce(&mut ibv_cq_ex),
    ) -> Result<*mut ibv_cq, c_int> {
        // SAFETY: the context is open.
        let nic = unsafe { Context::of(context) }.nic;
        if attr.cqe == 0 || attr.cqe > MAX_CQE {
            return Err(invalid(format_args!("cqe is {}, not from 1 to {MAX_CQE}", attr.cqe)));
        }
        if attr.comp_vector != 0 {
            return Err(invalid(format_args!("comp_vector is {}, but the device has one", attr.comp_vector)));
        }
        let events = match attr.channel.is_null() {
            true => None,
            false => Some(Arc::new(Channel::new().map_err(|_| errno())?)),
        };
        let made = match is_timed {
            true => nic.nic.create_timed_cq(capacity(attr.cqe), events.clone()),
            false => nic.nic.create_cq(capacity(attr.cqe), events.clone()),
        };
        let cq = made.map_err(errno_of)?;
        // SAFETY: the context is open.
        let member = unsafe { Member::new(context) };
        let mut base = ibv_cq_ex::zeroed();
        base.context = context;
        base.channel = attr.channel;
        base.cq_context = attr.cq_context;
        base.handle = member.handle;
        base.cqe = attr.cqe as c_int;
        base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        base.cond = libc::PTHREAD_COND_INITIALIZER;
        fill(&mut base);
        let this = &*Box::leak(Box::new(CompletionQueue {
            base: UnsafeCell::new(base),
            member,
            nic,
            cq,
            events,
            comp_acks: Acks::default(),
            async_acks: Acks::default(),
            current: UnsafeCell::default(),
            polling: <RawMutex as parking_lot::lock_api::RawMutex>::INIT,
        }));
        nic.objects.lock().cqs.insert(cq, Listed(NonNull::from(this)));
        context::add(this);
        if let Some(events) = &this.events
            // SAFETY: the channel is alive.
            && let Err(errno) = unsafe { CompletionChannel::of(attr.channel) }.add(this, events)
        {
            // No program knows the queue.
            CompletionQueue::destroy(this.as_ptr())?;
            return Err(errno);
        }
        Ok(this.as_ptr())
    }

    fn destroy(cq: *mut ibv_cq) -> Result<(), c_int> {
        // SAFETY: the queue is alive.
        let this = unsafe { CompletionQueue::of(cq) };
        context::release(this)?;
        this.comp_acks.wait();
        this.async_acks.wait();
        // SAFETY: `create` made it with a box, and the program doesn't use it any more.
        drop(unsafe { Box::from_raw(cq.cast::<CompletionQueue>()) });
        Ok(())
    }
}

impl Object for CompletionQueue {
    fn member(&self) -> &Member {
        &self.member
    }

    fn kind(&self) -> Option<Kind> {
        Some(Kind::CompletionQueue)
    }

    fn release(&self) -> Result<(), c_int> {
        self.nic.nic.destroy_cq(self.cq).map_err(errno_of)?;
        self.nic.objects.lock().cqs.remove(&self.cq);
        self.member.context().forget_events(|event| {
            // SAFETY: such an event has this member.
            event.event_type == IBV_EVENT_CQ_ERR && unsafe { event.element.cq } == self.as_ptr()
        });
        if let Some(events) = &self.events {
            // SAFETY: the channel is alive as long as its queues.
            unsafe { CompletionChannel::of((*self.as_ptr()).channel) }.remove(self, events);
        }
        Ok(())
    }
}

impl Pointee for ibv_cq {
    /// # Safety
    ///
    /// The object is alive.
    #[inline]
    unsafe fn check(this: *mut ibv_cq, purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says.
        unsafe { CompletionQueue::of(this) }.member.check(purpose)
    }
}

impl Pointee for ibv_cq_ex {
    /// # Safety
    ///
    /// The object is alive.
    #[inline]
    unsafe fn check(this: *mut ibv_cq_ex, purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says.
        unsafe { CompletionQueue::of(this.cast()) }.member.check(purpose)
    }
}

impl Pointee for ibv_comp_channel {
    /// # Safety
    ///
    /// The object is alive.
    unsafe fn check(this: *mut ibv_comp_channel, _purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says.
        crate::fork::check(unsafe { CompletionChannel::of(this) }.generation)
    }
}

impl CompletionChannel {
    /// Returns the channel behind a program's pointer.
    ///
    /// # Safety
    ///
    /// The channel is alive.
    unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> &'a CompletionChannel {
        // SAFETY: as the caller says; the struct starts with `base`.
        unsafe { &*channel.cast() }
    }

    fn fd(&self) -> c_int {
        // SAFETY: the field is never written after the channel is created.
        unsafe { (*self.base.get()).fd }
    }

    /// Watches the events of a queue.
    fn add(&self, queue: &CompletionQueue, events: &Channel) -> Result<(), c_int> {
        let address = (&raw const *queue).expose_provenance();
        let mut interest = libc::epoll_event { events: libc::EPOLLIN as u32, u64: address as u64 };
        let mut queues = self.queues.lock();
        let fd = events.as_fd().as_raw_fd();
        // SAFETY: the pointer is to an event.
        if unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut interest) } != 0 {
            return Err(errno());
        }
        queues.insert(address);
        // SAFETY: the field is written only under this lock.
        unsafe { (*self.base.get()).refcnt += 1 };
        Ok(())
    }

    /// Ends watching a queue that is being destroyed.
    fn remove(&self, queue: &CompletionQueue, events: &Channel) {
        let mut queues = self.queues.lock();
        if !queues.remove(&(&raw const *queue).addr()) {
            return;
        }
        let fd = events.as_fd().as_raw_fd();
        // SAFETY: the call needs no event, and the field is written only under this lock.
        unsafe {
            libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut());
            (*self.base.get()).refcnt -= 1;
        }
    }

    /// Waits for an event of a queue, unless the descriptor doesn't block, and takes it.
    fn next(&self) -> Result<&CompletionQueue, c_int> {
        loop {
            let mut ready = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: the descriptor is open, and the buffer has room for one event.
            let count = unsafe {
                let flags = libc::fcntl(self.fd(), libc::F_GETFL);
                let timeout = if flags & libc::O_NONBLOCK != 0 { 0 } else { -1 };
                libc::epoll_wait(self.fd(), &raw mut ready, 1, timeout)
            };
            match count {
                1.. => {}
                0 => return Err(libc::EAGAIN),
                _ => return Err(errno()),
            }
            let queues = self.queues.lock();
            let address = ready.u64 as usize;
            if !queues.contains(&address) {
                continue;
            }
            // SAFETY: a queue is destroyed only after it was removed from the list, which is locked.
            let queue = unsafe { &*std::ptr::with_exposed_provenance::<CompletionQueue>(address) };
            // Another thread may have taken the event.
            if queue.events.as_ref().is_some_and(|events| events.take().unwrap_or(false)) {
                queue.comp_acks.report();
                return Ok(queue);
            }
        }
    }
}

/// Returns a completion in rdma-core's form.
#[inline]
pub(crate) fn work_completion(completion: &Completion, l3_type: u8) -> ibv_wc {
    let mut wc = ibv_wc::zeroed();
    wc.wr_id = completion.wr_id;
    wc.qp_num = completion.qpn.get();
    let success = match completion.outcome {
        Ok(success) => success,
        Err(Failure { status, vendor_error }) => {
            (wc.status, wc.vendor_err) = (status.code(), vendor_error);
            return wc;
        }
    };
    wc.byte_len = success.length;
    wc.opcode = success.operation.code();
    match success.operation {
        CompletedOperation::Recv { immediate, invalidated, source, has_grh } => {
            if let Some(immediate) = immediate {
                wc.imm.imm_data = immediate.to_be();
                wc.wc_flags |= IBV_WC_WITH_IMM;
            }
            if let Some(rkey) = invalidated {
                wc.imm.invalidated_rkey = rkey;
                wc.wc_flags |= IBV_WC_WITH_INV;
            }
            if has_grh {
                wc.wc_flags |= IBV_WC_GRH;
                wc.sl = l3_type;
            }
            wc.src_qp = source.map_or(0, Qpn::get);
        }
        CompletedOperation::RecvWrite { immediate } => {
            wc.imm.imm_data = immediate.to_be();
            wc.wc_flags |= IBV_WC_WITH_IMM;
        }
        // The completions of send requests have no further fields.
        _ => {}
    }
    wc
}

operations! {
    /// Polls completions.
    fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int, Negative {
        // SAFETY: the queue is alive.
        let this = unsafe { CompletionQueue::of(cq) };
        let Ok(max) = usize::try_from(num_entries) else { return -libc::EINVAL };
        let mut at = wc;
        let count = this.nic.nic.poll(this.cq, max, |completion| {
            this.nic.counts.complete(&completion);
            // SAFETY: the program has room for this many completions.
            unsafe {
                at.write(work_completion(&completion, this.nic.l3_type));
                at = at.add(1);
            }
        });
        count as c_int
    }

    /// Arms a completion queue.
    fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
        // SAFETY: the queue is alive.
        let this = unsafe { CompletionQueue::of(cq) };
        let arm_for = if solicited_only != 0 { ArmFor::Solicited } else { ArmFor::Any };
        errno_result(this.nic.nic.arm_cq(this.cq, arm_for).map_err(errno_of))
    }
}

entry! {
    /// Creates a completion channel.
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
        // SAFETY: the function has no preconditions.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return fail(errno());
        }
        let generation = crate::fork::generation();
        let base = UnsafeCell::new(ibv_comp_channel { context, fd, refcnt: 0 });
        Box::into_raw(Box::new(CompletionChannel { base, generation, queues: Mutex::default() })).cast()
    }

    /// Creates a completion queue.
    fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq {
        let (Ok(cqe), Ok(comp_vector)) = (u32::try_from(cqe), u32::try_from(comp_vector)) else {
            return fail(invalid(format_args!("cqe is {cqe}, and comp_vector {comp_vector}")));
        };
        let mut attr = ibv_cq_init_attr_ex::zeroed();
        (attr.cqe, attr.comp_vector) = (cqe, comp_vector);
        (attr.cq_context, attr.channel) = (cq_context, channel);
        object(CompletionQueue::create(context, &attr, false, |_| {}))
    }

    /// Changes the number of entries of a completion queue.
    fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
        // SAFETY: the queue is alive.
        let this = unsafe { CompletionQueue::of(cq) };
        let Some(entries) = u32::try_from(cqe).ok().filter(|cqe| (1..=MAX_CQE).contains(cqe)) else {
            return fail(invalid(format_args!("cqe is {cqe}, not from 1 to {MAX_CQE}")));
        };
        let resized = this.nic.nic.resize_cq(this.cq, capacity(entries));
        if resized.is_ok() {
            // SAFETY: the queue is alive, and the program doesn't read the field meanwhile.
            unsafe { (*cq).cqe = cqe };
        }
        // The queue exists, so the only error is that it holds more completions than the new capacity.
        errno_result(resized.map_err(|_| invalid(format_args!("cqe is {cqe}, but the queue holds more completions"))))
    }

    /// Waits for a completion event, unless the channel's descriptor doesn't block.
    fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void,
    ) -> c_int, MinusOne {
        // SAFETY: the channel is alive.
        match unsafe { CompletionChannel::of(channel) }.next() {
            Ok(queue) => {
                let queue = queue.as_ptr();
                // SAFETY: the pointers are valid for writes, and the queue is alive until the event is acknowledged.
                unsafe {
                    cq.write(queue);
                    cq_context.write((*queue).cq_context);
                }
                0
            }
            Err(errno) => {
                crate::entry::set_errno(errno);
                -1
            }
        }
    }
}

destructors! {
    /// Acknowledges completion events, also after the context was closed: destroying the queue waits for it.
    fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
        // SAFETY: the queue is alive until its events are acknowledged; its counter is written under the lock that
        // destroying takes.
        unsafe {
            let counter = &raw mut (*cq).comp_events_completed;
            CompletionQueue::of(cq).comp_acks.acknowledge(nevents, |count| counter.write(count));
        }
    }

    /// Destroys a completion channel.
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
        // SAFETY: the channel is alive.
        let this = unsafe { CompletionChannel::of(channel) };
        if !this.queues.lock().is_empty() {
            return fail(explain(libc::EBUSY, "a completion queue uses the channel"));
        }
        // SAFETY: `ibv_create_comp_channel` made it with a box, and the program doesn't use it any more.
        unsafe {
            libc::close(this.fd());
            drop(Box::from_raw(channel.cast::<CompletionChannel>()));
        }
        0
    }

    /// Destroys a completion queue, after its events are acknowledged.
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
        errno_result(CompletionQueue::destroy(cq))
    }
}

/// Returns the number of completions that a queue of `cqe` entries holds. As with RDMA adapters, it is larger than what the
/// program asks for: `ib_send_lat -e` asks for one entry, but after a packet loss it posts a request before it has polled
/// the completion of the last one.
fn capacity(cqe: u32) -> u32 {
    (cqe + 1).next_power_of_two()
}

/// The maximum number of entries of a completion queue.
pub(crate) const MAX_CQE: u32 = 1 << 20;
