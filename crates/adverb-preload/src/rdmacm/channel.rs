//! Event channels and events.

use std::cell::UnsafeCell;
use std::collections::VecDeque;

use adverb_sys::*;
use libc::{c_int, c_void};
use parking_lot::Mutex;

use super::id::Id;
use super::{Status, connect, multicast, status};
use crate::entry::{Pointee, Purpose, errno, fail};

/// An event channel. Its descriptor is a semaphore whose value is the number of pending events, except while an event is
/// added or removed.
#[repr(C)]
pub(super) struct Channel {
    base: UnsafeCell<rdma_event_channel>,
    generation: u32,
    events: Mutex<VecDeque<Box<Event>>>,
}

// SAFETY: the descriptor is constant. The events name identifiers, which are usable from all threads.
unsafe impl Send for Channel {}

// SAFETY: as above.
unsafe impl Sync for Channel {}

/// An event, pending or reported.
#[repr(C)]
pub(super) struct Event {
    pub(super) base: UnsafeCell<rdma_cm_event>,
    pub(super) private_data: Vec<u8>,
    generation: u32,
}

// SAFETY: the identifiers that an event names are usable from all threads, and so is its private data.
unsafe impl Send for Event {}

impl Event {
    /// Makes an event about an identifier.
    pub(super) fn new(id: &Id, event: rdma_cm_event_type, status: c_int) -> Box<Event> {
        let mut base = rdma_cm_event::zeroed();
        (base.id, base.event, base.status) = (id.as_ptr(), event, status);
        let generation = crate::fork::generation();
        Box::new(Event { base: UnsafeCell::new(base), private_data: Vec::new(), generation })
    }

    /// Sets the parameters of a connection.
    pub(super) fn with_connection(
        mut self: Box<Event>,
        mut conn: rdma_conn_param,
        data: Vec<u8>,
    ) -> Box<Event> {
        conn.private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
        conn.private_data = if data.is_empty() { std::ptr::null() } else { data.as_ptr().cast() };
        self.base.get_mut().param.conn = conn;
        self.private_data = data;
        self
    }

    /// Sets the parameters of a datagram peer.
    pub(super) fn with_datagram(mut self: Box<Event>, mut ud: rdma_ud_param, data: Vec<u8>) -> Box<Event> {
        ud.private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
        ud.private_data = if data.is_empty() { std::ptr::null() } else { data.as_ptr().cast() };
        self.base.get_mut().param.ud = ud;
        self.private_data = data;
        self
    }

    /// Sets the private data of a multicast event, which is the program's context.
    pub(super) fn with_context(
        mut self: Box<Event>,
        mut ud: rdma_ud_param,
        context: *mut c_void,
    ) -> Box<Event> {
        ud.private_data = context;
        self.base.get_mut().param.ud = ud;
        self
    }

    /// Returns the identifier that the event was queued for: the listener of a request, otherwise the event's own.
    fn target(&self) -> *mut rdma_cm_id {
        // SAFETY: the event isn't written meanwhile.
        let base = unsafe { &*self.base.get() };
        if base.listen_id.is_null() { base.id } else { base.listen_id }
    }

    /// Returns the identifier of a request that no program knows yet.
    pub(super) fn requested(&self) -> Option<*mut rdma_cm_id> {
        // SAFETY: as above.
        let base = unsafe { &*self.base.get() };
        (base.event == RDMA_CM_EVENT_CONNECT_REQUEST).then_some(base.id)
    }
}

impl Pointee for rdma_event_channel {
    /// # Safety
    ///
    /// The object is alive.
    unsafe fn check(this: *mut rdma_event_channel, _purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says.
        crate::fork::check(unsafe { Channel::of(this) }.generation)
    }
}

impl Pointee for rdma_cm_event {
    /// # Safety
    ///
    /// The object is alive.
    unsafe fn check(this: *mut rdma_cm_event, _purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says; the struct starts with `base`.
        crate::fork::check(unsafe { (*this.cast::<Event>()).generation })
    }
}

