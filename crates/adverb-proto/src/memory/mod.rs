//! Registered memory: regions and windows, their keys, and access to their bytes.
//!
//! A region is a range of addresses with access rights and a random key. The engine does not hold the region's bytes: a
//! [`StorageId`] identifies the storage in which the caller keeps them. The engine writes a peer's data through the
//! caller's [`Memory`]. The engine describes data to send as [`Span`]s, and the caller reads the bytes when it sends
//! the packet.

mod heap;
mod keys;
mod windows;

pub use heap::HeapMemory;
pub use keys::{DeregisterError, DomainError, Pd, RegisterError, Registration, RemoteInvalidate};
pub(crate) use keys::{Keys, Part, Range};
pub use windows::WindowError;

/// The caller's identifier of a region's storage, such as an index, a handle or a pointer. The engine does not
/// interpret it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StorageId(pub u64);

/// A range of registered memory that was checked against the access rights of its region or window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The identifier of the storage that holds the bytes.
    pub storage: StorageId,
    /// The offset of the first byte in the storage.
    pub offset: u64,
    /// The number of bytes.
    pub length: u32,
}

/// The engine's access to the bytes of registered memory.
///
/// The engine has checked each span: the span lies within a region that was registered with this storage, and the
/// region or a window on it grants the access. An implementation may still fail, for example if a page can't be faulted
/// in.
pub trait Memory {
    /// Writes `bytes` to `span`, which has the same length.
    ///
    /// # Errors
    ///
    /// Returns [`Fault`] if the bytes can't be written.
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Fault>;

    /// Copies the bytes of `span` into `out`, which has the same length.
    ///
    /// # Errors
    ///
    /// Returns [`Fault`] if the bytes can't be read.
    fn read(&self, span: Span, out: &mut [u8]) -> Result<(), Fault>;

    /// Appends the bytes of `span` to `out`.
    ///
    /// # Errors
    ///
    /// Returns [`Fault`] if the bytes can't be read. `out` may then have unspecified bytes after its previous contents.
    fn append_to(&self, span: Span, out: &mut Vec<u8>) -> Result<(), Fault> {
        let start = out.len();
        out.resize(start + span.length as usize, 0);
        self.read(span, &mut out[start..])
    }

    /// Replaces a native-endian 64-bit word with `swap` if it equals `compare`, and returns its previous value.
    ///
    /// # Errors
    ///
    /// Returns [`Fault`] if atomic access to the word fails, for example because it is not aligned in the storage.
    fn compare_swap(&mut self, word: Span, compare: u64, swap: u64) -> Result<u64, Fault>;

    /// Adds `add` to a native-endian 64-bit word, wrapping around, and returns its previous value.
    ///
    /// # Errors
    ///
    /// Returns [`Fault`] if atomic access to the word fails, for example because it is not aligned in the storage.
    fn fetch_add(&mut self, word: Span, add: u64) -> Result<u64, Fault>;

    /// Writes eight bytes atomically: a concurrent reader reads either all old or all new bytes.
    ///
    /// # Errors
    ///
    /// Returns [`Fault`] if atomic access to the word fails, for example because it is not aligned in the storage.
    fn write_word(&mut self, word: Span, bytes: [u8; 8]) -> Result<(), Fault>;

    /// Flushes earlier writes to `span` to global visibility, or to persistence if `persistent` is set.
    ///
    /// # Errors
    ///
    /// Returns [`Fault`] if the flush fails.
    fn flush(&mut self, span: Span, persistent: bool) -> Result<(), Fault>;
}

/// The error of accessing registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault;

impl core::fmt::Display for Fault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("accessing registered memory failed: the memory was released, or a word is not aligned")
    }
}

impl core::error::Error for Fault {}
