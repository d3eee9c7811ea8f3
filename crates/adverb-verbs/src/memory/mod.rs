//! Memory that a device reads and writes: where it comes from, who owns it, how it is reached.
//!
//! - [`Memory`] is what can be registered: a pointer and a length that stay put. [`Pages`] is what Adverb itself
//!   allocates (ordinary pages, huge pages, a memfd); anything else comes through the unsafe trait.
//! - A [`Buffer`] is a piece of registered memory with one owner, and no peer can touch it: it is a `[u8]` while you
//!   have it. Posting takes it, and its completion gives it back, so that nothing can read, write or free it while the
//!   device works on it.
//! - A [`MemoryRegion`] is registered memory that may be shared, with the device and with peers. Nobody can say when
//!   it changes, so that it is never a `[u8]`: reading and writing copy.
//! - A [`Pool`] registers memory once, in chunks, and hands out pieces of it as [`RegisteredBuf`]s: like a `Buffer`, and
//!   as cheap to make as what `malloc` gives.
//!
//! This module, the backends and the ring that requests go through are the only ones with `unsafe`.

mod access;
mod buffer;
mod pages;
mod payload;
mod pool;
mod region;
mod registered_buf;

pub use buffer::Buffer;
pub use pages::Pages;
pub use payload::{Payload, Piece};
pub use pool::{Pool, PoolBuilder, PoolStats};
pub use region::{MemoryRegion, RegionSlice, RemoteMemory};
pub use registered_buf::RegisteredBuf;

pub(crate) use region::Region;

use std::any::Any;
use std::ptr::NonNull;

/// Memory that can be registered with a device.
///
/// # Safety
///
/// For as long as the value exists, whether it is moved or not, [`as_ptr`](Memory::as_ptr), [`len`](Memory::len) and
/// [`is_exclusive`](Memory::is_exclusive) return the same values, and these bytes stay allocated, initialised, readable
/// and writable. Nothing else in this process reads or writes them: not through other pointers, and not through methods
/// of the value. If `is_exclusive` says so, nothing else at all does: no other process, no system call. They may be read
/// and written from any thread.
///
/// A `Box<[u8]>` doesn't qualify: moving a `Box` asserts that nobody else has its pointer, and the device has.
pub unsafe trait Memory: Any + Send + Sync {
    /// Where the memory begins.
    fn as_ptr(&self) -> NonNull<u8>;

    /// How many bytes it has.
    fn len(&self) -> usize;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether nobody else can get at the bytes, not even another process. Only then can they become a [`Buffer`].
    fn is_exclusive(&self) -> bool {
        true
    }
}
