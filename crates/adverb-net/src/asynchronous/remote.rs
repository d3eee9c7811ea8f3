//! One-sided operations for tasks.

use std::ops::Range;

use adverb_verbs::Result;
use adverb_verbs::memory::{MemoryRegion, RegisteredBuf};

use super::Connection;
#[allow(unused_imports, reason = "for links")]
use crate::Options;
use crate::link::Asked;
use crate::protocol::Announced;
use crate::remote::{RemoteAccess, word};
use crate::{SendData, SendError};

/// One-sided: memory that the peer reaches without this side's program, and the peer's.
impl Connection {
    /// Exposes `len` zeros to the peer, under a name by which it [finds](Connection::remote_region) them. They stay exposed as long as
    /// the connection is there.
    ///
    /// This side reads and writes the memory through what is returned, which copies: the peer may change it at any moment.
    ///
    /// # Errors
    ///
    /// If there is no memory, the name has more than 64 bytes, or as [`send`](Connection::send).
    ///
    /// # Cancel safety
    ///
    /// Dropped, the peer was told of it or not.
    pub async fn expose(&self, name: &str, len: usize, access: RemoteAccess) -> Result<MemoryRegion> {
        let (region, announcement) = self.link.expose(name, len, access)?;
        self.send_ready(&mut Some(announcement), self.link.options.timeout).await?;
        Ok(region)
    }

    /// The peer's memory of this name: waits until the peer has exposed it.
    ///
    /// The peer's word for it comes among its messages: if more of them are unread than are taken in
    /// [ahead](Options::recv_buffer_limit), they must be received first.
    ///
    /// # Errors
    ///
    /// If the connection ends before, or it takes longer than the options' [`timeout`](Options::timeout).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it leaves nothing behind.
    pub async fn remote_region(&self, name: &str) -> Result<RemoteRegion<'_>> {
        let (timeout, waiting) = (self.link.options.timeout, "waiting for the peer to expose memory");
        let memory = self.wait(timeout, waiting, |link, state| link.announced(state, name)).await?;
        Ok(RemoteRegion { connection: self, memory })
    }
}

/// Memory that the peer exposes: none of its program runs for what is done to it.
///
/// What doesn't lie within it, or there is no right to, is refused here. A request that the peer's device refuses ends the
/// connection.
#[derive(Clone, Copy, Debug)]
pub struct RemoteRegion<'a> {
    pub(super) connection: &'a Connection,
    pub(super) memory: Announced,
}

impl RemoteRegion<'_> {
    /// How many bytes it has.
    #[allow(clippy::len_without_is_empty, reason = "memory always has some")]
    pub fn len(&self) -> u64 {
        self.memory.len
    }

    /// Reads these bytes.
    ///
    /// # Errors
    ///
    /// If they don't lie within the memory, there is no right to read them, or the connection has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it is done or not; its buffer stays until then.
    pub async fn read(&self, range: Range<u64>) -> Result<RegisteredBuf> {
        let mut asked = self.memory.read(&self.connection.link, &range)?;
        self.connection.finish_read(&mut asked).await
    }

    /// Reads several pieces, all at once.
    ///
    /// # Errors
    ///
    /// As [`read`](RemoteRegion::read).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it is done or not; its buffer stays until then.
    pub async fn read_many(
        &self,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<Vec<RegisteredBuf>> {
        let link = &self.connection.link;
        let asked = ranges.into_iter().map(|range| self.memory.read(link, &range));
        let mut asked = asked.collect::<Result<Vec<_>>>()?;
        self.connection.finish_many(&mut asked).await
    }

    /// Writes bytes. Returns when they are in the peer's memory.
    ///
    /// # Errors
    ///
    /// As [`read`](RemoteRegion::read).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it is done or not; its buffer stays until then.
    pub async fn write<'a>(&self, offset: u64, bytes: impl Into<SendData<'a>>) -> Result<(), SendError> {
        let mut asked = self.memory.write(&self.connection.link, offset, bytes.into())?;
        match self.connection.finish(&mut asked).await {
            Ok(_) => Ok(()),
            Err(error) => Err(asked.refused(error)),
        }
    }

    /// Writes bytes, and then tells the peer so: it [receives](Connection::recv) a message of no bytes with these 32 bits.
    ///
    /// # Errors
    ///
    /// As [`read`](RemoteRegion::read).
    ///
    /// # Cancel safety
    ///
    /// Dropped, the bytes are written or not, and the peer is told or not; if it is, they are.
    pub async fn write_with_imm<'a>(
        &self,
        offset: u64,
        bytes: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<(), SendError> {
        self.write(offset, bytes).await?;
        self.connection.send_with_imm(&[], immediate).await
    }

    /// Adds to a word, wrapping, and returns what it was. The offset must be a multiple of 8.
    ///
    /// # Errors
    ///
    /// As [`read`](RemoteRegion::read), and if the offset isn't.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it is done or not; its buffer stays until then.
    pub async fn fetch_add(&self, offset: u64, add: u64) -> Result<u64> {
        let mut asked = self.memory.fetch_add(&self.connection.link, offset, add)?;
        self.connection.finish(&mut asked).await.map(word)
    }

    /// Makes a word `swap` if it is `compare`, and returns what it was. The offset must be a multiple of 8.
    ///
    /// # Errors
    ///
    /// As [`fetch_add`](RemoteRegion::fetch_add).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it is done or not; its buffer stays until then.
    pub async fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64> {
        let mut asked = self.memory.compare_swap(&self.connection.link, offset, compare, swap)?;
        self.connection.finish(&mut asked).await.map(word)
    }
}

/// What is asked of the peer's memory, until it is done.
impl Connection {
    pub(super) async fn finish_many(&self, asked: &mut [Asked<'_>]) -> Result<Vec<RegisteredBuf>> {
        let mut buffers = Vec::with_capacity(asked.len());
        self.link.post_all(asked)?;
        for asked in asked {
            buffers.push(self.finish_read(asked).await?);
        }
        Ok(buffers)
    }

    async fn finish_read(&self, asked: &mut Asked<'_>) -> Result<RegisteredBuf> {
        let gone = || self.link.disconnected("a buffer didn't come back", "");
        self.finish(asked).await?.ok_or_else(gone)
    }

    async fn finish(&self, asked: &mut Asked<'_>) -> Result<Option<RegisteredBuf>> {
        let (timeout, waiting) = (self.link.options.timeout, "waiting for the peer's memory");
        self.wait(timeout, waiting, |link, state| link.finish(state, asked)).await
    }
}
