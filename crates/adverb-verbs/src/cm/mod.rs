//! The connection manager: queue pairs connected by IP address and port, as TCP connections are.
//!
//! Without it, two programs tell each other their [`Endpoint`](super::Endpoint)s themselves, over TCP, say. With it, one
//! [listens](Listener) at an address of an RDMA device, the other [connects](Connector) to it, both get what their queue
//! pairs need, may send each other a few bytes of their own on the way, and are told when the other [disconnects].
//! It speaks InfiniBand's communication management protocol with IP addresses, so that the peer may be any program that
//! uses librdmacm, or a kernel's NVMe over Fabrics.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use adverb::verbs::cm::{Connector, Listener, Path};
//! use adverb::verbs::QueuePair;
//!
//! fn queue_pair(path: &Path) -> adverb::Result<QueuePair> {
//!     let device = path.device()?;
//!     let domain = device.protection_domain()?;
//!     let completions = device.completion_queue(128).events().create()?;
//!     let queue_pair = path.queue_pair(&domain)?.completion_queue(&completions).create()?;
//!     queue_pair.post_recv(domain.buffer(4096)?)?; // before the peer can send
//!     Ok(queue_pair)
//! }
//!
//! # fn server() -> adverb::Result<()> {
//! let listener = Listener::bind("192.0.2.7:7471".parse().unwrap())?;
//! let request = listener.accept()?;
//! println!("{} says {:?}", request.path().peer_addr(), request.private_data());
//! let queue_pair = queue_pair(request.path())?;
//! let connection = request.accept(queue_pair, b"welcome")?;
//! # Ok(())
//! # }
//!
//! # fn client() -> adverb::Result<()> {
//! let connector = Connector::new().timeout(Duration::from_secs(2)).private_data(b"hello");
//! let connection = connector.connect("192.0.2.7:7471".parse().unwrap(), queue_pair)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Which device
//!
//! The address decides. A software device that is open in this process, and has the address, is meant; else hardware is
//! that has it, or leads to it; else, if it is a loopback address, a software device is opened, so that this works on any
//! machine as it is:
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! use adverb::verbs::cm::{Connector, Listener};
//! # use adverb::verbs::{QueuePair, cm::Path};
//! # fn queue_pair(path: &Path) -> adverb::Result<QueuePair> {
//! #     let device = path.device()?;
//! #     let domain = device.protection_domain()?;
//! #     let completions = device.completion_queue(512).create()?;
//! #     path.queue_pair(&domain)?.completion_queue(&completions).create()
//! # }
//!
//! # let anywhere = adverb::verbs::Device::open("soft")?;
//! # let address = anywhere.gids()?[0].gid.ip();
//! # let listener = Listener::bind((address, 0).into())?;
//! # #[cfg(any())]
//! let listener = Listener::bind("127.0.0.1:0".parse().unwrap())?;
//! let peer = listener.local_addr();
//! let client = std::thread::spawn(move || Connector::new().connect(peer, queue_pair));
//! let request = listener.accept()?;
//! let queue_pair = queue_pair(request.path())?;
//! let server = request.accept(queue_pair, b"welcome")?;
//! let client = client.join().unwrap()?;
//! assert!(client.private_data().starts_with(b"welcome"));
//! # }
//! # Ok::<(), adverb::Error>(())
//! ```
//!
//! A software device at an address of a network must be opened first, by its name
//! ([`Device::open("soft:192.0.2.7")`](super::Device::open)), and kept: nobody is to listen on a network by accident. Who
//! connects over it need say nothing: the routing table tells which of this machine's addresses leads to the peer.
//! A process that has the peer's device too connects that to itself, unless [`Connector::local_addr`] says from where.
//! A listener at every address (`0.0.0.0`, `[::]`) listens on the software devices that are open at that moment, if there
//! are any, and else on hardware.
//!
//! Processes of one machine have an address each: only one listens at 127.0.0.1, another at 127.0.0.2, say. Those that
//! only connect get some address in 127.0.0.0/8.
//!
//! # Blocking or not
//!
//! Every step that waits for a peer has a method that blocks up to a deadline, and a type that can be asked without
//! blocking: [`Listener::try_accept`], [`PendingRoute::poll`], [`PendingConnection::poll`], [`Connection::try_event`]. These have
//! a descriptor that is readable when there is something to be had, for any event loop.
//!
//! # Private data
//!
//! The bytes that come with a request, an answer or a rejection arrive padded with zeros to the most that fit: the
//! protocol carries no length. Send one along if zeros matter.
//!
//! # Datagrams
//!
//! A [`DatagramListener`] tells peers who [look it up](Connector::resolve_service) by address and port which datagram queue pair to
//! send to (InfiniBand's service ID resolution). There is no connection then, and nobody is told when a peer goes.
//!
//! # What this is not
//!
//! Connections are reliable ones. Multicast groups aren't joined here, but by
//! [`QueuePair::join_multicast`](super::QueuePair::join_multicast), which needs no connection manager with RoCE.
//!
//! [disconnects]: Connection::try_event

