//! Device contexts: open devices.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::IntoRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adverb_proto::explain::{Call, errno_hint};
use adverb_sys::*;
use libc::{c_int, c_void};
use parking_lot::Mutex;

use crate::calls::{explain, invalid};
use crate::entry::{Pointee, Purpose, errno, fail, object};
use crate::event::Events;
use crate::nic::{Listed, OpenNic};
use crate::report::Kind;
use crate::{cq, cq_ex, mr, mw, pd, post, qp, query, srq, unsupported};

/// An open device. Programs hold the address of its last public part, an [`ibv_context`].
#[repr(C)]
pub(crate) struct Context {
    verbs: UnsafeCell<verbs_context>,
    pub(crate) nic: &'static OpenNic,
    pub(crate) events: Mutex<Events>,
    /// The objects that the program has not destroyed, by handle and so in the order of their creation.
    members: Mutex<BTreeMap<u32, Listed<dyn Object>>>,
    generation: u32,
    is_closed: AtomicBool,
    /// Whether the identifiers of librdmacm use the context, which then stays open.
    pub(crate) is_shared: bool,
}

// SAFETY: the fields that change have locks, or are atomic; programs don't change the public part.
unsafe impl Send for Context {}

// SAFETY: as above.
unsafe impl Sync for Context {}

impl Pointee for ibv_context {
    /// # Safety
    ///
    /// The object is alive.
    unsafe fn check(this: *mut ibv_context, _purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says.
        let context = unsafe { Context::of(this) };
        check(context.generation, &context.is_closed, Purpose::Use)
    }
}

/// Checks that this process may use an object: see [`Argument::check`](crate::entry::Argument::check).
#[inline]
fn check(generation: u32, is_gone: &AtomicBool, purpose: Purpose) -> Result<(), c_int> {
    crate::fork::check(generation)?;
    if is_gone.load(Ordering::Acquire) && purpose == Purpose::Use {
        return Err(explain(libc::EBADF, "the object's context is closed"));
    }
    Ok(())
}

/// An object of a context, which closing the context destroys in the NIC.
pub(crate) trait Object {
    fn member(&self) -> &Member;

    /// Returns the kind that the report counts the object as, if any.
    fn kind(&self) -> Option<Kind> {
        None
    }

    /// Destroys the object in the NIC. The object's memory stays allocated, because the program has its address.
    fn release(&self) -> Result<(), c_int>;
}

/// The part of an object that belongs to its context. It keeps the context's memory allocated, which C programs use to call
/// operations.
pub(crate) struct Member {
    context: Arc<Context>,
    pub(crate) handle: u32,
    generation: u32,
    /// Whether the object is destroyed in the NIC.
    is_released: AtomicBool,
}

impl Member {
    /// Makes a part for a new object.
    ///
    /// # Safety
    ///
    /// The context is open.
    pub(crate) unsafe fn new(context: *mut ibv_context) -> Member {
        // SAFETY: as the caller says; `Context::open` made it with an `Arc`.
        let context = unsafe { Context::share(context) };
        let (handle, generation) = (context.nic.next_handle(), context.generation);
        Member { context, handle, generation, is_released: AtomicBool::new(false) }
    }

    /// Returns the object's context, which may be closed.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Checks that the object can be used for a purpose.
    #[inline]
    pub(crate) fn check(&self, purpose: Purpose) -> Result<(), c_int> {
        check(self.generation, &self.is_released, purpose)
    }

    /// Checks that another object has the same context, as the kernel does.
    pub(crate) fn check_context(&self, other: &Member) -> Result<(), c_int> {
        match Arc::ptr_eq(&self.context, &other.context) {
            true => Ok(()),
            false => Err(invalid("the objects belong to different contexts")),
        }
    }
}

/// Adds a new object to its context.
pub(crate) fn add<T: Object + 'static>(object: &'static T) {
    let member = object.member();
    let listed = Listed(NonNull::from(object as &dyn Object));
    member.context.members.lock().insert(member.handle, listed);
}

/// Destroys an object in the NIC, unless closing its context did.
pub(crate) fn release(object: &dyn Object) -> Result<(), c_int> {
    let member = object.member();
    if member.is_released.load(Ordering::Acquire) {
        member.context.nic.counts.destroy_closed(object.kind());
        return Ok(());
    }
    object.release()?;
    member.is_released.store(true, Ordering::Release);
    member.context.members.lock().remove(&member.handle);
    Ok(())
}

