//! A connection over RDMA, as a pure state machine.
//!
//! A [`Connection`] is one side of a reliable connection with messages: eager messages, which are written into a ring
//! of the peer under credits; rendezvous messages, which the peer reads from registered memory; a graceful close; and,
//! if both sides want it, a session that survives its queue pairs, with a replay of the messages that the peer has not
//! received. It does no I/O: a driver posts the requests to a queue pair, polls completions, registers memory, and
//! dials.
//!
//! The bytes on the wire are those of the connection protocol, version 2 (`docs/protocol.md`). adverb-net is the
//! driver. Greetings and keys, which come before the hello, belong to the driver. The driver also keeps the memory of
//! one-sided operations: the connection only [counts](Connection::post_operation) them, because they share its send
//! queue.
//!
//! | input | output |
//! |---|---|
//! | [`send`](Connection::send), [`feed`](Connection::feed), [`send_region`](Connection::send_region), [`expose`](Connection::expose), [`withdraw`](Connection::withdraw), [`post_operation`](Connection::post_operation), [`recv`](Connection::recv), [`shutdown`](Connection::shutdown), [`close`](Connection::close), [`abort`](Connection::abort) | [`poll_post`](Connection::poll_post): requests, which own their buffers |
//! | [`handle_completion`](Connection::handle_completion), [`handle_refused`](Connection::handle_refused), [`handle_drained`](Connection::handle_drained) | [`poll_event`](Connection::poll_event): regions to release, lanes to drain, the end |
//! | [`handle_registered`](Connection::handle_registered) | [`poll_register`](Connection::poll_register): memory to register |
//! | [`handle_hello`](Connection::handle_hello), [`attach`](Connection::attach), [`resume`](Connection::resume), [`handle_timeout`](Connection::handle_timeout) | [`poll_timeout`](Connection::poll_timeout) |
//!
//! # Phases
//!
//! ```text
//!              hello                  failure                      drained
//! Handshake ──────────→ Established ──────────→ Draining ─────────────────────→ Closed
//!     ↑     └─ failure ─────────────────────────↗   │ session                     ↑
//!     │             dialed again                    ↓                  time limit │
//!     └────────────────────────────────────── Disconnected ───────────────────────┘
//! ```
//!
//! A *lane* is a queue pair under a connection. A lane that fails, or that is no longer needed, is drained: the driver
//! moves its queue pair to the error state, passes on all completions, and reports that nothing is outstanding. Only
//! then does the connection count the messages that it has received, and answer a peer that has already dialed again.
//!
//! # Memory
//!
//! Buffers are owned. A buffer moves to the driver with its [`Post`], and returns with its [`Completed`] request, or
//! with [`handle_drained`](Connection::handle_drained). Memory is registered and deregistered by the driver, outside of
//! any lock on the connection. The connection has no clock and no hash map, and is [`Clone`] and
//! [`Hash`](std::hash::Hash) if the [buffers and regions](Memory) are, so a search can visit all its states.
//!
//! ```
//! use adverb_net_proto::{Buf, Config, Connection, Event, Hello, Memory, Post, Region};
//! use adverb_proto::Time;
//! use adverb_proto::types::RemoteMemory;
//!
//! struct Ring(RemoteMemory);
//! impl Region for Ring {
//!     fn remote(&self) -> RemoteMemory {
//!         self.0
//!     }
//! }
//! struct Heap;
//! impl Memory for Heap {
//!     type Buf = Vec<u8>;
//!     type Region = Ring;
//!     fn alloc(&mut self, len: usize) -> Option<Vec<u8>> {
//!         Some(vec![0; len])
//!     }
//!     fn read_ring(&mut self, _: &Ring, _: u32, _: &mut Vec<u8>) {}
//! }
//!
//! // The driver registers the ring, and posts receives and the hello.
//! let mut connection = Connection::connect(Config::default(), [7; 16], Time::ZERO);
//! let register = connection.poll_register().expect("the ring is not registered");
//! let ring = RemoteMemory { addr: 0, rkey: 1, len: 256 << 10 };
//! connection.handle_registered(register.id, Ring(ring), Time::ZERO);
//! let Some(Post::Receives { count: 95 }) = connection.poll_post(&mut Heap, Time::ZERO) else { unreachable!() };
//! let Some(Post::Hello { bytes }) = connection.poll_post(&mut Heap, Time::ZERO) else { unreachable!() };
//! assert_eq!(Hello::parse(&bytes).map(|hello| hello.ring), Ok(ring));
//!
//! // The peer's hello establishes the lane. Messages become writes into the peer's ring.
//! connection.handle_hello(&mut Heap, &bytes, Time::ZERO);
//! assert!(matches!(connection.poll_event(), Some(Event::Established { lane: 0 })));
//! connection.send(&mut Heap, b"hello", None).expect("the ring is empty");
//! let Some(Post::Write { buf: Some(frames), .. }) = connection.poll_post(&mut Heap, Time::ZERO) else {
//!     unreachable!()
//! };
//! assert_eq!(&frames[16..21], b"hello");
//! ```

#![forbid(unsafe_code)]

mod config;
mod connection;
mod expose;
mod frame;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod hello;
mod immediate;
mod lane;
mod memory;
#[cfg(feature = "mutants")]
pub mod mutation;
#[cfg(not(feature = "mutants"))]
mod mutation;
mod recv;
mod replay;
mod ring;
mod send;
#[cfg(test)]
mod tests;
mod types;

pub use adverb_proto::Time;
pub use config::{Config, LaneConfig};
pub use connection::{Connection, Limits, PhaseKind};
pub use frame::{ExposedRegion, Frame, FrameKind, MAX_NAME_LEN};
pub use hello::{HELLO_LEN, Hello, SessionHello, SessionId, VERSION};
pub use memory::{Buf, Memory, Region};
pub use types::{
    Completed, EagerWrite, EndReason, Event, Message, Payload, Post, Received, Register, RegisterId,
    RegisterMemory, Role, SendError, Tag, Unacknowledged, Violation,
};

/// The alignment of places and lengths in a ring.
pub const RING_ALIGN: u32 = 16;
/// The maximum size of a ring. An immediate has bits for twice its units.
pub const MAX_RING_SIZE: u32 = 16 << 20;
/// The minimum size of a ring.
pub const MIN_RING_SIZE: u32 = 512;
/// The maximum of [`Config::max_outstanding_writes`].
pub const MAX_OUTSTANDING_WRITES: u32 = 256;
/// The minimum of [`Config::max_outstanding_writes`].
pub const MIN_OUTSTANDING_WRITES: u32 = 4;
/// The maximum number of rendezvous messages of a side that the peer has not read.
pub const MAX_RENDEZVOUS: u32 = 8;
/// The number of receives for writes without a credit. A report of credits covers a quarter of the ring or half of the
/// writes, so at most six of them are in flight.
pub const UNCREDITED_WRITES: u32 = 8;
/// The maximum size of a message.
pub const MAX_MESSAGE_SIZE: u32 = 1 << 30;
