//! Clusters of RDMA servers, which use each other's memory.
//!
//! Programs depend on `adverb`, which re-exports this crate as `adverb::cluster` with the feature `cluster`. The manual of
//! `adverb` has a chapter about clusters, which begins with an example of all parts.
//!
//! | part | purpose |
//! |---|---|
//! | [`Cluster`] | the list of [`Member`]s; connects the threads of this member to those of the others |
//! | [`Broker`] | the sessions of one thread: messages, READ, WRITE and atomics |
//! | [`Rpc`] | calls over a broker's messages: requests and replies, with timeouts |
//! | [`Arena`] | registered memory in which this member allocates items that the others access |
//!
//! # Sessions
//!
//! [`Cluster::builder`] joins a cluster, and [`Cluster::take_broker`] returns the broker of each thread. Thread `i` of a member has
//! a session with thread `i` of every other member. The cluster establishes the sessions, and establishes them again after
//! failures. The thread [waits](Broker::wait) for events, and [polls](Broker::poll) them with a handler that can post
//! requests.
//!
//! # Memory
//!
//! An [`Arena`] is registered memory that the members of a cluster address by offset: a [`RemotePtr`] names a member, a
//! segment of its arena, and bytes in the segment. A server allocates an item, writes it, and publishes it; then peers
//! read it without running the server's code.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use adverb::cluster::{Arena, RemotePtr};
//! use adverb::verbs::{Access, Device};
//!
//! let domain = Device::open("soft")?.create_protection_domain()?;
//! let arena = Arena::builder().member(3).epoch(1).create(&[domain])?;
//! arena.allocate_segment(16 << 20, Access::REMOTE_READ)?; // peers may read, and nothing else
//!
//! let mut draft = arena.allocate(11)?; // has no pointer yet
//! draft.write(0, b"hello world")?;
//! let item = draft.publish();
//! let ptr: RemotePtr = item.remote_ptr(); // plain data, to send to a peer
//! assert_eq!((ptr.member, ptr.epoch, ptr.len), (3, 1, 11));
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("adverb-cluster needs Linux: adverb-wire and adverb-proto work everywhere");

pub mod arena;
mod broker;
mod cluster;
mod rpc;
mod slab;
#[cfg(feature = "tokio")]
mod tasks;

pub use adverb_cluster_proto::rpc::{CallError, CallId, Execution, Failure, RpcConfig, RpcCounters};
pub use adverb_cluster_proto::{
    BrokerConfig, ConfigError, EndReason, MemoryUse, PeerId, PostError, RemotePtr, RemotePtrError,
    RemoteRange, SessionError, Ticket, TicketError, TransferOperation,
};
pub use adverb_verbs::Key;
pub use arena::{Arena, ArenaBuilder, ArenaError, Draft, Item};
pub use broker::{
    Broker, BrokerBuilder, BrokerError, Event, Offer, Payloads, RefusedTransfer, RemoteTarget, SendBuf,
    Transfer, TransferError,
};
pub use cluster::{Cluster, ClusterBuilder, ClusterError, EstablishError, Member, MemberStatus, Membership};
pub use rpc::{RefusedReply, Reply, Rpc, RpcBuf, RpcEvent};
#[cfg(feature = "tokio")]
pub use tasks::{AsyncBroker, AsyncRpc, Caller, CallerError};

/// Returns the hint for a system call that failed because a limit of the process is reached.
fn limit_hint(error: &std::io::Error) -> Option<&'static str> {
    const EAGAIN: i32 = 11;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    match error.raw_os_error()? {
        EMFILE | ENFILE => Some("raise the limit of open files (`ulimit -n`)"),
        EAGAIN => Some("raise the limit of threads (`ulimit -u`)"),
        _ => None,
    }
}
