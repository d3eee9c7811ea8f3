//! The IP and UDP headers of a packet, and the fields that tshark should show for them.

use std::net::{Ipv4Addr, SocketAddr};

use adverb_wire::{IpHeader, Ipv4Header, Ipv6Header, ROCE_PORT};

use super::field::Expected;
use super::values::Values;

/// IP version 4 or 6.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both versions.
    pub(super) const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// Returns its name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

/// The IP and UDP headers of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outer {
    /// The IP header.
    pub(super) ip: IpHeader,
    /// The UDP source port.
    pub(super) source_port: u16,
}

impl Outer {
    /// Creates headers with these values. Addresses and hop limits are such that tshark adds no warnings.
    pub(super) fn new(family: Family, values: &mut Values) -> Outer {
        let mut address = Values::Mixed(values.u64());
        let [a, b, c, d, e, f] = address.array();
        let ip = match family {
            Family::V4 => IpHeader::V4(Ipv4Header {
                tos: values.u8(),
                ip_id: values.u16(),
                flags_and_offset: 0x4000,
                ttl: values.u8() | 0x20,
                source: Ipv4Addr::new(10, a, b, c),
                destination: Ipv4Addr::new(172, 16 | d & 15, e, f),
            }),
            Family::V6 => IpHeader::V6(Ipv6Header {
                traffic_class: values.u8(),
                flow_label: values.u32() >> 12,
                hop_limit: values.u8() | 0x20,
                source: address.ipv6(),
                destination: address.ipv6(),
            }),
        };
        Outer { ip, source_port: values.u16() | 0xc000 }
    }

    /// Returns the length of the IP header, which is the offset of the UDP header.
    pub(super) fn ip_len(&self) -> usize {
        match self.ip {
            IpHeader::V4(_) => 20,
            IpHeader::V6(_) => 40,
        }
    }

    /// Returns the IP ID; 0 for IPv6.
    pub(super) fn ip_id(&self) -> u16 {
        match self.ip {
            IpHeader::V4(ip) => ip.ip_id,
            IpHeader::V6(_) => 0,
        }
    }

    /// Returns whether [`Flow::emit`](adverb_wire::Flow::emit) computes the right ICRC: for IPv4 it assumes that the
    /// flags are exactly "don't fragment".
    pub(super) fn is_as_flow_emits(&self) -> bool {
        match self.ip {
            IpHeader::V4(ip) => ip.flags_and_offset == 0x4000,
            IpHeader::V6(_) => true,
        }
    }

    /// Returns the source address and port.
    pub(super) fn source(&self) -> SocketAddr {
        SocketAddr::new(self.ip.source(), self.source_port)
    }

    /// Returns the destination address and port.
    pub(super) fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.ip.destination(), ROCE_PORT)
    }

    /// Returns the fields that tshark should show for the headers, given the packet's length.
    pub(super) fn expected(&self, packet_len: u16) -> Expected {
        let mut expected = Expected::default();
        let udp_len = packet_len + 8;
        match &self.ip {
            IpHeader::V4(ip) => expect_v4(&mut expected, ip, udp_len + 20),
            IpHeader::V6(ip) => expect_v6(&mut expected, ip, udp_len),
        }
        expected.number("udp.srcport", self.source_port);
        expected.number("udp.dstport", 4791u16);
        expected.number("udp.length", udp_len);
        expected.number("udp.checksum", 0u8);
        expected.number("udp.checksum.status", NOT_PRESENT);
        expected
    }
}

/// tshark's values for the status of a checksum.
const GOOD: u8 = 1;
const NOT_PRESENT: u8 = 3;

fn expect_v4(expected: &mut Expected, ip: &Ipv4Header, total_len: u16) {
    expected.number("ip.version", 4u8);
    expected.number("ip.hdr_len", 20u8);
    expected.number("ip.dsfield", ip.tos);
    expected.number("ip.dsfield.dscp", ip.tos >> 2);
    expected.number("ip.dsfield.ecn", ip.tos & 3);
    expected.number("ip.len", total_len);
    expected.number("ip.id", ip.ip_id);
    expected.number("ip.flags", ip.flags_and_offset >> 13);
    expected.number("ip.flags.rb", ip.flags_and_offset >> 15);
    expected.number("ip.flags.df", ip.flags_and_offset >> 14 & 1);
    expected.number("ip.flags.mf", ip.flags_and_offset >> 13 & 1);
    expected.number("ip.frag_offset", ip.flags_and_offset & 0x1fff);
    expected.number("ip.ttl", ip.ttl);
    expected.number("ip.proto", 17u8);
    expected.number("ip.checksum", checksum(ip, total_len));
    expected.number("ip.checksum_calculated", checksum(ip, total_len));
    expected.number("ip.checksum.status", GOOD);
    expected.address("ip.src", ip.source);
    expected.address("ip.dst", ip.destination);
}

fn expect_v6(expected: &mut Expected, ip: &Ipv6Header, payload_len: u16) {
    expected.number("ipv6.version", 6u8);
    expected.number("ipv6.tclass", ip.traffic_class);
    expected.number("ipv6.tclass.dscp", ip.traffic_class >> 2);
    expected.number("ipv6.tclass.ecn", ip.traffic_class & 3);
    expected.number("ipv6.flow", ip.flow_label);
    expected.number("ipv6.plen", payload_len);
    expected.number("ipv6.nxt", 17u8);
    expected.number("ipv6.hlim", ip.hop_limit);
    expected.address("ipv6.src", ip.source);
    expected.address("ipv6.dst", ip.destination);
}

/// Computes RFC 791's checksum from the values: the complement of the ones' complement sum of all other words.
fn checksum(ip: &Ipv4Header, total_len: u16) -> u16 {
    let [s0, s1, s2, s3] = ip.source.octets();
    let [d0, d1, d2, d3] = ip.destination.octets();
    let words = [
        u16::from_be_bytes([0x45, ip.tos]),
        total_len,
        ip.ip_id,
        ip.flags_and_offset,
        u16::from_be_bytes([ip.ttl, 17]),
        u16::from_be_bytes([s0, s1]),
        u16::from_be_bytes([s2, s3]),
        u16::from_be_bytes([d0, d1]),
        u16::from_be_bytes([d2, d3]),
    ];
    !words.into_iter().fold(0, |sum: u16, word| {
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_a_captured_header() {
        // From the CNP of a ConnectX-4 Lx in scapy's tests: 45c2003c718c400040119161 0a001101 0a001201.
        let ip = Ipv4Header {
            tos: 0xc2,
            ip_id: 0x718c,
            flags_and_offset: 0x4000,
            ttl: 64,
            source: Ipv4Addr::new(10, 0, 17, 1),
            destination: Ipv4Addr::new(10, 0, 18, 1),
        };
        assert_eq!(checksum(&ip, 0x3c), 0x9161);
    }
}
