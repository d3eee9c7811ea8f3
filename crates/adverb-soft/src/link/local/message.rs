//! The messages of the connections between processes of a user. These functions do no I/O.
//!
//! Each message is one packet of a connection.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::marker::Token;
use super::packets::Packets;

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message<'a> {
    /// The first message of each connection: the version of the protocol. A process closes a connection with another
    /// version, and responds with its own one. All versions have this message.
    Hello(u8),
    /// A ring with this token for packets of the device at this address and port. The file of the ring accompanies the message.
    Ring(Token, SocketAddr),
    /// A ring has packets, and the other process sleeps.
    Wake,
    /// Packets that another process received.
    Packets(Packets<'a>),
    /// A message that isn't about packets.
    Other(&'a [u8]),
}

const WAKE: u8 = 3;
const RING: u8 = 5;
const HELLO: u8 = 7;

/// The version of the protocol: of the messages, and of the format of rings.
pub(in crate::link) const VERSION: u8 = 5;

/// The bytes of [`Message::Hello`] with the version of this process.
pub(in crate::link) const HELLO_MESSAGE: [u8; 2] = [HELLO, VERSION];

/// The bytes of [`Message::Wake`].
pub(super) const WAKE_MESSAGE: [u8; 1] = [WAKE];

/// The length of [`Message::Ring`]: kind, token, IP version, address, port, scope.
const RING_LEN: usize = 1 + 8 + 1 + 16 + 2 + 4;

/// Returns the bytes of [`Message::Ring`].
pub(super) fn ring_message(token: Token, source: SocketAddr) -> [u8; RING_LEN] {
    let (version, address, scope) = match source {
        SocketAddr::V4(source) => (4, source.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(source) => (6, *source.ip(), source.scope_id()),
    };
    let mut message = [RING; RING_LEN];
    message[1..9].copy_from_slice(&token.0);
    message[9] = version;
    message[10..26].copy_from_slice(&address.octets());
    message[26..28].copy_from_slice(&source.port().to_be_bytes());
    message[28..].copy_from_slice(&scope.to_be_bytes());
    message
}

/// Parses the fields of [`Message::Ring`].
fn parse_ring(fields: &[u8]) -> Option<Message<'_>> {
    let (token, fields) = fields.split_first_chunk()?;
    let (version, fields) = fields.split_first()?;
    let (address, fields) = fields.split_first_chunk::<16>()?;
    let (port, scope) = fields.split_first_chunk()?;
    let (address, port) = (Ipv6Addr::from(*address), u16::from_be_bytes(*port));
    let scope = u32::from_be_bytes(scope.try_into().ok()?);
    let source = match version {
        4 => SocketAddr::new(IpAddr::V4(address.to_ipv4_mapped()?), port),
        6 => SocketAddrV6::new(address, port, 0, scope).into(),
        _ => return None,
    };
    Some(Message::Ring(Token(*token), source))
}

impl<'a> Message<'a> {
    /// Parses a message.
    pub(super) fn parse(message: &'a [u8]) -> Message<'a> {
        match message {
            [HELLO, version] => Message::Hello(*version),
            [RING, fields @ ..] if let Some(ring) = parse_ring(fields) => ring,
            [WAKE] => Message::Wake,
            message => Packets::parse(message).map_or(Message::Other(message), Message::Packets),
        }
    }
}

/// Returns the version in the bytes of a [`Message::Hello`].
pub(in crate::link) fn hello_version(message: &[u8]) -> Option<u8> {
    match Message::parse(message) {
        Message::Hello(version) => Some(version),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_parsed() {
        assert_eq!(Message::parse(&HELLO_MESSAGE), Message::Hello(VERSION));
        let token = Token([1, 2, 3, 4, 5, 6, 7, 8]);
        for source in ["192.0.2.7:4791", "[2001:db8::7]:65535", "[::ffff:192.0.2.7]:1", "[fe80::7%3]:4791"] {
            let source = source.parse().unwrap();
            assert_eq!(Message::parse(&ring_message(token, source)), Message::Ring(token, source));
        }
        assert_eq!(Message::parse(&WAKE_MESSAGE), Message::Wake);
        let packets = Packets {
            source: "192.0.2.7:49152".parse().unwrap(),
            traffic_class: 0xb8,
            hop_limit: Some(0),
            flow_label: 0xabcde,
            segment: 4,
            bytes: b"packet",
        };
        let mut bytes = Vec::new();
        packets.emit(&mut bytes);
        assert_eq!(Message::parse(&bytes), Message::Packets(packets));
    }

    #[test]
    fn other_bytes_are_no_messages_about_packets() {
        for message in [&[][..], &[9], &[HELLO], &[RING], &[RING; RING_LEN], &[WAKE, 0]] {
            assert_eq!(Message::parse(message), Message::Other(message));
        }
        let mut ring = ring_message(Token([0; 8]), "192.0.2.7:4791".parse().unwrap()).to_vec();
        for length in 0..RING_LEN {
            assert_eq!(Message::parse(&ring[..length]), Message::Other(&ring[..length]));
        }
        // An IPv4 address is in a mapped IPv6 address.
        ring[10] = 1;
        assert_eq!(Message::parse(&ring), Message::Other(&ring));
        ring.push(0);
        assert_eq!(Message::parse(&ring), Message::Other(&ring));
    }
}