/// Makes a type an event source: its descriptor is readable when there is something to be had.
macro_rules! event_source {
    ($type:ident) => {
        impl std::os::fd::AsFd for $type {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.identifier.event_fd()
            }
        }

        impl std::os::fd::AsRawFd for $type {
            fn as_raw_fd(&self) -> std::os::fd::RawFd {
                std::os::fd::AsRawFd::as_raw_fd(&self.identifier.event_fd())
            }
        }
    };
}

mod connecting;
pub(crate) mod connection;
mod connector;
mod datagrams;
mod failure;
mod listener;
mod path;

use std::time::Duration;

pub use adverb_proto::types::RejectReason;

pub use connecting::PendingConnection;
pub use connection::{Connection, ConnectionEvent};
pub use connector::{Connector, PendingRoute, Route};
pub use datagrams::{DatagramListener, DatagramRequest, DatagramService, PendingService};
pub use listener::{ConnectRequest, Listener, ListenerBuilder};
pub use path::Path;

use super::deadline::Deadline;
use crate::error::{Error, Result};

/// How many bytes may go with a request for a connection: 92 of the protocol's, less the 36 of its IP addresses.
pub const MAX_CONNECT_DATA: usize = 56;
/// How many bytes may go with the acceptance of a request.
pub const MAX_ACCEPT_DATA: usize = 196;
/// How many bytes may go with a rejection.
pub const MAX_REJECT_DATA: usize = 148;
/// The queue key of datagram queue pairs that are found by address and port: the connection manager knows no other.
pub const DATAGRAM_QKEY: u32 = 0x0123_4567;
/// How many bytes may go with a question for a datagram queue pair: 216 of the protocol's, less the 36 of its IP addresses.
pub const MAX_DATAGRAM_REQUEST_DATA: usize = 180;
/// How many bytes may go with the answer.
pub const MAX_DATAGRAM_REPLY_DATA: usize = 136;

/// How long a connection may take to be made, unless something else is said.
const PATIENCE: Duration = Duration::from_secs(5);

/// Checks the length of private data.
fn check_private_data(data: &[u8], most: usize, with: &'static str) -> Result<()> {
    if data.len() <= most {
        return Ok(());
    }
    Err(Error::Limit {
        what: format!("the length of private data with {with}").into(),
        asked: data.len() as u64,
        most: most as u64,
        hint: "send the rest as a message, once there is a connection".into(),
    })
}

// What the compiler finds out here is part of the API.
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Listener>();
    shared_between_threads::<ConnectRequest>();
    shared_between_threads::<Connector>();
    shared_between_threads::<PendingRoute>();
    shared_between_threads::<Route>();
    shared_between_threads::<PendingConnection>();
    shared_between_threads::<Connection>();
    shared_between_threads::<Path>();
    shared_between_threads::<DatagramListener>();
    shared_between_threads::<DatagramRequest>();
    shared_between_threads::<DatagramService>();
    shared_between_threads::<PendingService>();
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_private_data_is_refused_with_the_limit() {
        check_private_data(&[0; MAX_CONNECT_DATA], MAX_CONNECT_DATA, "a request").unwrap();
        let error = check_private_data(&[0; 57], MAX_CONNECT_DATA, "a request").unwrap_err();
        assert!(matches!(error, Error::Limit { asked: 57, most: 56, .. }), "{error}");
        assert!(error.to_string().starts_with("the length of private data with a request is 57"), "{error}");
    }
}
