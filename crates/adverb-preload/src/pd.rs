//! Protection domains, thread domains and parent domains.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use adverb_proto::memory::Pd;
use adverb_sys::*;
use libc::c_int;

use crate::calls::{explain, invalid};
use crate::context::{self, Context, Member, Object};
use crate::entry::{Pointee, Purpose, errno_of, errno_result, fail, object};
use crate::nic::OpenNic;
use crate::report::Kind;

/// A protection domain, or a parent domain over one.
#[repr(C)]
pub(crate) struct ProtectionDomain {
    base: UnsafeCell<ibv_pd>,
    pub(crate) member: Member,
    pub(crate) nic: &'static OpenNic,
    pub(crate) pd: Pd,
    /// The domain below a parent domain.
    below: Option<*mut ibv_pd>,
    /// The number of address handles and parent domains, which the NIC doesn't count.
    pub(crate) users: AtomicU32,
}

impl ProtectionDomain {
    /// Returns the domain behind a program's pointer.
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
        // SAFETY: the context is open.
        let member = unsafe { Member::new(context) };
        let mut base = ibv_pd::zeroed();
        base.context = context;
        base.handle = member.handle;
        let base = UnsafeCell::new(base);
        let users = AtomicU32::new(0);
        let this = Box::leak(Box::new(ProtectionDomain { base, member, nic, pd, below, users }));
        context::add(this);
        this.base.get()
    }

    /// Allocates a protection domain.
    pub(crate) fn create(context: *mut ibv_context) -> Result<*mut ibv_pd, c_int> {
        // SAFETY: the context is open.
        let nic = unsafe { Context::of(context) }.nic;
        let pd = nic.nic.create_domain().map_err(errno_of)?;
        nic.counts.create_domain();
        Ok(ProtectionDomain::leak(context, nic, pd, None))
    }
}

impl Object for ProtectionDomain {
    fn member(&self) -> &Member {
        &self.member
    }

    fn kind(&self) -> Option<Kind> {
        // A parent domain isn't a domain of the NIC.
        self.below.is_none().then_some(Kind::Domain)
    }

    fn release(&self) -> Result<(), c_int> {
        if self.users.load(Ordering::Acquire) != 0 {
            return Err(explain(libc::EBUSY, "an address handle or a parent domain uses the domain"));
        }
        let Some(below) = self.below else {
            let destroyed = self.nic.nic.destroy_domain(self.pd).map_err(errno_of);
            return destroyed.inspect(|()| self.nic.counts.destroy_domain());
        };
        // SAFETY: a domain stays alive as long as its parent domains.
        unsafe { ProtectionDomain::of(below) }.users.fetch_sub(1, Ordering::Release);
        Ok(())
    }
}

impl Pointee for ibv_td {
    /// # Safety
    ///
    /// The object is alive.
    unsafe fn check(this: *mut ibv_td, purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says.
        unsafe { (*this.cast::<ThreadDomain>()).member.check(purpose) }
    }
}

impl Pointee for ibv_pd {
    /// # Safety
    ///
    /// The object is alive.
    unsafe fn check(this: *mut ibv_pd, purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says.
        unsafe { ProtectionDomain::of(this) }.member.check(purpose)
    }
}

/// A thread domain. It keeps the memory of its context.
#[repr(C)]
struct ThreadDomain {
    base: ibv_td,
    member: Member,
}

entry! {
    /// Allocates a protection domain.
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
        object(ProtectionDomain::create(context))
    }
}

destructors! {
    /// Frees a protection domain or a parent domain.
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
        // SAFETY: the domain is alive.
        let this = unsafe { ProtectionDomain::of(pd) };
        let released = context::release(this);
        if released.is_ok() {
            // SAFETY: `leak` made it with a box, and the program doesn't use it any more.
            drop(unsafe { Box::from_raw(pd.cast::<ProtectionDomain>()) });
        }
        errno_result(released)
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
        // SAFETY: the context is open.
        if !std::ptr::eq(below.member.context(), unsafe { Context::of(context) }) {
            return fail(invalid("the domain belongs to another context"));
        }
        below.users.fetch_add(1, Ordering::Acquire);
        ProtectionDomain::leak(context, below.nic, below.pd, Some(attr.pd))
    }

    /// Allocates a thread domain.
    fn alloc_td(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td {
        // SAFETY: the attributes are valid for reads.
        if unsafe { (*init_attr).comp_mask } != 0 {
            return fail(libc::EINVAL);
        }
        // SAFETY: the context is open.
        let member = unsafe { Member::new(context) };
        Box::into_raw(Box::new(ThreadDomain { base: ibv_td { context }, member })).cast()
    }
}

destructor_operations! {
    /// Frees a thread domain.
    fn dealloc_td(td: *mut ibv_td) -> c_int {
        // SAFETY: `alloc_td` made it with a box, and the program doesn't use it any more.
        drop(unsafe { Box::from_raw(td.cast::<ThreadDomain>()) });
        0
    }
}
