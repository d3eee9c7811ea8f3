//! Memory that is named by its addresses, for threads.

use std::ops::Range;

use adverb_verbs::Result;
use adverb_verbs::memory::{Memory, MemoryRegion, RegisteredBuf};

use super::{Connection, RemoteRegion};
#[allow(unused_imports, reason = "for links")]
use crate::Options;
use crate::{RemoteAccess, SendData, SendError};

/// One-sided, by address alone.
impl Connection {
    /// Exposes memory to the peer under addresses of your choice, from `base` on: it [reads and writes](AddressSpace) there
    /// by the address alone, with no name and no key for each buffer. May be called for several pieces; where their addresses
    /// overlap, the last counts. It stays exposed as long as the connection is there.
    ///
    /// [`Pages`](adverb_verbs::memory::Pages) can be exposed by anybody; memory of your own, an arena that pointers lead into say,
    /// is for an `unsafe impl` of [`Memory`], which promises what that asks for. This side reads and writes the memory
    /// through what is returned, which copies: the peer may change it at any moment.
    ///
    /// # Errors
    ///
    /// If it can't be registered: `base` must lie as far into its page as the memory does, which begins with one if it is
    /// `Pages`; or as [`send`](Connection::send).
    pub fn expose_addresses(
        &self,
        base: u64,
        memory: impl Memory,
        access: RemoteAccess,
    ) -> Result<MemoryRegion> {
        let (region, announcement) = self.link.expose_addresses(base, memory, access)?;
        self.send_ready(&mut Some(announcement), self.link.options.timeout)?;
        Ok(region)
    }

    /// The peer's memory, by its addresses: waits until the peer has exposed any.
    ///
    /// The peer's word for what it exposes comes among its messages: what it exposed before it sent a message is known when
    /// that was received.
    ///
    /// # Errors
    ///
    /// If the connection ends before, or it takes longer than the options' [`timeout`](Options::timeout).
    pub fn address_space(&self) -> Result<AddressSpace<'_>> {
        let (timeout, waiting) = (self.link.options.timeout, "waiting for the peer to expose addresses");
        self.link.wait(timeout, waiting, |link, state| link.has_addresses(state))?;
        Ok(AddressSpace { connection: self })
    }
}

/// The peer's memory, as far as it [exposes addresses](Connection::expose_addresses): none of its program runs for what is
/// done to it.
///
/// This is what remains of access by physical address, which some devices once had: addresses that the application chooses, and
/// nothing else to be told; but only of memory that was exposed on purpose. What isn't exposed, or there is no right to, is
/// refused here.
///
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
/// // The addresses are agreed on, by whatever means: they needn't be those of any pointer.
/// let heap = server.expose_addresses(0x1000_0000, Pages::new(1 << 20)?, RemoteAccess::READ | RemoteAccess::WRITE)?;
///
/// let space = client.address_space()?;
/// space.write(0x1000_2000, b"hello")?;
/// assert_eq!(&space.read(0x1000_2000..0x1000_2005)?[..], b"hello");
/// # let mut bytes = [0; 5];
/// # heap.read(0x2000, &mut bytes)?;
/// # assert_eq!(&bytes, b"hello");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AddressSpace<'a> {
    connection: &'a Connection,
}

impl AddressSpace<'_> {
    /// Reads the bytes at these addresses.
    ///
    /// # Errors
    ///
    /// If the peer hasn't exposed all of them in one piece, there is no right to read them, or the connection has ended.
    pub fn read(&self, addresses: Range<u64>) -> Result<RegisteredBuf> {
        let (remote, range) = self.find(&addresses)?;
        remote.read(range)
    }

    /// Reads several pieces, all at once.
    ///
    /// # Errors
    ///
    /// As [`read`](AddressSpace::read).
    pub fn read_many(&self, addresses: impl IntoIterator<Item = Range<u64>>) -> Result<Vec<RegisteredBuf>> {
        let link = &self.connection.link;
        let asked = addresses.into_iter().map(|addresses| {
            let (memory, range) = link.find(&addresses)?;
            memory.read(link, &range)
        });
        let mut asked = asked.collect::<Result<Vec<_>>>()?;
        self.connection.finish_many(&mut asked)
    }

    /// Writes bytes, from this address on. Returns when they are in the peer's memory.
    ///
    /// # Errors
    ///
    /// As [`read`](AddressSpace::read).
    pub fn write<'a>(&self, address: u64, bytes: impl Into<SendData<'a>>) -> Result<(), SendError> {
        let bytes = bytes.into();
        // An end beyond all addresses is before its beginning, and so in nobody's memory.
        let end = address.wrapping_add(bytes.bytes().len() as u64);
        match self.find(&(address..end)) {
            Ok((remote, range)) => remote.write(range.start, bytes),
            Err(error) => Err(bytes.refused(error)),
        }
    }

    /// Writes bytes, and then tells the peer so: it [receives](Connection::recv) a message of no bytes with these 32 bits.
    ///
    /// # Errors
    ///
    /// As [`read`](AddressSpace::read).
    pub fn write_with_imm<'a>(
        &self,
        address: u64,
        bytes: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<(), SendError> {
        self.write(address, bytes)?;
        self.connection.send_with_imm(&[], immediate)
    }

    /// Adds to the word at an address, wrapping, and returns what it was. The word must be aligned, in the peer's memory as
    /// well as by its address.
    ///
    /// # Errors
    ///
    /// As [`read`](AddressSpace::read), and if it isn't aligned.
    pub fn fetch_add(&self, address: u64, add: u64) -> Result<u64> {
        let (remote, range) = self.find(&(address..address.wrapping_add(8)))?;
        remote.fetch_add(range.start, add)
    }

    /// Makes the word at an address `swap` if it is `compare`, and returns what it was.
    ///
    /// # Errors
    ///
    /// As [`fetch_add`](AddressSpace::fetch_add).
    pub fn compare_swap(&self, address: u64, compare: u64, swap: u64) -> Result<u64> {
        let (remote, range) = self.find(&(address..address.wrapping_add(8)))?;
        remote.compare_swap(range.start, compare, swap)
    }

    /// The piece of memory that has these addresses, and which part of it they are.
    fn find(&self, addresses: &Range<u64>) -> Result<(RemoteRegion<'_>, Range<u64>)> {
        let (memory, range) = self.connection.link.find(addresses)?;
        Ok((RemoteRegion { connection: self.connection, memory }, range))
    }
}
