//! The packets in a message of a ring. These functions do no I/O.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use crate::link::MAX_GSO_PACKETS;
use crate::link::datagram::Datagram;

/// Up to [`MAX_GSO_PACKETS`] packets with the same metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::link) struct Packets<'a> {
    pub(in crate::link) source: SocketAddr,
    pub(in crate::link) traffic_class: u8,
    pub(in crate::link) hop_limit: Option<u8>,
    pub(in crate::link) flow_label: u32,
    /// The length of all packets but the last, which may be shorter.
    pub(in crate::link) segment: u32,
    pub(in crate::link) bytes: &'a [u8],
}

/// The first byte of packets from an IPv4 address.
const PACKETS_V4: u8 = 4;

/// The first byte of packets from an IPv6 address.
const PACKETS_V6: u8 = 6;

/// The length of the metadata of packets: kind, traffic class, hop limit and whether it is known, flow label, port,
/// address, scope, segment.
pub(in crate::link) const PACKETS_HEADER_LEN: usize = 1 + 1 + 2 + 4 + 2 + 16 + 4 + 4;

impl<'a> Packets<'a> {
    /// Appends the bytes of the message to `out`.
    pub(in crate::link) fn emit(&self, out: &mut Vec<u8>) {
        let (kind, address, scope) = match self.source {
            SocketAddr::V4(source) => (PACKETS_V4, source.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(source) => (PACKETS_V6, *source.ip(), source.scope_id()),
        };
        out.extend([kind, self.traffic_class, self.hop_limit.unwrap_or(0)]);
        out.push(self.hop_limit.is_some().into());
        out.extend(self.flow_label.to_be_bytes());
        out.extend(self.source.port().to_be_bytes());
        out.extend(address.octets());
        out.extend(scope.to_be_bytes());
        out.extend(self.segment.to_be_bytes());
        out.extend_from_slice(self.bytes);
    }

    /// Parses a message. Returns `None` if the bytes aren't packets.
    pub(in crate::link) fn parse(message: &'a [u8]) -> Option<Packets<'a>> {
        let (header, bytes) = message.split_first_chunk::<PACKETS_HEADER_LEN>()?;
        let [kind, traffic_class, hops, has_hops, fields @ ..] = header;
        let (flow_label, fields) = fields.split_first_chunk()?;
        let (port, fields) = fields.split_first_chunk()?;
        let (address, fields) = fields.split_first_chunk::<16>()?;
        let (scope, fields) = fields.split_first_chunk()?;
        let segment = u32::from_be_bytes(*fields.first_chunk()?);
        if bytes.len() > (segment as usize).saturating_mul(MAX_GSO_PACKETS) {
            return None;
        }
        let (port, address) = (u16::from_be_bytes(*port), (*address).into());
        let source = match *kind {
            PACKETS_V4 => SocketAddr::new(IpAddr::V6(address).to_canonical(), port),
            PACKETS_V6 => SocketAddrV6::new(address, port, 0, u32::from_be_bytes(*scope)).into(),
            _ => return None,
        };
        Some(Packets {
            source,
            traffic_class: *traffic_class,
            hop_limit: (*has_hops == 1).then_some(*hops),
            flow_label: u32::from_be_bytes(*flow_label),
            segment,
            bytes,
        })
    }

    /// Passes each packet to `each`, and returns their number.
    #[inline]
    pub(in crate::link) fn pass_to(&self, each: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let Packets { source, traffic_class, hop_limit, flow_label, segment, bytes } = *self;
        let mut count = 0;
        for bytes in bytes.chunks(segment.max(1) as usize) {
            count += 1;
            each(&Datagram { source, traffic_class, hop_limit, flow_label, received_at: None, bytes });
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_round_trip() {
        let mut bytes = Vec::new();
        let packets = |source: &str, hop_limit| Packets {
            source: source.parse().unwrap(),
            traffic_class: 0xb8,
            hop_limit,
            flow_label: 0xabcde,
            segment: 4,
            bytes: b"packet",
        };
        let link_local = SocketAddrV6::new("fe80::7".parse().unwrap(), 49152, 0, 3).into();
        let empty = Packets {
            source: link_local,
            traffic_class: 0,
            hop_limit: None,
            flow_label: 0,
            segment: 0,
            bytes: b"",
        };
        for packets in [
            packets("192.0.2.7:49152", Some(0)),
            packets("[2001:db8::7]:65535", None),
            packets("[::ffff:192.0.2.7]:1", Some(64)),
            empty,
        ] {
            bytes.clear();
            packets.emit(&mut bytes);
            assert_eq!(Packets::parse(&bytes), Some(packets));
        }
    }

    #[test]
    fn other_bytes_are_rejected() {
        let mut bytes = Vec::new();
        let source = "192.0.2.7:49152".parse().unwrap();
        let packets =
            Packets { source, traffic_class: 0, hop_limit: None, flow_label: 0, segment: 0, bytes: b"" };
        packets.emit(&mut bytes);
        for length in 0..bytes.len() {
            assert_eq!(Packets::parse(&bytes[..length]), None);
        }
        bytes[0] = 9;
        assert_eq!(Packets::parse(&bytes), None);
        let long = [0; MAX_GSO_PACKETS * 2 + 1];
        bytes.clear();
        Packets { segment: 2, bytes: &long, ..packets }.emit(&mut bytes);
        assert_eq!(Packets::parse(&bytes), None);
        assert!(Packets::parse(&bytes[..bytes.len() - 1]).is_some());
    }
}
