//! Functions that do little on a software NIC: forking, importing objects of other processes, sysfs, and conversions of
//! the kernel's structs.

use adverb_sys::*;
use libc::{c_char, c_int, c_void, size_t};

use crate::entry::fail;

entry! {
    /// Allows forking: the NIC reads and writes memory with the CPU, so copy-on-write pages need no protection.
    fn ibv_fork_init() -> c_int {
        0
    }

    /// Returns the status of fork support: IBV_FORK_UNNEEDED.
    fn ibv_is_fork_initialized() -> c_int, Infallible {
        2
    }

    /// Does nothing: see [`ibv_fork_init`].
    fn ibv_dontfork_range(_base: *mut c_void, _size: size_t) -> c_int {
        0
    }

    /// Does nothing: see [`ibv_fork_init`].
    fn ibv_dofork_range(_base: *mut c_void, _size: size_t) -> c_int {
        0
    }

    /// Fails: a NIC belongs to one process.
    fn ibv_import_device(_cmd_fd: c_int) -> *mut ibv_context {
        fail(libc::EOPNOTSUPP)
    }

    /// Fails: see [`ibv_import_device`].
    fn ibv_import_pd(_context: *mut ibv_context, _pd_handle: u32) -> *mut ibv_pd {
        fail(libc::EOPNOTSUPP)
    }

    /// Does nothing: see [`ibv_import_device`].
    fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

    /// Fails: see [`ibv_import_device`].
    fn ibv_import_mr(_pd: *mut ibv_pd, _mr_handle: u32) -> *mut ibv_mr {
        fail(libc::EOPNOTSUPP)
    }

    /// Does nothing: see [`ibv_import_device`].
    fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

    /// Fails: see [`ibv_import_device`].
    fn ibv_import_dm(_context: *mut ibv_context, _dm_handle: u32) -> *mut ibv_dm {
        fail(libc::EOPNOTSUPP)
    }

    /// Does nothing: see [`ibv_import_device`].
    fn ibv_unimport_dm(_dm: *mut ibv_dm) {}

    /// Returns the directory of sysfs.
    fn ibv_get_sysfs_path() -> *const c_char {
        c"/sys".as_ptr()
    }

    /// Fails: the device has no directory in sysfs.
    fn ibv_read_sysfs_file(
        _dir: *const c_char,
        _file: *const c_char,
        _buf: *mut c_char,
        _size: size_t,
    ) -> c_int, Infallible {
        crate::entry::set_errno(libc::ENOENT);
        -1
    }

    /// Fails: the software NIC has no link layer addresses.
    fn ibv_resolve_eth_l2_from_gid(
        _context: *mut ibv_context,
        _attr: *mut ibv_ah_attr,
        _eth_mac: *mut u8,
        _vid: *mut u16,
    ) -> c_int {
        fail(libc::EOPNOTSUPP)
    }

    /// Clears attributes. rdma-core's librdmacm copies attributes that the kernel returns, and the kernel doesn't know
    /// this device.
    fn ibv_copy_ah_attr_from_kern(dst: *mut ibv_ah_attr, _src: *const c_void) {
        // SAFETY: the attributes are valid for writes.
        unsafe { dst.write(ibv_ah_attr::zeroed()) };
    }

    /// Clears attributes: see [`ibv_copy_ah_attr_from_kern`].
    fn ibv_copy_qp_attr_from_kern(dst: *mut ibv_qp_attr, _src: *const c_void) {
        // SAFETY: the attributes are valid for writes.
        unsafe { dst.write(ibv_qp_attr::zeroed()) };
    }

    /// Does nothing: see [`ibv_copy_ah_attr_from_kern`].
    fn ibv_copy_path_rec_from_kern(_dst: *mut c_void, _src: *const c_void) {}

    /// Does nothing: see [`ibv_copy_ah_attr_from_kern`].
    fn ibv_copy_path_rec_to_kern(_dst: *mut c_void, _src: *const c_void) {}
}
