//! Memory regions.

use std::cell::UnsafeCell;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;

use adverb_proto::types::Access;
use adverb_sys::*;
use libc::{c_int, c_uint, c_void, size_t};

use crate::calls::{explain, invalid};
use crate::context::{self, Member, Object};
use crate::entry::{Pointee, Purpose, errno_of, errno_result, fail, object, set_errno};
use crate::nic::OpenNic;
use crate::pd::ProtectionDomain;
use crate::report::Kind;

#[repr(C)]
struct MemoryRegion {
    base: UnsafeCell<ibv_mr>,
    member: Member,
    nic: &'static OpenNic,
    /// The arguments of the registration, for changing it.
    iova: u64,
    access: Access,
}

impl Object for MemoryRegion {
    fn member(&self) -> &Member {
        &self.member
    }

    fn kind(&self) -> Option<Kind> {
        Some(Kind::Region)
    }

    fn release(&self) -> Result<(), c_int> {
        // SAFETY: the key is never written.
        let key = unsafe { (*self.base.get()).lkey };
        self.nic.nic.deregister(key).map_err(errno_of)
    }
}

impl Pointee for ibv_mr {
    /// # Safety
    ///
    /// The object is alive.
    unsafe fn check(this: *mut ibv_mr, purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says; the struct starts with `base`.
        unsafe { (*this.cast::<MemoryRegion>()).member.check(purpose) }
    }
}

/// Registers memory and returns its key.
fn register(
    domain: &ProtectionDomain,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: Access,
) -> Result<u32, c_int> {
    let address = check(domain.nic, addr, length, access)?;
    // SAFETY: the program keeps the memory until it deregisters it, and coordinates its own accesses with its requests
    // and its peers, as with any RDMA device.
    let key = unsafe { domain.nic.nic.register(domain.pd, address, length, iova, access) };
    key.map_err(errno_of)
}

/// Checks the arguments of a registration that the NIC doesn't check.
fn check(nic: &OpenNic, addr: *mut c_void, length: size_t, access: Access) -> Result<NonNull<u8>, c_int> {
    if access.contains(Access::FLUSH_PERSISTENT) {
        return Err(explain(libc::EOPNOTSUPP, "access has IBV_ACCESS_FLUSH_PERSISTENT"));
    }
    check_mapped(addr, length)?;
    // Linux needs the right to write for the same access (`ib_access_writable`).
    let is_written = access
        .intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::WINDOW_BIND);
    check_protection(nic, addr.addr()..addr.addr().saturating_add(length), is_written)?;
    NonNull::new(addr.cast::<u8>()).ok_or_else(|| invalid("addr is NULL"))
}

/// Checks that the whole range may be read, and written if the NIC writes it, as a kernel that pins memory does. Without
/// procfs, nothing is checked.
fn check_protection(nic: &OpenNic, range: Range<usize>, is_written: bool) -> Result<(), c_int> {
    let queried = nic.maps.as_ref().and_then(|maps| query_denied(maps, range.clone(), is_written).ok());
    let denied = queried.unwrap_or_else(|| find_denied(range, is_written).unwrap_or_default());
    let Some(address) = denied else { return Ok(()) };
    let access = if is_written { "write" } else { "read" };
    Err(explain(libc::EFAULT, format_args!("the process may not {access} the memory at {address:#x}")))
}

/// Returns the first address of a mapped range that the process may not read or write. The kernel looks up only the
/// mappings of the range.
///
/// # Errors
///
/// Returns an error before Linux 6.11.
fn query_denied(maps: &File, range: Range<usize>, is_written: bool) -> io::Result<Option<usize>> {
    let mut at = range.start;
    while at < range.end {
        let mut query = MapQuery {
            size: size_of::<MapQuery>() as u64,
            flags: if is_written { MAP_READABLE | MAP_WRITABLE } else { MAP_READABLE },
            address: at as u64,
            ..MapQuery::default()
        };
        // SAFETY: the struct is valid for reads and writes, and has the size that its first field says.
        if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } != 0 {
            let error = io::Error::last_os_error();
            // No mapping of the address has these rights.
            return if error.raw_os_error() == Some(libc::ENOENT) { Ok(Some(at)) } else { Err(error) };
        }
        at = query.end as usize;
    }
    Ok(None)
}

/// Returns the same as [`query_denied`], on any kernel. It is slower, because the kernel formats all mappings up to the
/// range as text: 6 ms for 10,000 mappings.
fn find_denied(range: Range<usize>, is_written: bool) -> io::Result<Option<usize>> {
    let mut lines = BufReader::new(File::open("/proc/self/maps")?);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        // The name of a file, which follows, may be any bytes.
        let text = String::from_utf8_lossy(&line);
        let mut words = text.split(' ');
        let address = |text: &str| usize::from_str_radix(text, 16).map_err(io::Error::other);
        let (start, end) = words.next().unwrap_or_default().split_once('-').unwrap_or_default();
        let (start, end) = (address(start)?, address(end)?);
        if start >= range.end {
            break;
        }
        let rights = words.next().unwrap_or_default();
        if range.start < end && !rights.starts_with(if is_written { "rw" } else { "r" }) {
            return Ok(Some(start.max(range.start)));
        }
        line.clear();
    }
    Ok(None)
}

/// The kernel's `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct MapQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    /// The rights, page size, offset and inode of the mapping.
    found: [u64; 4],
    device: [u32; 2],
    /// The sizes and the addresses of buffers for a name and a build ID, which aren't asked for.
    buffer_sizes: [u32; 2],
    buffers: [u64; 2],
}

