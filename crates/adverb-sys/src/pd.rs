//! Protection domains, thread domains and parent domains.

use libc::{c_int, c_void, size_t};

use crate::errno::set_errno;
use crate::{Ibverbs, ibv_context};

shapes! {
    /// A protection domain. Only objects of the same protection domain can be used together.
    pub struct ibv_pd {
        /// The device context.
        pub context: *mut ibv_context,
        /// The kernel's handle.
        pub handle: u32,
    }

    /// A thread domain, whose objects are used by one thread at a time.
    pub struct ibv_td {
        /// The device context.
        pub context: *mut ibv_context,
    }

    /// The attributes for creating a thread domain.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_td_init_attr {
        /// The mask of optional fields, which must be zero.
        pub comp_mask: u32,
    }

    /// The attributes for creating a parent domain.
    #[derive(Clone, Copy)]
    pub struct ibv_parent_domain_init_attr {
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// The thread domain, or NULL.
        pub td: *mut ibv_td,
        /// The mask of the fields below that are valid.
        pub comp_mask: u32,
        /// The function that allocates memory for the provider. It returns the address -1 to select the provider's
        /// default allocator.
        pub alloc: Option<
            unsafe extern "C" fn(
                pd: *mut ibv_pd,
                pd_context: *mut c_void,
                size: size_t,
                alignment: size_t,
                resource_type: u64,
            ) -> *mut c_void,
        >,
        /// The function that frees memory allocated by `alloc`.
        pub free: Option<
            unsafe extern "C" fn(
                pd: *mut ibv_pd,
                pd_context: *mut c_void,
                ptr: *mut c_void,
                resource_type: u64,
            ),
        >,
        /// The context pointer passed to `alloc` and `free`.
        pub pd_context: *mut c_void,
    }

    // ibv_parent_domain_init_attr.comp_mask
    pub const u32 {
        /// The mask bit of the fields `alloc` and `free`.
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1 << 0,
        /// The mask bit of the field `pd_context`.
        IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1,
    }
}

/// Creates a thread domain. Returns NULL and sets errno on failure.
///
/// # Safety
///
/// `context` is open, and `init_attr` is valid for reads.
pub unsafe fn ibv_alloc_td(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    // SAFETY: the caller upholds the requirements above.
    unsafe {
        match verbs_op!(context, alloc_td) {
            Some(alloc_td) => alloc_td(context, init_attr),
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }
}

/// Frees a thread domain. Returns 0 or an errno value.
///
/// # Safety
///
/// `td` is alive, and isn't used after success.
pub unsafe fn ibv_dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the caller upholds the requirements above.
    unsafe {
        match verbs_op!((*td).context, dealloc_td) {
            Some(dealloc_td) => dealloc_td(td),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Creates a parent domain, which callers use in place of its protection domain. Returns NULL and sets errno on
/// failure.
///
/// # Safety
///
/// `context` is open, `attr` is valid for reads, and the objects that it refers to are alive.
pub unsafe fn ibv_alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: the caller upholds the requirements above.
    unsafe {
        match verbs_op!(context, alloc_parent_domain) {
            Some(alloc_parent_domain) => alloc_parent_domain(context, attr),
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }
}

impl Ibverbs {
    /// Imports a protection domain that another process created on an imported device. Returns NULL and sets errno on
    /// failure.
    ///
    /// # Safety
    ///
    /// `context` is open.
    pub unsafe fn ibv_import_pd(&self, context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd {
        match self.ibv_import_pd {
            // SAFETY: the caller vouches for the context.
            Some(ibv_import_pd) => unsafe { ibv_import_pd(context, pd_handle) },
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }

    /// Releases an imported protection domain.
    ///
    /// # Safety
    ///
    /// `pd` was imported, and isn't used afterwards.
    pub unsafe fn ibv_unimport_pd(&self, pd: *mut ibv_pd) {
        if let Some(ibv_unimport_pd) = self.ibv_unimport_pd {
            // SAFETY: the caller vouches for the domain.
            unsafe { ibv_unimport_pd(pd) }
        }
    }
}
