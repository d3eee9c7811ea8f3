//! The messages between processes that share an address. These functions do no I/O.
//!
//! Each message is one packet of a connection, or one message of a [ring](super::ring). The processes belong to one user.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use crate::link::MAX_GSO_PACKETS;

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message<'a> {
    /// The first message of each connection: the version of the protocol. A process closes a connection with another
    /// version, and responds with its own one. All versions have this message.
    Hello(u8),
    /// A request for the sockets at the address.
    Join,
    /// The response: file descriptors accompany the message.
    Sockets,
    /// The process with this share chooses the dispatcher, and watches the other process by this connection.
    Election(u8),
    /// A ring for packets, whose file accompanies the message.
    Ring,
    /// A ring has packets, and the other process sleeps.
    Wake,
    /// Packets that another process received or sent.
    Packets(Packets<'a>),
}

/// Up to [`MAX_GSO_PACKETS`] packets with the same metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Packets<'a> {
    pub(super) source: SocketAddr,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: Option<u8>,
    pub(super) flow_label: u32,
    /// The length of all packets but the last, which may be shorter.
    pub(super) segment: u32,
    pub(super) bytes: &'a [u8],
}

const JOIN: u8 = 1;
const SOCKETS: u8 = 2;
const WAKE: u8 = 3;
const RING: u8 = 5;
const PACKETS_V4: u8 = 4;
const PACKETS_V6: u8 = 6;
const HELLO: u8 = 7;
const ELECTION: u8 = 8;

/// The version of the protocol: of the messages, and of the format of rings.
pub(super) const VERSION: u8 = 3;

/// The bytes of [`Message::Hello`] with the version of this process.
pub(super) const HELLO_MESSAGE: [u8; 2] = [HELLO, VERSION];

/// The bytes of [`Message::Wake`].
pub(super) const WAKE_MESSAGE: [u8; 1] = [WAKE];

/// The length of the metadata of packets: kind, traffic class, hop limit and whether it is known, flow label, port,
/// address, scope, segment.
pub(super) const PACKETS_HEADER_LEN: usize = 1 + 1 + 2 + 4 + 2 + 16 + 4 + 4;

impl<'a> Message<'a> {
    /// Replaces the contents of `out` with the bytes of the message.
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.clear();
        let packets = match self {
            Message::Hello(version) => return out.extend([HELLO, *version]),
            Message::Join => return out.push(JOIN),
            Message::Sockets => return out.push(SOCKETS),
            Message::Election(share) => return out.extend([ELECTION, *share]),
            Message::Ring => return out.push(RING),
            Message::Wake => return out.push(WAKE),
            Message::Packets(packets) => packets,
        };
        let (kind, address, scope) = match packets.source {
            SocketAddr::V4(source) => (PACKETS_V4, source.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(source) => (PACKETS_V6, *source.ip(), source.scope_id()),
        };
        out.extend([kind, packets.traffic_class, packets.hop_limit.unwrap_or(0)]);
        out.push(packets.hop_limit.is_some().into());
        out.extend(packets.flow_label.to_be_bytes());
        out.extend(packets.source.port().to_be_bytes());
        out.extend(address.octets());
        out.extend(scope.to_be_bytes());
        out.extend(packets.segment.to_be_bytes());
        out.extend_from_slice(packets.bytes);
    }

    /// Parses a message. Returns `None` if the bytes aren't a message.
    pub(super) fn parse(message: &'a [u8]) -> Option<Message<'a>> {
        match message {
            [HELLO, version] => return Some(Message::Hello(*version)),
            [JOIN] => return Some(Message::Join),
            [SOCKETS] => return Some(Message::Sockets),
            [ELECTION, share] => return Some(Message::Election(*share)),
            [RING] => return Some(Message::Ring),
            [WAKE] => return Some(Message::Wake),
            _ => {}
        }
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
        Some(Message::Packets(Packets {
            source,
            traffic_class: *traffic_class,
            hop_limit: (*has_hops == 1).then_some(*hops),
            flow_label: u32::from_be_bytes(*flow_label),
            segment,
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
            Message::Packets(Packets {
                source,
                traffic_class: 0xb8,
                hop_limit,
                flow_label: 0xabcde,
                segment: 4,
                bytes: b"packet",
            })
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
        for message in [
            Message::Hello(VERSION),
            Message::Join,
            Message::Sockets,
            Message::Election(127),
            Message::Ring,
            Message::Wake,
            packet("192.0.2.7:49152", Some(0)),
            packet("[2001:db8::7]:65535", None),
            packet("[::ffff:192.0.2.7]:1", Some(64)),
            Message::Packets(empty),
        ] {
            message.emit(&mut bytes);
            assert_eq!(Message::parse(&bytes), Some(message));
        }
    }

    #[test]
    fn other_bytes_are_rejected() {
        let mut bytes = Vec::new();
        let source = "192.0.2.7:49152".parse().unwrap();
        let packet =
            Packets { source, traffic_class: 0, hop_limit: None, flow_label: 0, segment: 0, bytes: b"" };
        Message::Packets(packet).emit(&mut bytes);
        for length in 0..bytes.len() {
            assert_eq!(Message::parse(&bytes[..length]), None);
        }
        bytes[0] = 9;
        assert_eq!(Message::parse(&bytes), None);
        let long = [0; MAX_GSO_PACKETS * 2 + 1];
        Message::Packets(Packets { segment: 2, bytes: &long, ..packet }).emit(&mut bytes);
        assert_eq!(Message::parse(&bytes), None);
        assert!(Message::parse(&bytes[..bytes.len() - 1]).is_some());
    }
}
