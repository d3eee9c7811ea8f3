//! Sockets and shared memory that a forked child doesn't keep.
//!
//! A forked child that doesn't execute another program inherits its parent's sockets, and would keep the parent's names
//! in use after the parent has ended. The child has no progress thread and can't use the sockets, so a `fork` handler
//! replaces them in the child. It also replaces the memory that the parent shares with other processes with zeros.

use std::fs::File;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use nix::libc;

/// A socket or another file that is replaced in a forked child.
#[derive(Debug)]
pub(in crate::link) struct Guarded<T> {
    // The guard is dropped first: after the socket is closed, its number may belong to another file.
    _guard: Guard,
    socket: T,
}

impl<T: AsFd> Guarded<T> {
    /// Guards a socket.
    pub(in crate::link) fn new(socket: T) -> Guarded<T> {
        Guarded { _guard: Guard::new(socket.as_fd().as_raw_fd()), socket }
    }
}

impl<T> Guarded<T> {
    /// Returns the socket.
    pub(in crate::link) const fn socket(&self) -> &T {
        &self.socket
    }

    /// Converts the socket, which stays guarded.
    pub(in crate::link) fn into_owned(self) -> Guarded<OwnedFd>
    where
        T: Into<OwnedFd>,
    {
        Guarded { _guard: self._guard, socket: self.socket.into() }
    }
}

impl<T> Deref for Guarded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.socket
    }
}

/// An entry of [`DESCRIPTORS`], or `None` if all are in use: a child then keeps the socket open.
#[derive(Debug)]
struct Guard(Option<usize>);

/// Installs the handler. Without it, a child keeps the sockets open and the memory shared.
fn install_handler() {
    REPLACEMENT.get_or_init(|| {
        let file = File::open("/dev/null").ok()?;
        // SAFETY: the handler only calls functions that are permitted in a child of a process with several threads.
        let status = unsafe { libc::pthread_atfork(None, None, Some(replace_in_child)) };
        (status == 0).then_some(file)
    });
}

/// An entry of [`MAPPINGS`], or `None` if all are in use: a child then keeps the memory.
#[derive(Debug)]
pub(super) struct MappingGuard(Option<usize>);

impl MappingGuard {
    /// Guards memory of a multiple of the page size.
    pub(super) fn new(start: NonNull<u8>, length: usize) -> MappingGuard {
        install_handler();
        let claim = |(address, _): &(AtomicPtr<u8>, AtomicUsize)| {
            let start = start.as_ptr();
            address.compare_exchange(ptr::null_mut(), start, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let index = MAPPINGS.iter().position(claim);
        if let Some(index) = index {
            MAPPINGS[index].1.store(length, Ordering::Release);
        }
        MappingGuard(index)
    }
}

impl Drop for MappingGuard {
    fn drop(&mut self) {
        if let Some(index) = self.0 {
            MAPPINGS[index].1.store(0, Ordering::Relaxed);
            // Another thread that claims the entry stores its length after this one.
            MAPPINGS[index].0.store(ptr::null_mut(), Ordering::Release);
        }
    }
}

/// The guarded memory of all links of the process: addresses and lengths. The length is 0 while an entry changes.
static MAPPINGS: [(AtomicPtr<u8>, AtomicUsize); 1024] =
    [const { (AtomicPtr::new(ptr::null_mut()), AtomicUsize::new(0)) }; 1024];

impl Guard {
    fn new(descriptor: RawFd) -> Guard {
        install_handler();
        let claim = |entry: &AtomicI32| {
            entry.compare_exchange(NONE, descriptor, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        Guard(DESCRIPTORS.iter().position(claim))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(index) = self.0 {
            DESCRIPTORS[index].store(NONE, Ordering::Relaxed);
        }
    }
}

/// The value of a free entry.
const NONE: RawFd = -1;

/// The guarded descriptors of all links of the process.
static DESCRIPTORS: [AtomicI32; 4096] = [const { AtomicI32::new(NONE) }; 4096];

/// The file that replaces the sockets.
static REPLACEMENT: OnceLock<Option<File>> = OnceLock::new();

/// Replaces the guarded sockets in a child. The descriptors stay open, because the child may drop its copies of the
/// links, which closes them.
extern "C" fn replace_in_child() {
    let Some(Some(file)) = REPLACEMENT.get() else { return };
    for entry in &DESCRIPTORS {
        let descriptor = entry.load(Ordering::Relaxed);
        if descriptor != NONE {
            // SAFETY: a guarded descriptor is open, and its owner doesn't run in the child. The call is async-signal-safe.
            unsafe { libc::dup3(file.as_raw_fd(), descriptor, libc::O_CLOEXEC) };
        }
    }
    for (start, length) in &MAPPINGS {
        let length = length.load(Ordering::Acquire);
        let start = start.load(Ordering::Relaxed);
        if length > 0 && !start.is_null() {
            let (access, flags) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            );
            // SAFETY: guarded memory is mapped, all values of its bytes are valid, and its owner doesn't run in the
            // child. The call is async-signal-safe in practice: it is only a system call.
            unsafe { libc::mmap(start.cast(), length, access, flags, -1, 0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn is_guarded(descriptor: RawFd) -> bool {
        DESCRIPTORS.iter().any(|entry| entry.load(Ordering::Relaxed) == descriptor)
    }

    #[test]
    fn a_socket_is_guarded_until_it_is_closed() {
        let socket = Guarded::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let descriptor = socket.as_raw_fd();
        assert!(is_guarded(descriptor));
        let Guarded { _guard: guard, socket } = socket;
        drop(guard);
        assert!(!is_guarded(descriptor));
        drop(socket);
    }
}
