//! Devices through rdma-core: libibverbs, found at run time.
//!
//! Each type owns one libibverbs object and holds what it was made from, so that objects end in an order that the
//! library allows. In a forked child they end without a word: the device belongs to the parent.

mod address_handle;
mod completion_queue;
mod device;
mod protection_domain;
mod queue_pair;
mod registration;

pub(super) use address_handle::AddressHandle;
pub(super) use completion_queue::CompletionQueue;
pub(super) use device::Device;
pub(super) use protection_domain::ProtectionDomain;
pub(super) use queue_pair::{QueuePair, RequestList};
pub(super) use registration::Registration;

use std::io;

use crate::error::Error;

/// The error of a verb that answers with an error number; `Ok` if it is 0.
fn check(code: libc::c_int, action: impl FnOnce() -> String) -> crate::Result<()> {
    match code {
        0 => Ok(()),
        // Most verbs return the number; some return -1 and set errno.
        -1 => Err(verb_error(io::Error::last_os_error(), action())),
        code => Err(verb_error(io::Error::from_raw_os_error(code.abs()), action())),
    }
}

/// The error of a verb, with what to try.
fn verb_error(error: io::Error, action: String) -> Error {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "is the process allowed to use the device? See the permissions of /dev/infiniband/uverbs*"
        }
        Some(libc::ENODEV | libc::EIO) => {
            "the device may have been removed, or have failed: see the kernel's log"
        }
        _ => "",
    };
    Error::Verb { action, error, hint: hint.into() }
}
