//! Completion timestamps of a NIC, compared with the times at which links and the kernel send and receive packets.

#![cfg(target_os = "linux")]

#[path = "../support/mod.rs"]
mod support;

mod cost;
mod memory_link;
mod node;
mod sockets;
mod veth;
