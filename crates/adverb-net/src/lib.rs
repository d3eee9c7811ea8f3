//! Connections: RDMA without the expertise.
//!
//! Programs depend on `adverb`, which re-exports this crate as `adverb::net`.
//!
//! The crate has listeners, connectors and messages of any length up to 64 MiB (or 1 GiB, see
//! [`Options::max_message_size`]), without queue pairs. [`blocking`] has them for threads. With the feature `tokio`, which is on
//! by default, the types of this module are for tasks, with the same methods.
//!
//! Short messages are written into a ring in the receiver's memory, and longer ones are read by the receiver's device from
//! where they are. Senders have credits, so that a receiver is never overrun: who doesn't receive isn't sent to. What the two
//! ends say to each other is written down in `docs/protocol.md`.
//!
//! A side can also expose memory under a name; the other finds it and reads, writes and counts in it, and none of the
//! owner's program runs for that.
//!
//! # Who is connected
//!
//! Whoever reaches a listener is connected, unless both sides have a [`Key`] ([`Options::key`]): then they show each other that
//! they have it, before either tells where its memory is. That says who is connected, and protects nothing of what is said
//! afterwards: RDMA's packets are neither encrypted nor signed.
//!
//! Nothing runs in the background: a connection is driven by the calls that use it. Only while one is broken and to be
//! [made again](Options::reconnect), a thread sees to that.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "tokio")]
mod asynchronous;
pub mod blocking;
mod bootstrap;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod key;
mod link;
mod message;
mod options;
mod protocol;
#[cfg(feature = "tokio")]
mod readiness;
mod remote;
mod session;
mod wait;

#[cfg(feature = "tokio")]
pub use asynchronous::{
    AddressSpace, Connection, Connector, Listener, ReadHalf, RemoteRegion, Stream, WriteHalf, connect,
};
pub use key::Key;
pub use message::{Message, SendData, SendError, UnacknowledgedMessage};
pub use options::{Bootstrap, Options};
pub use remote::RemoteAccess;
