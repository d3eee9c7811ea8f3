//! The errors of connections: one type for each operation, and [`ConnectionError`] for the end of a connection.
//!
//! The `Display` of an error names the operation and the peer, and not the cause, which is its source.

mod connect;
mod connection;
mod handshake;
mod listen;
mod remote;
mod transfer;

pub use connect::{ConnectError, HandshakeStage, KeyMismatch, RefusalReason};
pub use connection::ConnectionError;
pub use listen::{AcceptError, BindError};
pub use remote::{ExposeError, RemoteError, RemoteErrorKind};
pub use transfer::{RecvError, SendError, SendErrorKind};

pub(crate) use handshake::HandshakeError;

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// The error of an operation that waits for a connection.
pub(crate) trait WaitError: From<ConnectionError> {
    /// Returns the error of an operation that has exceeded its time limit.
    /// `is_reconnecting` tells whether the connection has failed and is being re-established.
    fn timed_out(peer: SocketAddr, timeout: Duration, is_reconnecting: bool) -> Self;
}

/// The hint of an error for lack of descriptors.
const DESCRIPTORS_HINT: &str = "raise the limit of open files (`ulimit -n`)";
/// The hint for a pool of another device than that of the options.
const FOREIGN_POOL_HINT: &str =
    "remove `Options::device`, or create the pool in a protection domain of that device";

/// The hint of an operation that has exceeded its time limit while the connection was being re-established.
const RECONNECTING_HINT: &str = "raise `Options::timeout` above the time that detecting a failure and reconnecting take, \
                                 or call `closed`, which returns the reason if reconnecting fails";

/// Returns the end of the message of an operation that has exceeded its time limit.
fn reconnecting(is_reconnecting: bool) -> &'static str {
    if is_reconnecting { "; the connection has failed and is being re-established" } else { "" }
}

/// Returns the code of the operating system's error in the chain of sources, if there is one.
pub(crate) fn os_error(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut chain = std::iter::successors(Some(error), |&error| error.source());
    chain.find_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error())
}

/// Whether the process or the system has no descriptors left.
pub(crate) fn is_descriptor_shortage(error: &(dyn Error + 'static)) -> bool {
    matches!(os_error(error), Some(libc::EMFILE | libc::ENFILE))
}

// Results have the size of their errors, so these are at most a cache line. `RegionTimedOut` alone has 65 bytes of fields.
const _: () = {
    assert!(size_of::<ConnectError>() <= 64 && size_of::<ConnectionError>() <= 64);
    assert!(size_of::<BindError>() <= 64 && size_of::<AcceptError>() <= 64);
    assert!(size_of::<SendErrorKind>() <= 64 && size_of::<RecvError>() <= 64);
    assert!(size_of::<ExposeError>() <= 64 && size_of::<RemoteErrorKind>() <= 72);
};

/// Converts the errors to [`io::Error`] with the error as the inner error.
macro_rules! into_io_error {
    ($($error:ty: |$value:ident| $kind:expr,)*) => {$(
        /// Keeps the error as the inner error. The variant determines the kind.
        impl From<$error> for std::io::Error {
            fn from(error: $error) -> std::io::Error {
                let $value = &error;
                std::io::Error::new($kind, error)
            }
        }
    )*};
}
use into_io_error;

#[cfg(test)]
mod tests;
