//! RDMA for Rust: safe, easy, and working everywhere.
//!
//! - [`net`] has connections: listeners, connectors and messages, and nothing to know of RDMA.
//! - [`verbs`] has devices, queue pairs and completion queues: every knob, and memory that can't be misused.
//! - [`memory`] has the memory that they work on.
//!
//! The API is the same whatever device is under it: any that rdma-core drives, or a software NIC
//! (`Device::open("soft")`) that is there on any machine, without privilege, and speaks RoCEv2 from UDP sockets. Adverb
//! looks for rdma-core when it is first asked for a device, so that programs build and start without it.

#[cfg(not(target_os = "linux"))]
compile_error!("adverb needs Linux: adverb-wire and adverb-proto work everywhere");

mod backend;
mod error;
pub mod memory;
pub mod net;
mod ring;
pub mod verbs;

pub use error::{Error, Result};