impl Channel {
    pub(super) fn create() -> Result<*mut rdma_event_channel, c_int> {
        // SAFETY: the function has no preconditions.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(errno());
        }
        let base = UnsafeCell::new(rdma_event_channel { fd });
        Ok(Box::into_raw(Box::new(Channel {
            base,
            generation: crate::fork::generation(),
            events: Mutex::default(),
        }))
        .cast())
    }

    /// Returns the channel behind a program's pointer.
    ///
    /// # Safety
    ///
    /// The channel is alive.
    pub(super) unsafe fn of<'a>(channel: *mut rdma_event_channel) -> &'a Channel {
        // SAFETY: as the caller says; the struct starts with `base`.
        unsafe { &*channel.cast() }
    }

    /// Frees a channel.
    ///
    /// # Safety
    ///
    /// The channel is alive, no identifier uses it, and it isn't used afterwards.
    pub(super) unsafe fn destroy(channel: *mut rdma_event_channel) {
        // SAFETY: as the caller says; `create` made it with a box.
        let channel = unsafe { Box::from_raw(channel.cast::<Channel>()) };
        // SAFETY: the descriptor is the channel's.
        unsafe { libc::close(channel.fd()) };
    }

    fn fd(&self) -> c_int {
        // SAFETY: the field is never written.
        unsafe { (*self.base.get()).fd }
    }

    /// Adds an event.
    pub(super) fn put(&self, event: Box<Event>) {
        self.events.lock().push_back(event);
        let one = 1u64;
        // SAFETY: eight bytes are written to the channel's descriptor. The write fails only with 2⁶⁴ pending events.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), size_of_val(&one)) };
    }

    /// Removes and returns the pending events of an identifier.
    pub(super) fn remove_events(&self, id: *mut rdma_cm_id) -> VecDeque<Box<Event>> {
        let mut events = self.events.lock();
        let all = std::mem::take(&mut *events).into_iter();
        let (removed, kept): (VecDeque<_>, _) = all.partition(|event| event.target() == id);
        *events = kept;
        for _ in &removed {
            let mut value = 0u64;
            let mut part = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: size_of_val(&value) };
            // The read doesn't wait, even if the descriptor is a blocking one: another thread may have read the count.
            // SAFETY: the buffer has eight bytes.
            unsafe { libc::preadv2(self.fd(), &raw mut part, 1, -1, libc::RWF_NOWAIT) };
        }
        removed
    }

    /// Waits for an event, unless the descriptor doesn't block, and does the library's part of handling it before the program
    /// gets the event.
    pub(super) fn next(&self) -> Result<*mut rdma_cm_event, c_int> {
        loop {
            let mut value = 0u64;
            // SAFETY: the buffer has eight bytes.
            let read = unsafe { libc::read(self.fd(), (&raw mut value).cast(), size_of_val(&value)) };
            if read < 0 {
                return Err(errno());
            }
            let event = {
                let mut events = self.events.lock();
                // The identifier of the event that was read may have been destroyed or moved since.
                let Some(event) = events.pop_front() else { continue };
                // SAFETY: identifiers are destroyed only after their pending events are removed under this lock, and
                // after the reported events are acknowledged.
                unsafe { Id::of(event.target()) }.acks.report();
                event
            };
            let event = Box::into_raw(event).cast::<rdma_cm_event>();
            // SAFETY: the event is reported, so its identifier is alive.
            if let Err(errno) = unsafe { prepare(event) } {
                // SAFETY: as above; no program knows the event.
                unsafe { acknowledge(event) };
                return Err(errno);
            }
            return Ok(event);
        }
    }
}

/// Does the library's part of handling an event.
///
/// # Safety
///
/// The event and its identifier are alive.
unsafe fn prepare(event: *mut rdma_cm_event) -> Result<(), c_int> {
    // SAFETY: as the caller says; no other thread has the event.
    let (id, listener, kind) = unsafe { (Id::of((*event).id), (*event).listen_id, (*event).event) };
    match kind {
        // SAFETY: as above.
        RDMA_CM_EVENT_CONNECT_RESPONSE => connect::complete(id, unsafe { &mut *event }),
        RDMA_CM_EVENT_REJECTED => id.move_qp_to_error(),
        // SAFETY: as above.
        RDMA_CM_EVENT_MULTICAST_JOIN => multicast::complete(id, unsafe { &mut *event }),
        RDMA_CM_EVENT_CONNECT_REQUEST => {
            let is_sync = {
                // SAFETY: the listener of a reported request is alive.
                let mut listener = unsafe { Id::of(listener) }.state.lock();
                listener.backlog += 1;
                listener.is_sync
            };
            if is_sync {
                return id.migrate(std::ptr::null_mut());
            }
        }
        _ => {}
    }
    Ok(())
}

/// Acknowledges and frees an event.
///
/// # Safety
///
/// The event is alive, and isn't used afterwards.
pub(super) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: as the caller says; events are made with boxes, and their identifiers are alive until they are acknowledged.
    unsafe {
        let event = Box::from_raw(event.cast::<Event>());
        Id::of(event.target()).acks.acknowledge(1, |_| ());
    }
}

entry! {
    /// Creates an event channel.
    fn rdma_create_event_channel() -> *mut rdma_event_channel {
        crate::entry::object(Channel::create())
    }

    /// Destroys an event channel.
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
        if !channel.is_null() {
            // SAFETY: the channel is alive, and the program doesn't use it any more.
            unsafe { Channel::destroy(channel) };
        }
    }

    /// Waits for an event, unless the channel's descriptor doesn't block.
    fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> Status {
        if channel.is_null() || event.is_null() {
            return fail(libc::EINVAL);
        }
        // SAFETY: the channel is alive.
        let next = unsafe { Channel::of(channel) }.next();
        // SAFETY: the pointer is valid for writes.
        status(next.map(|next| unsafe { event.write(next) }))
    }

    /// Acknowledges an event.
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> Status {
        if event.is_null() {
            return fail(libc::EINVAL);
        }
        // SAFETY: the event was reported, and the program doesn't use it any more.
        unsafe { acknowledge(event) };
        Status::SUCCESS
    }
}
