//! The messages between processes that share an address, besides those of [rings](crate::link::local). These functions do
//! no I/O.

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// A request for the sockets at the address.
    Join,
    /// The response: file descriptors accompany the message.
    Sockets,
    /// The process with this share chooses the dispatcher, and watches the other process by this connection.
    Election(u8),
}

const JOIN: u8 = 1;
const SOCKETS: u8 = 2;
const ELECTION: u8 = 8;

impl Message {
    /// Replaces the contents of `out` with the bytes of the message.
    pub(super) fn emit(self, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Message::Join => out.push(JOIN),
            Message::Sockets => out.push(SOCKETS),
            Message::Election(share) => out.extend([ELECTION, share]),
        }
    }

    /// Parses a message. Returns `None` if the bytes aren't a message.
    pub(super) fn parse(message: &[u8]) -> Option<Message> {
        match message {
            [JOIN] => Some(Message::Join),
            [SOCKETS] => Some(Message::Sockets),
            [ELECTION, share] => Some(Message::Election(*share)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_round_trips() {
        let mut bytes = Vec::new();
        for message in [Message::Join, Message::Sockets, Message::Election(127)] {
            message.emit(&mut bytes);
            assert_eq!(Message::parse(&bytes), Some(message));
        }
    }

    #[test]
    fn other_bytes_are_rejected() {
        for message in [&[][..], &[9], &[JOIN, 0], &[ELECTION]] {
            assert_eq!(Message::parse(message), None, "{message:?}");
        }
    }
}
