//! The process that an object belongs to.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The number of forks between this process and the one that created the first object.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process that created an object.
///
/// In a forked child, the object still belongs to the parent: dropping it there must change nothing of the parent's, and
/// must not wait, because threads that the child doesn't have may hold the object's locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnerProcess(u32);

impl OwnerProcess {
    /// Returns this process.
    pub fn current() -> OwnerProcess {
        install_handler();
        OwnerProcess(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is the owner, and not a forked child. The check takes a few instructions; reading the
    /// process ID would take a system call. It doesn't detect a child of a bare `clone` system call, which runs no
    /// handlers.
    #[inline]
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

/// Installs the handler that counts forks, before the first object exists.
fn install_handler() {
    static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
    if !IS_INSTALLED.load(Ordering::Acquire) {
        // Two threads may both install the handler: a fork then counts twice.
        // SAFETY: the handler only changes an atomic. If memory is exhausted, it isn't installed, and children are taken
        // for the owner.
        unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        IS_INSTALLED.store(true, Ordering::Release);
    }
}

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
