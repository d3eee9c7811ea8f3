//! One-sided access: exposed memory, and operations on the peer's memory.

macro_rules! one_sided {
    ($(tasks $async:tt $await:tt #[$tasks:meta])? $(threads #[$threads:meta])?) => { mod one_sided {

use std::ops::Range;
use std::time::Duration;

use adverb_verbs::memory::{Memory, MemoryRegion, Pool, PoolBuf};

use super::{Connection, expose_region};
use crate::driver::{Announcement, Driver, PendingOp, word_from_buffer};
use crate::error::{ExposeError, RemoteError, RemoteErrorKind, SendErrorKind};
use crate::message::SendData;
#[allow(unused_imports, reason = "for links")]
use crate::options::Options;
use crate::access::RemoteAccess;
use crate::remote::PeerRegion;
use crate::shared_region::SharedRegion;

/// One-sided access, by name.
impl Connection {
    /// Exposes `len` bytes of zeroed memory to the peer, under a name by which the peer
    /// [finds](Connection::remote_region) it. The memory stays exposed until it is [withdrawn](Connection::withdraw), or
    /// the connection ends.
    ///
    /// The returned region copies bytes in and out, because the peer may change the memory at any time.
    ///
    /// The peer gets the rights `access` to all of the memory. If it may change only some words, such as counters, expose
    /// these under another name, with [`RemoteAccess::ATOMIC`].
    ///
    /// The call allocates and registers the memory, which takes time in proportion to its length.
    $(#[$tasks]
    /// The first poll of the future does that, and blocks its thread. For large memory, expose a [`SharedRegion`] instead.
    )?
    ///
    /// A call that fails or is canceled withdraws the memory. If a memory window exposes it
    /// ([`withdraw`](Connection::withdraw) tells when) and the bind of the window is in flight, the bind fails, and with it the
    /// queue pair: the connection [reconnects](Options::reconnect), or ends. The queue pair executes the bind after its earlier
    /// requests, so the bind is in flight until the peer's device has acknowledged those.
    ///
    /// # Errors
    ///
    /// - Returns [`ExposeError::NameTooLong`] if the name has more than 64 bytes.
    /// - Returns [`ExposeError::NameInUse`] if this side exposes memory under the name already. To replace it,
    ///   [withdraw](Connection::withdraw) it first.
    /// - Returns [`ExposeError::Memory`] if the memory cannot be allocated or registered.
    /// - Returns [`ExposeError::Send`] with the errors of [`send`](Connection::send). If the peer grants no credits within
    ///   [`Options::timeout`], the memory is withdrawn.
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the memory is withdrawn, which may fail the queue pair, as described above.
    )?
    pub $($async)? fn expose(&self, name: &str, len: usize, access: RemoteAccess) -> Result<MemoryRegion, ExposeError> {
        let (region, announcement) = self.driver.expose(name, len, access)?;
        self.announce(announcement)$(.$await)??;
        Ok(region)
    }

    /// Exposes memory that other connections expose, too, to this peer, under a name by which the peer
    /// [finds](Connection::remote_region) it. The peer gets the rights `access`, whatever rights other peers have.
    ///
    /// The rights apply to the whole region: a part of a region cannot be exposed. Use a second region for words that peers
    /// change with [`RemoteAccess::ATOMIC`], such as counters, so that they cannot change the rest.
    ///
    /// The memory is registered once for all connections that share a protection domain. The first call for a domain
    /// registers it, which takes time in proportion to its length, and other calls that need the registration wait for it.
    $(#[$tasks]
    /// A thread for blocking calls of the runtime registers it, so other tasks run meanwhile.
    )?
    /// A [listener](super::ListenerBuilder::expose_region) registers the regions that it exposes to all of its peers earlier,
    /// when it is bound.
    ///
    /// The memory stays exposed until it is [withdrawn](Connection::withdraw), until it is withdrawn from [all
    /// peers](SharedRegion::withdraw), or until the connection ends. The connection keeps the memory allocated until
    /// then. If the connection [reconnects](Options::reconnect), the peer is told again. A call that fails or is canceled
    /// withdraws the memory, with the effects that [`expose`](Connection::expose) describes.
    ///
    /// # Errors
    ///
    /// - Returns [`ExposeError::NameTooLong`] if the name has more than 64 bytes.
    /// - Returns [`ExposeError::NameInUse`] if this side exposes memory under the name already. To replace it,
    ///   [withdraw](Connection::withdraw) it first.
    /// - Returns [`ExposeError::UnsharedDomain`] if the connection has a protection domain of its own: see
    ///   [`Options::shared_domain`].
    /// - Returns [`ExposeError::Withdrawn`] if the region was withdrawn from all peers.
    /// - Returns [`ExposeError::Memory`] if the memory cannot be registered, or the device has no window left.
    /// - Returns [`ExposeError::Send`] with the errors of [`send`](Connection::send). If the peer grants no credits within
    ///   [`Options::timeout`], the memory is [withdrawn](Connection::withdraw).
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the memory is [withdrawn](Connection::withdraw), which may fail the queue pair. It may stay
    /// registered.
    )?
    pub $($async)? fn expose_region(
        &self,
        name: &str,
        region: &SharedRegion,
        access: RemoteAccess,
    ) -> Result<(), ExposeError> {
        let announcement = expose_region(&self.driver, name, region, access)$(.$await)??;
        Ok(self.announce(announcement)$(.$await)??)
    }

    /// Withdraws the memory that this side exposes to the peer under a name. Returns `false` if there is none.
    ///
    /// The peer has no access any more when the call returns, whether its program cooperates or not. The withdrawal is
    /// also announced, in order with the messages: a peer that receives a message which this side sends after the
    /// withdrawal has received the announcement before. The peer's operations on the memory then return
    /// [`RemoteErrorKind::Withdrawn`], without an effect on the connection, and its
    /// [`remote_region`](Connection::remote_region) waits until memory is exposed under the name again. An operation such
    /// as [`read`](RemoteRegion::read) posts its request before it receives announcements that have arrived.
    ///
    /// **Operations that the peer posts earlier, and those in flight, fail at this side's device, which fails the
    /// connection's queue pair.** The connection then [reconnects](Options::reconnect), or ends. To prevent that, send
    /// the peer a message, and withdraw the memory after the peer has answered that it no longer uses it.
    ///
    /// The access ends without an effect on the rest of the connection if the memory was exposed through a memory window:
    /// always if the connection [shares](Options::shared_domain) its protection domain, and its device has windows.
    /// Otherwise, this side fails the queue pair itself, so that the connection reconnects without the memory, or ends
    /// with [`ConnectionError::MemoryWithdrawn`](crate::ConnectionError::MemoryWithdrawn).
    /// This side also fails the queue pair if the device fails to free the window.
    /// On a device without windows, or with a shared [pool](Options::pool) alone, a peer that remembers the key of memory
    /// in a shared domain can use it over another queue pair, also over one of its later connections, as long as the
    /// memory is registered.
    ///
    /// If the bind of the window is still in flight, the withdrawal fails the bind, and with it the queue pair. That cannot
    /// happen to memory after [`expose`](Connection::expose) or [`expose_region`](Connection::expose_region) has returned,
    /// because both wait for the bind. It can happen soon after a listener has accepted a connection for which it exposes a
    /// region, and soon after a reconnect, because neither waits for the binds.
    pub fn withdraw(&self, name: &str) -> bool {
        self.driver.withdraw(name)
    }

    /// Waits until the announcement of exposed memory is posted.
    $($async)? fn announce(&self, mut announcement: Announcement<'_>) -> Result<(), SendErrorKind> {
        let timeout = self.driver.options.timeout;
        self.wait(timeout, |driver, core| driver.is_announced(core, &mut announcement))$(.$await)?
    }

    /// Waits until the peer has exposed memory under this name, and returns the region.
    ///
    /// **Without [`Options::timeout`], which is the default, the call waits without limit** for a name that the peer does
    /// not expose, or has withdrawn. [`remote_region_timeout`](Connection::remote_region_timeout) has a time limit of its
    /// own.
    ///
    /// The peer announces exposed memory in order with its messages. If the messages before the announcement exceed
    /// [`Options::recv_buffer_limit`], the caller must receive them first.
    ///
    /// # Errors
    ///
    /// - Returns [`RemoteErrorKind::ConnectionLost`] if the connection ends, and [`RemoteErrorKind::NotExposed`] if the
    ///   peer shuts down its sending direction, during the wait.
    /// - Returns [`RemoteErrorKind::RegionTimedOut`] if the peer does not expose the memory within [`Options::timeout`].
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the connection.
    )?
    pub $($async)? fn remote_region(&self, name: &str) -> Result<RemoteRegion, RemoteError> {
        self.remote_region_timeout(name, self.driver.options.timeout)$(.$await)?
    }

    /// Waits for a region like [`remote_region`](Connection::remote_region), but no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`remote_region`](Connection::remote_region).
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the connection.
    )?
    pub $($async)? fn remote_region_timeout(
        &self,
        name: &str,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<RemoteRegion, RemoteError> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        // The announcement that the peer has withdrawn the memory may have arrived.
        self.driver.poll_once();
        let found = self.wait(timeout, |driver, core| driver.find_region(core, name))$(.$await)?;
        let memory = found.map_err(|kind: RemoteErrorKind| kind.of_region(Some(name)))?;
        Ok(RemoteRegion { memory, connection: self.clone() })
    }
}

