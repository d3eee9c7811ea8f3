//! Memory regions.

use libc::{c_int, c_uint, c_void, size_t};

use crate::errno::set_errno;
use crate::{Ibverbs, ibv_context, ibv_pd, ibv_sge};

shapes! {
    /// A memory region: registered memory.
    pub struct ibv_mr {
        /// The device context.
        pub context: *mut ibv_context,
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// The start address.
        pub addr: *mut c_void,
        /// The length in bytes.
        pub length: size_t,
        /// The kernel's handle.
        pub handle: u32,
        /// The local key.
        pub lkey: u32,
        /// The remote key.
        pub rkey: u32,
    }

    // Access to memory: ibv_reg_mr, ibv_qp_attr.qp_access_flags, ibv_mw_bind_info.mw_access_flags
    pub const c_uint {
        /// Local write access, for receives and for results of local READs and atomics.
        IBV_ACCESS_LOCAL_WRITE = 1 << 0,
        /// Remote write access.
        IBV_ACCESS_REMOTE_WRITE = 1 << 1,
        /// Remote read access.
        IBV_ACCESS_REMOTE_READ = 1 << 2,
        /// Remote atomic access.
        IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
        /// Binding of memory windows.
        IBV_ACCESS_MW_BIND = 1 << 4,
        /// Zero-based addresses: offsets in the region or window.
        IBV_ACCESS_ZERO_BASED = 1 << 5,
        /// On-demand paging: the memory isn't pinned.
        IBV_ACCESS_ON_DEMAND = 1 << 6,
        /// On-demand paging of huge pages.
        IBV_ACCESS_HUGETLB = 1 << 7,
        /// The first optional flag. Kernels ignore optional flags that they don't support.
        IBV_ACCESS_OPTIONAL_FIRST = 1 << 20,
        /// Relaxed ordering: the device may reorder its writes, so consumers must not poll the memory.
        IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
        /// All optional flags.
        IBV_ACCESS_OPTIONAL_RANGE = (1 << 30) - (1 << 20),
    }

    pub const c_uint since "45" {
        /// Remote FLUSH to global visibility.
        IBV_ACCESS_FLUSH_GLOBAL = 1 << 8,
        /// Remote FLUSH to persistence.
        IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9,
    }

    // ibv_rereg_mr
    pub const c_int {
        /// A change of the memory.
        IBV_REREG_MR_CHANGE_TRANSLATION = 1 << 0,
        /// A change of the protection domain.
        IBV_REREG_MR_CHANGE_PD = 1 << 1,
        /// A change of the access flags.
        IBV_REREG_MR_CHANGE_ACCESS = 1 << 2,
        /// All supported changes.
        IBV_REREG_MR_FLAGS_SUPPORTED = (1 << 3) - 1,
        /// The arguments are invalid. The old region remains valid.
        IBV_REREG_MR_ERR_INPUT = -1,
        /// The new memory couldn't be excluded from child processes (forks). The old region remains valid.
        IBV_REREG_MR_ERR_DONT_FORK_NEW = -2,
        /// The old memory couldn't be made available to child processes (forks) again. The new region is valid.
        IBV_REREG_MR_ERR_DO_FORK_OLD = -3,
        /// The command failed, and the region is invalid.
        IBV_REREG_MR_ERR_CMD = -4,
        /// The command failed, the region is invalid, and the new memory remains excluded from child processes
        /// (forks).
        IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5,
    }

    /// A kind of advice about memory registered with on-demand paging (ODP).
    pub enum ibv_advise_mr_advice: c_uint {
        /// A prefetch for read access.
        IBV_ADVISE_MR_ADVICE_PREFETCH = 0,
        /// A prefetch for write access.
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1,
        /// A prefetch of resident pages only, without page faults.
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2,
    }

    // ibv_advise_mr
    pub const u32 {
        /// The call waits until the prefetch completes.
        IBV_ADVISE_MR_FLAG_FLUSH = 1 << 0,
    }
}

