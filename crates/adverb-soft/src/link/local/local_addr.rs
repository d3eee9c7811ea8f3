//! The addresses of this machine.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::link::Interface;

/// The addresses of the interfaces in the network namespace of this thread, which are listed when the first one is looked up.
///
/// A socket that can be bound to an address doesn't prove that the address is local: `net.ipv4.ip_nonlocal_bind` permits all
/// addresses, and another user can occupy all ports of one.
#[derive(Debug, Default)]
pub(super) struct LocalAddrs(Option<Vec<IpAddr>>);

impl LocalAddrs {
    /// Whether an address is that of an interface. The port has no effect.
    ///
    /// # Errors
    ///
    /// Returns an error if the interfaces can't be listed.
    pub(super) fn contains(&mut self, addr: SocketAddr) -> io::Result<bool> {
        if addr.ip().is_loopback() {
            return Ok(true);
        }
        let addrs = match &mut self.0 {
            Some(addrs) => addrs,
            empty => empty.insert(Interface::addresses()?),
        };
        Ok(addrs.contains(&addr.ip()))
    }
}

/// Whether an address is that of an interface, as [`LocalAddrs::contains`].
///
/// # Errors
///
/// Returns an error if the interfaces can't be listed.
pub(super) fn is_local(addr: SocketAddr) -> io::Result<bool> {
    LocalAddrs::default().contains(addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_interfaces_are_local() {
        let mut addrs = LocalAddrs::default();
        for (text, expected) in [
            ("127.0.0.1:4791", true),
            ("127.77.9.4:80", true),
            ("203.0.113.77:4791", false),
            ("224.0.0.1:4791", false),
            ("0.0.0.0:4791", false),
        ] {
            assert_eq!(addrs.contains(text.parse().unwrap()).unwrap(), expected, "{text}");
        }
        for addr in Interface::addresses().unwrap() {
            assert!(is_local((addr, 4791).into()).unwrap(), "{addr}");
        }
    }
}
