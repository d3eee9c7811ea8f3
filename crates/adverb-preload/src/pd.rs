//! Protection domains, thread domains and parent domains.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use adverb_proto::memory::Pd;
use adverb_sys::*;
use libc::c_int;

use crate::context::Context;
use crate::entry::{errno_of, errno_result, fail, object};
use crate::nic::OpenNic;

/// A protection domain, or a parent domain over one.
#[repr(C)]
pub(crate) struct ProtectionDomain {
    base: UnsafeCell<ibv_pd>,
    pub(crate) nic: &'static OpenNic,
    pub(crate) pd: Pd,
    /// The domain below a parent domain.
    below: Option<*mut ibv_pd>,
    /// The number of address handles and parent domains, which the NIC doesn't count.
    pub(crate) users: AtomicU32,
}

impl ProtectionDomain {
    /// Returns the domain that a program has the address of.
    ///
    /// # Safety
    ///
    /// The domain is alive.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a ProtectionDomain {
        // SAFETY: as the caller says; the struct starts with `base`.
        unsafe { &*pd.cast() }
    }

    fn leak(
        context: *mut ibv_context,
        nic: &'static OpenNic,
        pd: Pd,
        below: Option<*mut ibv_pd>,
    ) -> *mut ibv_pd {
        let mut base = ibv_pd::zeroed();
        base.context = context;
        base.handle = nic.next_handle();
        let base = UnsafeCell::new(base);
        let users = AtomicU32::new(0);
        Box::into_raw(Box::new(ProtectionDomain { base, nic, pd, below, users })).cast()
    }
}

entry! {
    /// Allocates a protection domain.
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
        // SAFETY: the context is open.
        let nic = unsafe { Context::of(context) }.nic;
        let made = nic.nic.create_domain().inspect(|_| nic.counts.create_domain());
        object(made.map_err(errno_of).map(|pd| ProtectionDomain::leak(context, nic, pd, None)))
    }

    /// Frees a protection domain or a parent domain.
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
        // SAFETY: the domain is alive.
        let this = unsafe { ProtectionDomain::of(pd) };
        if this.users.load(Ordering::Acquire) != 0 {
            return fail(libc::EBUSY);
        }
        let freed = match this.below {
            Some(below) => {
                // SAFETY: a domain stays alive as long as its parent domains.
                unsafe { ProtectionDomain::of(below) }.users.fetch_sub(1, Ordering::Release);
                Ok(())
            }
            None => {
                let destroyed = this.nic.nic.destroy_domain(this.pd).map_err(errno_of);
                destroyed.inspect(|()| this.nic.counts.destroy_domain())
            }
        };
        if freed.is_ok() {
            // SAFETY: `leak` made it with a box, and the program doesn't use it any more.
            drop(unsafe { Box::from_raw(pd.cast::<ProtectionDomain>()) });
        }
        errno_result(freed)
    }
}

operations! {
    /// Allocates a parent domain. Its allocator isn't used: the NIC's queues aren't in the program's memory.
    fn alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd {
        // SAFETY: the attributes are valid for reads.
        let attr = unsafe { *attr };
        let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        if attr.pd.is_null() || attr.comp_mask & !known != 0 {
            return fail(libc::EINVAL);
        }
        // SAFETY: the domain is alive.
        let below = unsafe { ProtectionDomain::of(attr.pd) };
        below.users.fetch_add(1, Ordering::Acquire);
        ProtectionDomain::leak(context, below.nic, below.pd, Some(attr.pd))
    }

    /// Allocates a thread domain.
    fn alloc_td(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td {
        // SAFETY: the attributes are valid for reads.
        if unsafe { (*init_attr).comp_mask } != 0 {
            return fail(libc::EINVAL);
        }
        Box::into_raw(Box::new(ibv_td { context }))
    }

    /// Frees a thread domain.
    fn dealloc_td(td: *mut ibv_td) -> c_int {
        // SAFETY: `alloc_td` made it with a box, and the program doesn't use it any more.
        drop(unsafe { Box::from_raw(td) });
        0
    }
}