impl Context {
    /// Returns the context behind a program's pointer.
    ///
    /// # Safety
    ///
    /// The context is open.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Context {
        // SAFETY: `open` returned the address of this field, and the struct starts with `verbs`.
        unsafe { &*context.byte_sub(offset_of!(verbs_context, context)).cast::<Context>() }
    }

    /// Returns the pointer that programs have.
    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        // SAFETY: the field is in the struct.
        unsafe { &raw mut (*self.verbs.get()).context }
    }

    /// Returns the descriptor of asynchronous events.
    pub(crate) fn async_fd(&self) -> c_int {
        // SAFETY: the field is written only before the context is returned.
        unsafe { (*self.as_ptr()).async_fd }
    }

    /// Returns a reference to the context behind a program's pointer.
    ///
    /// # Safety
    ///
    /// The context is open.
    unsafe fn share(context: *mut ibv_context) -> Arc<Context> {
        // SAFETY: as the caller says; `open` made it with an `Arc`.
        unsafe {
            let context = &raw const *Context::of(context);
            Arc::increment_strong_count(context);
            Arc::from_raw(context)
        }
    }

    pub(crate) fn open(device: *mut ibv_device, is_shared: bool) -> Result<Arc<Context>, c_int> {
        let nic = OpenNic::get().map_err(|error| {
            // A program reports at most the errno value.
            let hint = error.raw_os_error().and_then(|errno| errno_hint(errno, Call::OpenSoftDevice));
            let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
            eprintln!("adverb: opening the software NIC failed: {error}{hint}");
            explain(errno_of_io(&error), error)
        })?;
        // A program may dup this descriptor.
        let cmd_fd =
            File::options().read(true).write(true).open("/dev/null").map_err(|error| errno_of_io(&error))?;
        // SAFETY: the function has no preconditions.
        let async_fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if async_fd < 0 {
            return Err(errno());
        }
        let mut verbs = operations();
        verbs.sz = size_of::<verbs_context>();
        verbs.context.device = device;
        verbs.context.cmd_fd = cmd_fd.into_raw_fd();
        verbs.context.async_fd = async_fd;
        verbs.context.num_comp_vectors = 1;
        verbs.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        verbs.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
        let verbs = UnsafeCell::new(verbs);
        let context = Arc::new(Context {
            verbs,
            nic,
            events: Mutex::default(),
            members: Mutex::default(),
            generation: crate::fork::generation(),
            is_closed: AtomicBool::new(false),
            is_shared,
        });
        nic.objects.lock().contexts.push(Listed(NonNull::from(&*context)));
        Ok(context)
    }

    /// Closes the context, and destroys its objects in the NIC, as the kernel does.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.nic.objects.lock().contexts.retain(|listed| listed.0 != NonNull::from(self));
        loop {
            let members: Vec<_> = self.members.lock().values().rev().map(|listed| listed.0).collect();
            let is_released = |object: &&NonNull<dyn Object>| {
                // SAFETY: an object is in the list until it is destroyed, and programs don't destroy objects while they
                // close their context: with rdma-core too, that uses freed memory.
                let object = unsafe { object.as_ref() };
                release(object).inspect(|()| self.nic.counts.close(object.kind())).is_ok()
            };
            // An object that others depend on is destroyed after these.
            if members.iter().filter(is_released).count() == 0 {
                break;
            }
        }
        // SAFETY: the descriptors are the context's.
        unsafe {
            libc::close((*self.as_ptr()).cmd_fd);
            libc::close(self.async_fd());
        }
    }
}

fn errno_of_io(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::AddrInUse => libc::EADDRINUSE,
        io::ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        _ => libc::EIO,
    })
}

