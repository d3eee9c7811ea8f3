//! Errors of calls to the device and the operating system.

use std::io;

use adverb_proto::explain::Call;

use super::Error;

/// Returns the error of a call. The variant follows from the call and the operating system's error.
#[cold]
pub fn call_failed(call: Call, action: impl Into<Box<str>>, source: io::Error) -> Error {
    let action = action.into();
    match source.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => Error::DescriptorLimit { action, call, source },
        Some(libc::EIO) if uses_device(call) || matches!(call, Call::OpenDevice | Call::Multicast) => {
            Error::DeviceFailed { action, call, source }
        }
        Some(libc::ENODEV) if uses_device(call) => Error::DeviceFailed { action, call, source },
        _ if source.kind() == io::ErrorKind::PermissionDenied => {
            Error::PermissionDenied { action, call, source }
        }
        _ => Error::CallFailed { action, call, source },
    }
}

/// Whether the call uses an open device of rdma-core, so that an error number can mean that the device was removed.
fn uses_device(call: Call) -> bool {
    matches!(
        call,
        Call::Create
            | Call::Destroy
            | Call::Query
            | Call::RegisterMemory
            | Call::RegisterDmabuf
            | Call::ModifyQueuePair
            | Call::ResolvePeer
            | Call::Post
            | Call::Poll
    )
}

/// Returns the error number of an operating system's error. Errors of the software device have only a kind.
pub(crate) fn error_number(error: &io::Error) -> Option<i32> {
    error.raw_os_error().or(match error.kind() {
        io::ErrorKind::AddrInUse => Some(libc::EADDRINUSE),
        io::ErrorKind::AddrNotAvailable => Some(libc::EADDRNOTAVAIL),
        io::ErrorKind::NetworkUnreachable => Some(libc::ENETUNREACH),
        io::ErrorKind::NotConnected => Some(libc::ENOTCONN),
        io::ErrorKind::PermissionDenied => Some(libc::EACCES),
        _ => None,
    })
}

/// Whether the same call can succeed later.
pub(super) fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{
        AddrInUse, HostUnreachable, Interrupted, NetworkDown, NetworkUnreachable, OutOfMemory, ResourceBusy,
        StorageFull, TimedOut, WouldBlock,
    };
    let kind = error.kind();
    matches!(kind, AddrInUse | Interrupted | OutOfMemory | ResourceBusy | StorageFull | TimedOut | WouldBlock)
        || matches!(kind, HostUnreachable | NetworkDown | NetworkUnreachable)
        || error.raw_os_error() == Some(libc::ENOBUFS)
}