/// Memory that the peer exposes. Operations on it run no code of the peer's program.
///
/// Operations that are out of bounds, or that the peer has not permitted, return an error before a request is posted,
/// because a request that the peer's device rejects would end the connection.
///
/// A region is a handle of its connection, like a clone of the [`Connection`].
#[derive(Clone, Debug)]
pub struct RemoteRegion {
    connection: Connection,
    memory: PeerRegion,
}

impl RemoteRegion {
    /// Returns the name under which the peer exposes the memory.
    pub fn name(&self) -> &str {
        self.memory.name()
    }

    /// Returns the operations that the peer permits.
    pub fn access(&self) -> RemoteAccess {
        self.memory.access()
    }

    /// Returns the pool of the [connection](Connection::pool), for the buffers of [`read_into`](RemoteRegion::read_into).
    pub fn pool(&self) -> Pool {
        self.connection.driver.pool()
    }

    /// Returns the size of the memory in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.memory.len()
    }

    /// Reads a range of bytes.
    ///
    /// # Errors
    ///
    /// - Returns [`RemoteErrorKind::OutOfBounds`] if the range is not within the memory, and
    ///   [`RemoteErrorKind::InvalidRange`] if it ends before it starts.
    /// - Returns [`RemoteErrorKind::NotPermitted`] if the peer has not granted read access.
    /// - Returns [`RemoteErrorKind::TooLong`] if the device cannot transfer that many bytes in one request.
    /// - Returns [`RemoteErrorKind::Memory`] if memory for the bytes cannot be allocated.
    /// - Returns [`RemoteErrorKind::Stale`] if the connection was reconnected after [`Connection::remote_region`] returned
    ///   this region, and [`RemoteErrorKind::Interrupted`] if it failed during the operation and can reconnect.
    /// - Returns [`RemoteErrorKind::ConnectionLost`] if the connection has ended.
    /// - Returns [`RemoteErrorKind::TimedOut`] if the operation does not complete within [`Options::timeout`].
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not be executed. The buffer of the operation stays allocated
    /// until the device has completed the operation.
    )?
    pub $($async)? fn read(&self, range: Range<u64>) -> Result<PoolBuf, RemoteError> {
        let operation = self.connection.driver.prepare_read(&self.memory, &range)?;
        self.connection.finish(operation)$(.$await)?
    }

    /// Reads a range that is as long as `buffer` into the buffer, and returns the buffer. The device writes to it
    /// directly.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`read`](RemoteRegion::read), and [`RemoteErrorKind::ForeignBuffer`] if the buffer isn't from the
    /// connection's [pool](Connection::pool). The error contains the buffer, unless the device may still use it.
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not be executed. The buffer stays allocated until the device
    /// has completed the operation.
    )?
    pub $($async)? fn read_into(&self, offset: u64, buffer: PoolBuf) -> Result<PoolBuf, RemoteError> {
        let operation = self.connection.driver.prepare_read_into(&self.memory, offset, buffer)?;
        self.connection.finish(operation)$(.$await)?
    }

    /// Reads several ranges. Many requests are in flight at the same time: the send queue limits their number.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`read`](RemoteRegion::read).
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, each operation may or may not be executed. The buffers stay allocated until the device
    /// has completed the operations.
    )?
    pub $($async)? fn read_many(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> Result<Vec<PoolBuf>, RemoteError> {
        let driver = &self.connection.driver;
        let operations = ranges.into_iter().map(|range| driver.prepare_read(&self.memory, &range));
        let operations = operations.collect::<Result<_, RemoteErrorKind>>()?;
        self.connection.finish_reads(operations)$(.$await)?
    }

    /// Writes bytes at an offset. Returns when the bytes are in the peer's memory.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`read`](RemoteRegion::read). The required permission is write access.
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not be executed. The buffer of the operation stays allocated
    /// until the device has completed the operation.
    )?
    pub $($async)? fn write<'a>(&self, offset: u64, bytes: impl Into<SendData<'a>>) -> Result<(), RemoteError> {
        let operation = self.connection.driver.prepare_write(&self.memory, offset, bytes.into())?;
        self.connection.finish(operation)$(.$await)?.map(drop)
    }

    /// Writes bytes, and then notifies the peer: the peer [receives](Connection::recv) an empty message with this
    /// immediate data.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`write`](RemoteRegion::write) and of [`Connection::send`].
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the bytes may or may not be written, and the peer may or may not be notified. If the
    /// peer is notified, the bytes are written.
    )?
    pub $($async)? fn write_with_imm<'a>(
        &self,
        offset: u64,
        bytes: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<(), RemoteError> {
        self.write(offset, bytes)$(.$await)??;
        let notified = self.connection.send_with_imm(&[], immediate)$(.$await)?;
        Ok(notified.map_err(|error| RemoteErrorKind::notify(self.connection.peer_addr(), error))?)
    }

    /// Adds `add` to the 64-bit word at an offset, with wrap-around, and returns the previous value.
    ///
    /// # Errors
    ///
    /// Returns [`RemoteErrorKind::Unaligned`] if the offset is not a multiple of 8, and the same errors as
    /// [`read`](RemoteRegion::read). The required permission is atomic access.
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not be executed. The buffer of the operation stays allocated
    /// until the device has completed the operation.
    )?
    pub $($async)? fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, RemoteError> {
        let operation = self.connection.driver.prepare_fetch_add(&self.memory, offset, add)?;
        Ok(word_from_buffer(&self.connection.finish(operation)$(.$await)??))
    }

    /// Replaces the 64-bit word at an offset with `swap` if the word equals `compare`, and returns the previous value.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`fetch_add`](RemoteRegion::fetch_add).
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not be executed. The buffer of the operation stays allocated
    /// until the device has completed the operation.
    )?
    pub $($async)? fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, RemoteError> {
        let operation = self.connection.driver.prepare_compare_swap(&self.memory, offset, compare, swap)?;
        Ok(word_from_buffer(&self.connection.finish(operation)$(.$await)??))
    }
}

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
    /// The call registers the memory, which takes time in proportion to its length.
    $(#[$tasks]
    /// The first poll of the future does that, and blocks its thread.
    )?
    ///
    /// # Errors
    ///
    /// - Returns an error if the memory cannot be registered, or if the offset of `base` within its page differs from
    ///   that of the memory. For `Pages`, `base` must be the start of a page.
    /// - Returns the errors of [`send`](Connection::send). If the peer grants no credits within [`Options::timeout`], the
    ///   memory is not exposed.
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the memory is deregistered. If the peer was told of it, the peer's operations on it fail
    /// the connection's queue pair, unless memory is exposed at the same addresses again.
    )?
    pub $($async)? fn expose_addresses(
        &self,
        base: u64,
        memory: impl Memory,
        access: RemoteAccess,
    ) -> Result<MemoryRegion, ExposeError> {
        let (region, announcement) = self.driver.expose_addresses(base, memory, access)?;
        self.announce(announcement)$(.$await)??;
        Ok(region)
    }

    /// Waits until the peer has exposed memory at addresses, and returns the peer's address space.
    ///
    /// The peer announces exposed memory in order with its messages: memory that the peer exposed before it sent a
    /// message is available once that message is received.
    ///
    /// # Errors
    ///
    /// - Returns [`RemoteErrorKind::ConnectionLost`] if the connection ends, and [`RemoteErrorKind::NotExposed`] if the
    ///   peer shuts down its sending direction, during the wait.
    /// - Returns [`RemoteErrorKind::RegionTimedOut`] if the peer does not expose memory within [`Options::timeout`].
    ///   Without that option, which is the default, the call waits without limit.
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the connection.
    )?
    pub $($async)? fn address_space(&self) -> Result<AddressSpace, RemoteError> {
        let found = self.wait(self.driver.options.timeout, Driver::has_addresses)$(.$await)?;
        found.map_err(|kind: RemoteErrorKind| kind.of_region(None))?;
        Ok(AddressSpace { connection: self.clone() })
    }
}

