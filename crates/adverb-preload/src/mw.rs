//! Memory windows of type 2B.

use std::cell::UnsafeCell;

use adverb_sys::*;
use libc::c_int;

use crate::entry::{errno_of, errno_result, fail, object};
use crate::nic::OpenNic;
use crate::pd::ProtectionDomain;

#[repr(C)]
struct MemoryWindow {
    base: UnsafeCell<ibv_mw>,
    nic: &'static OpenNic,
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
            let base = ibv_mw { context, pd, rkey, handle: nic.next_handle(), r#type: kind };
            Box::into_raw(Box::new(MemoryWindow { base: UnsafeCell::new(base), nic })).cast()
        }))
    }

    /// Fails: only windows of type 1 are bound this way.
    fn bind_mw(_qp: *mut ibv_qp, _mw: *mut ibv_mw, _mw_bind: *mut ibv_mw_bind) -> c_int {
        fail(libc::EOPNOTSUPP)
    }

    /// Frees a memory window.
    fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
        // SAFETY: the window is alive.
        let (nic, rkey) = unsafe { ((*mw.cast::<MemoryWindow>()).nic, (*mw).rkey) };
        let freed = nic.nic.destroy_window(rkey).map_err(errno_of);
        if freed.is_ok() {
            // SAFETY: `alloc_mw` made it with a box, and the program doesn't use it any more.
            drop(unsafe { Box::from_raw(mw.cast::<MemoryWindow>()) });
        }
        errno_result(freed)
    }
}
