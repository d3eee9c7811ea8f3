//! A sharded in-memory cache on `adverb::cluster`.
//!
//! Each server owns the keys of its shards, in registered memory. A client reads values with RDMA READs, which run none
//! of the server's code: one READ of an index bucket and one of the item, or only the latter if the client has cached
//! the item's location. PUT and DELETE are calls. README.md shows how to run it.
//!
//! | module | contents |
//! |---|---|
//! | [`item`], [`index`], [`hash`] | the layout of the memory |
//! | [`get`] | the one-sided GET, as a state machine |
//! | [`store`] | the shards of a server |
//! | [`protocol`] | the requests and replies |
//! | [`server`], [`client`], [`members`] | the members of the cluster |
//! | [`tcp`] | the same server and client over TCP, for comparison |
//! | [`load`], [`check`], [`mod@bench`] | the load generator, the check of torn reads, and the comparison |

#![forbid(unsafe_code)]

pub mod bench;
pub mod check;
pub mod client;
pub mod get;
pub mod hash;
pub mod index;
pub mod item;
pub mod load;
pub mod members;
pub mod protocol;
pub mod server;
pub mod store;
pub mod tcp;
