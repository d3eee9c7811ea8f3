//! RDMA for Rust: safe, easy, and available on every Linux machine.
//!
//! ```
//! # #[cfg(all(feature = "soft", feature = "tokio"))]
//! #[tokio::main]
//! async fn main() -> adverb::Result<()> {
//!     let listener = adverb::Listener::bind("127.0.0.1:0").await?; // an RDMA NIC's address, or loopback
//!     let address = listener.local_addr();
//!     tokio::spawn(async move {
//!         let connection = listener.accept().await?;
//!         while let Some(message) = connection.recv().await? {
//!             connection.send(message).await?; // copies the message only if it is short
//!         }
//!         connection.close().await?;
//!         Ok::<_, adverb::Error>(())
//!     });
//!     let connection = adverb::connect(address).await?;
//!     connection.send(b"hello").await?;
//!     assert_eq!(&connection.recv().await?.expect("an answer")[..], b"hello");
//!     connection.close().await?;
//!     Ok(())
//! }
//! # #[cfg(not(all(feature = "soft", feature = "tokio")))]
//! # fn main() {}
//! ```
//!
//! - [`manual`] explains Adverb, beginning with a first connection.
//! - [`net`] contains connections: listeners, connectors, messages, streams, and access to a peer's memory. Its callers
//!   need no knowledge of RDMA.
//! - [`verbs`] contains devices, queue pairs and completion queues, with RDMA's options. Safe code cannot cause
//!   undefined behavior.
//! - [`memory`] contains the types of memory that requests read and write.
//! - [`verbs::recording`] records requests, packets and completions; `trace` (a feature) shows the recordings.
//!
//! The API is the same for devices that rdma-core drives and for the software NIC (`Device::open("soft")`), which works
//! on any Linux machine, without privileges, and sends RoCEv2 packets from UDP sockets. Adverb loads rdma-core at run
//! time, when a program first uses a device, so programs build and start without rdma-core.
//!
//! # Features
//!
//! | feature | default | |
//! |---|---|---|
//! | `ibv` | yes | devices that rdma-core drives |
//! | `soft` | yes | the software NIC |
//! | `tokio` | yes | asynchronous connections, for tasks; [`blocking`] contains connections for threads, with or without this feature |
//! | `serde` | no | `Serialize` and `Deserialize` for endpoints, remote memory and device attributes |
//! | `cluster` | no | the module `cluster`: servers that use each other's memory |
//! | `probe` | no | the module `probe`, which measures round-trip times and loss of RDMA paths |
//! | `trace` | no | the module `trace`, which shows recordings of devices |

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!("adverb needs Linux: adverb-wire and adverb-proto work everywhere");

mod error;
pub mod manual;
mod report;

#[doc(inline)]
pub use adverb_net as net;
#[doc(inline)]
pub use adverb_verbs as verbs;
pub use adverb_verbs::Key;
#[doc(inline)]
pub use adverb_verbs::memory;
pub use error::{Error, Result};
#[doc(no_inline)]
pub use net::blocking;
#[doc(no_inline)]
pub use net::{
    AcceptError, BindError, ConnectError, ConnectionError, ExposeError, RecvError, RemoteError,
    RemoteErrorKind, SendError, SendErrorKind,
};
#[cfg(feature = "tokio")]
#[doc(no_inline)]
pub use net::{Connection, Listener, connect};
pub use report::Report;

// After the others: rustdoc documents the methods of a type that several crates re-export, such as `Key`, with the features
// of the first re-export.
#[cfg(feature = "cluster")]
#[doc(inline)]
pub use adverb_cluster as cluster;
#[cfg(feature = "probe")]
#[doc(inline)]
pub use adverb_probe as probe;
#[cfg(feature = "trace")]
#[doc(inline)]
pub use adverb_trace as trace;

/// Compiles and runs the README's examples as doctests.
#[cfg(all(doctest, feature = "soft", feature = "tokio"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    #[test]
    fn the_package_has_the_readme_of_the_workspace() {
        let workspace = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"));
        let is_equal = workspace.expect("the workspace has a README") == include_str!("../README.md");
        assert!(is_equal, "run `cp README.md crates/adverb/README.md`");
    }
}