fn operations() -> verbs_context {
    let mut verbs = verbs_context::zeroed();
    verbs.query_port = Some(query::query_port);
    verbs.advise_mr = Some(mr::advise_mr);
    verbs.alloc_null_mr = Some(unsupported::alloc_null_mr);
    verbs.read_counters = Some(unsupported::read_counters);
    verbs.attach_counters_point_flow = Some(unsupported::attach_counters_point_flow);
    verbs.create_counters = Some(unsupported::create_counters);
    verbs.destroy_counters = Some(unsupported::destroy_counters);
    verbs.reg_dm_mr = Some(unsupported::reg_dm_mr);
    verbs.alloc_dm = Some(unsupported::alloc_dm);
    verbs.free_dm = Some(unsupported::free_dm);
    verbs.modify_flow_action_esp = Some(unsupported::modify_flow_action_esp);
    verbs.destroy_flow_action = Some(unsupported::destroy_flow_action);
    verbs.create_flow_action_esp = Some(unsupported::create_flow_action_esp);
    verbs.modify_qp_rate_limit = Some(unsupported::modify_qp_rate_limit);
    verbs.alloc_parent_domain = Some(pd::alloc_parent_domain);
    verbs.dealloc_td = Some(pd::dealloc_td);
    verbs.alloc_td = Some(pd::alloc_td);
    verbs.modify_cq = Some(unsupported::modify_cq);
    verbs.post_srq_ops = Some(unsupported::post_srq_ops);
    verbs.destroy_rwq_ind_table = Some(unsupported::destroy_rwq_ind_table);
    verbs.create_rwq_ind_table = Some(unsupported::create_rwq_ind_table);
    verbs.destroy_wq = Some(unsupported::destroy_wq);
    verbs.modify_wq = Some(unsupported::modify_wq);
    verbs.create_wq = Some(unsupported::create_wq);
    verbs.query_rt_values = Some(query::query_rt_values);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.ibv_destroy_flow = Some(unsupported::destroy_flow);
    verbs.ABI_placeholder2 = Some(unsupported::nothing);
    verbs.ibv_create_flow = Some(unsupported::create_flow);
    verbs.ABI_placeholder1 = Some(unsupported::nothing);
    verbs.open_qp = Some(unsupported::open_qp);
    verbs.create_qp_ex = Some(qp::create_qp_ex);
    verbs.get_srq_num = Some(srq::get_srq_num);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
    verbs.open_xrcd = Some(unsupported::open_xrcd);
    verbs.close_xrcd = Some(unsupported::close_xrcd);
    let unused = Some(unsupported::unused as unsafe extern "C" fn() -> *mut c_void);
    verbs.context.ops = ibv_context_ops {
        _compat_query_device: Some(query::ibv_query_device),
        _compat_query_port: Some(query::ibv_query_port),
        _compat_alloc_pd: unused,
        _compat_dealloc_pd: unused,
        _compat_reg_mr: unused,
        _compat_rereg_mr: unused,
        _compat_dereg_mr: unused,
        alloc_mw: Some(mw::alloc_mw),
        bind_mw: Some(mw::bind_mw),
        dealloc_mw: Some(mw::dealloc_mw),
        _compat_create_cq: unused,
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        _compat_cq_event: unused,
        _compat_resize_cq: unused,
        _compat_destroy_cq: unused,
        _compat_create_srq: unused,
        _compat_modify_srq: unused,
        _compat_query_srq: unused,
        _compat_destroy_srq: unused,
        post_srq_recv: Some(srq::post_srq_recv),
        _compat_create_qp: unused,
        _compat_query_qp: unused,
        _compat_modify_qp: unused,
        _compat_destroy_qp: unused,
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        _compat_create_ah: unused,
        _compat_destroy_ah: unused,
        _compat_attach_mcast: unused,
        _compat_detach_mcast: unused,
        _compat_async_event: unused,
    };
    verbs
}

entry! {
    /// Opens a device.
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
        // The program has the reference until it closes the context.
        object(Context::open(device, false).map(|context| {
            let address = context.as_ptr();
            std::mem::forget(context);
            address
        }))
    }

    /// Closes a context. Its objects no longer exist in the NIC, and only their memory remains, until they are destroyed.
    fn ibv_close_device(context: *mut ibv_context) -> c_int {
        if context.is_null() {
            return fail(invalid("the context is NULL"));
        }
        // SAFETY: the context is open.
        let this = unsafe { Context::share(context) };
        if this.is_shared {
            return fail(invalid("the context belongs to librdmacm, which keeps it open"));
        }
        this.close();
        // SAFETY: this is the reference of `ibv_open_device`, which the program doesn't use any more.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(&this)) };
        0
    }
}
