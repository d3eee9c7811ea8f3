//! The messages between processes that share an address. These functions do no I/O.
//!
//! Each message is one packet of a connection. The processes belong to one user, so they trust each other, but a
//! message may be from another version of this code.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message<'a> {
    /// A request for the sockets at the address.
    Join,
    /// The response: file descriptors accompany the message.
    Sockets,
    /// A packet that another process received.
    Packet(Packet<'a>),
}

/// A packet that another process received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Packet<'a> {
    pub(super) source: SocketAddr,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: Option<u8>,
    pub(super) flow_label: u32,
    pub(super) bytes: &'a [u8],
}

const JOIN: u8 = 1;
const SOCKETS: u8 = 2;
const PACKET_V4: u8 = 4;
const PACKET_V6: u8 = 6;

/// The length of a packet's metadata: kind, traffic class, hop limit and whether it is known, flow label, port, address,
/// scope.
const PACKET_HEADER_LEN: usize = 1 + 1 + 2 + 4 + 2 + 16 + 4;

impl<'a> Message<'a> {
    /// Replaces the contents of `out` with the bytes of the message.
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.clear();
        let packet = match self {
            Message::Join => return out.push(JOIN),
            Message::Sockets => return out.push(SOCKETS),
            Message::Packet(packet) => packet,
        };
        let (kind, address, scope) = match packet.source {
            SocketAddr::V4(source) => (PACKET_V4, source.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(source) => (PACKET_V6, *source.ip(), source.scope_id()),
        };
        out.extend([kind, packet.traffic_class, packet.hop_limit.unwrap_or(0)]);
        out.push(packet.hop_limit.is_some().into());
        out.extend(packet.flow_label.to_be_bytes());
        out.extend(packet.source.port().to_be_bytes());
        out.extend(address.octets());
        out.extend(scope.to_be_bytes());
        out.extend_from_slice(packet.bytes);
    }

    /// Parses a message. Returns `None` if the bytes aren't a message.
    pub(super) fn parse(message: &'a [u8]) -> Option<Message<'a>> {
        match message {
            [JOIN] => return Some(Message::Join),
            [SOCKETS] => return Some(Message::Sockets),
            _ => {}
        }
        let (header, bytes) = message.split_first_chunk::<PACKET_HEADER_LEN>()?;
        let [kind, traffic_class, hops, has_hops, fields @ ..] = header;
        let (flow_label, fields) = fields.split_first_chunk()?;
        let (port, fields) = fields.split_first_chunk()?;
        let (address, fields) = fields.split_first_chunk::<16>()?;
        let scope = fields.first_chunk()?;
        let (port, address) = (u16::from_be_bytes(*port), (*address).into());
        let source = match *kind {
            PACKET_V4 => SocketAddr::new(IpAddr::V6(address).to_canonical(), port),
            PACKET_V6 => SocketAddrV6::new(address, port, 0, u32::from_be_bytes(*scope)).into(),
            _ => return None,
        };
        Some(Message::Packet(Packet {
            source,
            traffic_class: *traffic_class,
            hop_limit: (*has_hops == 1).then_some(*hops),
            flow_label: u32::from_be_bytes(*flow_label),
            bytes,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_round_trips() {
        let mut bytes = Vec::new();
        let packet = |source: &str, hop_limit| {
            let source = source.parse().unwrap();
            Message::Packet(Packet {
                source,
                traffic_class: 0xb8,
                hop_limit,
                flow_label: 0xabcde,
                bytes: b"packet",
            })
        };
        let link_local = SocketAddrV6::new("fe80::7".parse().unwrap(), 49152, 0, 3).into();
        let empty =
            Packet { source: link_local, traffic_class: 0, hop_limit: None, flow_label: 0, bytes: b"" };
        for message in [
            Message::Join,
            Message::Sockets,
            packet("192.0.2.7:49152", Some(0)),
            packet("[2001:db8::7]:65535", None),
            packet("[::ffff:192.0.2.7]:1", Some(64)),
            Message::Packet(empty),
        ] {
            message.emit(&mut bytes);
            assert_eq!(Message::parse(&bytes), Some(message));
        }
    }

    #[test]
    fn other_bytes_are_rejected() {
        let mut bytes = Vec::new();
        let source = "192.0.2.7:49152".parse().unwrap();
        let packet = Packet { source, traffic_class: 0, hop_limit: None, flow_label: 0, bytes: b"" };
        Message::Packet(packet).emit(&mut bytes);
        for length in 0..bytes.len() {
            assert_eq!(Message::parse(&bytes[..length]), None);
        }
        bytes[0] = 5;
        assert_eq!(Message::parse(&bytes), None);
    }
}
