//! The RoCEv2 transport protocol as a pure state machine: queue pairs, completion queues, memory keys and the
//! connection manager.
//!
//! A [`Device`] is the engine of an RDMA adapter, without links: it takes work requests and received packets, and
//! returns packets to send and completions. It performs no I/O, has no clock and no thread, and contains no `unsafe`
//! code. Time and randomness are arguments. The engine reads and writes registered memory through the caller's
//! [`memory::Memory`]. A packet to send consists of its headers and the location of its payload, so the engine does not
//! copy the payload of packets to send, except inline bytes and the word of an ATOMIC WRITE.
//!
//! - [`types`]: plain data that applications and devices share, such as requests, completions and attributes.
//! - [`memory`]: memory regions, windows and their access checks.
//! - [`cm`]: the connection manager, which connects two queue pairs.
//! - [`explain`]: explanations of statuses, events, error numbers, syndromes, opcodes and reject reasons.
//! - [`trace`]: the steps of a device as events, for an [`EventSink`] such as a recorder or a test.
//!
//! The transports are reliable connection (RC), unreliable connection (UC) and unreliable datagram (UD). Section
//! numbers in comments refer to the InfiniBand Architecture Specification, volume 1, and its annexes A11 (IP addresses
//! in messages of the connection manager), A17 (RoCEv2) and A19 (memory placement), and have at most three levels. A
//! file name beside a section number refers to Linux's implementation of the same rule: in `drivers/infiniband/sw/rxe`,
//! or for `cm.c` and `cma.c` in `drivers/infiniband/core`.
//!
//! The examples of the items that the crate `adverb` re-exports use its paths, such as `adverb::verbs::Gid`.

#![forbid(unsafe_code)]

pub mod cm;
mod congestion;
mod cq;
mod device;
mod event;
pub mod explain;
mod hash;
pub mod memory;
#[cfg(not(feature = "mutants"))]
mod mutation;
#[cfg(feature = "mutants")]
pub mod mutation;
mod path;
mod qp;
mod slots;
mod srq;
mod stats;
mod time;
#[doc(hidden)]
pub mod timer;
pub mod trace;
mod transmit;
pub mod types;

pub use congestion::{Congestion, Dcqcn};
pub use cq::{Cq, Timestamp};
pub use device::{Device, MulticastError, QpStatus, ResourceCounts};
pub use event::QueueEvent;
pub use path::{AddressVector, IcrcCheck, Path, Route, RxMeta};
pub use qp::{
    CreateQpError, Init, ModifyError, PostError, QpConfig, ReadyToReceive, ReadyToSend, Transition,
};
pub use srq::{Srq, SrqConfig, SrqError, SrqStatus};
pub use stats::Statistics;
pub use time::Time;
pub use trace::{DropReason, EventSink, Queue, RetryCause, TimerKind, TraceEvent};
pub use transmit::{Payload, Transmit, WriteError};
