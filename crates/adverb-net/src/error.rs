//! Errors of the system, with hints.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use adverb_verbs::Error;

/// Returns the error of a peer that can't be reached over TCP.
pub(crate) fn unreachable(peer: SocketAddr, error: io::Error) -> Error {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
    let hint = match error.kind() {
        _ if is_shortage(&error) => DESCRIPTORS_HINT,
        ConnectionRefused => "start the listener: no program listens at this address and port",
        HostUnreachable | NetworkUnreachable => {
            "check the address, the routes of this machine and the state of the host"
        }
        TimedOut => {
            "check that the host is up, and that firewalls pass TCP to this port and UDP port 4791 in both directions"
        }
        _ => "check that a listener has this address and port",
    };
    Error::Unreachable { peer, stage: "connecting over TCP", error, hint: hint.into() }
}

/// Returns the error of an address or a host name that can't be resolved.
pub(crate) fn no_address(name: impl fmt::Debug, error: io::Error) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::InvalidInput => "use a host and a port, such as 192.0.2.7:7471",
        _ if is_shortage(&error) => DESCRIPTORS_HINT,
        _ => "check the name, and that this machine can resolve it: `getent hosts NAME`",
    };
    verb_error(&format!("resolving {name:?}"), error, hint)
}

/// Returns the error of a listener that can't be bound to an address.
pub(crate) fn not_bound(address: impl fmt::Display, error: io::Error) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "use another port, or end the program that listens there: `ss -ltnp` lists it"
        }
        io::ErrorKind::AddrNotAvailable => "use an address of this machine: `ip addr` lists them",
        io::ErrorKind::PermissionDenied => {
            "use a port above 1023, or run as a user that may bind to this port"
        }
        _ if is_shortage(&error) => DESCRIPTORS_HINT,
        _ => "use an address of this machine and a free port, such as 127.0.0.1:7471",
    };
    verb_error(&format!("listening at {address}"), error, hint)
}

/// The hint of an error for lack of descriptors.
pub(crate) const DESCRIPTORS_HINT: &str = "raise the limit of open files (`ulimit -n`)";

/// Whether the process or the system has no descriptors left.
fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Returns the error of a descriptor that can't be watched.
pub(crate) fn not_watched(error: io::Error) -> Error {
    verb_error("waiting for a peer", error, DESCRIPTORS_HINT)
}

/// Returns the error of a system call or a verb.
pub(crate) fn verb_error(action: &str, error: io::Error, hint: &'static str) -> Error {
    Error::Verb { action: action.to_owned(), error, hint: hint.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_has_a_hint_about_their_limit() {
        let error = || io::Error::from_raw_os_error(libc::EMFILE);
        let peer: SocketAddr = ([192, 0, 2, 7], 7471).into();
        for error in [unreachable(peer, error()), no_address("host:1", error()), not_bound(peer, error())] {
            assert!(error.hint().is_some_and(|hint| hint.contains("ulimit -n")), "{error}");
        }
    }
}
