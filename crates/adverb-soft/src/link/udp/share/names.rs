//! The names by which the processes that share an address find each other, and the connections between them.
//!
//! The names are in the abstract namespace of Unix sockets. Each network namespace has its own abstract namespace, like
//! its addresses. A name belongs to one socket, and the kernel frees it when the socket is closed, no matter how the
//! process ends. Any user can claim any name, so both ends of a connection check the user of the other end.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};

use adverb_wire::cm::ServiceId;
use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog as ListenQueue, SockFlag, SockType, UnixAddr, getsockopt, listen,
};
use nix::unistd::{Uid, geteuid};

use crate::link::AddressShare;

/// The names of the sockets at one address.
#[derive(Debug)]
pub(super) struct Names {
    prefix: String,
    uid: Uid,
}

/// The meaning of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Name {
    /// The process that is joining the others at the address.
    Joining,
    /// The process that receives the packets to queue pair 1.
    Dispatcher,
    /// The process with this share of the queue pair numbers.
    Share(AddressShare),
    /// The process that listens on this service.
    Service(ServiceId),
}

impl Names {
    /// Creates the names for an address, for this user.
    pub(super) fn new(local: SocketAddr) -> Names {
        let uid = geteuid();
        // An address with a scope has the scope in its text.
        Names { prefix: format!("adverb/2/{uid}/{local}/"), uid }
    }

    fn addr(&self, name: Name) -> io::Result<UnixAddr> {
        let Names { prefix, .. } = self;
        let name = match name {
            Name::Joining => format!("{prefix}joining"),
            Name::Dispatcher => format!("{prefix}dispatcher"),
            Name::Share(share) => format!("{prefix}share/{}", share.index()),
            Name::Service(service) => format!("{prefix}service/{:016x}", service.get()),
        };
        Ok(UnixAddr::new_abstract(name.as_bytes())?)
    }

    /// Claims a name, and listens for connections to it.
    ///
    /// # Errors
    ///
    /// Returns `AddrInUse` if another process has the name.
    pub(super) fn claim(&self, name: Name) -> io::Result<UnixListener> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = nix::sys::socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        nix::sys::socket::bind(socket.as_raw_fd(), &self.addr(name)?)?;
        listen(&socket, ListenQueue::MAXCONN)?;
        Ok(socket.into())
    }

    /// Connects to the process that has a name. Returns `None` if no process of this user has the name.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has too many connections that it has not accepted yet, or this process has too
    /// many file descriptors.
    pub(super) fn connect(&self, name: Name) -> io::Result<Option<UnixStream>> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = nix::sys::socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        match nix::sys::socket::connect(socket.as_raw_fd(), &self.addr(name)?) {
            Ok(()) => Ok(self.is_own_user(&socket).then(|| socket.into())),
            Err(Errno::ECONNREFUSED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the process at the other end of a connection belongs to this user.
    pub(super) fn is_own_user(&self, socket: &impl AsFd) -> bool {
        getsockopt(socket, PeerCredentials).is_ok_and(|peer| peer.uid() == self.uid.as_raw())
    }
}
