//! The manual: from a first connection to handling failures.
//!
//! ```text
//!            your program
//!                 │
//!    ┌────────────┴────────────┐
//!    │ net                     │  listeners, connections, messages, streams, one-sided access
//!    ├─────────────────────────┤
//!    │ memory                  │  buffers that devices read and write
//!    ├─────────────────────────┤
//!    │ verbs                   │  devices, queue pairs, completion queues: every option
//!    └───────┬─────────┬───────┘
//!        rdma-core   a software NIC
//!            │         │
//!        hardware    UDP sockets, or memory
//! ```
//!
//! | chapter | |
//! |---|---|
//! | [`first_connection`] | two programs that exchange messages, on any machine |
//! | [`messages`] | sending and receiving, copies, flow control, cancellation |
//! | [`streams`] | byte streams for hyper, tonic and other code written for TCP |
//! | [`one_sided`] | memory that a peer reads and writes without running your code |
//! | [`failure`] | ends of connections, errors, reconnecting, several paths |
//! | [`devices`] | the device of a connection, and the choice of another device |
//! | [`security`] | authentication, and the limits of protection |
//! | [`work_queues`] | how a work request becomes packets and a completion |
//! | [`reading_a_trace`] | seeing it: traces, and the signs of trouble in them |
//! | [`listings`] | differences between published packet listings and the standard |
//! | [`from_snowrdma`] | every call of SnowRDMA, and its counterpart |
//!
//! Each chapter uses [`net::blocking`](crate::net::blocking), for threads. With the feature `tokio`, which is on by default,
//! `adverb::net` has the same names and methods for tasks: add `.await`.

#[doc = include_str!("devices.md")]
pub mod devices {}
#[doc = include_str!("failure.md")]
pub mod failure {}
#[doc = include_str!("first_connection.md")]
pub mod first_connection {}
#[doc = include_str!("from_snowrdma.md")]
pub mod from_snowrdma {}
#[doc = include_str!("listings.md")]
pub mod listings {}
#[doc = include_str!("messages.md")]
pub mod messages {}
#[doc = include_str!("one_sided.md")]
pub mod one_sided {}
#[doc = include_str!("reading_a_trace.md")]
pub mod reading_a_trace {}
#[doc = include_str!("security.md")]
pub mod security {}
#[doc = include_str!("streams.md")]
pub mod streams {}
#[doc = include_str!("work_queues.md")]
pub mod work_queues {}

#[cfg(test)]
mod tests {
    /// The interface of SnowRDMA, as its README lists it.
    const CALLS: &[&str] = &[
        "rdmaServer",
        "rdmaServerStart",
        "rdmaServerStop",
        "rdmaServerRelease",
        "rdmaConn",
        "rdmaConnect",
        "rdmaConnClose",
        "rdmaRuntimeStop",
        "rdmaConnSend",
        "rdmaConnSendWithImm",
        "rdmaConnWrite",
        "rdmaConnWriteWithImm",
        "rdmaConnRead",
        "rdmaSyncWriteSignaled",
        "rdmaSyncReadSignaled",
        "rdmaPAWriteSignaled",
        "rdmaPAReadSignaled",
        "rdmaPASyncWriteSignaled",
        "rdmaPASyncReadSignaled",
    ];

    #[test]
    fn every_call_of_snowrdma_has_a_row() {
        let table = include_str!("from_snowrdma.md");
        for call in CALLS {
            assert!(table.contains(&format!("| `{call}` | ")), "{call} has none");
        }
    }
}
