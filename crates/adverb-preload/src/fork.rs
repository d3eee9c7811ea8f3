//! Forked children, which can't use the objects of their parents.
//!
//! A child has none of its parent's threads, and another thread may have held a lock when the parent forked. So a child
//! starts without a NIC, and [every entry point](crate::entry) refuses the objects of other processes.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libc::c_int;
use parking_lot::Mutex;

/// The number of forks between this process and the one that loaded the library.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Returns a number that differs between a process and its children.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Checks that a process made an object itself, and not its parent.
#[inline]
pub(crate) fn check(of_object: u32) -> Result<(), c_int> {
    if of_object == generation() {
        return Ok(());
    }
    Err(crate::calls::explain(libc::EPERM, "the object belongs to the parent of this process"))
}

/// Installs the handler that gives children their own state, before the first lock that another thread may hold.
pub(crate) fn install_handler() {
    static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
    if !IS_INSTALLED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler calls no function of the C library. It can't be installed only if memory is exhausted.
        unsafe { libc::pthread_atfork(None, None, Some(begin_child)) };
    }
}

extern "C" fn begin_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: a child has one thread, which runs this handler.
    unsafe {
        crate::nic::OPEN.reset();
        crate::rdmacm::MANAGER.reset();
        crate::calls::FAILED.reset();
    }
}

/// A value with a lock that each process has for itself: a child begins with the default.
pub(crate) struct PerProcess<T>(UnsafeCell<Mutex<Option<T>>>);

// SAFETY: other threads use the value under its lock, except for `reset`.
unsafe impl<T: Send> Sync for PerProcess<T> {}

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess(UnsafeCell::new(Mutex::new(None)))
    }

    pub(crate) fn value(&self) -> &Mutex<Option<T>> {
        // SAFETY: only `reset` changes the lock itself, while no other thread exists.
        unsafe { &*self.0.get() }
    }

    /// Forgets the parent's value, whose lock may be held forever.
    ///
    /// # Safety
    ///
    /// The process has one thread, which doesn't use the value.
    unsafe fn reset(&self) {
        // SAFETY: as the caller says. The parent's value isn't dropped.
        unsafe { self.0.get().write(Mutex::new(None)) };
    }
}
