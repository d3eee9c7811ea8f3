//! Memory regions.

use std::cell::UnsafeCell;
use std::ptr::NonNull;

use adverb_proto::types::Access;
use adverb_sys::*;
use libc::{c_int, c_uint, c_void, size_t};

use crate::entry::{errno_of, errno_result, fail, object};
use crate::nic::OpenNic;
use crate::pd::ProtectionDomain;

/// A memory region.
#[repr(C)]
struct MemoryRegion {
    base: UnsafeCell<ibv_mr>,
    nic: &'static OpenNic,
    /// The arguments of the registration, for changing it.
    iova: u64,
    access: Access,
}

/// Registers memory and returns its key.
fn register(
    domain: &ProtectionDomain,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: Access,
) -> Result<u32, c_int> {
    let address = check(addr, length, access)?;
    // SAFETY: the program keeps the memory until it deregisters it, and coordinates its own accesses with its requests
    // and its peers, as with any RDMA device.
    let key = unsafe { domain.nic.nic.register(domain.pd, address, length, iova, access) };
    key.map_err(errno_of)
}

/// Checks the arguments of a registration that the NIC doesn't check.
fn check(addr: *mut c_void, length: size_t, access: Access) -> Result<NonNull<u8>, c_int> {
    if access.contains(Access::FLUSH_PERSISTENT) {
        return Err(libc::EOPNOTSUPP);
    }
    check_mapped(addr, length)?;
    NonNull::new(addr.cast::<u8>()).ok_or(libc::EINVAL)
}

/// Checks that the whole range is mapped, as a kernel that pins memory does: the NIC's thread must not fault.
fn check_mapped(addr: *mut c_void, length: size_t) -> Result<(), c_int> {
    // SAFETY: the function has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = addr.addr() & !(page - 1);
    let end = addr.addr().checked_add(length).ok_or(libc::EINVAL)?;
    let mut resident = [0u8; 4096];
    let mut at = start;
    while at < end {
        let part = (end - at).min(resident.len() * page);
        // SAFETY: the array has a byte for each page of the part; the kernel checks the range itself.
        let checked = unsafe { libc::mincore(addr.with_addr(at), part, resident.as_mut_ptr()) };
        if checked != 0 {
            return Err(libc::EFAULT);
        }
        at += part;
    }
    Ok(())
}

/// Returns the access rights that a program asks for. Optional ones have no effect, and neither has the kind of pages:
/// the NIC accesses memory with the CPU, which faults pages in.
fn access_of(flags: c_uint) -> Result<Access, c_int> {
    Access::from_bits(flags & !IBV_ACCESS_OPTIONAL_RANGE)
        .ok_or(libc::EOPNOTSUPP)
        .map(|access| access.difference(Access::HUGE_PAGES | Access::ON_DEMAND))
}

fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    flags: c_uint,
) -> Result<*mut ibv_mr, c_int> {
    // SAFETY: the domain is alive.
    let (domain, context) = unsafe { (ProtectionDomain::of(pd), (*pd).context) };
    let access = access_of(flags)?;
    let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
    let access = access.difference(Access::ZERO_BASED);
    let key = register(domain, addr, length, iova, access)?;
    let handle = domain.nic.next_handle();
    let base = UnsafeCell::new(ibv_mr { context, pd, addr, length, handle, lkey: key, rkey: key });
    Ok(Box::into_raw(Box::new(MemoryRegion { base, nic: domain.nic, iova, access })).cast())
}

entry! {
    /// Registers memory.
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: size_t, access: c_int) -> *mut ibv_mr {
        object(reg_mr(pd, addr, length, addr.addr() as u64, access as c_uint))
    }

    /// Registers memory whose first byte has the address `iova` in requests.
    fn ibv_reg_mr_iova(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: size_t,
        iova: u64,
        access: c_int,
    ) -> *mut ibv_mr {
        object(reg_mr(pd, addr, length, iova, access as c_uint))
    }

    /// Registers memory whose first byte has the address `iova` in requests. Unknown optional flags are ignored.
    fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: size_t,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr {
        object(reg_mr(pd, addr, length, iova, access))
    }

    /// Fails: the software NIC reaches only memory of the process.
    fn ibv_reg_dmabuf_mr(
        _pd: *mut ibv_pd,
        _offset: u64,
        _length: size_t,
        _iova: u64,
        _fd: c_int,
        _access: c_int,
    ) -> *mut ibv_mr {
        fail(libc::EOPNOTSUPP)
    }

    /// Changes a memory region. Returns 0, or one of the negative codes of the manual page and sets errno.
    fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: c_int,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: size_t,
        access: c_int,
    ) -> c_int {
        let invalid = || {
            crate::entry::set_errno(libc::EINVAL);
            IBV_REREG_MR_ERR_INPUT
        };
        if flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 || flags == 0 {
            return invalid();
        }
        // SAFETY: the region is alive, and no other thread uses it while it is changed.
        let region = unsafe { &mut *mr.cast::<MemoryRegion>() };
        let base = region.base.get_mut();
        let (mut new_pd, mut new_addr, mut new_length) = (base.pd, base.addr, base.length);
        let (mut iova, mut new_access) = (region.iova, region.access);
        if flags & IBV_REREG_MR_CHANGE_PD != 0 {
            if pd.is_null() {
                return invalid();
            }
            new_pd = pd;
        }
        if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
            if addr.is_null() || length == 0 {
                return invalid();
            }
            (new_addr, new_length, iova) = (addr, length, addr.addr() as u64);
        }
        if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 {
            let Ok(access) = access_of(access as c_uint) else { return invalid() };
            new_access = access;
        }
        // SAFETY: the domain is alive.
        let domain = unsafe { ProtectionDomain::of(new_pd) };
        let changed = check(new_addr, new_length, new_access).and_then(|address| {
            let nic = &region.nic.nic;
            // SAFETY: as in `register`.
            unsafe { nic.reregister(base.lkey, domain.pd, address, new_length, iova, new_access) }
                .map_err(errno_of)
        });
        if let Err(errno) = changed {
            crate::entry::set_errno(errno);
            return IBV_REREG_MR_ERR_CMD;
        }
        (base.pd, base.addr, base.length) = (new_pd, new_addr, new_length);
        (region.iova, region.access) = (iova, new_access);
        0
    }

    /// Deregisters memory.
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
        // SAFETY: the region is alive.
        let (nic, key) = unsafe { ((*mr.cast::<MemoryRegion>()).nic, (*mr).lkey) };
        let freed = nic.nic.deregister(key).map_err(errno_of);
        if freed.is_ok() {
            // SAFETY: `reg_mr` made it with a box, and the program doesn't use it any more.
            drop(unsafe { Box::from_raw(mr.cast::<MemoryRegion>()) });
        }
        errno_result(freed)
    }
}

operations! {
    /// Accepts advice about on-demand paging, which the software NIC doesn't need.
    fn advise_mr(
        _pd: *mut ibv_pd,
        advice: ibv_advise_mr_advice,
        flags: u32,
        sg_list: *mut ibv_sge,
        num_sges: u32,
    ) -> c_int {
        if advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT || flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 {
            return fail(libc::EOPNOTSUPP);
        }
        if sg_list.is_null() || num_sges == 0 {
            return fail(libc::EINVAL);
        }
        0
    }
}
