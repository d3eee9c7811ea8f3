//! Devices of rdma-core, whose library libibverbs is loaded at run time.
//!
//! Each type owns one libibverbs object and holds the objects that it was created from, so that objects are destroyed
//! in an order that the library allows. In a forked child they are not destroyed, because the device belongs to the
//! parent.

mod address_handle;
mod completion_queue;
mod completion_queue_control;
mod connection_manager;
mod counters;
mod device;
mod event;
mod extended_completion_queue;
mod memory_window;
mod multicast;
mod operation;
mod protection_domain;
mod query;
mod queue_pair;
mod registration;
mod request_list;
mod shared_receive_queue;

pub(super) use address_handle::AddressHandle;
pub(super) use completion_queue::CompletionQueue;
pub(super) use connection_manager::Identifier;
pub(super) use device::Device;
pub(super) use memory_window::MemoryWindow;
pub(super) use protection_domain::ProtectionDomain;
pub(super) use queue_pair::QueuePair;
pub(super) use registration::Registration;
pub(super) use request_list::{RecvList, SendList, SendSlot};
pub(super) use shared_receive_queue::SharedReceiveQueue;

use std::io;

use adverb_proto::explain::Call;

use crate::error::{Error, Feature, call_failed};

/// Converts the return value of a verb, which is 0 or an error number.
#[inline]
fn check(call: Call, code: libc::c_int, action: impl FnOnce() -> String) -> crate::error::Result<()> {
    if code == 0 { Ok(()) } else { Err(code_error(call, code, action)) }
}

#[cold]
fn code_error(call: Call, code: libc::c_int, action: impl FnOnce() -> String) -> Error {
    // Most verbs return the number; some return -1 and set errno, which the next allocation may change.
    let error = match code {
        -1 => io::Error::last_os_error(),
        code => io::Error::from_raw_os_error(code.abs()),
    };
    call_failed(call, action(), error)
}

/// Returns the error of opening a device file, if it can't be opened. If the libraries of rdma-core aren't permitted to
/// open a file, they try other ways, and report the error of the last one.
fn node_error(name: &str) -> Option<io::Error> {
    let path = std::path::Path::new("/dev/infiniband").join(name);
    std::fs::OpenOptions::new().read(true).write(true).open(path).err()
}

/// Returns the error of a library that can't be loaded.
fn not_installed(error: adverb_sys::LoadError) -> Error {
    Error::NotInstalled { source: error.into() }
}

/// Converts an error to [`Error::Unsupported`] if its number means that the operation isn't supported.
fn unsupported(error: Error, feature: Feature, device: &str) -> Error {
    match error.io_error().and_then(io::Error::raw_os_error) {
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => Error::Unsupported { feature, device: device.into() },
        _ => error,
    }
}

/// Makes a descriptor non-blocking: other functions wait for its events, with a timeout.
fn set_nonblocking(fd: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor belongs to the caller, and is open.
    let result = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
