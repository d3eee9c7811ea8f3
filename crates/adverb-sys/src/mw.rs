//! Memory windows: parts of a memory region with their own remote keys.

use libc::{c_int, c_uint};

use crate::errno::set_errno;
use crate::{ibv_context, ibv_mr, ibv_pd, ibv_qp};

shapes! {
    /// The type of a memory window.
    pub enum ibv_mw_type: c_uint {
        /// A type 1 window: bound by `ibv_bind_mw`, usable through any queue pair of its protection domain.
        IBV_MW_TYPE_1 = 1,
        /// A type 2 window: bound by a send request, usable through one queue pair.
        IBV_MW_TYPE_2 = 2,
    }

    /// A memory window.
    pub struct ibv_mw {
        /// The device context.
        pub context: *mut ibv_context,
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// The remote key.
        pub rkey: u32,
        /// The kernel's handle.
        pub handle: u32,
        /// The window type.
        pub r#type: ibv_mw_type,
    }

    /// The memory to which a window is bound.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_mw_bind_info {
        /// The memory region.
        pub mr: *mut ibv_mr,
        /// The start address.
        pub addr: u64,
        /// The length in bytes.
        pub length: u64,
        /// The `IBV_ACCESS_*` flags.
        pub mw_access_flags: c_uint,
    }

    /// The attributes for binding a type 1 window.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_mw_bind {
        /// The work request ID, which the completion carries.
        pub wr_id: u64,
        /// The `IBV_SEND_*` flags.
        pub send_flags: c_uint,
        /// The memory to which the window is bound.
        pub bind_info: ibv_mw_bind_info,
    }
}

/// Allocates a memory window. Returns NULL and sets errno on failure.
///
/// # Safety
///
/// `pd` is alive.
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller upholds the requirements above.
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

/// Frees a memory window. Returns 0 or an errno value.
///
/// # Safety
///
/// `mw` is alive, its device context implements `dealloc_mw`, and `mw` isn't used after success.
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller upholds the requirements above.
    unsafe { (*(*mw).context).ops.dealloc_mw.unwrap_unchecked()(mw) }
}

/// Binds a type 1 memory window. Returns 0 or an errno value: EINVAL if the window has another type, or if `mw_bind`
/// has an address range but no memory region; EPERM if the protection domains of the window and the memory region
/// differ.
///
/// # Safety
///
/// `qp` and `mw` are alive, their device context implements `bind_mw`, `mw_bind` is valid for reads, and the objects
/// that it refers to are alive.
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller upholds the requirements above.
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

/// Returns `rkey` with its low eight bits incremented by one, for the next binding of a memory window. The consumer
/// may choose these bits.
#[must_use]
#[inline]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}
