//! Memory windows: parts of a region under keys of their own.

use libc::{c_int, c_uint};

use crate::errno::set_errno;
use crate::{ibv_context, ibv_mr, ibv_pd, ibv_qp};

shapes! {
    /// How a window is bound, and who may use it.
    pub enum ibv_mw_type: c_uint {
        /// By a call, and through any queue pair of the protection domain.
        IBV_MW_TYPE_1 = 1,
        /// By a request, and through one queue pair.
        IBV_MW_TYPE_2 = 2,
    }

    /// A memory window.
    pub struct ibv_mw {
        /// The device.
        pub context: *mut ibv_context,
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// The key that peers use.
        pub rkey: u32,
        /// The kernel's number.
        pub handle: u32,
        /// How it is bound.
        pub r#type: ibv_mw_type,
    }

    /// To what a window is bound.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_mw_bind_info {
        /// The region.
        pub mr: *mut ibv_mr,
        /// Where the window begins.
        pub addr: u64,
        /// Bytes.
        pub length: u64,
        /// `IBV_ACCESS_*`.
        pub mw_access_flags: c_uint,
    }

    /// How a window of type 1 is bound.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_mw_bind {
        /// What its completion carries.
        pub wr_id: u64,
        /// `IBV_SEND_*`.
        pub send_flags: c_uint,
        /// To what.
        pub bind_info: ibv_mw_bind_info,
    }
}

/// Makes a memory window. NULL with errno set if that fails.
///
/// # Safety
///
/// `pd` is alive.
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller upholds what is asked for above.
    unsafe {
        match (*(*pd).context).ops.alloc_mw {
            Some(alloc_mw) => alloc_mw(pd, kind),
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }
}

/// Frees a memory window. 0 or an error number.
///
/// # Safety
///
/// `mw` is alive, its context has the operation, and it isn't used after success.
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller upholds what is asked for above.
    unsafe { (*(*mw).context).ops.dealloc_mw.unwrap_unchecked()(mw) }
}

/// Binds a memory window of type 1. 0 or an error number: EINVAL if the window is of another type or there is
/// a range without a region, EPERM if the protection domains differ.
///
/// # Safety
///
/// `qp` and `mw` are alive, their context has the operation, and `mw_bind` is valid for reads, with what it
/// names alive.
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller upholds what is asked for above.
    unsafe {
        if (*mw).r#type != IBV_MW_TYPE_1 {
            return libc::EINVAL;
        }
        let info = (*mw_bind).bind_info;
        if info.mr.is_null() {
            if info.addr != 0 || info.length != 0 {
                return libc::EINVAL;
            }
        } else if (*mw).pd != (*info.mr).pd {
            return libc::EPERM;
        }
        (*(*mw).context).ops.bind_mw.unwrap_unchecked()(qp, mw, mw_bind)
    }
}

/// The key that a window gets when it is bound again: the low eight bits are the consumer's, and count up.
#[must_use]
#[inline]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}
