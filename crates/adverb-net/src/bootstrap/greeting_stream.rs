//! Greetings over a TCP connection.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use crate::protocol::handshake::{Flaw, Greeting, MAX_MESSAGE_LEN, PREFIX_LEN, Prefix};

/// A TCP connection that carries one greeting in each direction. No call blocks.
pub(super) struct GreetingStream {
    stream: TcpStream,
    received: GreetingBuffer,
}

impl GreetingStream {
    pub(super) fn new(stream: TcpStream) -> io::Result<GreetingStream> {
        stream.set_nonblocking(true)?;
        Ok(GreetingStream { stream, received: GreetingBuffer::new() })
    }

    /// Returns the local address of the TCP connection.
    pub(super) fn local_ip(&self) -> io::Result<IpAddr> {
        Ok(self.stream.local_addr()?.ip().to_canonical())
    }

    /// Sends a greeting. It fits into the empty send buffer of the socket.
    pub(super) fn send(&mut self, greeting: &Greeting) -> io::Result<()> {
        self.stream.write_all(&greeting.emit())
    }

    /// Returns the peer's greeting once it has arrived completely.
    pub(super) fn recv(&mut self) -> io::Result<Option<Result<Greeting, Flaw>>> {
        loop {
            let space = match self.received.poll() {
                Received::Greeting(greeting) => return Ok(Some(greeting)),
                Received::Missing(space) => space,
            };
            match self.stream.read(space) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.received.advance(len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads on, and returns whether the peer has closed the connection, or sends more than its greeting.
    pub(super) fn detect_end(&self) -> bool {
        let read = (&self.stream).read(&mut [0]);
        !matches!(read, Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted))
    }
}

impl AsFd for GreetingStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The part of a greeting that has arrived.
struct GreetingBuffer {
    bytes: [u8; PREFIX_LEN + MAX_MESSAGE_LEN],
    len: usize,
}

/// The state of a [`GreetingBuffer`].
enum Received<'a> {
    /// The greeting is complete, or malformed.
    Greeting(Result<Greeting, Flaw>),
    /// Space for the bytes that are missing: of the prefix first, then of the body.
    Missing(&'a mut [u8]),
}

impl GreetingBuffer {
    fn new() -> GreetingBuffer {
        GreetingBuffer { bytes: [0; PREFIX_LEN + MAX_MESSAGE_LEN], len: 0 }
    }

    fn poll(&mut self) -> Received<'_> {
        let expected = match self.bytes[..self.len].first_chunk() {
            None => PREFIX_LEN,
            Some(prefix) => match Prefix::parse(prefix) {
                Ok(prefix) => PREFIX_LEN + prefix.len,
                Err(flaw) => return Received::Greeting(Err(flaw)),
            },
        };
        if self.len == expected {
            return Received::Greeting(Greeting::parse(&self.bytes[..self.len]));
        }
        Received::Missing(&mut self.bytes[self.len..expected])
    }

    /// Counts bytes that were written to the space of [`Received::Missing`].
    fn advance(&mut self, len: usize) {
        self.len += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::handshake::{Refusal, RefusalCode, Side};

    /// Feeds bytes in pieces of this length. Returns the greeting, and the number of bytes that were consumed.
    fn feed(bytes: &[u8], piece: usize) -> (Result<Greeting, Flaw>, usize) {
        let (mut buffer, mut taken) = (GreetingBuffer::new(), 0);
        loop {
            let len = match buffer.poll() {
                Received::Greeting(greeting) => return (greeting, taken),
                Received::Missing(space) => {
                    let len = space.len().min(piece);
                    space[..len].copy_from_slice(&bytes[taken..taken + len]);
                    len
                }
            };
            buffer.advance(len);
            taken += len;
        }
    }

    #[test]
    fn a_greeting_is_complete_whatever_the_size_of_its_pieces() {
        let side = Side { nonce: Some([7; 32]), ..Side::default() };
        let refusal = Refusal::new(RefusalCode::Internal, "no");
        for greeting in [Greeting::Side(side), Greeting::Refusal(refusal)] {
            let mut bytes = greeting.emit();
            let len = bytes.len();
            // The bytes that follow are not part of the greeting.
            bytes.extend_from_slice(&[0xff; 200]);
            for piece in 1..=bytes.len() {
                assert_eq!(feed(&bytes, piece), (Ok(greeting.clone()), len));
            }
        }
    }

    #[test]
    fn a_malformed_prefix_ends_the_greeting_at_once() {
        let bytes = [b'x'; 200];
        assert_eq!(feed(&bytes, 1), (Err(Flaw::NotAdverb), PREFIX_LEN));
    }
}