impl Ibverbs {
    /// Registers memory. Returns NULL and sets errno on failure.
    ///
    /// Like the C macro for flags that aren't compile-time constants, this method calls
    /// [`ibv_reg_mr_iova2`](Self::ibv_reg_mr_iova2) with the memory's address as `iova`. Optional flags that the
    /// kernel doesn't support, such as [`IBV_ACCESS_RELAXED_ORDERING`], are therefore ignored instead of rejected.
    ///
    /// # Safety
    ///
    /// `pd` is alive. The memory stays mapped until the region is deregistered. If `access` permits writes by the
    /// device or peers, no code relies on the memory being unchanged.
    pub unsafe fn ibv_reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: size_t,
        access: c_uint,
    ) -> *mut ibv_mr {
        // SAFETY: the caller upholds the requirements above.
        unsafe { self.ibv_reg_mr_iova2(pd, addr, length, addr.expose_provenance() as u64, access) }
    }

    /// Registers memory under addresses that start at `iova`. Returns NULL and sets errno on failure.
    ///
    /// # Safety
    ///
    /// The requirements are those of [`ibv_reg_mr`](Self::ibv_reg_mr).
    pub unsafe fn ibv_reg_mr_iova2(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: size_t,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr {
        // SAFETY: the caller upholds the requirements above.
        unsafe {
            if let Some(reg_mr_iova2) = self.ibv_reg_mr_iova2 {
                return reg_mr_iova2(pd, addr, length, iova, access);
            }
            // Before rdma-core 28 there were no optional flags, so they are not passed to the kernel.
            let access = (access & !IBV_ACCESS_OPTIONAL_RANGE) as c_int;
            if addr.addr() as u64 == iova {
                return (self.ibv_reg_mr)(pd, addr, length, access);
            }
            if let Some(reg_mr_iova) = self.ibv_reg_mr_iova {
                return reg_mr_iova(pd, addr, length, iova, access);
            }
            set_errno(libc::EOPNOTSUPP);
            core::ptr::null_mut()
        }
    }

    /// Registers the memory of another device through its dma-buf. Returns NULL and sets errno on failure: EOPNOTSUPP
    /// if the library is older than rdma-core 34.
    ///
    /// # Safety
    ///
    /// `pd` is alive. If `access` permits writes by the device or peers, no code relies on the memory being unchanged.
    pub unsafe fn ibv_reg_dmabuf_mr(
        &self,
        pd: *mut ibv_pd,
        offset: u64,
        length: size_t,
        iova: u64,
        fd: c_int,
        access: c_uint,
    ) -> *mut ibv_mr {
        match self.ibv_reg_dmabuf_mr {
            // SAFETY: the caller upholds the requirements above.
            Some(reg_dmabuf_mr) => unsafe { reg_dmabuf_mr(pd, offset, length, iova, fd, access as c_int) },
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }

    /// Imports a memory region that another process registered. Returns NULL and sets errno on failure.
    ///
    /// # Safety
    ///
    /// `pd` was imported, and is alive.
    pub unsafe fn ibv_import_mr(&self, pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr {
        match self.ibv_import_mr {
            // SAFETY: the caller vouches for the domain.
            Some(ibv_import_mr) => unsafe { ibv_import_mr(pd, mr_handle) },
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }

    /// Releases an imported memory region.
    ///
    /// # Safety
    ///
    /// `mr` was imported, and isn't used afterwards.
    pub unsafe fn ibv_unimport_mr(&self, mr: *mut ibv_mr) {
        if let Some(ibv_unimport_mr) = self.ibv_unimport_mr {
            // SAFETY: the caller vouches for the region.
            unsafe { ibv_unimport_mr(mr) }
        }
    }
}

/// Advises the device about accesses to memory registered with on-demand paging (ODP). Returns 0 or an errno value.
///
/// # Safety
///
/// `pd` is alive, and `sg_list` is valid for reads of `num_sge` segments.
pub unsafe fn ibv_advise_mr(
    pd: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    // SAFETY: the caller upholds the requirements above.
    unsafe {
        match verbs_op!((*pd).context, advise_mr) {
            Some(advise_mr) => advise_mr(pd, advice, flags, sg_list, num_sge),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Allocates a null memory region: reads return unspecified data, and writes are discarded. Returns NULL and sets
/// errno on failure.
///
/// # Safety
///
/// `pd` is alive.
pub unsafe fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: the caller upholds the requirements above.
    unsafe {
        match verbs_op!((*pd).context, alloc_null_mr) {
            Some(alloc_null_mr) => alloc_null_mr(pd),
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }
}
