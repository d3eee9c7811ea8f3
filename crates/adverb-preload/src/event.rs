//! Asynchronous events.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;

use adverb_proto::QueueEvent;
use adverb_soft::NicEvent;
use adverb_sys::*;
use libc::{c_int, c_uint};

use crate::acks::Acks;
use crate::context::{Context, Member};
use crate::cq::CompletionQueue;
use crate::entry::{Pointee, Purpose, fail};
use crate::nic::{Objects, OpenNic};
use crate::qp::QueuePair;
use crate::srq::SharedReceiveQueue;

/// The pending events of a context. Their number is the value of the semaphore behind the context's `async_fd`, except
/// while an event is added or removed.
pub(crate) type Events = VecDeque<ibv_async_event>;

/// Starts the thread that distributes the NIC's events to the contexts.
pub(crate) fn start(nic: &'static OpenNic) -> io::Result<()> {
    let distribute = move || {
        _ = crate::entry::catch(|| -> () {
            let fds = [nic.nic.event_fd().as_raw_fd(), nic.exit.request.as_raw_fd()];
            loop {
                wait_readable(fds);
                nic.exit.serve(nic);
                while let Some(event) = nic.nic.next_event() {
                    distribute(nic, event);
                }
            }
        });
    };
    std::thread::Builder::new().name("adverb-events".to_owned()).spawn(distribute).map(drop)
}

fn wait_readable(fds: [RawFd; 2]) {
    let mut polls = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: the pointer is to two descriptors. After an error the caller looks for events, and waits again.
    unsafe { libc::poll(polls.as_mut_ptr(), 2, -1) };
}

/// Delivers an event to the context of its object.
fn distribute(nic: &OpenNic, event: NicEvent) {
    let objects = nic.objects.lock();
    let NicEvent::Queue(event) = event else {
        return fail_contexts(&objects);
    };
    let qp_event = |kind, qpn: adverb_wire::Qpn| {
        // SAFETY: a listed object is alive, and stays listed while the lock is held.
        let qp = unsafe { objects.qps.get(&qpn.get())?.0.as_ref() };
        Some((qp.member.context(), ibv_async_event_element { qp: qp.as_ptr() }, kind))
    };
    let found = match event {
        QueueEvent::CqOverflow(cq) => objects.cqs.get(&cq).map(|listed| {
            // SAFETY: as above.
            let cq = unsafe { listed.0.as_ref() };
            (cq.member.context(), ibv_async_event_element { cq: cq.as_ptr() }, IBV_EVENT_CQ_ERR)
        }),
        QueueEvent::SrqLimit(srq) => objects.srqs.get(&srq).map(|listed| {
            // SAFETY: as above.
            let srq = unsafe { listed.0.as_ref() };
            (srq.member.context(), ibv_async_event_element { srq: srq.as_ptr() }, IBV_EVENT_SRQ_LIMIT_REACHED)
        }),
        QueueEvent::Established(qpn) => qp_event(IBV_EVENT_COMM_EST, qpn),
        QueueEvent::LastReceiveReached(qpn) => qp_event(IBV_EVENT_QP_LAST_WQE_REACHED, qpn),
        QueueEvent::SendQueueDrained(qpn) => qp_event(IBV_EVENT_SQ_DRAINED, qpn),
        QueueEvent::RequestError(qpn) => qp_event(IBV_EVENT_QP_REQ_ERR, qpn),
        QueueEvent::AccessError(qpn) => qp_event(IBV_EVENT_QP_ACCESS_ERR, qpn),
        QueueEvent::Fatal(qpn) => qp_event(IBV_EVENT_QP_FATAL, qpn),
        _ => None,
    };
    if let Some((context, element, event_type)) = found {
        context.deliver(ibv_async_event { element, event_type });
    }
}

/// Adds an event to all contexts: the device has failed.
fn fail_contexts(objects: &Objects) {
    for listed in &objects.contexts {
        // SAFETY: a listed context is open, and stays listed while the lock is held.
        let context = unsafe { listed.0.as_ref() };
        let element = ibv_async_event_element { port_num: 0 };
        context.deliver(ibv_async_event { element, event_type: IBV_EVENT_DEVICE_FATAL });
    }
}

/// Adds an event to all contexts: the device has failed, because a verb panicked.
pub(crate) fn fail_device() {
    // A lock that the panicking verb holds is never waited for.
    if let Some(nic) = OpenNic::if_open()
        && let Some(objects) = nic.objects.try_lock()
    {
        fail_contexts(&objects);
    }
}

impl Context {
    /// Adds an event.
    fn deliver(&self, event: ibv_async_event) {
        self.events.lock().push_back(event);
        let one = 1u64;
        // SAFETY: eight bytes are written to the context's descriptor. The write fails only with 2⁶⁴ pending events.
        unsafe { libc::write(self.async_fd(), (&raw const one).cast(), size_of_val(&one)) };
    }

