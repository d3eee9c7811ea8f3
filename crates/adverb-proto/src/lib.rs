//! What a queue pair does with packets: the engine between the doorbell and the completion, as a pure state
//! machine.
//!
//! A [`Device`] is what an RDMA adapter is, without the wires: work requests and packets go in, packets and
//! completions come out. It has no clock, no socket and no thread, and no `unsafe`: time and randomness are
//! arguments, the bytes of registered memory are reached through the caller's [`memory::Memory`], and a packet to be
//! sent is its headers and the places where its payload lies, so that the engine copies nothing.
//!
//! - [`types`] has the words in which applications and devices speak of work, whichever device it is.
//! - [`memory`] has the rules about who may touch what.
//! - [`cm`] is the connection manager: how two queue pairs find each other.
//! - [`TraceEvent`] is all that happens inside, for a [`EventSink`] that wants to see it.
//!
//! There are reliable connections (RC), unreliable connections (UC) and datagrams (UD). Sections named in comments are
//! those of the InfiniBand Architecture Specification, volume 1, and its annexes A17 (RoCEv2) and A19 (memory
//! placement), no finer than three levels: they say where to look. Files named are those of Linux's
//! `drivers/infiniband/sw/rxe`, and show the rule in code.

#![forbid(unsafe_code)]

pub mod cm;
mod congestion;
mod cq;
mod device;
mod event;
mod hash;
pub mod memory;
#[cfg(test)]
mod messages;
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
mod timer;
mod transmit;
pub mod types;

pub use congestion::{Congestion, Dcqcn};
pub use cq::Cq;
pub use device::{Device, MulticastError, QpStatus, ResourceCounts};
pub use event::{DropReason, EventSink, Queue, QueueEvent, RetryCause, TimerKind, TraceEvent};
pub use path::{AddressVector, IcrcCheck, Path, Route, RxMeta};
pub use qp::{
    CreateQpError, Init, ModifyError, PostError, QpConfig, ReadyToReceive, ReadyToSend, Transition,
};
pub use srq::{Srq, SrqConfig, SrqError, SrqStatus};
pub use stats::Statistics;
pub use time::Time;
pub use transmit::{Payload, Transmit, WriteError};
