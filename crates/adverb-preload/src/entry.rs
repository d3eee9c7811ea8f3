//! Entry points: functions that C programs call.

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use adverb_proto::memory::{DeregisterError, RegisterError};
use adverb_proto::{PostError, SrqError};
use adverb_soft::Error;
use adverb_sys::*;
use libc::{c_char, c_int, c_uint, c_void, sockaddr};

/// The type of a result that reports a failure to a C program.
pub(crate) trait OnFailure {
    /// Returns the result of a call that failed with this errno value.
    fn on_failure(errno: c_int) -> Self;

    /// Returns the errno value of a failed call, or `None` if the call succeeded or has no value for a failure.
    #[inline]
    fn errno(&self) -> Option<c_int> {
        None
    }
}

impl OnFailure for c_int {
    fn on_failure(errno: c_int) -> c_int {
        errno
    }

    #[inline]
    fn errno(&self) -> Option<c_int> {
        (*self > 0).then_some(*self)
    }
}

impl OnFailure for isize {
    fn on_failure(errno: c_int) -> isize {
        -(errno as isize)
    }

    fn errno(&self) -> Option<c_int> {
        (*self < 0).then(|| -*self as c_int)
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

    #[inline]
    fn errno(&self) -> Option<c_int> {
        self.is_null().then(errno)
    }
}

impl OnFailure for *const c_char {
    fn on_failure(_: c_int) -> *const c_char {
        c"unknown".as_ptr()
    }
}

/// The purpose of a call with an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    Use,
    /// The call frees the object's memory, which it may also do after the context was closed.
    Destroy,
}

/// An argument of an entry point. Every entry point checks all its arguments before it uses them.
pub(crate) trait Argument {
    /// Checks that the calling process may use the object that the argument points to.
    ///
    /// # Errors
    ///
    /// Returns EPERM if a parent process made the object, and EBADF if the object's context was closed.
    ///
    /// # Safety
    ///
    /// The argument is as the function's manual page requires.
    #[inline]
    unsafe fn check(&self, _purpose: Purpose) -> Result<(), c_int> {
        Ok(())
    }
}

impl<T> Argument for *const T {}

impl<T: Pointee> Argument for *mut T {
    /// # Safety
    ///
    /// The argument is as the function's manual page requires.
    #[inline]
    unsafe fn check(&self, purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says.
        if self.is_null() { Ok(()) } else { unsafe { T::check(*self, purpose) } }
    }
}

/// A type that arguments of entry points point to.
pub(crate) trait Pointee {
    /// Does the check of [`Argument::check`] for a pointer that isn't null.
    ///
    /// # Safety
    ///
    /// The object is alive.
    #[inline]
    unsafe fn check(_this: *mut Self, _purpose: Purpose) -> Result<(), c_int> {
        Ok(())
    }
}

impl<T> Pointee for *mut T {}

impl<T> Pointee for MaybeUninit<T> {}

/// Declares types without objects of a process.
macro_rules! plain {
    ($trait:ident: $($ty:ty),* $(,)?) => {
        $(impl $trait for $ty {})*
    };
}

plain!(Argument: u8, u16, u32, u64, usize, c_int);
plain!(
    Pointee: c_void, i8, u8, u16, u32, u64, c_int, sockaddr, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_port_attr,
    _compat_ibv_port_attr, ibv_gid, ibv_gid_entry, ibv_values_ex, ibv_ah_attr, ibv_wc, ibv_grh, ibv_sge, ibv_send_wr,
    ibv_recv_wr, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_attr, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_parent_domain_init_attr, ibv_td_init_attr,
    ibv_mw_bind, ibv_ece, ibv_dm, rdma_addrinfo, rdma_conn_param, rdma_cm_join_mc_attr_ex,
);

/// The way in which a function reports a failure.
pub(crate) trait Convention<T> {
    /// Returns the result of a call that failed with this errno value.
    fn failure(errno: c_int) -> T;

    /// Returns the errno value of a failed call, or `None` if the call succeeded.
    fn errno_of(result: &T) -> Option<c_int>;
}

/// The convention of most functions: errno values, null pointers and [`Status`](crate::rdmacm::Status).
pub(crate) struct Usual;

impl<T: OnFailure> Convention<T> for Usual {
    fn failure(errno: c_int) -> T {
        fail(errno)
    }

    #[inline]
    fn errno_of(result: &T) -> Option<c_int> {
        result.errno()
    }
}

/// The convention of functions that return a negative number.
pub(crate) struct Negative;

impl Convention<c_int> for Negative {
    fn failure(errno: c_int) -> c_int {
        set_errno(errno);
        -errno
    }

    #[inline]
    fn errno_of(result: &c_int) -> Option<c_int> {
        (*result < 0).then(|| -result)
    }
}

/// The convention of functions that return -1 or another negative code, and set errno.
pub(crate) struct MinusOne;

impl Convention<c_int> for MinusOne {
    fn failure(errno: c_int) -> c_int {
        set_errno(errno);
        -1
    }

    #[inline]
    fn errno_of(result: &c_int) -> Option<c_int> {
        (*result < 0).then(errno)
    }
}

/// The convention of functions whose results aren't failures, unless the object can't be used.
pub(crate) struct Infallible;

impl<T: OnFailure> Convention<T> for Infallible {
    fn failure(errno: c_int) -> T {
        fail(errno)
    }

    #[inline]
    fn errno_of(_: &T) -> Option<c_int> {
        None
    }
}

