//! One-sided operations for threads.

use std::ops::Range;

#[allow(unused_imports, reason = "for links")]
use adverb_verbs::Error;
use adverb_verbs::Result;
use adverb_verbs::memory::{MemoryRegion, PoolBuf};

use super::Connection;
use crate::driver::{PendingOp, word_from_buffer};
use crate::message::{SendData, SendError};
#[allow(unused_imports, reason = "for links")]
use crate::options::Options;
use crate::remote::{PeerRegion, RemoteAccess};

/// One-sided access, by name.
impl Connection {
    /// Exposes `len` bytes of zeroed memory to the peer, under a name by which the peer
    /// [finds](Connection::remote_region) it. The memory stays exposed until the connection ends.
    ///
    /// The returned region copies bytes in and out, because the peer may change the memory at any time.
    ///
    /// # Errors
    ///
    /// - Returns [`Error::LimitExceeded`] if the name has more than 64 bytes.
    /// - Returns an error if the memory cannot be allocated or registered.
    /// - Returns the errors of [`send`](Connection::send).
    pub fn expose(&self, name: &str, len: usize, access: RemoteAccess) -> Result<MemoryRegion> {
        let (region, frame) = self.driver.expose(name, len, access)?;
        self.send_outgoing(Some(frame), self.driver.options.timeout)?;
        Ok(region)
    }

    /// Waits until the peer has exposed memory under this name, and returns the region.
    ///
    /// The peer announces exposed memory in order with its messages. If the messages before the announcement exceed
    /// [`Options::recv_buffer_limit`], the caller must receive them first.
    ///
    /// # Errors
    ///
    /// - Returns [`Error::Disconnected`] if the connection ends, or the peer shuts down its sending direction, during
    ///   the wait.
    /// - Returns [`Error::Timeout`] if the peer does not expose the memory within [`Options::timeout`].
    pub fn remote_region(&self, name: &str) -> Result<RemoteRegion<'_>> {
        let (timeout, waiting) = (self.driver.options.timeout, "waiting for the peer to expose memory");
        let memory = self.driver.wait(timeout, waiting, |driver, core| driver.find_region(core, name))?;
        Ok(RemoteRegion { connection: self, memory })
    }
}

/// Memory that the peer exposes. Operations on it run no code of the peer's program.
///
/// Operations that are out of bounds, or that the peer has not permitted, return an error before a request is posted,
/// because a request that the peer's device rejects would end the connection.
#[derive(Clone, Copy, Debug)]
pub struct RemoteRegion<'a> {
    pub(super) connection: &'a Connection,
    pub(super) memory: PeerRegion,
}

impl RemoteRegion<'_> {
    /// Returns the size of the memory in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.memory.len()
    }

    /// Reads a range of bytes.
    ///
    /// # Errors
    ///
    /// - Returns [`Error::OutOfBounds`] if the range is not within the memory.
    /// - Returns [`Error::InvalidRequest`] if the peer has not granted read access, or if the range ends before it
    ///   starts.
    /// - Returns [`Error::MessageTooLong`] if the device cannot transfer that many bytes in one request.
    /// - Returns [`Error::Disconnected`] if the connection has ended, or was reconnected after
    ///   [`Connection::remote_region`] returned this region.
    /// - Returns [`Error::Timeout`] if the operation does not complete within [`Options::timeout`].
    pub fn read(&self, range: Range<u64>) -> Result<PoolBuf> {
        let mut operation = self.connection.driver.prepare_read(&self.memory, &range)?;
        self.connection.finish_read(&mut operation)
    }

    /// Reads a range that is as long as `buffer` into the buffer, and returns the buffer. The device writes to it directly.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`read`](RemoteRegion::read), and [`Error::InvalidRequest`] if the buffer isn't from the
    /// connection's [pool](Connection::pool). The error contains the buffer, unless the device may still use it.
    pub fn read_into(&self, offset: u64, buffer: PoolBuf) -> Result<PoolBuf, SendError> {
        let mut operation = self.connection.driver.prepare_read_into(&self.memory, offset, buffer)?;
        match self.connection.finish_read(&mut operation) {
            Ok(buffer) => Ok(buffer),
            Err(error) => Err(operation.into_error(error)),
        }
    }

    /// Reads several ranges. Many requests are in flight at the same time: the send queue limits their number.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`read`](RemoteRegion::read).
    pub fn read_many(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> Result<Vec<PoolBuf>> {
        let driver = &self.connection.driver;
        let operations = ranges.into_iter().map(|range| driver.prepare_read(&self.memory, &range));
        let mut operations = operations.collect::<Result<Vec<_>>>()?;
        self.connection.finish_many(&mut operations)
    }

    /// Writes bytes at an offset. Returns when the bytes are in the peer's memory.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`read`](RemoteRegion::read). The required permission is write access.
    pub fn write<'a>(&self, offset: u64, bytes: impl Into<SendData<'a>>) -> Result<(), SendError> {
        let mut operation = self.connection.driver.prepare_write(&self.memory, offset, bytes.into())?;
        match self.connection.finish(&mut operation) {
            Ok(_) => Ok(()),
            Err(error) => Err(operation.into_error(error)),
        }
    }

    /// Writes bytes, and then notifies the peer: the peer [receives](Connection::recv) an empty message with this
    /// immediate data.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`write`](RemoteRegion::write) and of [`Connection::send`].
    pub fn write_with_imm<'a>(
        &self,
        offset: u64,
        bytes: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<(), SendError> {
        self.write(offset, bytes)?;
        self.connection.send_with_imm(&[], immediate)
    }

    /// Adds `add` to the 64-bit word at an offset, with wrap-around, and returns the previous value.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unaligned`] if the offset is not a multiple of 8, and the same errors as
    /// [`read`](RemoteRegion::read). The required permission is atomic access.
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64> {
        let mut operation = self.connection.driver.prepare_fetch_add(&self.memory, offset, add)?;
        self.connection.finish(&mut operation).map(word_from_buffer)
    }

    /// Replaces the 64-bit word at an offset with `swap` if the word equals `compare`, and returns the previous value.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`fetch_add`](RemoteRegion::fetch_add).
    pub fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64> {
        let mut operation =
            self.connection.driver.prepare_compare_swap(&self.memory, offset, compare, swap)?;
        self.connection.finish(&mut operation).map(word_from_buffer)
    }
}

/// Completion of requests to the peer's memory.
impl Connection {
    pub(super) fn finish_many(&self, operations: &mut [PendingOp<'_>]) -> Result<Vec<PoolBuf>> {
        let mut buffers = Vec::with_capacity(operations.len());
        self.driver.post_operations(operations)?;
        for operation in operations {
            buffers.push(self.finish_read(operation)?);
        }
        Ok(buffers)
    }

    fn finish_read(&self, operation: &mut PendingOp<'_>) -> Result<PoolBuf> {
        let no_buffer = || self.driver.disconnected("the device did not return a buffer", "");
        self.finish(operation)?.ok_or_else(no_buffer)
    }

    fn finish(&self, operation: &mut PendingOp<'_>) -> Result<Option<PoolBuf>> {
        let (timeout, waiting) =
            (self.driver.options.timeout, "waiting for a one-sided operation to complete");
        self.driver.wait(timeout, waiting, |driver, core| driver.poll_operation(core, operation))
    }
}
