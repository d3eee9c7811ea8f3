//! Memory regions.

use libc::{c_int, c_uint, c_void, size_t};

use crate::errno::set_errno;
use crate::{Ibverbs, ibv_context, ibv_pd, ibv_sge};

shapes! {
    /// Registered memory.
    pub struct ibv_mr {
        /// The device.
        pub context: *mut ibv_context,
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// Where it begins.
        pub addr: *mut c_void,
        /// Bytes.
        pub length: size_t,
        /// The kernel's number.
        pub handle: u32,
        /// The key for local use.
        pub lkey: u32,
        /// The key that peers use.
        pub rkey: u32,
    }

    // Access to memory: ibv_reg_mr, ibv_qp_attr.qp_access_flags, ibv_mw_bind_info.mw_access_flags
    pub const c_uint {
        /// The device may write: receives, READs and atomics of this side.
        IBV_ACCESS_LOCAL_WRITE = 1 << 0,
        /// Peers may WRITE.
        IBV_ACCESS_REMOTE_WRITE = 1 << 1,
        /// Peers may READ.
        IBV_ACCESS_REMOTE_READ = 1 << 2,
        /// Peers may do atomics.
        IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
        /// Memory windows may be bound to it.
        IBV_ACCESS_MW_BIND = 1 << 4,
        /// Addresses count from the beginning of the region or window.
        IBV_ACCESS_ZERO_BASED = 1 << 5,
        /// The memory isn't pinned, but brought in when it is used.
        IBV_ACCESS_ON_DEMAND = 1 << 6,
        /// The memory is of huge pages, and on demand.
        IBV_ACCESS_HUGETLB = 1 << 7,
        /// Where the optional flags begin, which are ignored by those who don't know them.
        IBV_ACCESS_OPTIONAL_FIRST = 1 << 20,
        /// The device may reorder its writes: faster on some machines, and no polling of memory.
        IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
        /// All optional flags.
        IBV_ACCESS_OPTIONAL_RANGE = (1 << 30) - (1 << 20),
    }

    pub const c_uint since "45" {
        /// Peers may FLUSH to global visibility.
        IBV_ACCESS_FLUSH_GLOBAL = 1 << 8,
        /// Peers may FLUSH to persistence.
        IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9,
    }

    // ibv_rereg_mr
    pub const c_int {
        /// The memory changes.
        IBV_REREG_MR_CHANGE_TRANSLATION = 1 << 0,
        /// The protection domain changes.
        IBV_REREG_MR_CHANGE_PD = 1 << 1,
        /// The access changes.
        IBV_REREG_MR_CHANGE_ACCESS = 1 << 2,
        /// All that can change.
        IBV_REREG_MR_FLAGS_SUPPORTED = (1 << 3) - 1,
        /// The arguments are wrong; the old region is valid.
        IBV_REREG_MR_ERR_INPUT = -1,
        /// The new memory couldn't be kept from forks; the old region is valid.
        IBV_REREG_MR_ERR_DONT_FORK_NEW = -2,
        /// The old memory couldn't be given back to forks; the new region is valid.
        IBV_REREG_MR_ERR_DO_FORK_OLD = -3,
        /// It failed, and the region is of no use.
        IBV_REREG_MR_ERR_CMD = -4,
        /// It failed, the region is of no use, and the new memory is kept from forks.
        IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5,
    }

    /// What is advised about on-demand memory.
    pub enum ibv_advise_mr_advice: c_uint {
        /// Bring it in for reading.
        IBV_ADVISE_MR_ADVICE_PREFETCH = 0,
        /// Bring it in for writing.
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1,
        /// Map what is in memory already.
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2,
    }

    // ibv_advise_mr
    pub const u32 {
        /// Return only when it is done.
        IBV_ADVISE_MR_FLAG_FLUSH = 1 << 0,
    }
}

impl Ibverbs {
    /// Registers memory. NULL with errno set if that fails.
    ///
    /// As in C with flags that aren't known when it is compiled, this is
    /// [`ibv_reg_mr_iova2`](Self::ibv_reg_mr_iova2) with the memory's own address: optional flags, such as
    /// [`IBV_ACCESS_RELAXED_ORDERING`], are dropped where the kernel doesn't know them, rather than refused.
    ///
    /// # Safety
    ///
    /// `pd` is alive. The memory stays mapped until the region is gone, and nobody counts on it being
    /// unchanged where `access` lets the device or peers write it.
    pub unsafe fn ibv_reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: size_t,
        access: c_uint,
    ) -> *mut ibv_mr {
        // SAFETY: the caller upholds what is asked for above.
        unsafe { self.ibv_reg_mr_iova2(pd, addr, length, addr.expose_provenance() as u64, access) }
    }

    /// Registers memory under addresses that begin with `iova`. NULL with errno set if that fails.
    ///
    /// # Safety
    ///
    /// As for [`ibv_reg_mr`](Self::ibv_reg_mr).
    pub unsafe fn ibv_reg_mr_iova2(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: size_t,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr {
        // SAFETY: the caller upholds what is asked for above.
        unsafe {
            if let Some(reg_mr_iova2) = self.ibv_reg_mr_iova2 {
                return reg_mr_iova2(pd, addr, length, iova, access);
            }
            // Before rdma-core 28 there were no optional flags, so that no kernel would be told of them.
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

    /// Registers memory of another device, given as a dma-buf. NULL with errno set if that fails: EOPNOTSUPP
    /// if the library is older than rdma-core 34.
    ///
    /// # Safety
    ///
    /// `pd` is alive, and nobody counts on the memory being unchanged where `access` lets the device or peers
    /// write it.
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
            // SAFETY: the caller upholds what is asked for above.
            Some(reg_dmabuf_mr) => unsafe { reg_dmabuf_mr(pd, offset, length, iova, fd, access as c_int) },
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }

    /// Takes up a region that another process registered. NULL with errno set if that fails.
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

    /// Lets go of an imported region.
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

/// Advises about on-demand memory. 0 or an error number.
///
/// # Safety
///
/// `pd` is alive, and `sg_list` valid for reads of `num_sge` segments.
pub unsafe fn ibv_advise_mr(
    pd: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    // SAFETY: the caller upholds what is asked for above.
    unsafe {
        match verbs_op!((*pd).context, advise_mr) {
            Some(advise_mr) => advise_mr(pd, advice, flags, sg_list, num_sge),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Makes a region that reads as nothing and forgets what is written. NULL with errno set if that fails.
///
/// # Safety
///
/// `pd` is alive.
pub unsafe fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: the caller upholds what is asked for above.
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
