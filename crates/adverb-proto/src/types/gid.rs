//! Global identifiers: the addresses of RDMA ports.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

/// A global identifier (GID): 128 bits that address a port.
///
/// In RoCE, a GID is an IP address; an IPv4 address is stored as an IPv4-mapped IPv6 address. A GID within 100::/64 can
/// also carry the UDP port of a software device: see [`udp_addr`](Gid::udp_addr).
///
/// ```
/// # mod adverb { pub use adverb_proto::types as verbs; }
/// use adverb::verbs::Gid;
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
    /// The GID of all zeros, which means that there is no GID.
    pub const ZERO: Gid = Gid([0; 16]);

    /// Creates a GID from its bytes.
    pub const fn new(bytes: [u8; 16]) -> Gid {
        Gid(bytes)
    }

    /// Returns the bytes.
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// Returns the GID as an IP address. An IPv4-mapped IPv6 address becomes an IPv4 address.
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// Whether the GID is all zeros, as in an unused entry of a GID table.
    pub fn is_zero(self) -> bool {
        self == Gid::ZERO
    }

    /// Whether the GID is a link-local address, which is valid within one link only.
    pub fn is_link_local(self) -> bool {
        Ipv6Addr::from(self.0).is_unicast_link_local()
    }

    /// Whether the GID is a multicast group.
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
