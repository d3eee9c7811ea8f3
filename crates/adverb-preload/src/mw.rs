//! Memory windows of type 2B.

use std::cell::UnsafeCell;

use adverb_sys::*;
use libc::c_int;

use crate::context::{self, Member, Object};
use crate::entry::{Pointee, Purpose, errno_of, errno_result, fail, object};
use crate::nic::OpenNic;
use crate::pd::ProtectionDomain;
use crate::report::Kind;

#[repr(C)]
struct MemoryWindow {
    base: UnsafeCell<ibv_mw>,
    member: Member,
    nic: &'static OpenNic,
}

impl Object for MemoryWindow {
    fn member(&self) -> &Member {
        &self.member
    }

    fn kind(&self) -> Option<Kind> {
        Some(Kind::Window)
    }

    fn release(&self) -> Result<(), c_int> {
        // SAFETY: the key is written only by requests that bind the window.
        let rkey = unsafe { (*self.base.get()).rkey };
        self.nic.nic.destroy_window(rkey).map_err(errno_of)
    }
}

impl Pointee for ibv_mw {
    /// # Safety
    ///
    /// The object is alive.
    unsafe fn check(this: *mut ibv_mw, purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says; the struct starts with `base`.
        unsafe { (*this.cast::<MemoryWindow>()).member.check(purpose) }
    }
}

operations! {
    /// Allocates a memory window.
    fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
        // A window of type 1 belongs to a domain instead of a queue pair, and the NIC has none of these.
        if kind != IBV_MW_TYPE_2 {
            return fail(libc::EOPNOTSUPP);
        }
        // SAFETY: the domain is alive.
        let (domain, context) = unsafe { (ProtectionDomain::of(pd), (*pd).context) };
        let nic = domain.nic;
        object(nic.nic.create_window(domain.pd).map_err(errno_of).map(|rkey| {
            // SAFETY: the context of a domain that can be used is open.
            let member = unsafe { Member::new(context) };
            let base = UnsafeCell::new(ibv_mw { context, pd, rkey, handle: member.handle, r#type: kind });
            let this = Box::leak(Box::new(MemoryWindow { base, member, nic }));
            context::add(this);
            this.base.get()
        }))
    }

    /// Fails: only windows of type 1 are bound this way.
    fn bind_mw(_qp: *mut ibv_qp, _mw: *mut ibv_mw, _mw_bind: *mut ibv_mw_bind) -> c_int {
        fail(libc::EOPNOTSUPP)
    }

}

destructor_operations! {
    /// Frees a memory window.
    fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
        // SAFETY: the window is alive.
        let freed = context::release(unsafe { &*mw.cast::<MemoryWindow>() });
        if freed.is_ok() {
            // SAFETY: `alloc_mw` made it with a box, and the program doesn't use it any more.
            drop(unsafe { Box::from_raw(mw.cast::<MemoryWindow>()) });
        }
        errno_result(freed)
    }
}
