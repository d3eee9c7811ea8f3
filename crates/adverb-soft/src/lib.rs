//! An RDMA adapter made of sockets and memory: RoCEv2 without hardware, kernel module or privilege.
//!
//! - [`link`] is what moves packets: a stack of wrappers over one small trait.
//!
//! For Linux; elsewhere the crate is empty.

#![cfg(target_os = "linux")]

pub mod link;
