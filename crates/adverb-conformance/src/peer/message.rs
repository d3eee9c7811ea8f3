//! What the two ends say to each other: a line of JSON each.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use adverb::memory::RemoteMemory;
use adverb::verbs::Endpoint;
use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of these words.
pub(super) const VERSION: u32 = 1;

/// How long the other end may take for whatever it was asked: longer than it waits for a completion.
const PATIENCE: Duration = Duration::from_secs(120);

/// More than any message needs.
const LONGEST_LINE: u64 = 1 << 16;

/// What an end is asked to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Command {
    /// The first word, from both.
    Hello(u32),
    /// Make a queue pair, and memory for the peer: [`Answer::Opened`].
    Open(Transport),
    /// Connect it.
    Connect(Connect),
    /// Have so many receives posted, those that wait already counted.
    Offer { count: u32, room: u32 },
    /// Take what comes into them: [`Answer::Heard`].
    Hear(Hear),
    /// Have zeros in memory, where messages are to come.
    Clear(Batch),
    /// Have the bytes of messages lie in memory, each in its slot.
    Fill(Batch),
    /// Look whether they do: [`Answer::Heard`].
    Look(Look),
    /// Post requests, and wait for their completions.
    Perform(Perform),
    /// Do atomics: [`Answer::Word`], what the word must be now.
    Atomics(Atomics),
    /// Set the first word of memory, and say what it was: [`Answer::Word`].
    Exchange(u64),
    /// Bind a window to the memory: [`Answer::Window`].
    Bind,
    /// Give back what there is.
    Close,
    /// The last word.
    Bye,
}

/// What it says to that.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    Opened(Opened),
    Heard(Heard),
    Word(u64),
    Window(RemoteMemory),
    Failed(String),
}

/// Of which kind a queue pair is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Transport {
    Rc,
    Uc,
    Ud,
}

/// What there is at one end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Opened {
    pub(super) endpoint: Endpoint,
    pub(super) memory: RemoteMemory,
    pub(super) mtu: u16,
    pub(super) max_rd_atomic: u8,
    pub(super) atomics: bool,
    pub(super) memory_windows: bool,
}

/// How to connect.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Connect {
    pub(super) peer: Endpoint,
    pub(super) mtu: u16,
    pub(super) max_rd_atomic: u8,
}

/// Messages: how many, how long, and what is in them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Batch {
    /// The first one's seed; those behind it count up.
    pub(super) seed: u64,
    pub(super) count: u32,
    pub(super) len: u32,
    pub(super) immediate: Immediate,
}

/// Which messages of a batch have immediate data.
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

    /// The immediate data of a message.
    pub(super) fn immediate_of(&self, index: u32) -> Option<u32> {
        let has_some = match self.immediate {
            Immediate::None => false,
            Immediate::EveryOther => index % 2 == 1,
            Immediate::All => true,
        };
        // All of its bytes count, whatever the order.
        has_some.then(|| (self.seed_of(index) as u32).wrapping_mul(0x9e37_79b9))
    }

    /// Where in memory a message has its slot.
    pub(super) fn offset_of(&self, index: u32) -> usize {
        index as usize * self.slot()
    }

    /// How much memory a message has: more than it needs, so that what is written behind it is found.
    fn slot(&self) -> usize {
        (self.len as usize).next_multiple_of(64) + 64
    }

    /// How much memory all of them have.
    pub(super) fn span(&self) -> usize {
        self.count as usize * self.slot()
    }
}

/// What is to be heard.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Hear {
    pub(super) batch: Batch,
    pub(super) kind: Kind,
    /// Whether some may be missing.
    pub(super) lossy: bool,
    /// The key that the messages are to have made invalid.
    pub(super) invalidated: Option<u32>,
}

/// What a receive is to tell of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Kind {
    /// A message: its bytes are in the receive.
    Message,
    /// A write into memory: only those with immediate data are heard of.
    Write,
}

/// What came: which messages of a batch, by their places.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Heard {
    pub(super) indices: Vec<u32>,
}

/// What is to be found in memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Look {
    pub(super) batch: Batch,
    /// Whether packets may be missing in the end.
    pub(super) lossy: bool,
    /// How much there is in a packet.
    pub(super) mtu: u16,
    /// Those that must be whole all the same.
    pub(super) whole: Vec<u32>,
}

/// What is to be posted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Perform {
    pub(super) action: Action,
    pub(super) batch: Batch,
    /// The peer's memory: for writes and reads.
    pub(super) memory: RemoteMemory,
    /// To whom, if it isn't connected.
    pub(super) recipient: Option<Endpoint>,
    /// Whether the peer must refuse it.
    pub(super) refused: bool,
}

/// What is done with each message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Action {
    Send,
    /// With the key that is to be invalid.
    SendInvalidate(u32),
    Write,
    Read,
}

/// Operations on the first word of the peer's memory, one after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Atomics {
    pub(super) swap: bool,
    pub(super) count: u32,
    /// What the word is before them.
    pub(super) word: u64,
    pub(super) memory: RemoteMemory,
}

/// The stream between the two.
pub(super) struct Wire {
    reader: BufReader<TcpStream>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> Result<Wire> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Wire { reader: BufReader::new(stream) })
    }

    /// Reads the other's first word.
    pub(super) fn greet(&mut self) -> Result<()> {
        let Command::Hello(version) = self.receive()? else { bail!("the peer sent no greeting") };
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
        let mut reader = self.reader.by_ref().take(LONGEST_LINE);
        let read = reader.read_line(&mut line).context("the peer does not answer")?;
        ensure!(read > 0, "the peer closed the connection");
        serde_json::from_str(&line)
            .with_context(|| format!("the peer sent an invalid message: {}", line.trim()))
    }
}
