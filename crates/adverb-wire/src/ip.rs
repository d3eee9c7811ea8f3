//! The IP headers of RoCEv2, and their form in a UD receive buffer (the GRH).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The length of an IPv4 header without options.
pub(crate) const IPV4_LEN: usize = 20;
/// The length of an IPv6 header.
pub(crate) const IPV6_LEN: usize = 40;

/// The length in bytes of the global route header (GRH), which precedes the payload in a UD receive buffer.
pub const GRH_LEN: usize = 40;

/// The IP header of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpHeader {
    /// IPv4.
    V4(Ipv4Header),
    /// IPv6.
    V6(Ipv6Header),
}

/// An IPv4 header without options. The length and the checksum are computed when the header is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4Header {
    /// The type of service: DSCP in the upper six bits, ECN in the lower two.
    pub tos: u8,
    /// The identification (IP ID), which the ICRC covers.
    pub ip_id: u16,
    /// The flags and the fragment offset; 0x4000 is "don't fragment". The ICRC covers them.
    pub flags_and_offset: u16,
    /// The time to live.
    pub ttl: u8,
    /// The source address.
    pub source: Ipv4Addr,
    /// The destination address.
    pub destination: Ipv4Addr,
}

/// An IPv6 header. The payload length is computed when the header is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6Header {
    /// The traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// The flow label. Only the low 20 bits are sent.
    pub flow_label: u32,
    /// The hop limit.
    pub hop_limit: u8,
    /// The source address.
    pub source: Ipv6Addr,
    /// The destination address.
    pub destination: Ipv6Addr,
}

impl IpHeader {
    /// Creates a header with 64 hops, traffic class 0, "don't fragment", and IP ID 0. Returns `None` if one address is
    /// IPv4 and the other IPv6.
    pub const fn new(source: IpAddr, destination: IpAddr) -> Option<IpHeader> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(IpHeader::V4(Ipv4Header {
                tos: 0,
                ip_id: 0,
                flags_and_offset: 0x4000,
                ttl: 64,
                source,
                destination,
            })),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(IpHeader::V6(Ipv6Header {
                traffic_class: 0,
                flow_label: 0,
                hop_limit: 64,
                source,
                destination,
            })),
            _ => None,
        }
    }

    /// Returns the source address. An IPv4-mapped IPv6 address, which a GRH may contain, is returned as IPv4.
    pub const fn source(&self) -> IpAddr {
        match self {
            IpHeader::V4(ip) => IpAddr::V4(ip.source),
            IpHeader::V6(ip) => ip.source.to_canonical(),
        }
    }

    /// Returns the destination address. An IPv4-mapped IPv6 address is returned as IPv4.
    pub const fn destination(&self) -> IpAddr {
        match self {
            IpHeader::V4(ip) => IpAddr::V4(ip.destination),
            IpHeader::V6(ip) => ip.destination.to_canonical(),
        }
    }

    /// Returns the traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub const fn traffic_class(&self) -> u8 {
        match self {
            IpHeader::V4(ip) => ip.tos,
            IpHeader::V6(ip) => ip.traffic_class,
        }
    }

    /// Parses the GRH: the 40 bytes before the payload in a UD receive buffer (Annex A17.4.5.1). Returns `None` if the
    /// bytes contain neither an IPv4 nor an IPv6 header.
    ///
    /// An IPv6 header fills the 40 bytes. An IPv4 header is in the last 20 bytes, and the first 20 are undefined, so
    /// they may resemble an IPv6 header. In that case, the header is IPv4 if the checksum of the last 20 bytes is
    /// correct, as in rdma-core's `get_grh_header_version`. If the first 20 bytes don't resemble an IPv6 header, the
    /// checksum is ignored, because some loopback packets, such as those of rxe, have no checksum.
    ///
    /// ```
    /// # mod adverb { pub use adverb_wire as verbs; }
    /// use adverb::verbs::IpHeader;
    ///
    /// let ip = IpHeader::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()).unwrap();
    /// assert_eq!(IpHeader::from_grh(&ip.to_grh(1024)), Some(ip));
    /// ```
    pub fn from_grh(grh: &[u8; GRH_LEN]) -> Option<IpHeader> {
        let v4 = grh.last_chunk::<IPV4_LEN>()?;
        let could_be_v6 = grh[0] >> 4 == 6;
        if v4[0] == 0x45 && v4[9] == UDP && (!could_be_v6 || ones_complement_sum(v4) == 0xffff) {
            return Some(IpHeader::V4(Ipv4Header::from_bytes(v4)));
        }
        could_be_v6.then(|| IpHeader::V6(Ipv6Header::from_bytes(grh)))
    }

    /// Returns the GRH of a datagram of `udp_len` bytes: the 40 bytes before the payload in a UD receive buffer.
    pub fn to_grh(&self, udp_len: u16) -> [u8; GRH_LEN] {
        let mut grh = [0; GRH_LEN];
        match self {
            IpHeader::V4(ip) => {
                if let Some(v4) = grh.last_chunk_mut() {
                    *v4 = ip.to_bytes(udp_len);
                }
            }
            IpHeader::V6(ip) => grh = ip.to_bytes(udp_len),
        }
        grh
    }

    /// Parses an IP header that carries UDP, and returns it with the UDP datagram.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(IpHeader, &[u8])> {
        match bytes.first()? >> 4 {
            4 => {
                let (head, rest) = bytes.split_first_chunk::<IPV4_LEN>()?;
                let ip = Ipv4Header::from_bytes(head);
                // A set "more fragments" flag or a nonzero offset means that this is a fragment.
                let is_fragment = ip.flags_and_offset & 0x3fff != 0;
                if head[0] != 0x45 || head[9] != UDP || is_fragment || ones_complement_sum(head) != 0xffff {
                    return None;
                }
                let len = usize::from(u16::from_be_bytes([head[2], head[3]])).checked_sub(IPV4_LEN)?;
                Some((IpHeader::V4(ip), rest.get(..len)?))
            }
            6 => {
                let (head, rest) = bytes.split_first_chunk::<IPV6_LEN>()?;
                let len = usize::from(u16::from_be_bytes([head[4], head[5]]));
                (head[6] == UDP).then_some(())?;
                Some((IpHeader::V6(Ipv6Header::from_bytes(head)), rest.get(..len)?))
            }
            _ => None,
        }
    }

    /// Writes the header of a datagram with `udp_len` bytes of UDP, and returns the header's length.
    pub(crate) fn emit(&self, udp_len: u16, out: &mut [u8]) -> usize {
        match self {
            IpHeader::V4(ip) => {
                if let Some(head) = out.first_chunk_mut() {
                    *head = ip.to_bytes(udp_len);
                }
                IPV4_LEN
            }
            IpHeader::V6(ip) => {
                if let Some(head) = out.first_chunk_mut() {
                    *head = ip.to_bytes(udp_len);
                }
                IPV6_LEN
            }
        }
    }
}

