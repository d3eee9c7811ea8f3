//! The names by which the processes that share an address find each other, and the connections between them.
//!
//! The names are in the abstract namespace of Unix sockets. Each network namespace has its own abstract namespace, like
//! its addresses. A name belongs to one socket, and the kernel frees it when the socket is closed, no matter how the
//! process ends. Any user can claim any name, so both ends of a connection check the user of the other end. The names
//! don't contain the user: a process in a user namespace has another ID there than outside, and the kernel lets both share
//! the port.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};

use adverb_wire::cm::ServiceId;
use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog as ListenQueue, MsgFlags, SockFlag, SockType, UnixAddr, getsockopt, listen,
};
use nix::unistd::{Uid, geteuid};

use super::message::HELLO_MESSAGE;
use crate::link::AddressShare;

/// The names of the sockets at one address.
#[derive(Debug)]
pub(super) struct Names {
    prefix: String,
    uid: Uid,
}

/// The process that has a name.
#[derive(Debug)]
pub(super) enum Holder {
    /// A process of this user, to which the connection is.
    OwnUser(UnixStream),
    /// A process of another user.
    OtherUser,
    /// No process accepts connections to the name.
    Absent,
}

/// The maximum number of connections to a name that are not accepted yet: a few of each other process. If other users'
/// connections fill a longer queue, those of this user wait longer.
const QUEUE_LEN: i32 = 512;

/// The meaning of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Name {
    /// The process that is joining the others at the address.
    Joining,
    /// The process with this share of the queue pair numbers.
    Share(AddressShare),
    /// The process that listens on this service.
    Service(ServiceId),
}

impl Names {
    /// Creates the names for an address, for a user.
    pub(super) fn new(local: SocketAddr, uid: Uid) -> Names {
        // An address with a scope has the scope in its text.
        Names { prefix: format!("adverb/{local}/"), uid }
    }

    fn addr(&self, name: Name) -> io::Result<UnixAddr> {
        let Names { prefix, .. } = self;
        let name = match name {
            Name::Joining => format!("{prefix}joining"),
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
        // musl's maximum is 128, and longer queues are an error.
        listen(&socket, ListenQueue::new(QUEUE_LEN).unwrap_or(ListenQueue::MAXCONN))?;
        Ok(socket.into())
    }

    /// Connects to the process that has a name, and sends the version of the protocol to a process of this user.
    ///
    /// # Errors
    ///
    /// Returns `WouldBlock` if the process, of whichever user, has too many connections that it has not accepted yet, and
    /// another error if this process has too many file descriptors.
    pub(super) fn connect(&self, name: Name) -> io::Result<Holder> {
        // A process that has changed its user since it opened the device is refused by the others, after its first message.
        if geteuid() != self.uid {
            return Err(Errno::EPERM.into());
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = nix::sys::socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        match nix::sys::socket::connect(socket.as_raw_fd(), &self.addr(name)?) {
            Ok(()) if !self.is_own_user(&socket) => return Ok(Holder::OtherUser),
            Ok(()) => {}
            Err(Errno::ECONNREFUSED) => return Ok(Holder::Absent),
            Err(error) => return Err(error.into()),
        }
        match nix::sys::socket::send(socket.as_raw_fd(), &HELLO_MESSAGE, MsgFlags::MSG_NOSIGNAL) {
            Ok(_) => Ok(Holder::OwnUser(socket.into())),
            // The process has just ended.
            Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(Holder::Absent),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the process at the other end of a connection belongs to this user.
    pub(super) fn is_own_user(&self, socket: &impl AsFd) -> bool {
        getsockopt(socket, PeerCredentials).is_ok_and(|peer| peer.uid() == self.uid.as_raw())
    }
}
