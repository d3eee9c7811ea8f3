//! The manual: from a first connection to what to do when one fails.
//!
//! ```text
//!            your program
//!                 │
//!    ┌────────────┴────────────┐
//!    │ net                     │  listeners, connections, messages, streams, memory of peers
//!    ├─────────────────────────┤
//!    │ memory                  │  buffers that devices read and write
//!    ├─────────────────────────┤
//!    │ verbs                   │  devices, queue pairs, completion queues: every knob
//!    └───────┬─────────┬───────┘
//!        rdma-core   a software NIC
//!            │         │
//!        hardware    UDP sockets, or memory
//! ```
//!
//! | chapter | |
//! |---|---|
//! | [`first_connection`] | two programs that talk, on any machine |
//! | [`messages`] | what is sent, what is copied, who waits for whom |
//! | [`streams`] | bytes without borders: hyper, tonic, and whatever reads and writes |
//! | [`one_sided`] | memory that a peer reads and writes while your program does something else |
//! | [`failure`] | what can end, how it is noticed, what comes back |
//! | [`devices`] | which device is used, and how to choose another |
//! | [`security`] | who can connect, and what nobody is protected from |
//! | [`from_snowrdma`] | every call of SnowRDMA, and what it is here |
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
#[doc = include_str!("messages.md")]
pub mod messages {}
#[doc = include_str!("one_sided.md")]
pub mod one_sided {}
#[doc = include_str!("security.md")]
pub mod security {}
#[doc = include_str!("streams.md")]
pub mod streams {}

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