impl Ipv4Header {
    fn from_bytes(bytes: &[u8; IPV4_LEN]) -> Ipv4Header {
        let &[_, tos, _, _, i0, i1, f0, f1, ttl, _, _, _, a, b, c, d, e, f, g, h] = bytes;
        Ipv4Header {
            tos,
            ip_id: u16::from_be_bytes([i0, i1]),
            flags_and_offset: u16::from_be_bytes([f0, f1]),
            ttl,
            source: Ipv4Addr::new(a, b, c, d),
            destination: Ipv4Addr::new(e, f, g, h),
        }
    }

    fn to_bytes(self, udp_len: u16) -> [u8; IPV4_LEN] {
        let [l0, l1] = udp_len.saturating_add(20).to_be_bytes();
        let [i0, i1] = self.ip_id.to_be_bytes();
        let [f0, f1] = self.flags_and_offset.to_be_bytes();
        let [a, b, c, d] = self.source.octets();
        let [e, f, g, h] = self.destination.octets();
        let mut bytes = [0x45, self.tos, l0, l1, i0, i1, f0, f1, self.ttl, UDP, 0, 0, a, b, c, d, e, f, g, h];
        let [c0, c1] = (!ones_complement_sum(&bytes)).to_be_bytes();
        bytes[10] = c0;
        bytes[11] = c1;
        bytes
    }
}

impl Ipv6Header {
    fn from_bytes(bytes: &[u8; IPV6_LEN]) -> Ipv6Header {
        let &[v0, v1, v2, v3, _, _, _, hop_limit, ref addresses @ ..] = bytes;
        let first_word = u32::from_be_bytes([v0, v1, v2, v3]);
        let address = |bytes: Option<&[u8; 16]>| bytes.map_or(Ipv6Addr::UNSPECIFIED, |b| Ipv6Addr::from(*b));
        Ipv6Header {
            traffic_class: v0 << 4 | v1 >> 4,
            flow_label: first_word & FLOW_LABEL_MASK,
            hop_limit,
            source: address(addresses.first_chunk()),
            destination: address(addresses.last_chunk()),
        }
    }

    fn to_bytes(self, udp_len: u16) -> [u8; IPV6_LEN] {
        let first_word = 6 << 28 | u32::from(self.traffic_class) << 20 | (self.flow_label & FLOW_LABEL_MASK);
        let mut bytes = [0; IPV6_LEN];
        let [v0, v1, v2, v3, l0, l1, next, hops, addresses @ ..] = &mut bytes;
        [*v0, *v1, *v2, *v3] = first_word.to_be_bytes();
        [*l0, *l1] = udp_len.to_be_bytes();
        *next = UDP;
        *hops = self.hop_limit;
        let (source, destination) = addresses.split_at_mut(16);
        source.copy_from_slice(&self.source.octets());
        destination.copy_from_slice(&self.destination.octets());
        bytes
    }
}

/// The protocol number of UDP.
const UDP: u8 = 17;

const FLOW_LABEL_MASK: u32 = 0x000f_ffff;

/// Returns the ones' complement sum (RFC 1071), which is 0xffff for a header with a correct checksum.
fn ones_complement_sum(header: &[u8; IPV4_LEN]) -> u16 {
    let words = header.chunks_exact(2).map(|pair| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        _ => 0,
    });
    let sum: u32 = words.sum();
    // The sum of ten words has at most four bits of carry. Adding the carry produces at most one more.
    let folded = (sum & 0xffff) + (sum >> 16);
    let [_, _, high, low] = ((folded & 0xffff) + (folded >> 16)).to_be_bytes();
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_grh_needs_a_correct_checksum_only_if_it_resembles_ipv6() {
        let ip = IpHeader::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).unwrap();
        let mut grh = ip.to_grh(1024);
        grh[30] ^= 0xff; // the checksum
        assert_eq!(IpHeader::from_grh(&grh), Some(ip));
        grh[0] = 0x60;
        assert!(matches!(IpHeader::from_grh(&grh), Some(IpHeader::V6(_))));
        grh[20] = 0x44; // an IPv4 header has at least five words
        grh[0] = 0;
        assert_eq!(IpHeader::from_grh(&grh), None);
    }
}
