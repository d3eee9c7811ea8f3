//! Socket addresses in C's format.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6};

/// A socket address in C's format.
pub(super) enum RawAddress {
    V4(sockaddr_in),
    V6(sockaddr_in6),
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> RawAddress {
        match address {
            SocketAddr::V4(address) => RawAddress::V4(sockaddr_in {
                sin_family: libc::AF_INET as sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: address.ip().to_bits().to_be() },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(address) => RawAddress::V6(sockaddr_in6 {
                sin6_family: libc::AF_INET6 as sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            }),
        }
    }
}

impl RawAddress {
    /// Returns the pointer that the library requires. The library only reads the address.
    pub(super) fn as_mut_ptr(&mut self) -> *mut sockaddr {
        match self {
            RawAddress::V4(address) => std::ptr::from_mut(address).cast(),
            RawAddress::V6(address) => std::ptr::from_mut(address).cast(),
        }
    }
}

/// Returns an address that the library filled in, or `None` if it isn't set yet.
///
/// # Safety
///
/// The address is readable, with the size of an address of its family.
pub(super) unsafe fn read(address: *const sockaddr) -> Option<SocketAddr> {
    // SAFETY: the caller guarantees that the address is readable.
    let family = unsafe { (*address).sa_family };
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the address has this family.
            let raw = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from_bits(u32::from_be(raw.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the address has this family.
            let raw = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = raw.sin6_addr.s6_addr.into();
            let port = u16::from_be(raw.sin6_port);
            Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["192.0.2.7:7471", "[2001:db8::7]:1", "[fe80::1%3]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            // SAFETY: the address is a valid C address.
            assert_eq!(unsafe { read(RawAddress::from(address).as_mut_ptr()) }, Some(address), "{text}");
        }
    }

    #[test]
    fn an_unset_address_is_none() {
        let mut raw = RawAddress::from(SocketAddr::from(([0, 0, 0, 0], 0)));
        if let RawAddress::V4(raw) = &mut raw {
            raw.sin_family = 0;
        }
        // SAFETY: the address is a valid C address.
        assert_eq!(unsafe { read(raw.as_mut_ptr()) }, None);
    }
}
