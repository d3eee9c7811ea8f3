//! The addresses of this machine.

use std::io;
use std::net::{SocketAddr, UdpSocket};

/// Whether an address belongs to the network namespace of this thread. The port has no effect.
///
/// A socket can be bound to just these addresses. So a ring has no source address that a UDP socket of a process in the
/// namespace couldn't have. (A socket from another namespace would prove nothing, and a process could pass one.)
///
/// # Errors
///
/// Returns an error if the operating system can't create a file descriptor.
pub(super) fn is_local(mut addr: SocketAddr) -> io::Result<bool> {
    if addr.ip().is_loopback() {
        return Ok(true);
    }
    addr.set_port(0);
    match UdpSocket::bind(addr) {
        Ok(_) => Ok(!addr.ip().is_multicast() && !addr.ip().is_unspecified()),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_interfaces_are_local() {
        for (text, expected) in [
            ("127.0.0.1:4791", true),
            ("127.77.9.4:80", true),
            ("203.0.113.77:4791", false),
            ("224.0.0.1:4791", false),
            ("0.0.0.0:4791", false),
        ] {
            assert_eq!(is_local(text.parse().unwrap()).unwrap(), expected, "{text}");
        }
    }
}
