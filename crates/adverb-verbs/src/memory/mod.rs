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

pub use crate::backend::Memory;
pub use buffer::Buffer;
pub use pages::Pages;
pub use payload::{Payload, Piece};
pub use pool::{Pool, PoolBuilder, PoolStats};
pub use region::{MemoryRegion, RegionSlice, RemoteMemory};
pub use registered_buf::RegisteredBuf;

pub(crate) use region::Region;
