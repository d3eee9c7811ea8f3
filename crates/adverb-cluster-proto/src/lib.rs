//! The broker of a cluster's thread, as a pure state machine.
//!
//! Thread `i` of each member of a cluster has a [`Broker`], which is connected to thread `i` of every other member: its
//! peers. The broker sends messages from rings of slots, transfers data to and from the peers' memory, batches requests
//! into doorbells, signals only some of them, and controls the flow of messages with credits. It does no I/O: a driver
//! posts the requests to queue pairs, polls completions, and owns the memory. `adverb::cluster::Broker`, of the crate
//! adverb-cluster, is this broker with its driver.
//!
//! | input | output |
//! |---|---|
//! | [`prepare`](Broker::prepare), [`establish`](Broker::establish), [`leave`](Broker::leave), [`close`](Broker::close), [`handle_closed`](Broker::handle_closed) | [`poll_post`](Broker::poll_post): lists of requests to post, and queue pairs to destroy |
//! | [`allocate_send_buf`](Broker::allocate_send_buf), [`post_send`](Broker::post_send), [`post_write`](Broker::post_write) …, [`flush`](Broker::flush) | [`poll_event`](Broker::poll_event): messages, tickets, ends of sessions |
//! | [`handle_completion`](Broker::handle_completion), [`handle_timeout`](Broker::handle_timeout), [`release`](Broker::release) | [`poll_timeout`](Broker::poll_timeout) |
//!
//! Two further state machines interpret the messages of a broker: [`rpc`] makes calls of them, and [`keys`] exchanges the
//! keys of arena segments in control messages, and resolves a [`RemotePtr`].
//!
//! The examples of the items that the crate `adverb` re-exports use its paths, such as `adverb::cluster::RemotePtr`.
//!
//! # Order and batching
//!
//! The requests to a peer are posted in the order of the calls. They wait until there are
//! [`doorbell_batch`](BrokerConfig::doorbell_batch) of them, or until a flush. A driver's poll passes on the completions,
//! delivers the events, and then [flushes all peers](Broker::flush_all).
//!
//! # Flow control
//!
//! A message or a WRITE with immediate data needs a credit: a receive that the peer has posted. The broker takes the
//! credit when the caller asks for a send slot, so a posted request never waits for the peer's application, and a slow
//! peer causes neither RNR nor an overwritten slot. `src/credits.rs` explains why credit messages can't deadlock.
//!
//! # Failures
//!
//! A failed request ends the session with its peer, and no other. All tickets of the session end, after its queue pair is
//! destroyed: until then, the NIC may access their memory. The epoch of a session identifies the run of the peer. The
//! broker refuses remote memory of another epoch before anything is posted, because an invalid key would break the
//! connection.
//!
//! ```
//! use adverb_cluster_proto::{Broker, BrokerConfig, PeerId, Post};
//! use adverb_proto::Time;
//! use adverb_proto::types::SendOperation;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let peer = PeerId(0);
//! let mut broker = Broker::new(BrokerConfig::default(), 1)?;
//!
//! // The driver creates a queue pair, posts the receives, and exchanges credits and epochs with the peer.
//! let credits = broker.prepare(peer)?;
//! assert_eq!(credits, 64);
//! let Some(Post::Receives { requests, .. }) = broker.poll_post() else { unreachable!() };
//! assert_eq!(requests.len(), 64 + 3);
//! broker.establish(peer, 1, credits, Time::ZERO)?;
//!
//! // A message waits for a flush.
//! let slot = broker.allocate_send_buf(peer)?;
//! broker.post_send(slot, 5)?;
//! assert_eq!(broker.poll_post(), None);
//! broker.flush_all();
//! let Some(Post::Sends { requests, .. }) = broker.poll_post() else { unreachable!() };
//! assert!(matches!(requests[0].operation, SendOperation::SendWithImm(64)));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod broker;
mod config;
mod credits;
mod error;
pub mod keys;
#[cfg(feature = "mutants")]
pub mod mutation;
#[cfg(not(feature = "mutants"))]
mod mutation;
mod rail;
mod remote_ptr;
pub mod rpc;
mod session;
mod types;
mod wr_id;

pub use broker::{Broker, MemoryUse};
pub use config::{BrokerConfig, ConfigError, MAX_COUNT};
pub use credits::RESERVED_RECEIVES;
pub use error::{PostError, SessionError};
pub use remote_ptr::{RemotePtr, RemotePtrError};
pub use session::Phase;
pub use types::{
    EndReason, Event, LocalMemory, PeerId, Post, RailId, RecvPost, RecvSlot, RemoteRange, SendPost, SendSlot,
    Ticket, TicketError, Transfer, TransferOperation,
};
