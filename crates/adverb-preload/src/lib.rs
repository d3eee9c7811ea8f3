//! libibverbs and librdmacm on Adverb's software NIC: unmodified verbs programs run without RDMA hardware, kernel modules or
//! root.
//!
//! The crate isn't used as a Rust library: it exports the C functions of libibverbs and librdmacm. `cargo xtask preload`
//! compiles it as a static library and links shared libraries with rdma-core's names and symbol versions:
//!
//! - `libibverbs.so.1`, all verbs, over [`adverb_soft::Nic`], and the functions of librdmacm;
//! - `librdmacm.so.1`, which makes programs use the functions in `libibverbs.so.1`;
//! - `libmlx5.so.1`, `libefa.so.1` and libraries of other providers, whose functions fail: many programs link them, and
//!   rdma-core's own need internals of rdma-core's libibverbs.
//!
//! A program finds them in `LD_LIBRARY_PATH`. Each process has one device, `adverb0`. These environment variables
//! configure it:
//!
//! | variable | meaning |
//! |---|---|
//! | `ADVERB_DEVICE` | `soft:ADDRESS`, the IP address of the device; without it, 127.0.0.1 or, if another program has its port, the user's own loopback address. All processes of a user share an address. |
//! | `ADVERB_EXCLUSIVE` | `1`: each process has a device of its own |
//! | `ADVERB_WIRE` | `1`: the packets between processes at one address travel over UDP, not in shared memory, as those with faults do |
//! | `ADVERB_LOSS`, `ADVERB_DUPLICATION`, `ADVERB_CORRUPTION`, `ADVERB_REORDER` | the percentage of packets with that fault |
//! | `ADVERB_DELAY` | the time in milliseconds by which each packet is delayed |
//! | `ADVERB_SEED` | the seed of the faults |
//! | `ADVERB_TRACE` | the file of a recording, written at exit: `.html`, `.pcapng`, `.jsonl`, `.perfetto`, or else text |
//! | `ADVERB_REPORT` | the directory of reports for `adverb run`, written at exit |
//!
//! A program that has more privileges than its user, such as a setuid program, ignores them.
//!
//! A verb that the software NIC doesn't have fails with EOPNOTSUPP. A panic doesn't unwind into the program: the verb
//! fails with EIO, and the device delivers the event IBV_EVENT_DEVICE_FATAL.
//!
//! The crate supports only Linux. On other operating systems the crate is empty.

#![cfg(target_os = "linux")]

#[macro_use]
mod entry;

mod acks;
mod ah;
mod calls;
mod compat;
mod context;
mod cq;
mod cq_ex;
mod device;
mod event;
mod exit;
mod fork;
mod modify;
mod mr;
mod mw;
mod nic;
mod paths;
mod pd;
mod post;
mod qp;
mod qp_ex;
mod query;
mod rdmacm;
mod report;
mod settings;
mod signals;
mod srq;
mod strings;
mod unsupported;

#[cfg(test)]
mod tests;