/// The memory that the peer [exposes at addresses](Connection::expose_addresses). Operations on it run no code of the
/// peer's program.
///
/// The application chooses the addresses, and both sides use them without exchanging keys. Operations can access only
/// memory that the peer has exposed: operations on other addresses, or without permission, return an error on this
/// side. Access by physical address, a feature of some drivers, has no such limit.
///
/// An address space is a handle of its connection, like a clone of the [`Connection`].
$(#[$tasks]
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
)?
$(#[$threads]
/// ```
/// use adverb::memory::Pages;
/// use adverb::net::RemoteAccess;
/// use adverb::net::blocking::{Listener, connect};
///
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr();
/// let server = std::thread::spawn(move || listener.accept());
/// let client = connect(address)?;
/// let server = server.join().unwrap()?;
/// // The application chooses the addresses. They need not be the addresses of any pointer.
/// let access = RemoteAccess::READ | RemoteAccess::WRITE;
/// let heap = server.expose_addresses(0x1000_0000, Pages::new(1 << 20)?, access)?;
///
/// let space = client.address_space()?;
/// space.write(0x1000_2000, b"hello")?;
/// assert_eq!(&space.read(0x1000_2000..0x1000_2005)?[..], b"hello");
/// # let mut bytes = [0; 5];
/// # heap.read(0x2000, &mut bytes)?;
/// # assert_eq!(&bytes, b"hello");
/// # Ok::<(), std::io::Error>(())
/// ```
)?
#[derive(Clone, Debug)]
pub struct AddressSpace {
    connection: Connection,
}

