//! GIDs that carry a UDP port.
//!
//! In RoCE a GID is an IP address, and packets to a GID are sent to UDP port 4791. An address can therefore have only
//! one device, unless a GID can carry another port. Adverb encodes the port within 100::/64, which is never routed (RFC
//! 6666):
//!
//! ```text
//! bytes  0  1   2 … 9   10 11   12 13 14 15
//!        01 00    0      port   IPv4 address, or 0.0.0.1 for ::1
//! ```
//!
//! - The port is one of [`Gid::UDP_PORTS`]; any other address in that network is an ordinary IPv6 address.
//! - Of the IPv6 addresses, only ::1 can be encoded: others would fill the GID.
//! - A device that receives at such a port also sends from it, so that receivers of datagrams can compute the sender's
//!   GID. Other RoCEv2 senders use source ports from 0xC000 on (Annex A17.9), which are outside this range.
//! - Only Adverb supports this encoding: adapters and Linux's soft-RoCE send to port 4791 of the IPv6 address.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::RangeInclusive;

use adverb_wire::ROCE_PORT;

use super::Gid;

/// The prefix of such GIDs.
const PREFIX: [u8; 10] = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The encoding of ::1.
const LOCALHOST_V6: Ipv4Addr = Ipv4Addr::new(0, 0, 0, 1);

impl Gid {
    /// The UDP ports that a GID can carry instead of 4791.
    pub const UDP_PORTS: RangeInclusive<u16> = ROCE_PORT + 1..=ROCE_PORT + 256;

    /// Returns the address and UDP port that packets to this GID are sent to: the address and port that the GID
    /// carries, or port 4791 of the GID's own address.
    ///
    /// ```
    /// # mod adverb { pub use adverb_proto::types as verbs; }
    /// use adverb::verbs::Gid;
    ///
    /// let default_gid = Gid::from("192.0.2.7".parse::<std::net::IpAddr>().unwrap());
    /// assert_eq!(default_gid.udp_addr().to_string(), "192.0.2.7:4791");
    /// let port_gid = Gid::from("192.0.2.7:4792".parse::<std::net::SocketAddr>().unwrap());
    /// assert_eq!(port_gid.to_string(), "100::12b8:c000:207");
    /// assert_eq!(port_gid.udp_addr().to_string(), "192.0.2.7:4792");
    /// ```
    pub fn udp_addr(self) -> SocketAddr {
        if let [prefix @ .., p, q, a, b, c, d] = self.bytes()
            && prefix == PREFIX
            && Gid::UDP_PORTS.contains(&u16::from_be_bytes([p, q]))
        {
            let port = u16::from_be_bytes([p, q]);
            return match Ipv4Addr::new(a, b, c, d) {
                LOCALHOST_V6 => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port),
                address => SocketAddr::new(address.into(), port),
            };
        }
        SocketAddr::new(self.ip(), ROCE_PORT)
    }

    /// Whether the GID carries a UDP port, so that only Adverb can send to it.
    pub fn has_udp_port(self) -> bool {
        self.udp_addr().port() != ROCE_PORT
    }
}

/// Returns the GID of the device that uses this address and UDP port. If a GID can't carry the port, this is the GID of
/// the address.
impl From<SocketAddr> for Gid {
    fn from(address: SocketAddr) -> Gid {
        let ip = address.ip();
        let host = match ip {
            IpAddr::V4(ip) => ip,
            IpAddr::V6(Ipv6Addr::LOCALHOST) => LOCALHOST_V6,
            IpAddr::V6(_) => return Gid::from(ip),
        };
        if !Gid::UDP_PORTS.contains(&address.port()) {
            return Gid::from(ip);
        }
        let mut bytes = [0; 16];
        bytes[..10].copy_from_slice(&PREFIX);
        bytes[10..12].copy_from_slice(&address.port().to_be_bytes());
        bytes[12..].copy_from_slice(&host.octets());
        Gid::new(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid::from(text.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn an_address_with_a_port_round_trips_through_a_gid() {
        for (address, text) in [
            ("127.0.0.9:4792", "100::12b8:7f00:9"),
            ("192.0.2.7:5047", "100::13b7:c000:207"),
            ("[::1]:4792", "100::12b8:0:1"),
            ("192.0.2.7:4791", "::ffff:192.0.2.7"),
            ("[::1]:4791", "::1"),
            ("[2001:db8::7]:4791", "2001:db8::7"),
        ] {
            let address: SocketAddr = address.parse().unwrap();
            let gid = Gid::from(address);
            assert_eq!(gid.to_string(), text);
            assert_eq!(gid.udp_addr(), address);
            assert_eq!(Gid::from(gid.ip()), gid, "the conversion to an IP address keeps the GID");
            assert_eq!(gid.has_udp_port(), address.port() != 4791);
        }
    }

    #[test]
    fn ports_outside_the_range_and_ports_of_ipv6_addresses_are_not_encoded() {
        for port in [0, 4790, 4791, 5048, 0xc000, 0xffff] {
            assert_eq!(Gid::from(SocketAddr::new([192, 0, 2, 7].into(), port)), gid("192.0.2.7"));
        }
        // An IPv6 address other than ::1 can't be encoded with a port.
        assert_eq!(Gid::from("[2001:db8::7]:4792".parse::<SocketAddr>().unwrap()), gid("2001:db8::7"));
    }

    #[test]
    fn an_ordinary_gid_has_the_default_port() {
        for text in
            ["100::", "100::12b7:c000:207", "100::13b8:c000:207", "100::1:12b8:c000:207", "101::12b8:0:1"]
        {
            assert_eq!(gid(text).udp_addr(), SocketAddr::new(text.parse().unwrap(), 4791), "{text}");
        }
    }
}
