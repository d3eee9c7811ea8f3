//! Entry points: functions that C programs call.

use std::panic::{AssertUnwindSafe, catch_unwind};

use adverb_proto::memory::{DeregisterError, RegisterError};
use adverb_proto::{PostError, SrqError};
use adverb_soft::Error;
use libc::{c_char, c_int, c_uint};

/// The type of a result that reports a failure to a C program.
pub(crate) trait OnFailure {
    /// Returns the result of a call that failed with this errno value.
    fn on_failure(errno: c_int) -> Self;
}

impl OnFailure for c_int {
    fn on_failure(errno: c_int) -> c_int {
        errno
    }
}

impl OnFailure for isize {
    fn on_failure(errno: c_int) -> isize {
        -(errno as isize)
    }
}

impl OnFailure for () {
    fn on_failure(_: c_int) {}
}

impl OnFailure for bool {
    fn on_failure(_: c_int) -> bool {
        false
    }
}

/// These results have no value for a failure: zero is the most harmless one.
macro_rules! zero_on_failure {
    ($($ty:ty),*) => {
        $(impl OnFailure for $ty {
            fn on_failure(_: c_int) -> $ty {
                0
            }
        })*
    };
}

zero_on_failure!(u8, u16, c_uint, u64);

impl<T> OnFailure for *mut T {
    fn on_failure(_: c_int) -> *mut T {
        std::ptr::null_mut()
    }
}

impl OnFailure for *const c_char {
    fn on_failure(_: c_int) -> *const c_char {
        c"unknown".as_ptr()
    }
}

/// Calls the implementation of an entry point. A panic doesn't unwind into C: the device fails, and the call too.
#[inline]
pub(crate) fn call<T: OnFailure>(body: impl FnOnce() -> T) -> T {
    // A panic in the middle of a verb can leave only this library's objects in a bad state, and the device is unusable
    // from then on.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| panicked())
}

#[cold]
fn panicked<T: OnFailure>() -> T {
    // The event itself must not unwind either.
    _ = catch_unwind(crate::event::fail_device);
    fail(libc::EIO)
}

/// Returns the result of a failed call, and sets errno.
#[cold]
pub(crate) fn fail<T: OnFailure>(errno: c_int) -> T {
    set_errno(errno);
    T::on_failure(errno)
}

/// Returns the result of a call that returns 0 or an errno value.
#[inline]
pub(crate) fn errno_result(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => fail(errno),
    }
}

/// Returns the result of a call that returns an object, or NULL and sets errno.
pub(crate) fn object<T>(result: Result<*mut T, c_int>) -> *mut T {
    result.unwrap_or_else(fail)
}

/// Sets errno.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the pointer is the calling thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns the errno value of the calling thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: the pointer is the calling thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Returns the errno value that a driver returns for this error.
#[cold]
pub(crate) fn errno_of(error: Error) -> c_int {
    match error {
        Error::NicFailed => libc::EIO,
        Error::Domain(_) | Error::InvalidCompletionQueue => libc::EBUSY,
        Error::Deregister(DeregisterError::WindowsBound { .. }) => libc::EBUSY,
        Error::Register(RegisterError::TooMany) => libc::ENOMEM,
        Error::Post(PostError::QueueFull) | Error::Srq(SrqError::QueueFull) => libc::ENOMEM,
        Error::Srq(SrqError::InUse { .. }) => libc::EBUSY,
        Error::TimestampsFailed(_) => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    }
}

/// Declares entry points: `extern "C"` functions that never unwind.
///
/// The caller of each is a C program, which keeps the rules of the function's manual page: pointers are valid, and
/// objects were made by this library and are alive.
macro_rules! entry {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            ///
            /// The arguments are as the function's manual page requires.
            // SAFETY: the name is that of a C function, which this library replaces.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                crate::entry::call(move || $body)
            }
        )*
    };
}

/// Declares operations like [`entry!`], which programs call through a table.
macro_rules! operations {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            ///
            /// The arguments are as the manual page of the function over this operation requires.
            pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                crate::entry::call(move || $body)
            }
        )*
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        assert_eq!(call(|| -> c_int { panic!("a test's own panic") }), libc::EIO);
        assert!(call(|| -> *mut u8 { panic!("a test's own panic") }).is_null());
    }
}
