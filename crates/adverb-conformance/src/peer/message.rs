//! The messages between the two ends, each a line of JSON.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use adverb::memory::RemoteMemory;
use adverb::verbs::Endpoint;
use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of the protocol.
pub(super) const VERSION: u32 = 2;

/// The maximum time for an answer. It exceeds the time that the other end waits for a completion.
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);

/// The maximum time for the greeting, which the other end sends at once.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum length of a line, more than any message needs.
const MAX_LINE_LEN: u64 = 1 << 16;

/// A command to an end.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Command {
    /// The greeting of both ends, with their versions.
    Hello(u32),
    /// Create a queue pair, and memory for the peer. The answer is [`Answer::Opened`].
    Open(Transport),
    /// Connect the queue pair.
    Connect(Connect),
    /// Post receives of `len` bytes until `count` are outstanding.
    PostReceives { count: u32, len: u32 },
    /// Wait for the receives. The answer is [`Answer::Arrived`].
    Receive(ExpectedReceives),
    /// Clear the memory of the expected messages.
    Clear(Batch),
    /// Write the bytes of messages to memory, each to its slot.
    Fill(Batch),
    /// Check the messages in memory. The answer is [`Answer::Arrived`].
    CheckMemory(ExpectedMemory),
    /// Post requests, and wait for their completions.
    Perform(Perform),
    /// Execute atomics. The answer is [`Answer::Word`] with the expected word.
    Atomics(Atomics),
    /// Set the first word of memory. The answer is [`Answer::Word`] with the previous word.
    Exchange(u64),
    /// Bind a window to the memory. The answer is [`Answer::Window`].
    Bind,
    /// Release all objects.
    Close,
    /// End the session.
    Bye,
}

/// The answer to a command.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    Opened(Opened),
    Arrived(Arrived),
    Word(u64),
    Window(RemoteMemory),
    Failed(String),
}

/// The transport of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Transport {
    Rc,
    Uc,
    Ud,
}

/// The objects and capabilities of an end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Opened {
    pub(super) endpoint: Endpoint,
    pub(super) memory: RemoteMemory,
    pub(super) mtu: u16,
    pub(super) max_rd_atomic: u8,
    pub(super) atomics: bool,
    pub(super) memory_windows: bool,
    /// An end without this field has no ATOMIC WRITE.
    #[serde(default)]
    pub(super) atomic_write: bool,
    /// An end without this field has no FLUSH.
    #[serde(default)]
    pub(super) flush: bool,
}

/// The parameters of a connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Connect {
    pub(super) peer: Endpoint,
    pub(super) mtu: u16,
    pub(super) max_rd_atomic: u8,
}

/// A batch of messages: their number, length and contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Batch {
    /// The seed of the first message. The seeds of the next ones count up.
    pub(super) seed: u64,
    pub(super) count: u32,
    pub(super) len: u32,
    pub(super) immediate: Immediate,
}

/// The messages of a batch that have immediate data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Immediate {
    None,
    EveryOther,
    All,
}

impl Batch {
    pub(super) fn seed_of(&self, index: u32) -> u64 {
        self.seed + u64::from(index)
    }

    /// Returns the immediate data of a message.
    pub(super) fn immediate_of(&self, index: u32) -> Option<u32> {
        let has_some = match self.immediate {
            Immediate::None => false,
            Immediate::EveryOther => index % 2 == 1,
            Immediate::All => true,
        };
        // The product uses all four bytes, so that a wrong byte order is detected.
        has_some.then(|| (self.seed_of(index) as u32).wrapping_mul(0x9e37_79b9))
    }

    /// Returns the offset of a message's slot in memory.
    pub(super) fn offset_of(&self, index: u32) -> usize {
        index as usize * self.slot_size()
    }

    /// Returns the size of a slot: more than a message needs, so that writes beyond its end are detected.
    fn slot_size(&self) -> usize {
        (self.len as usize).next_multiple_of(64) + 64
    }

    /// Returns the size of all slots.
    pub(super) fn span(&self) -> usize {
        self.count as usize * self.slot_size()
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct ExpectedReceives {
    pub(super) batch: Batch,
    pub(super) kind: Kind,
    /// Whether messages may be missing.
    pub(super) lossy: bool,
    /// The key that the messages must invalidate.
    pub(super) invalidated: Option<u32>,
}

/// The expected operation of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Kind {
    /// A message, with its bytes in the receive.
    Message,
    /// A write to memory. Only writes with immediate data complete a receive.
    Write,
}

/// The messages of a batch that arrived, by their indexes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Arrived {
    pub(super) indices: Vec<u32>,
}

/// The expected contents of memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ExpectedMemory {
    pub(super) batch: Batch,
    /// Whether packets may be missing.
    pub(super) lossy: bool,
    /// The payload of a packet in bytes.
    pub(super) mtu: u16,
    /// The messages that must be complete in any case.
    pub(super) whole: Vec<u32>,
}

/// The requests to post.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Perform {
    pub(super) action: Action,
    pub(super) batch: Batch,
    /// The peer's memory, for writes and reads.
    pub(super) memory: RemoteMemory,
    /// The destination of datagrams.
    pub(super) recipient: Option<Endpoint>,
    /// Whether the peer must reject the requests.
    pub(super) refused: bool,
}

/// The operation of each request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Action {
    Send,
    /// A SEND that invalidates this key.
    SendInvalidate(u32),
    Write,
    Read,
    /// An ATOMIC WRITE of a message of eight bytes.
    AtomicWrite,
    /// A WRITE, followed by a FLUSH of the written range or, every second time, of the whole region.
    WriteAndFlush,
}

/// Operations on the first word of the peer's memory, one after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Atomics {
    pub(super) swap: bool,
    pub(super) count: u32,
    /// The word before the operations.
    pub(super) word: u64,
    pub(super) memory: RemoteMemory,
}

/// The TCP stream between the two ends.
pub(super) struct ControlStream {
    reader: BufReader<TcpStream>,
}

impl ControlStream {
    pub(super) fn new(stream: TcpStream) -> Result<ControlStream> {
        stream.set_nodelay(true)?;
        Ok(ControlStream { reader: BufReader::new(stream) })
    }

    /// Reads the greeting of the other end.
    pub(super) fn greet(&mut self) -> Result<()> {
        self.reader.get_ref().set_read_timeout(Some(GREETING_TIMEOUT))?;
        let greeting = self.receive().with_context(|| {
            format!("the peer sent no greeting of `adverb peertest` within {} s", GREETING_TIMEOUT.as_secs())
        })?;
        self.reader.get_ref().set_read_timeout(Some(REPLY_TIMEOUT))?;
        let Command::Hello(version) = greeting else { bail!("the peer sent no greeting") };
        ensure!(
            version == VERSION,
            "the peer has protocol version {version}, not {VERSION}: use the same version of Adverb"
        );
        Ok(())
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(message)? + "\n";
        self.reader.get_mut().write_all(line.as_bytes()).context("the connection to the peer is lost")
    }

    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        let mut reader = self.reader.by_ref().take(MAX_LINE_LEN);
        let read = reader.read_line(&mut line).context("the peer does not answer")?;
        ensure!(read > 0, "the peer closed the connection");
        serde_json::from_str(&line)
            .with_context(|| format!("the peer sent an invalid message: {}", line.trim()))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_peer_that_sends_nothing_is_not_awaited_for_long() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let error = ControlStream::new(stream).unwrap().greet().unwrap_err();
        let expected =
            "the peer sent no greeting of `adverb peertest` within 5 s: the peer does not answer: ";
        assert!(format!("{error:#}").starts_with(expected), "{error:#}");
    }
}
