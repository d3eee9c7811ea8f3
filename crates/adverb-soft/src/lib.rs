//! A software RDMA NIC over UDP sockets or memory: RoCEv2 without RDMA hardware, kernel modules or root privileges.
//!
//! - [`Nic`] is the NIC: the protocol engine of `adverb-proto` with memory, a link, event channels and a progress
//!   thread.
//! - [`memory`] reads and writes the application's registered memory.
//! - [`open`] opens a NIC by its options.
//! - [`link`] sends and receives packets: implementations and wrappers of the trait [`Link`](link::Link).
//!
//! The crate supports only Linux. On other operating systems the crate is empty.

#![cfg(target_os = "linux")]

mod channel;
mod cm_event_channel;
mod error;
pub mod link;
pub mod memory;
mod nic;
pub mod open;

pub use channel::Channel;
pub use cm_event_channel::{CmEvent, CmEventChannel};
pub use error::{BatchPostError, Error};
pub use nic::{Cm, MAX_INLINE, Nic, NicEvent, NicOptions};
