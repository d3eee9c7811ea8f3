//! Signals, which the library's threads leave to the threads of the program.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

use libc::{c_int, sigset_t};

/// Blocks signals in the calling thread until it is dropped. Threads that are started meanwhile block them forever.
///
/// rdma-core has no threads. A program such as tgtd blocks a signal in all its threads and reads it from a descriptor;
/// in a thread that it doesn't know of, the signal would end the process.
#[derive(Debug)]
pub(crate) struct BlockedSignals {
    previous: sigset_t,
}

impl BlockedSignals {
    pub(crate) fn new() -> BlockedSignals {
        let (mut blocked, mut previous) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the sets are valid for writes, and each is initialized before it is read: `pthread_sigmask` fails only
        // for invalid operations.
        unsafe {
            libc::sigfillset(blocked.as_mut_ptr());
            for signal in FAULTS {
                libc::sigdelset(blocked.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), previous.as_mut_ptr());
            BlockedSignals { previous: previous.assume_init() }
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is initialized.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.previous, null_mut()) };
    }
}

/// The signals of a thread's own faults, for which programs have handlers that print a stack.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT];
