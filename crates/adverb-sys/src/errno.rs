//! The errno of C functions.

use libc::c_int;

/// Sets this thread's `errno`, as the header's inline functions do before they return NULL.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: the C library returns the address of the calling thread's errno, which is always valid.
    unsafe { *libc::__errno_location() = value }
}
