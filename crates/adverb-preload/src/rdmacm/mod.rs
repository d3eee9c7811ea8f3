//! librdmacm: connections by IP address and port, over the software NIC's connection manager.
//!
//! The functions are in libibverbs.so.1, which has the NIC; librdmacm.so.1 only depends on it and has the same symbol
//! versions.

mod address;
mod addrinfo;
mod channel;
mod connect;
mod dispatch;
mod endpoint;
mod id;
mod listen;
mod manager;
mod multicast;
mod options;
mod qp;
mod resolve;
mod rsocket;
mod strings;

pub(crate) use manager::{MANAGER, disconnect};
#[cfg(test)]
pub(crate) use {
    address::*, channel::*, connect::*, endpoint::*, id::*, listen::*, multicast::*, options::*, qp::*,
    resolve::*,
};

use libc::c_int;

use crate::entry::{OnFailure, fail};

/// The result of librdmacm's functions: 0, or -1 after setting errno.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Status(c_int);

impl Status {
    pub(crate) const SUCCESS: Status = Status(0);
}

impl OnFailure for Status {
    fn on_failure(_: c_int) -> Status {
        Status(-1)
    }

    fn errno(&self) -> Option<c_int> {
        (*self == Status(-1)).then(crate::entry::errno)
    }
}

/// Returns the result of a call, and sets errno if it failed.
fn status(result: Result<(), c_int>) -> Status {
    match result {
        Ok(()) => Status::SUCCESS,
        Err(errno) => fail(errno),
    }
}

/// Returns the errno value that the kernel's connection manager returns for this error.
#[cold]
fn errno_of(error: adverb_soft::Error) -> c_int {
    use adverb_proto::cm::CallError;
    match error {
        adverb_soft::Error::Cm(CallError::ServiceInUse(_)) => libc::EADDRINUSE,
        adverb_soft::Error::Cm(CallError::TooMany) => libc::ENOMEM,
        adverb_soft::Error::Cm(CallError::AddressFamilyMismatch) => libc::EAFNOSUPPORT,
        error => crate::entry::errno_of(error),
    }
}
