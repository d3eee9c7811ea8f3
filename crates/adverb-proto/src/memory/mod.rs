//! Registered memory: how bytes are reached, and who may reach them.
//!
//! The engine holds no bytes. A region is a range of addresses with rights, under a random key, and stands for a
//! [`Backing`]: whatever the caller keeps the bytes in. What a peer writes goes through the caller's [`Memory`];
//! what is sent is named as [`Span`]s and gathered by whoever sends it.

mod heap;
mod keys;
mod windows;

pub use heap::HeapMemory;
pub use keys::{DeregisterError, DomainError, Pd, RegisterError, Registration, RemoteInvalidate};
pub(crate) use keys::{Keys, Part, Range};
pub use windows::WindowError;

/// What the caller keeps a region's bytes in: an index, a handle, a pointer. It means nothing to the engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Backing(pub u64);

/// Some bytes of registered memory, checked against the rights of their region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Where the bytes are kept.
    pub backing: Backing,
    /// Where in there they begin.
    pub offset: u64,
    /// How many.
    pub length: u32,
}

/// How the engine reaches the bytes of registered memory.
///
/// Every place that it names has been checked: it lies within a region that was registered with that backing, and
/// the region has the right. An implementation may still fail, for instance where a page can't be brought in.
pub trait Memory {
    /// Puts bytes at the beginning of `span`, which is exactly as long.
    ///
    /// # Errors
    ///
    /// If the bytes can't be written.
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Fault>;

    /// Copies the bytes of `span` into `out`, which is exactly as long.
    ///
    /// # Errors
    ///
    /// If the bytes can't be read.
    fn read(&self, span: Span, out: &mut [u8]) -> Result<(), Fault>;

    /// Copies the bytes of `span` behind those that `out` holds.
    ///
    /// # Errors
    ///
    /// If the bytes can't be read; what is behind `out`'s bytes then doesn't matter.
    fn append_to(&self, span: Span, out: &mut Vec<u8>) -> Result<(), Fault> {
        let start = out.len();
        out.resize(start + span.length as usize, 0);
        self.read(span, &mut out[start..])
    }

    /// If the native 64-bit word there is `compare`, makes it `swap`; says what it was.
    ///
    /// # Errors
    ///
    /// If the word can't be reached, or isn't aligned where it really is.
    fn compare_swap(&mut self, word: Span, compare: u64, swap: u64) -> Result<u64, Fault>;

    /// Adds to the native 64-bit word there, wrapping; says what it was.
    ///
    /// # Errors
    ///
    /// If the word can't be reached, or isn't aligned where it really is.
    fn fetch_add(&mut self, word: Span, add: u64) -> Result<u64, Fault>;

    /// Puts eight bytes there at once, so that nobody sees some of them without the others.
    ///
    /// # Errors
    ///
    /// If the word can't be reached, or isn't aligned where it really is.
    fn write_word(&mut self, word: Span, bytes: [u8; 8]) -> Result<(), Fault>;

    /// Brings what was written there to where everyone sees it, or where it outlasts a loss of power.
    ///
    /// # Errors
    ///
    /// If that can't be done.
    fn flush(&mut self, span: Span, persistent: bool) -> Result<(), Fault>;
}

/// The error of accessing registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault;

impl core::fmt::Display for Fault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("accessing registered memory failed: the backing is gone, or a word is not aligned")
    }
}

impl core::error::Error for Fault {}
