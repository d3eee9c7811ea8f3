//! One-sided operations by address, for tasks.

use std::ops::Range;

#[allow(unused_imports, reason = "for links")]
use adverb_verbs::Error;
use adverb_verbs::Result;
use adverb_verbs::memory::{Memory, MemoryRegion, PoolBuf};

use super::{Connection, RemoteRegion};
use crate::driver::Driver;
use crate::message::{SendData, SendError};
#[allow(unused_imports, reason = "for links")]
use crate::options::Options;
use crate::remote::RemoteAccess;

/// One-sided access, by address.
impl Connection {
    /// Exposes memory to the peer at addresses that the caller chooses, starting at `base`. The memory stays exposed
    /// until the connection ends.
    ///
    /// The peer [reads and writes](AddressSpace) the memory by address, without a name or a key for each buffer. A
    /// program may call this method for several memory ranges. If their addresses overlap, operations access the memory
    /// that was exposed last.
    ///
    /// [`Pages`](adverb_verbs::memory::Pages) are safe to expose. To expose other memory, such as an arena that the
    /// program has pointers into, implement the unsafe trait [`Memory`], which lists the requirements. The returned
    /// region copies bytes in and out, because the peer may change the memory at any time.
    ///
    /// # Errors
    ///
    /// - Returns an error if the memory cannot be registered, or if the offset of `base` within its page differs from
    ///   that of the memory. For `Pages`, `base` must be the start of a page.
    /// - Returns the errors of [`send`](Connection::send).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the memory may or may not be exposed.
    pub async fn expose_addresses(
        &self,
        base: u64,
        memory: impl Memory,
        access: RemoteAccess,
    ) -> Result<MemoryRegion> {
        let (region, frame) = self.driver.expose_addresses(base, memory, access)?;
        self.send_outgoing(Some(frame), self.driver.options.timeout).await?;
        Ok(region)
    }

    /// Waits until the peer has exposed memory at addresses, and returns the peer's address space.
    ///
    /// The peer announces exposed memory in order with its messages: memory that the peer exposed before it sent a
    /// message is available once that message is received.
    ///
    /// # Errors
    ///
    /// - Returns [`Error::Disconnected`] if the connection ends, or the peer shuts down its sending direction, during
    ///   the wait.
    /// - Returns [`Error::Timeout`] if the peer does not expose memory within [`Options::timeout`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the connection.
    pub async fn address_space(&self) -> Result<AddressSpace<'_>> {
        let (timeout, waiting) = (self.driver.options.timeout, "waiting for the peer to expose addresses");
        self.wait(timeout, waiting, Driver::has_addresses).await?;
        Ok(AddressSpace { connection: self })
    }
}

/// The memory that the peer [exposes at addresses](Connection::expose_addresses). Operations on it run no code of the
/// peer's program.
///
/// The application chooses the addresses, and both sides use them without exchanging keys. Operations can access only
/// memory that the peer has exposed: operations on other addresses, or without permission, return an error on this
/// side. Access by physical address, a feature of some drivers, has no such limit.
///
/// ```
/// use adverb::memory::Pages;
/// use adverb::net::{Listener, RemoteAccess, connect};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let (client, server) = tokio::join!(connect(listener.local_addr()), listener.accept());
/// let (client, server) = (client?, server?);
/// // The application chooses the addresses. They need not be the addresses of any pointer.
/// let access = RemoteAccess::READ | RemoteAccess::WRITE;
/// let heap = server.expose_addresses(0x1000_0000, Pages::new(1 << 20)?, access).await?;
///
/// let space = client.address_space().await?;
/// space.write(0x1000_2000, b"hello").await?;
/// assert_eq!(&space.read(0x1000_2000..0x1000_2005).await?[..], b"hello");
/// # let mut bytes = [0; 5];
/// # heap.read(0x2000, &mut bytes)?;
/// # assert_eq!(&bytes, b"hello");
/// # Ok::<(), std::io::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AddressSpace<'a> {
    connection: &'a Connection,
}