/// The request to look up a mapping: `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::Ioctl =
    (3 << 30 | (size_of::<MapQuery>() as u32) << 16 | (b'f' as u32) << 8 | 17) as libc::Ioctl;

/// Look up only mappings that may be read.
const MAP_READABLE: u64 = 1;

/// Look up only mappings that may be written.
const MAP_WRITABLE: u64 = 2;

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
            let length = end - addr.addr();
            return Err(explain(
                libc::EFAULT,
                format_args!("the {length} bytes at {addr:p} aren't all mapped"),
            ));
        }
        at += part;
    }
    Ok(())
}

/// Returns the access rights that a program asks for. Optional ones have no effect, and neither has the kind of pages:
/// the NIC accesses memory with the CPU, which faults pages in.
fn access_of(flags: c_uint) -> Result<Access, c_int> {
    Access::from_bits(flags & !IBV_ACCESS_OPTIONAL_RANGE)
        .ok_or_else(|| explain(libc::EOPNOTSUPP, format_args!("access is {flags:#x}")))
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
    // SAFETY: the context of a domain that can be used is open.
    let member = unsafe { Member::new(context) };
    let handle = member.handle;
    let base = UnsafeCell::new(ibv_mr { context, pd, addr, length, handle, lkey: key, rkey: key });
    let this = Box::leak(Box::new(MemoryRegion { base, member, nic: domain.nic, iova, access }));
    context::add(this);
    Ok(this.base.get())
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
    ) -> c_int, MinusOne {
        let refuse = |reason: &str| {
            set_errno(invalid(reason));
            IBV_REREG_MR_ERR_INPUT
        };
        if flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 || flags == 0 {
            return refuse("flags is 0 or unknown");
        }
        // SAFETY: the region is alive, and no other thread uses it while it is changed.
        let region = unsafe { &mut *mr.cast::<MemoryRegion>() };
        let base = region.base.get_mut();
        let (mut new_pd, mut new_addr, mut new_length) = (base.pd, base.addr, base.length);
        let (mut iova, mut new_access) = (region.iova, region.access);
        if flags & IBV_REREG_MR_CHANGE_PD != 0 {
            if pd.is_null() {
                return refuse("pd is NULL");
            }
            new_pd = pd;
        }
        if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
            if addr.is_null() || length == 0 {
                return refuse("addr is NULL or length 0");
            }
            (new_addr, new_length, iova) = (addr, length, addr.addr() as u64);
        }
        if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 {
            let Ok(access) = access_of(access as c_uint) else { return refuse("access is unknown") };
            new_access = access;
        }
        // SAFETY: the domain is alive.
        let domain = unsafe { ProtectionDomain::of(new_pd) };
        if domain.member.check_context(&region.member).is_err() {
            return refuse("pd belongs to another context");
        }
        let changed = check(region.nic, new_addr, new_length, new_access).and_then(|address| {
            let nic = &region.nic.nic;
            // SAFETY: as in `register`.
            unsafe { nic.reregister(base.lkey, domain.pd, address, new_length, iova, new_access) }
                .map_err(errno_of)
        });
        if let Err(errno) = changed {
            set_errno(errno);
            return IBV_REREG_MR_ERR_CMD;
        }
        (base.pd, base.addr, base.length) = (new_pd, new_addr, new_length);
        (region.iova, region.access) = (iova, new_access);
        0
    }

}

destructors! {
    /// Deregisters memory.
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
        // SAFETY: the region is alive.
        let freed = context::release(unsafe { &*mr.cast::<MemoryRegion>() });
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

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;
    use std::ptr::null_mut;

    use super::*;

    #[test]
    fn memory_without_rights_is_found_in_all_ways() {
        // A mapped file's name that isn't UTF-8 must not end the search.
        let mut name = format!("adverb-maps-{}-", std::process::id()).into_bytes();
        name.extend([0xff, 0xfe]);
        let path = std::env::temp_dir().join(OsStr::from_bytes(&name));
        fs::write(&path, vec![0; 3 * 4096]).unwrap();
        let file = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let maps = File::open("/proc/self/maps").unwrap();
        let (read, write) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: the mapping is the test's own, and nothing uses its memory.
        unsafe {
            let memory = libc::mmap(null_mut(), 3 * 4096, write, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
            assert_ne!(memory, libc::MAP_FAILED);
            let start = memory.addr();
            for (rights, denies_read, denies_write) in
                [(write, false, false), (read, false, true), (libc::PROT_NONE, true, true)]
            {
                assert_eq!(libc::mprotect(memory.byte_add(4096), 4096, rights), 0);
                for (is_written, is_denied) in [(false, denies_read), (true, denies_write)] {
                    let expected = is_denied.then_some(start + 4096);
                    let range = start + 1..start + 3 * 4096;
                    assert_eq!(find_denied(range.clone(), is_written).unwrap(), expected);
                    let queried =
                        query_denied(&maps, range, is_written).map_err(|error| error.raw_os_error());
                    let is_old = queried == Err(Some(libc::ENOTTY));
                    assert!(is_old || queried == Ok(expected), "{queried:?}, expected {expected:?}");
                    assert_eq!(find_denied(start..start + 4096, is_written).unwrap(), None);
                }
            }
            assert_eq!(libc::munmap(memory, 3 * 4096), 0);
        }
    }
}
