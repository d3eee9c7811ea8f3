//! The messages between processes that share an address. These functions do no I/O.
//!
//! Each message is one packet of a connection. The processes belong to one user.

use crate::link::local::{Packets, RING_MESSAGE, WAKE_MESSAGE};

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
    /// Packets that another process received.
    Packets(Packets<'a>),
}

const JOIN: u8 = 1;
const SOCKETS: u8 = 2;
const HELLO: u8 = 7;
const ELECTION: u8 = 8;

/// The version of the protocol: of the messages, and of the format of rings.
pub(super) const VERSION: u8 = 3;

/// The bytes of [`Message::Hello`] with the version of this process.
pub(super) const HELLO_MESSAGE: [u8; 2] = [HELLO, VERSION];

impl<'a> Message<'a> {
    /// Replaces the contents of `out` with the bytes of the message.
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Message::Hello(version) => out.extend([HELLO, *version]),
            Message::Join => out.push(JOIN),
            Message::Sockets => out.push(SOCKETS),
            Message::Election(share) => out.extend([ELECTION, *share]),
            Message::Ring => out.extend(RING_MESSAGE),
            Message::Wake => out.extend(WAKE_MESSAGE),
            Message::Packets(packets) => packets.emit(out),
        }
    }

    /// Parses a message. Returns `None` if the bytes aren't a message.
    pub(super) fn parse(message: &'a [u8]) -> Option<Message<'a>> {
        match message {
            [HELLO, version] => Some(Message::Hello(*version)),
            [JOIN] => Some(Message::Join),
            [SOCKETS] => Some(Message::Sockets),
            [ELECTION, share] => Some(Message::Election(*share)),
            message if *message == RING_MESSAGE => Some(Message::Ring),
            message if *message == WAKE_MESSAGE => Some(Message::Wake),
            message => Packets::parse(message).map(Message::Packets),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_round_trips() {
        let mut bytes = Vec::new();
        let packets = Packets {
            source: "192.0.2.7:49152".parse().unwrap(),
            traffic_class: 0xb8,
            hop_limit: Some(0),
            flow_label: 0xabcde,
            segment: 4,
            bytes: b"packet",
        };
        for message in [
            Message::Hello(VERSION),
            Message::Join,
            Message::Sockets,
            Message::Election(127),
            Message::Ring,
            Message::Wake,
            Message::Packets(packets),
        ] {
            message.emit(&mut bytes);
            assert_eq!(Message::parse(&bytes), Some(message));
        }
    }

    #[test]
    fn other_bytes_are_rejected() {
        for message in [&[][..], &[9], &[HELLO], &[JOIN, 0], &[ELECTION], &RING_MESSAGE.map(|byte| byte + 1)]
        {
            assert_eq!(Message::parse(message), None, "{message:?}");
        }
    }
}
