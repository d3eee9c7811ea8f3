//! An RDMA adapter made of sockets and memory: RoCEv2 without hardware, kernel module or privilege.
//!
//! - [`Nic`] is the adapter: the engine of `adverb-proto` with memory, a link, completion channels and a thread.
//! - [`memory`] is where it touches an application's bytes.
//! - [`link`] is what moves packets: a stack of wrappers over one small trait.
//!
//! For Linux; elsewhere the crate is empty.

#![cfg(target_os = "linux")]

mod channel;
mod cm_event_channel;
mod error;
pub mod link;
pub mod memory;
mod nic;

pub use channel::Channel;
pub use cm_event_channel::{CmEvent, CmEventChannel};
pub use error::{BatchPostError, Error};
pub use nic::{Cm, Nic, NicEvent, NicOptions};
