//! Connections over RDMA: messages, byte streams, and access to a peer's memory.
//!
//! Programs depend on `adverb`, which re-exports this crate as `adverb::net`.
//!
//! The module [`blocking`] contains the API for threads. With the feature `tokio`, which is on by default, this module
//! contains the same API for tasks. The caller opens no device, creates no queue pair and registers no memory:
//! listeners and connectors perform these steps.
//!
//! # Messages
//!
//! A connection carries messages of up to 64 MiB, or of up to 1 GiB with [`Options::max_message_size`]. The sender
//! writes short messages into a ring in the receiver's memory (eager). The receiver's device reads long messages from
//! the sender's memory (rendezvous). A sender whose peer does not receive messages runs out of credits, and waits.
//! `docs/protocol.md` specifies the protocol.
//!
//! # One-sided access
//!
//! A side can expose memory under a name, or at addresses that it chooses. The peer then reads and writes that memory,
//! and executes atomic operations on it, without running any code of the owner. A [`SharedRegion`] is exposed to many
//! peers, with rights per peer, and can be withdrawn.
//!
//! # Authentication
//!
//! A listener without a [`Key`] accepts every peer that reaches it and has no key either. With a key (see
//! [`Options::key`]), each side proves to the other that it has the key before either side sends an address of its
//! memory. A key authenticates the handshake only: RDMA packets are neither encrypted nor signed.
//!
//! # Progress
//!
//! A connection has no background thread: the calls that use the connection drive it. The exceptions are connections
//! that have failed and are [reconnecting](Options::reconnect), and connections that were dropped before the peer has
//! received the acknowledgement of its close. While a process has such connections, one thread (`adverb-redial`) drives
//! all of them: it dials, and drives the handshakes of listeners whose accepted connections have failed. Up to four
//! further threads (`adverb-resolve`) look up host names for it. If a connection reconnects over a device on which its
//! [`SharedRegion`]s are not registered, a thread for each region registers it (`adverb-register`). All of these threads
//! are temporary.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod access;
mod api;
mod bootstrap;
mod domains;
mod driver;
mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "tokio")]
#[doc(hidden)]
pub mod internal;
mod key;
mod message;
mod options;
mod protocol;
#[cfg(feature = "tokio")]
mod readiness;
mod remote;
mod session;
mod shared_region;
#[cfg(feature = "tokio")]
mod tasks;
#[cfg(all(test, feature = "soft", not(loom)))]
mod tests;
mod threads;
mod wait;

pub use access::RemoteAccess;
pub use adverb_verbs::Key;
pub use error::{
    AcceptError, BindError, ConnectError, ConnectionError, ExposeError, HandshakeStage, KeyMismatch,
    RecvError, RefusalReason, RemoteError, RemoteErrorKind, SendError, SendErrorKind,
};
pub use message::{Message, SendData, UnacknowledgedMessage};
pub use options::{Bootstrap, Options};
pub use shared_region::SharedRegion;
#[cfg(feature = "tokio")]
pub use tasks::{
    AddressSpace, Connection, Connector, Listener, ListenerBuilder, ReadHalf, RemoteRegion, Stream,
    WriteHalf, connect, connect_stream,
};

/// Connections for threads: calls that wait block their thread.
pub mod blocking {
    pub use crate::threads::*;
}
