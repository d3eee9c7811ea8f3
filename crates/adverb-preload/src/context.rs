//! Device contexts: open devices.

use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::ptr::NonNull;

use adverb_sys::*;
use libc::{c_int, c_void};
use parking_lot::Mutex;

use crate::entry::{errno, fail, object};
use crate::event::Events;
use crate::nic::{Listed, OpenNic};
use crate::{cq, cq_ex, mr, mw, pd, post, qp, query, srq, unsupported};

/// An open device. Programs hold the address of its last public part, an [`ibv_context`].
#[repr(C)]
pub(crate) struct Context {
    verbs: UnsafeCell<verbs_context>,
    pub(crate) nic: &'static OpenNic,
    pub(crate) events: Mutex<Events>,
}

impl Context {
    /// Returns the context that a program has the address of.
    ///
    /// # Safety
    ///
    /// The context is open.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Context {
        // SAFETY: `open` returned the address of this field, and the struct starts with `verbs`.
        unsafe { &*context.byte_sub(offset_of!(verbs_context, context)).cast::<Context>() }
    }

    /// Returns the address that programs have.
    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        // SAFETY: the field is in the struct.
        unsafe { &raw mut (*self.verbs.get()).context }
    }

    /// Returns the descriptor of asynchronous events.
    pub(crate) fn async_fd(&self) -> c_int {
        // SAFETY: the field is written only before the context is returned.
        unsafe { (*self.as_ptr()).async_fd }
    }

    fn open(device: *mut ibv_device) -> Result<*mut ibv_context, c_int> {
        let nic = OpenNic::get().map_err(|error| {
            // A program reports at most the errno value.
            eprintln!("adverb: opening the software NIC failed: {error}");
            error.raw_os_error().unwrap_or(match error.kind() {
                std::io::ErrorKind::AddrInUse => libc::EADDRINUSE,
                std::io::ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
                std::io::ErrorKind::InvalidInput => libc::EINVAL,
                _ => libc::EIO,
            })
        })?;
        // SAFETY: the functions have no preconditions. A program may dup the first descriptor, and waits for the second.
        let (cmd_fd, async_fd) = unsafe {
            (
                libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC),
                libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE),
            )
        };
        if cmd_fd < 0 || async_fd < 0 {
            return Err(errno());
        }
        let mut verbs = operations();
        verbs.sz = size_of::<verbs_context>();
        verbs.context.device = device;
        verbs.context.cmd_fd = cmd_fd;
        verbs.context.async_fd = async_fd;
        verbs.context.num_comp_vectors = 1;
        verbs.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        verbs.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
        let verbs = UnsafeCell::new(verbs);
        let context = Box::leak(Box::new(Context { verbs, nic, events: Mutex::default() }));
        nic.objects.lock().contexts.push(Listed(NonNull::from(&*context)));
        Ok(context.as_ptr())
    }
}

/// Returns a context with all operations.
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
        object(Context::open(device))
    }

    /// Closes a context.
    fn ibv_close_device(context: *mut ibv_context) -> c_int {
        if context.is_null() {
            return fail(libc::EINVAL);
        }
        // SAFETY: the context is open, and the program doesn't use it or its objects any more.
        unsafe {
            let this = NonNull::from(Context::of(context));
            this.as_ref().nic.objects.lock().contexts.retain(|listed| listed.0 != this);
            libc::close((*context).cmd_fd);
            libc::close((*context).async_fd);
            drop(Box::from_raw(this.as_ptr()));
        }
        0
    }
}