/// Calls the implementation of an entry point, if its arguments passed the check. A panic doesn't unwind into C: the
/// device fails, and the call too. Failed calls are counted after `nested` is dropped.
#[inline]
pub(crate) fn call<C: Convention<T>, T>(
    name: &'static str,
    nested: impl Sized,
    checked: Result<(), c_int>,
    body: impl FnOnce() -> T,
) -> T {
    let result = match checked {
        Ok(()) => catch(body).unwrap_or_else(|errno| C::failure(errno)),
        Err(errno) => C::failure(errno),
    };
    drop(nested);
    if let Some(errno) = C::errno_of(&result) {
        let seen_by_program = self::errno();
        crate::calls::count(name, errno);
        set_errno(seen_by_program);
    }
    result
}

/// Calls a function of this library. If it panics, the device fails, and the result is EIO.
#[inline]
pub(crate) fn catch<T>(body: impl FnOnce() -> T) -> Result<T, c_int> {
    // A panic in the middle of a verb can leave only this library's objects in a bad state, and the device is unusable
    // from then on.
    catch_unwind(AssertUnwindSafe(body)).map_err(|_| panicked())
}

#[cold]
fn panicked() -> c_int {
    // The event itself must not unwind either.
    _ = catch_unwind(crate::event::fail_device);
    libc::EIO
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
    let errno = match error {
        Error::NicFailed => libc::EIO,
        Error::Domain(_) | Error::InvalidCompletionQueue => libc::EBUSY,
        Error::Deregister(DeregisterError::WindowsBound { .. }) => libc::EBUSY,
        Error::Register(RegisterError::TooMany) => libc::ENOMEM,
        // Programs post until a queue is full, so this isn't worth a reason.
        Error::Post(PostError::QueueFull) | Error::Srq(SrqError::QueueFull) => return libc::ENOMEM,
        Error::Srq(SrqError::InUse { .. }) => libc::EBUSY,
        Error::TimestampsFailed(_) => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    };
    crate::calls::explain(errno, error)
}

/// Declares entry points: `extern "C"` functions that never unwind, and that refuse objects of other processes and of
/// closed contexts. A [`Convention`] can follow the type of the result.
///
/// The caller of each is a C program, which keeps the rules of the function's manual page: pointers are valid, and
/// objects were made by this library and are alive.
macro_rules! entry {
    ($($item:tt)*) => { exported!(Use $($item)*); };
}

/// Declares entry points like [`entry!`], which free the memory of objects: they also accept objects of closed contexts.
macro_rules! destructors {
    ($($item:tt)*) => { exported!(Destroy $($item)*); };
}

/// Checks the arguments of an entry point, and calls its implementation.
macro_rules! checked {
    ($purpose:ident, $name:expr, $nested:expr, ($($arg:ident),*), ($($convention:ident)?), $body:block) => {{
        // SAFETY: the arguments are as the caller says.
        let checked = Ok(())$(.and_then(|()| unsafe {
            crate::entry::Argument::check(&$arg, crate::entry::Purpose::$purpose)
        }))*;
        crate::entry::call::<convention!($($convention)?), _>($name, $nested, checked, move || $body)
    }};
}

macro_rules! convention {
    () => {
        crate::entry::Usual
    };
    ($convention:ident) => {
        crate::entry::$convention
    };
}

macro_rules! exported {
    ($purpose:ident $($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty $(, $convention:ident)?)? $body:block)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            ///
            /// The arguments are as the function's manual page requires.
            // SAFETY: the name is that of a C function, which this library replaces.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                let nested = crate::calls::Nested::begin();
                let result = checked!($purpose, stringify!($name), nested, ($($arg),*), ($($($convention)?)?), $body);
                crate::calls::forget_reason();
                result
            }
        )*
    };
}

/// Declares operations like [`entry!`], which programs call through a table.
macro_rules! operations {
    ($($item:tt)*) => { in_table!(Use $($item)*); };
}

/// Declares operations like [`operations!`], which post a list of requests. The body writes the address of the request that
/// could not be posted to its last argument. If the call is refused or panics, that is the first request, so that the program
/// never reads a pointer that it didn't initialize.
macro_rules! posting {
    ($($(#[$meta:meta])* fn $name:ident($queue:ident: $queue_ty:ty, $wr:ident: *mut $wr_ty:ty, $bad:ident) $body:block)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            ///
            /// The arguments are as the manual page of the function over this operation requires.
            pub(crate) unsafe extern "C" fn $name(
                $queue: $queue_ty,
                $wr: *mut $wr_ty,
                bad_wr: *mut *mut $wr_ty,
            ) -> libc::c_int {
                let mut bad = $wr;
                let $bad = &raw mut bad;
                let errno = checked!(Use, concat!("ibv_", stringify!($name)), (), ($queue, $wr), (), $body);
                if errno != 0 && !bad_wr.is_null() {
                    // SAFETY: the pointer is valid for writes, as the caller says.
                    unsafe { bad_wr.write(bad) };
                }
                errno
            }
        )*
    };
}

/// Declares operations like [`destructors!`], which programs call through a table.
macro_rules! destructor_operations {
    ($($item:tt)*) => { in_table!(Destroy $($item)*); };
}

macro_rules! in_table {
    ($purpose:ident $($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty $(, $convention:ident)?)? $body:block)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            ///
            /// The arguments are as the manual page of the function over this operation requires.
            pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                checked!($purpose, concat!("ibv_", stringify!($name)), (), ($($arg),*), ($($($convention)?)?), $body)
            }
        )*
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        assert_eq!(call::<Usual, c_int>("f", (), Ok(()), || panic!("a test's own panic")), libc::EIO);
        assert_eq!(call::<Negative, c_int>("f", (), Ok(()), || panic!("a test's own panic")), -libc::EIO);
        assert_eq!(call::<MinusOne, c_int>("f", (), Ok(()), || panic!("a test's own panic")), -1);
        assert!(call::<Usual, *mut u8>("f", (), Ok(()), || panic!("a test's own panic")).is_null());
    }
}
