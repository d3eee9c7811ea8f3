//! Socket addresses, and their relation to the device.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use adverb_proto::types::Gid;
use adverb_sys::rdma_cm_id;
use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6};

/// Reads a socket address.
///
/// # Errors
///
/// Returns EINVAL for NULL, and EAFNOSUPPORT if it isn't an IP address.
///
/// # Safety
///
/// `addr` is NULL or points to a complete address of its family.
pub(super) unsafe fn read(addr: *const sockaddr) -> Result<SocketAddr, c_int> {
    if addr.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: as the caller says; the address may have any alignment.
    unsafe {
        let family = (&raw const (*addr).sa_family).read_unaligned();
        match c_int::from(family) {
            libc::AF_INET => {
                let v4 = addr.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Ok(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
            }
            libc::AF_INET6 => {
                let v6 = addr.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => Err(libc::EAFNOSUPPORT),
        }
    }
}

/// Writes a socket address, and returns its length.
///
/// # Safety
///
/// `to` has room for an IPv6 address.
pub(super) unsafe fn write(to: *mut sockaddr, addr: SocketAddr) -> usize {
    // SAFETY: as the caller says. All bytes of both types may be zero.
    unsafe {
        match addr {
            SocketAddr::V4(addr) => {
                let mut v4: sockaddr_in = std::mem::zeroed();
                v4.sin_family = libc::AF_INET as libc::sa_family_t;
                v4.sin_port = addr.port().to_be();
                v4.sin_addr.s_addr = u32::from(*addr.ip()).to_be();
                to.cast::<sockaddr_in>().write_unaligned(v4);
                size_of::<sockaddr_in>()
            }
            SocketAddr::V6(addr) => {
                let mut v6: sockaddr_in6 = std::mem::zeroed();
                v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                v6.sin6_port = addr.port().to_be();
                v6.sin6_flowinfo = addr.flowinfo();
                v6.sin6_addr.s6_addr = addr.ip().octets();
                v6.sin6_scope_id = addr.scope_id();
                to.cast::<sockaddr_in6>().write_unaligned(v6);
                size_of::<sockaddr_in6>()
            }
        }
    }
}

/// Returns the port of an identifier's address, in network order, or 0.
///
/// # Safety
///
/// `addr` points to an address of an identifier.
unsafe fn port(addr: *const sockaddr) -> u16 {
    // SAFETY: as the caller says.
    unsafe { read(addr) }.map_or(0, |addr| addr.port().to_be())
}

/// The address that a program names, seen from the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Destination {
    /// The device itself.
    Own,
    /// Another device or a multicast group, with this address.
    Other(IpAddr),
}

/// Returns the destination with an address, or `None` if a device at `own` can't reach it.
///
/// As on RDMA hardware, loopback addresses stand for the device itself, unless the device has one of them: then other
/// loopback addresses are other devices.
pub(super) fn destination(own: IpAddr, ip: IpAddr) -> Option<Destination> {
    let own = Gid::from(own).udp_addr().ip();
    let ip = ip.to_canonical();
    if ip == own || ip.is_loopback() && !(own.is_loopback() && own.is_ipv4() == ip.is_ipv4()) {
        return Some(Destination::Own);
    }
    (ip.is_ipv4() == own.is_ipv4() && !ip.is_unspecified()).then_some(Destination::Other(ip))
}

entry! {
    /// Returns the local port in network order, or 0.
    fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
        // SAFETY: the identifier is alive.
        unsafe { port(adverb_sys::rdma_get_local_addr(id)) }
    }

    /// Returns the peer's port in network order, or 0.
    fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
        // SAFETY: the identifier is alive.
        unsafe { port(adverb_sys::rdma_get_peer_addr(id)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_written() {
        for text in ["127.0.0.1:7174", "[fd00::1%3]:65535", "0.0.0.0:0"] {
            let addr: SocketAddr = text.parse().unwrap();
            // SAFETY: all bytes of the storage may be zero, and it has room for every address.
            let (read, length) = unsafe {
                let mut storage: libc::sockaddr_storage = std::mem::zeroed();
                let to = (&raw mut storage).cast();
                let length = write(to, addr);
                (read(to), length)
            };
            assert_eq!(read, Ok(addr));
            assert_eq!(length, if addr.is_ipv4() { 16 } else { 28 });
        }
        // SAFETY: a null pointer is permitted.
        assert_eq!(unsafe { read(std::ptr::null()) }, Err(libc::EINVAL));
    }

    #[test]
    fn a_loopback_address_is_the_device_itself_or_another_device() {
        let destination = |own: &str, ip: &str| destination(own.parse().unwrap(), ip.parse().unwrap());
        let other = |ip: &str| Some(Destination::Other(ip.parse().unwrap()));
        assert_eq!(destination("127.0.0.1", "127.0.0.1"), Some(Destination::Own));
        assert_eq!(destination("127.0.0.1", "127.0.0.2"), other("127.0.0.2"));
        assert_eq!(destination("127.0.0.1", "::1"), Some(Destination::Own));
        assert_eq!(destination("192.0.2.7", "127.0.0.2"), Some(Destination::Own));
        assert_eq!(destination("192.0.2.7", "::ffff:192.0.2.7"), Some(Destination::Own));
        assert_eq!(destination("192.0.2.7", "192.0.2.8"), other("192.0.2.8"));
        assert_eq!(destination("192.0.2.7", "fd00::1"), None);
        assert_eq!(destination("192.0.2.7", "0.0.0.0"), None);
    }
}
