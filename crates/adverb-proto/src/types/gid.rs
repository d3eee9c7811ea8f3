//! Global identifiers: the addresses of RDMA ports.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

/// A global identifier: 128 bits that address a port. In RoCE it is an IP address, IPv4 in its IPv6-mapped form. One that
/// begins with 100:: may be that of a software device and say its UDP port, too ([`udp_address`](Gid::udp_address)).
///
/// ```
/// use adverb_proto::types::Gid;
///
/// let gid = Gid::from("192.0.2.7".parse::<std::net::IpAddr>().unwrap());
/// assert_eq!(gid.to_string(), "::ffff:192.0.2.7");
/// assert_eq!(gid.ip().to_string(), "192.0.2.7");
/// assert!(Gid::from("fe80::1".parse::<std::net::IpAddr>().unwrap()).is_link_local());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Gid([u8; 16]);

impl Gid {
    /// All zeros: no GID.
    pub const ZERO: Gid = Gid([0; 16]);

    /// The GID of these bytes.
    pub const fn new(bytes: [u8; 16]) -> Gid {
        Gid(bytes)
    }

    /// Its bytes.
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// The GID as an IP address: IPv4 where it is a mapped one.
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// Whether it is all zeros: an unused entry of a table.
    pub fn is_zero(self) -> bool {
        self == Gid::ZERO
    }

    /// Whether it is only good within one link: rarely what one wants to connect to.
    pub fn is_link_local(self) -> bool {
        Ipv6Addr::from(self.0).is_unicast_link_local()
    }

    /// Whether it stands for a group.
    pub fn is_multicast(self) -> bool {
        match self.ip() {
            IpAddr::V4(v4) => v4.is_multicast(),
            IpAddr::V6(v6) => v6.is_multicast(),
        }
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Gid {
        match ip {
            IpAddr::V4(v4) => Gid(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Gid(v6.octets()),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}
