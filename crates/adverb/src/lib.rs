//! RDMA for Rust: safe, easy, and working everywhere.
//!
//! ```
//! use adverb::blocking::{Listener, connect}; // with the feature `tokio`: `use adverb::{Listener, connect}`, and `.await`
//!
//! let listener = Listener::bind("127.0.0.1:0")?; // the address of an RDMA adapter, or any machine's loopback
//! let address = listener.local_address();
//! std::thread::spawn(move || {
//!     let connection = listener.accept()?;
//!     while let Some(message) = connection.recv()? {
//!         connection.send(message)?; // up to 1 GiB; the buffer goes back as it came
//!     }
//!     connection.close()
//! });
//! let connection = connect(address)?;
//! connection.send(b"hello")?;
//! assert_eq!(&connection.recv()?.expect("an answer")[..], b"hello");
//! # connection.close()?;
//! # Ok::<(), adverb::Error>(())
//! ```
//!
//! - [`manual`] explains it all, from a first connection on.
//! - [`net`] has connections: listeners, connectors, messages and streams, a peer's memory, and nothing to know of RDMA.
//! - [`verbs`] has devices, queue pairs and completion queues: every knob, and memory that can't be misused.
//! - [`memory`] has the memory that they work on.
//!
//! The API is the same whatever device is under it: any that rdma-core drives, or a software NIC
//! (`Device::open("soft")`) that is there on any machine, without privilege, and speaks RoCEv2 from UDP sockets. Adverb
//! looks for rdma-core when it is first asked for a device, so that programs build and start without it.

#[cfg(not(target_os = "linux"))]
compile_error!("adverb needs Linux: adverb-wire and adverb-proto work everywhere");

mod backend;
mod error;
pub mod manual;
pub mod memory;
pub mod net;
mod ring;
pub mod verbs;

pub use error::{Error, Result};
#[doc(no_inline)]
pub use net::blocking;
#[cfg(feature = "tokio")]
#[doc(no_inline)]
pub use net::{Connection, Listener, connect};
