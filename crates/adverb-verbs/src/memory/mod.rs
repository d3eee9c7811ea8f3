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
//! | type | contents | use it for |
//! |---|---|---|
//! | [`Buffer`] | registered memory with one owner, a `[u8]` | the messages and transfers of one request at a time; registering takes a system call, so allocate it once |
//! | [`PoolBuf`] | a part of a [`Pool`]'s registered memory, with one owner, a `[u8]` | buffers that are allocated and dropped often, of any size |
//! | [`MemoryRegion`] | registered memory that peers may access, never a `[u8]` | memory that peers READ and WRITE, and that this program accesses meanwhile |
//! | [`RegionSlice`] | a part of a [`MemoryRegion`], as the payload of a request | sending from and receiving into a region without a copy |
//! | [`RemoteMemory`] | the address, remote key and length of a peer's memory: plain data | the target of a WRITE, READ or atomic of a queue pair; the owner of the memory sends it in a message |
//! | [`SharedMemory`] | memory that is not registered yet | the same memory in several protection domains or devices: each registers a [`MemoryRegion`] of it |
//! | `SharedRegion` of `adverb::net` | memory that a server exposes to any number of peers by name | memory for the peers of connections |
//! | `RemoteRegion` of `adverb::net` | a peer's exposed memory, with its connection | reading and writing a peer's memory over a connection |
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
