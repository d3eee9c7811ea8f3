//! Work at exit, which never waits without a limit.
//!
//! A program may call `exit` in a signal handler, while the interrupted thread holds a lock of the NIC or of the memory
//! allocator, and another thread may call `exit` at the same time. So the thread that exits takes no lock and allocates
//! nothing: the thread of asynchronous events does the work, and the thread that exits waits for it up to a limit.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use libc::c_int;

use crate::nic::OpenNic;

/// A part of the work at exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Work {
    /// Disconnecting the connections of librdmacm.
    Disconnect,
    /// Sending delayed acknowledgements.
    Acknowledge,
    /// Writing the report and the recording.
    Report,
}

/// No work, which isn't an index of [`ALL`].
const NO_WORK: u8 = u8::MAX;

const ALL: [Work; 3] = [Work::Disconnect, Work::Acknowledge, Work::Report];

impl Work {
    /// Returns the time limit, far above the time that the work takes.
    fn limit(self) -> Duration {
        Duration::from_secs(match self {
            Work::Disconnect => 5,
            Work::Acknowledge => 2,
            // A recording can have hundreds of megabytes.
            Work::Report => 60,
        })
    }

    /// Does the work.
    fn run(self, nic: &OpenNic) {
        match self {
            Work::Disconnect => crate::rdmacm::disconnect(),
            Work::Acknowledge => nic.nic.flush(),
            Work::Report => crate::report::write(nic),
        }
    }
}

/// The exchange between the thread that exits and the thread that does the work.
pub(crate) struct Exit {
    /// The process of the NIC.
    owner: u32,
    /// The requested [`Work`], or [`NO_WORK`].
    requested: AtomicU8,
    /// Readable while work is requested.
    pub(crate) request: OwnedFd,
    /// Readable while work is done.
    done: OwnedFd,
    /// Whether work wasn't done in time. The rest isn't tried then.
    has_failed: AtomicBool,
}

impl Exit {
    pub(crate) fn new() -> io::Result<Exit> {
        let event = || {
            // SAFETY: the function has no preconditions.
            let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            // SAFETY: the descriptor is open, and has no other owner.
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
        };
        let (owner, requested) = (std::process::id(), AtomicU8::new(NO_WORK));
        Ok(Exit { owner, requested, request: event()?, done: event()?, has_failed: AtomicBool::new(false) })
    }

    /// Does the requested work, in the thread of asynchronous events.
    pub(crate) fn serve(&self, nic: &OpenNic) {
        if take(&self.request)
            && let Some(work) = ALL.get(usize::from(self.requested.load(Ordering::Acquire)))
        {
            work.run(nic);
            put(&self.done);
        }
    }

    /// Requests work, in a thread that exits, and waits for it up to its limit.
    pub(crate) fn request(&self, nic: &OpenNic, work: Work) {
        // A child of `_Fork` or `clone` has its parent's descriptors, but no threads.
        if std::process::id() != self.owner || self.has_failed.load(Ordering::Relaxed) {
            return;
        }
        let start = Instant::now();
        // If the thread that exits holds a lock itself, the lock is never released.
        while nic.nic.is_locked() || nic.objects.is_locked() {
            if start.elapsed() > LOCK_TIMEOUT {
                return self.has_failed.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.requested.store(work as u8, Ordering::Release);
        put(&self.request);
        while !take(&self.done) {
            let left = work.limit().saturating_sub(start.elapsed());
            if left.is_zero() {
                return self.has_failed.store(true, Ordering::Relaxed);
            }
            let mut poll = libc::pollfd { fd: self.done.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: the pointer is to one descriptor. After an error the caller tries again.
            unsafe { libc::poll(&raw mut poll, 1, left.as_millis() as c_int + 1) };
        }
    }
}

/// Makes a descriptor readable.
fn put(event: &OwnedFd) {
    let one = 1u64;
    // SAFETY: eight bytes are written. The write fails only if the descriptor is readable already.
    unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), size_of_val(&one)) };
}

/// Returns whether a descriptor was readable, which it is no longer.
fn take(event: &OwnedFd) -> bool {
    let mut value = 0u64;
    // SAFETY: the buffer has eight bytes.
    unsafe { libc::read(event.as_raw_fd(), (&raw mut value).cast(), size_of_val(&value)) > 0 }
}

/// The time that a thread that exits waits for locks. Other threads release them after microseconds, unless they have no CPU.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_the_library_does_not_know_of_requests_nothing() {
        let (nic, exit) = (OpenNic::get().unwrap(), Exit::new().unwrap());
        // SAFETY: without flags the call is a fork that runs no handlers, as `_Fork` does. The child takes no lock, allocates
        // nothing, and leaves with `_exit`.
        let child = unsafe {
            let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
            if child == 0 {
                exit.request(nic, Work::Acknowledge);
                libc::_exit(0);
            }
            child as libc::pid_t
        };
        assert!(child > 0);
        // SAFETY: the child is this process's, and is waited for once.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
        assert!(!take(&exit.request), "the parent's thread isn't woken");
        put(&exit.request);
        exit.serve(nic);
        assert!(!take(&exit.done), "without a request, nothing is done");
    }
}