    /// Removes the pending events of an object that is being destroyed.
    pub(crate) fn forget_events(&self, is_of_object: impl Fn(&ibv_async_event) -> bool) {
        let mut events = self.events.lock();
        let count = events.len();
        events.retain(|event| !is_of_object(event));
        for _ in events.len()..count {
            let mut value = 0u64;
            let mut part = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: size_of_val(&value) };
            // The read doesn't wait, even if the descriptor is a blocking one: another thread may have read the count.
            // SAFETY: the buffer has eight bytes.
            unsafe { libc::preadv2(self.async_fd(), &raw mut part, 1, -1, libc::RWF_NOWAIT) };
        }
    }
}

/// Whether an event is about a queue pair.
pub(crate) fn is_of_qp(event_type: c_uint) -> bool {
    matches!(event_type, IBV_EVENT_QP_FATAL..=IBV_EVENT_PATH_MIG_ERR | IBV_EVENT_QP_LAST_WQE_REACHED)
}

/// Whether an event is about a shared receive queue.
pub(crate) fn is_of_srq(event_type: c_uint) -> bool {
    matches!(event_type, IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED)
}

/// Returns the part of an event's object that belongs to its context, or `None` if the event is about the device or a port.
///
/// # Safety
///
/// The object is alive.
unsafe fn owner_of<'a>(event: &ibv_async_event) -> Option<&'a Member> {
    // SAFETY: the type of an event determines the valid member, and the object is alive, as the caller says.
    unsafe {
        if event.event_type == IBV_EVENT_CQ_ERR {
            Some(&CompletionQueue::of(event.element.cq).member)
        } else if is_of_qp(event.event_type) {
            Some(&QueuePair::of(event.element.qp).member)
        } else if is_of_srq(event.event_type) {
            Some(&SharedReceiveQueue::of(event.element.srq).member)
        } else {
            None
        }
    }
}

/// Returns the acknowledgements of the object of an event, and the object's counter for C programs. Returns `None` if the
/// event is about the device or a port.
///
/// # Safety
///
/// The object is alive.
unsafe fn acks_of<'a>(event: &ibv_async_event) -> Option<(&'a Acks, *mut u32)> {
    // SAFETY: the type of an event determines the valid member, and the object is alive, as the caller says.
    unsafe {
        if event.event_type == IBV_EVENT_CQ_ERR {
            let cq = event.element.cq;
            Some((&CompletionQueue::of(cq).async_acks, &raw mut (*cq).async_events_completed))
        } else if is_of_qp(event.event_type) {
            let qp = event.element.qp;
            Some((&QueuePair::of(qp).acks, &raw mut (*qp).events_completed))
        } else if is_of_srq(event.event_type) {
            let srq = event.element.srq;
            Some((&SharedReceiveQueue::of(srq).acks, &raw mut (*srq).events_completed))
        } else {
            None
        }
    }
}

impl Pointee for ibv_async_event {
    /// # Safety
    ///
    /// The object is alive.
    unsafe fn check(this: *mut ibv_async_event, _purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: the caller acknowledges an event, whose object is alive. Its memory remains after its context is closed.
        match unsafe { owner_of(&*this) } {
            Some(member) => member.check(Purpose::Destroy),
            None => Ok(()),
        }
    }
}

entry! {
    /// Waits for an asynchronous event, unless the descriptor doesn't block.
    fn ibv_get_async_event(
        context: *mut ibv_context,
        event: *mut MaybeUninit<ibv_async_event>,
    ) -> c_int, MinusOne {
        // SAFETY: the context is open, and the event is valid for writes.
        let (context, event) = unsafe { (Context::of(context), NonNull::new_unchecked(event)) };
        loop {
            let mut value = 0u64;
            // SAFETY: the buffer has eight bytes.
            let read =
                unsafe { libc::read(context.async_fd(), (&raw mut value).cast(), size_of_val(&value)) };
            if read < 0 {
                return -1;
            }
            let mut events = context.events.lock();
            // The object of the event that was read may have been destroyed since.
            if let Some(next) = events.pop_front() {
                // SAFETY: objects are destroyed only after their pending events are removed under this lock, and after
                // the reported events are acknowledged.
                unsafe {
                    if let Some((acks, _)) = acks_of(&next) {
                        acks.report();
                    }
                    event.write(MaybeUninit::new(next));
                }
                return 0;
            }
        }
    }

    /// Acknowledges an asynchronous event.
    fn ibv_ack_async_event(event: *mut ibv_async_event) {
        if event.is_null() {
            return fail(libc::EINVAL);
        }
        // SAFETY: the object of a reported event is alive until the event is acknowledged.
        let Some((acks, counter)) = (unsafe { acks_of(&*event) }) else { return };
        // SAFETY: as above; the counter is written under the lock that destroying takes.
        acks.acknowledge(1, |count| unsafe { counter.write(count) });
    }
}
