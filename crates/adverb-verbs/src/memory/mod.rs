//! Memory that a device reads and writes.
//!
//! - [`Memory`] is an unsafe trait for memory that can be registered: a pointer and a length that don't change.
//!   [`Pages`] is the memory that Adverb allocates: ordinary pages, huge pages, or a memfd.
//! - A [`Buffer`] is registered memory with one owner. No peer can access it, so the owner uses it as a `[u8]`. Posting
//!   a request moves the buffer into the request, and the completion returns it. So the program can't read, write or
//!   free the bytes while the device uses them.
//! - A [`MemoryRegion`] is registered memory that may be shared with the device and with peers. It can change at any
//!   moment, so it is never a `[u8]`: reads and writes copy bytes.
//! - [`SharedMemory`] is memory without a device, which any number of protection domains register.
//! - A [`Pool`] registers memory in large chunks and allocates [`PoolBuf`]s from them. A `PoolBuf` has one
//!   owner, like a `Buffer`, and allocating one costs about as much as `malloc`.
//!
//! In this crate, only this module, [`raw`](crate::raw), the backends, calls of the operating system and the ring of outstanding requests contain
//! `unsafe` code.

mod access;
mod buffer;
mod pages;
mod payload;
mod pool;
mod pool_buf;
mod region;
mod registration;
mod shared;
pub(crate) mod window;

pub use crate::backend::Memory;
pub use adverb_proto::types::RemoteMemory;
pub use buffer::Buffer;
pub use pages::Pages;
pub use payload::{Payload, PayloadSegment};
pub use pool::{Pool, PoolBuilder, PoolStats};
pub use pool_buf::PoolBuf;
pub use region::{MemoryRegion, RegionSlice};
pub use shared::SharedMemory;

pub(crate) use window::MemoryWindow;

pub(crate) use region::Region;