impl AddressSpace {
    /// Reads a range of addresses.
    ///
    /// # Errors
    ///
    /// - Returns [`RemoteErrorKind::UnknownAddresses`] if the range is not within one exposed memory range.
    /// - Returns the errors of [`RemoteRegion::read`], except [`RemoteErrorKind::OutOfBounds`] and
    ///   [`RemoteErrorKind::Stale`].
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not be executed. The buffer of the operation stays allocated
    /// until the device has completed the operation.
    )?
    pub $($async)? fn read(&self, addresses: Range<u64>) -> Result<PoolBuf, RemoteError> {
        let (memory, range) = self.connection.driver.find_addresses(&addresses)?;
        let operation = self.connection.driver.prepare_read(&memory, &range)?;
        self.connection.finish(operation)$(.$await)?
    }

    /// Reads as many bytes as `buffer` has, from an address on, into the buffer, and returns the buffer. The device
    /// writes to it directly.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`read`](AddressSpace::read), and [`RemoteErrorKind::ForeignBuffer`] if the buffer isn't from the
    /// connection's [pool](Connection::pool). The error contains the buffer, unless the device may still use it.
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not be executed. The buffer stays allocated until the device
    /// has completed the operation.
    )?
    pub $($async)? fn read_into(&self, address: u64, buffer: PoolBuf) -> Result<PoolBuf, RemoteError> {
        match self.find(address, buffer.len()) {
            Ok((memory, offset)) => {
                let operation = self.connection.driver.prepare_read_into(&memory, offset, buffer)?;
                self.connection.finish(operation)$(.$await)?
            }
            Err(kind) => Err(RemoteError { kind, buffer: Some(buffer) }),
        }
    }

    /// Reads several ranges of addresses. Many requests are in flight at the same time: the send queue limits their
    /// number.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`read`](AddressSpace::read).
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, each operation may or may not be executed. The buffers stay allocated until the device
    /// has completed the operations.
    )?
    pub $($async)? fn read_many(
        &self,
        addresses: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<Vec<PoolBuf>, RemoteError> {
        let driver = &self.connection.driver;
        let operations = addresses.into_iter().map(|addresses| {
            let (memory, range) = driver.find_addresses(&addresses)?;
            driver.prepare_read(&memory, &range)
        });
        let operations = operations.collect::<Result<_, RemoteErrorKind>>()?;
        self.connection.finish_reads(operations)$(.$await)?
    }

    /// Writes bytes at an address. Returns when the bytes are in the peer's memory.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`read`](AddressSpace::read). The required permission is write access.
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not be executed. The buffer of the operation stays allocated
    /// until the device has completed the operation.
    )?
    pub $($async)? fn write<'a>(
        &self,
        address: u64,
        bytes: impl Into<SendData<'a>>,
    ) -> Result<(), RemoteError> {
        let bytes = bytes.into();
        match self.find(address, bytes.bytes().len()) {
            Ok((memory, offset)) => {
                let operation = self.connection.driver.prepare_write(&memory, offset, bytes)?;
                self.connection.finish(operation)$(.$await)?.map(drop)
            }
            Err(kind) => Err(RemoteError { kind, buffer: bytes.into_buffer() }),
        }
    }

    /// Writes bytes, and then notifies the peer: the peer [receives](Connection::recv) an empty message with this
    /// immediate data.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`write`](AddressSpace::write) and of [`Connection::send`].
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the bytes may or may not be written, and the peer may or may not be notified. If the
    /// peer is notified, the bytes are written.
    )?
    pub $($async)? fn write_with_imm<'a>(
        &self,
        address: u64,
        bytes: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<(), RemoteError> {
        self.write(address, bytes)$(.$await)??;
        let notified = self.connection.send_with_imm(&[], immediate)$(.$await)?;
        Ok(notified.map_err(|error| RemoteErrorKind::notify(self.connection.peer_addr(), error))?)
    }

    /// Adds `add` to the 64-bit word at an address, with wrap-around, and returns the previous value. Both the address
    /// and the word in the peer's memory must be aligned to 8 bytes.
    ///
    /// # Errors
    ///
    /// Returns [`RemoteErrorKind::Unaligned`] if the word is not aligned, and the same errors as [`read`](AddressSpace::read).
    /// The required permission is atomic access.
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not be executed. The buffer of the operation stays allocated
    /// until the device has completed the operation.
    )?
    pub $($async)? fn fetch_add(&self, address: u64, add: u64) -> Result<u64, RemoteError> {
        let (memory, offset) = self.find(address, 8)?;
        let operation = self.connection.driver.prepare_fetch_add(&memory, offset, add)?;
        Ok(word_from_buffer(&self.connection.finish(operation)$(.$await)??))
    }

    /// Replaces the 64-bit word at an address with `swap` if the word equals `compare`, and returns the previous value.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`fetch_add`](AddressSpace::fetch_add).
    $(#[$tasks]
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not be executed. The buffer of the operation stays allocated
    /// until the device has completed the operation.
    )?
    pub $($async)? fn compare_swap(&self, address: u64, compare: u64, swap: u64) -> Result<u64, RemoteError> {
        let (memory, offset) = self.find(address, 8)?;
        let operation = self.connection.driver.prepare_compare_swap(&memory, offset, compare, swap)?;
        Ok(word_from_buffer(&self.connection.finish(operation)$(.$await)??))
    }

    /// Returns the memory that contains `len` bytes from an address on, and their offset in it.
    fn find(&self, address: u64, len: usize) -> Result<(PeerRegion, u64), RemoteErrorKind> {
        // An end that wraps around lies before the start, and so in no exposed memory.
        let addresses = address..address.wrapping_add(len as u64);
        let (memory, range) = self.connection.driver.find_addresses(&addresses)?;
        Ok((memory, range.start))
    }
}

/// Completion of requests to the peer's memory.
impl Connection {
    $($async)? fn finish_reads(&self, mut operations: Vec<PendingOp<'_>>) -> Result<Vec<PoolBuf>, RemoteError> {
        let mut buffers = Vec::with_capacity(operations.len());
        self.driver.post_operations(&mut operations)?;
        for operation in operations {
            buffers.push(self.finish(operation)$(.$await)??);
        }
        Ok(buffers)
    }

    $($async)? fn finish(&self, mut operation: PendingOp<'_>) -> Result<PoolBuf, RemoteError> {
        let completed = self.wait(self.driver.options.timeout, |driver, core| {
            driver.poll_operation(core, &mut operation)
        });
        completed$(.$await)?.map_err(|kind| operation.into_error(kind))
    }
}

    } };
}
pub(crate) use one_sided;
