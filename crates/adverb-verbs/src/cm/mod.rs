//! The connection manager (CM), which connects queue pairs by IP address and port, as TCP connects sockets.
//!
//! Without it, two programs exchange their [`Endpoint`](crate::Endpoint)s out of band, for example over TCP. With it,
//! one program [listens](Listener) at an address of an RDMA device, and the other [connects](Connector) to it. The
//! connection manager exchanges the attributes of the queue pairs and a few bytes of private data, and reports when the
//! peer [disconnects]. It uses InfiniBand's communication management protocol with IP addresses, so the peer may be any
//! program that uses librdmacm, or a kernel service such as NVMe over Fabrics.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use adverb::verbs::cm::{Connector, Listener, Path};
//! use adverb::verbs::QueuePair;
//!
//! fn queue_pair(path: &Path) -> adverb::verbs::Result<QueuePair> {
//!     let device = path.open_device()?;
//!     let domain = device.create_protection_domain()?;
//!     let completions = device.completion_queue(128).events().create()?;
//!     let queue_pair = path.queue_pair(&domain)?.completion_queue(&completions).create()?;
//!     queue_pair.post_recv(domain.allocate_buffer(4096)?)?; // before the peer can send
//!     Ok(queue_pair)
//! }
//!
//! # fn server() -> adverb::verbs::Result<()> {
//! let listener = Listener::bind("192.0.2.7:7471".parse().unwrap())?;
//! let request = listener.accept()?;
//! println!("{} says {:?}", request.path().peer_addr(), request.private_data());
//! let queue_pair = queue_pair(request.path())?;
//! let connection = request.accept(queue_pair, b"welcome")?;
//! # Ok(())
//! # }
//!
//! # fn client() -> adverb::verbs::Result<()> {
//! let connector = Connector::new().timeout(Duration::from_secs(2)).private_data(b"hello");
//! let connection = connector.connect("192.0.2.7:7471".parse().unwrap(), queue_pair)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Device selection
//!
//! The address selects the device:
//!
//! 1. a software device that this process has open, if it has the address;
//! 2. an RDMA NIC that has the address or a route to it;
//! 3. for a loopback address, a software device, which the call opens. This example therefore works on any machine:
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! use adverb::verbs::cm::{Connector, Listener};
//! # use adverb::verbs::{QueuePair, cm::Path};
//! # fn queue_pair(path: &Path) -> adverb::verbs::Result<QueuePair> {
//! #     let device = path.open_device()?;
//! #     let domain = device.create_protection_domain()?;
//! #     let completions = device.completion_queue(512).create()?;
//! #     path.queue_pair(&domain)?.completion_queue(&completions).create()
//! # }
//!
//! # let device = adverb::verbs::Device::open("soft")?;
//! # let address = device.gids()?[0].gid.ip();
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
//! A software device at a network address must be opened first, by its name
//! ([`Device::open("soft:192.0.2.7")`](crate::Device::open)), and kept open, so that no program listens on a network
//! unintentionally. A connector needs no further setting: the routing table selects the local address for the peer. A
//! process that also has the peer's device open connects that device to itself, unless [`Connector::local_addr`] is
//! set. A listener at every address (`0.0.0.0`, `[::]`) listens on the software devices that are open at that moment,
//! or on hardware if no software device is open.
//!
//! Only one process of a machine can have the default loopback addresses, 127.0.0.1 and ::1. Another process listens at
//! another loopback address, 127.0.0.2 for example. A process that only connects uses a free address in 127.0.0.0/8.
//!
//! # Blocking and non-blocking use
//!
//! Each step that waits for a peer has a method that blocks until a deadline, and a method that doesn't block:
//! [`Listener::try_accept`], [`PendingRoute::poll`], [`PendingConnection::poll`], [`Connection::try_event`]. The types
//! of these non-blocking methods have a file descriptor for event loops, which is readable when the method may make
//! progress.
//!
//! # Private data
//!
//! The private data of a request, reply or rejection arrives padded with zeros to its maximum length, because the
//! protocol carries no length. Put the length into the data if trailing zeros matter.
//!
//! # Datagrams
//!
//! A [`DatagramListener`] sends the number of a UD queue pair to peers that [resolve](Connector::resolve_service) its
//! address and port (InfiniBand's service ID resolution, SIDR). SIDR creates no connection, so no event reports that a
//! peer has exited.
//!
//! # Limitations
//!
//! Connections are reliable connected (RC). A queue pair joins multicast groups with
//! [`QueuePair::join_multicast`](crate::QueuePair::join_multicast), which doesn't use the connection manager.
//!
//! [disconnects]: Connection::try_event

/// Gives a type a file descriptor that is readable when it may have an event.
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
mod connection;
mod connector;
mod datagrams;
mod failure;
mod listener;
mod path;

use std::time::Duration;

use super::deadline::Deadline;
use crate::error::{Error, Limit, Result};

pub use adverb_proto::types::RejectReason;

pub use connecting::PendingConnection;
pub use connection::{CmHandle, Connection, ConnectionEvent, ConnectionParts};
pub use connector::{Connector, PendingRoute, Route};
pub use datagrams::{DatagramListener, DatagramRequest, DatagramService, PendingService};
pub(crate) use failure::device_removed;
pub use listener::{ConnectRequest, Listener, ListenerBuilder};
pub use path::Path;

/// The maximum length of the private data of a connect request: the protocol's 92 bytes minus 36 for the IP addresses.
pub const MAX_CONNECT_DATA: usize = 56;
/// The maximum length of the private data of the reply to an accepted connect request.
pub const MAX_ACCEPT_DATA: usize = 196;
/// The maximum length of the private data of a rejection.
pub const MAX_REJECT_DATA: usize = 148;
/// The queue key (Q_Key) of UD queue pairs that are resolved by address and port. The connection manager uses no other
/// queue key.
pub const UD_QKEY: u32 = 0x0123_4567;
/// The maximum length of the private data of a request for a UD queue pair: the protocol's 216 bytes minus 36 for the
/// IP addresses.
pub const MAX_DATAGRAM_REQUEST_DATA: usize = 180;
/// The maximum length of the private data of the reply to a request for a UD queue pair.
pub const MAX_DATAGRAM_REPLY_DATA: usize = 136;

/// The default timeout for establishing a connection.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks the length of private data.
fn check_private_data(data: &[u8], max: usize) -> Result<()> {
    if data.len() <= max {
        return Ok(());
    }
    Err(Error::LimitExceeded { limit: Limit::PrivateData, requested: data.len() as u64, max: max as u64 })
}

// These auto traits are part of the API.
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Listener>();
    shared_between_threads::<ConnectRequest>();
    shared_between_threads::<Connector>();
    shared_between_threads::<PendingRoute>();
    shared_between_threads::<Route>();
    shared_between_threads::<PendingConnection>();
    shared_between_threads::<Connection>();
    shared_between_threads::<ConnectionParts>();
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
    fn too_long_private_data_is_rejected_with_the_limit() {
        check_private_data(&[0; MAX_CONNECT_DATA], MAX_CONNECT_DATA).unwrap();
        let error = check_private_data(&[0; 57], MAX_CONNECT_DATA).unwrap_err();
        assert!(matches!(error, Error::LimitExceeded { requested: 57, max: 56, .. }), "{error}");
        assert_eq!(error.to_string(), "private data length is 57, but the maximum is 56");
    }
}
