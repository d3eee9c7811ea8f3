//! The messages of the connections between processes of a user. These functions do no I/O.
//!
//! Each message is one packet of a connection.

use super::marker::Token;
use super::packets::Packets;

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message<'a> {
    /// The first message of each connection: the version of the protocol. A process closes a connection with another
    /// version, and responds with its own one. All versions have this message.
    Hello(u8),
    /// A ring for packets with this token, whose file accompanies the message.
    Ring(Token),
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
pub(in crate::link) const VERSION: u8 = 4;

/// The bytes of [`Message::Hello`] with the version of this process.
pub(in crate::link) const HELLO_MESSAGE: [u8; 2] = [HELLO, VERSION];

/// The bytes of [`Message::Wake`].
pub(super) const WAKE_MESSAGE: [u8; 1] = [WAKE];

/// Returns the bytes of [`Message::Ring`].
pub(super) fn ring_message(token: Token) -> [u8; 9] {
    let mut message = [RING; 9];
    message[1..].copy_from_slice(&token.0);
    message
}

impl<'a> Message<'a> {
    /// Parses a message.
    pub(super) fn parse(message: &'a [u8]) -> Message<'a> {
        match message {
            [HELLO, version] => Message::Hello(*version),
            [RING, token @ ..] if let Ok(token) = token.try_into() => Message::Ring(Token(token)),
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
        assert_eq!(Message::parse(&ring_message(token)), Message::Ring(token));
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
        for message in [&[][..], &[9], &[HELLO], &[RING], &[RING; 8], &[RING; 10], &[WAKE, 0]] {
            assert_eq!(Message::parse(message), Message::Other(message));
        }
    }
}