impl AddressSpace<'_> {
    /// Reads a range of addresses.
    ///
    /// # Errors
    ///
    /// - Returns [`Error::InvalidRequest`] if the range is not within one exposed memory range, or if the peer has not
    ///   granted read access.
    /// - Returns [`Error::MessageTooLong`] if the device cannot transfer that many bytes in one request.
    /// - Returns [`Error::Disconnected`] if the connection has ended, or was reconnected during the operation.
    /// - Returns [`Error::Timeout`] if the operation does not complete within [`Options::timeout`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not be executed. The buffer of the operation stays allocated
    /// until the device has completed the operation.
    pub async fn read(&self, addresses: Range<u64>) -> Result<PoolBuf> {
        let (remote, range) = self.find(&addresses)?;
        remote.read(range).await
    }

    /// Reads as many bytes as `buffer` has, from an address on, into the buffer, and returns the buffer. The device writes
    /// to it directly.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`read`](AddressSpace::read), and [`Error::InvalidRequest`] if the buffer isn't from the
    /// connection's [pool](Connection::pool). The error contains the buffer, unless the device may still use it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not be executed. The buffer stays allocated until the device has
    /// completed the operation.
    pub async fn read_into(&self, address: u64, buffer: PoolBuf) -> Result<PoolBuf, SendError> {
        // An end that wraps around lies before the start, and so in no exposed memory.
        let end = address.wrapping_add(buffer.len() as u64);
        match self.find(&(address..end)) {
            Ok((remote, range)) => remote.read_into(range.start, buffer).await,
            Err(error) => Err(SendError { error, buffer: Some(buffer) }),
        }
    }

    /// Reads several ranges of addresses. Many requests are in flight at the same time: the send queue limits their
    /// number.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`read`](AddressSpace::read).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, each operation may or may not be executed. The buffers stay allocated until the device
    /// has completed the operations.
    pub async fn read_many(&self, addresses: impl IntoIterator<Item = Range<u64>>) -> Result<Vec<PoolBuf>> {
        let driver = &self.connection.driver;
        let operations = addresses.into_iter().map(|addresses| {
            let (memory, range) = driver.find_addresses(&addresses)?;
            driver.prepare_read(&memory, &range)
        });
        let mut operations = operations.collect::<Result<Vec<_>>>()?;
        self.connection.finish_many(&mut operations).await
    }

    /// Writes bytes at an address. Returns when the bytes are in the peer's memory.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`read`](AddressSpace::read). The required permission is write access.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not be executed. The buffer of the operation stays allocated
    /// until the device has completed the operation.
    pub async fn write<'a>(&self, address: u64, bytes: impl Into<SendData<'a>>) -> Result<(), SendError> {
        let bytes = bytes.into();
        // An end that wraps around lies before the start, and so in no exposed memory.
        let end = address.wrapping_add(bytes.bytes().len() as u64);
        match self.find(&(address..end)) {
            Ok((remote, range)) => remote.write(range.start, bytes).await,
            Err(error) => Err(bytes.into_error(error)),
        }
    }

    /// Writes bytes, and then notifies the peer: the peer [receives](Connection::recv) an empty message with this
    /// immediate data.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`write`](AddressSpace::write) and of [`Connection::send`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the bytes may or may not be written, and the peer may or may not be notified. If the
    /// peer is notified, the bytes are written.
    pub async fn write_with_imm<'a>(
        &self,
        address: u64,
        bytes: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<(), SendError> {
        self.write(address, bytes).await?;
        self.connection.send_with_imm(&[], immediate).await
    }

    /// Adds `add` to the 64-bit word at an address, with wrap-around, and returns the previous value. Both the
    /// address and the word in the peer's memory must be aligned to 8 bytes.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unaligned`] if the word is not aligned, and the same errors as [`read`](AddressSpace::read).
    /// The required permission is atomic access.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not be executed. The buffer of the operation stays allocated
    /// until the device has completed the operation.
    pub async fn fetch_add(&self, address: u64, add: u64) -> Result<u64> {
        let (remote, range) = self.find(&(address..address.wrapping_add(8)))?;
        remote.fetch_add(range.start, add).await
    }

    /// Replaces the 64-bit word at an address with `swap` if the word equals `compare`, and returns the previous value.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`fetch_add`](AddressSpace::fetch_add).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not be executed. The buffer of the operation stays allocated
    /// until the device has completed the operation.
    pub async fn compare_swap(&self, address: u64, compare: u64, swap: u64) -> Result<u64> {
        let (remote, range) = self.find(&(address..address.wrapping_add(8)))?;
        remote.compare_swap(range.start, compare, swap).await
    }

    /// Returns the region that contains these addresses, and their offsets in it.
    fn find(&self, addresses: &Range<u64>) -> Result<(RemoteRegion<'_>, Range<u64>)> {
        let (memory, range) = self.connection.driver.find_addresses(addresses)?;
        Ok((RemoteRegion { connection: self.connection, memory }, range))
    }
}
