//! The names by which the processes of a user find each other, and the connections between them.
//!
//! The names are in the abstract namespace of Unix sockets. Each network namespace has its own abstract namespace, like
//! its addresses. A name belongs to one socket, and the kernel frees it when the socket is closed, no matter how the
//! process ends. Any user can claim any name, so both ends of a connection check the user of the other end. The names
//! don't contain the user: a process in a user namespace has another ID there than outside, and the kernel lets both share
//! the port.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use adverb_wire::cm::ServiceId;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr};
use nix::unistd::{Uid, geteuid};

use super::disposal::Disposal;
use super::listener::Listener;
use super::message::HELLO_MESSAGE;
use super::{filter, user};
use crate::link::AddressShare;

/// The names of the processes of a user. The names at an address contain the address.
#[derive(Debug)]
pub(in crate::link) struct Names {
    local: SocketAddr,
    uid: Uid,
    disposal: Disposal,
}

/// The process that has a name.
#[derive(Debug)]
pub(in crate::link) enum Holder {
    /// A process of this user, to which the connection is.
    OwnUser(UnixStream),
    /// A process of another user.
    OtherUser,
    /// No process accepts connections to the name.
    Absent,
}

/// The meaning of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::link) enum Name {
    /// The process that is joining the others at the address.
    Joining,
    /// The only process at the address and port.
    Device,
    /// The process with this share of the queue pair numbers.
    Share(AddressShare),
    /// The process that listens on this service.
    Service(ServiceId),
}

impl Name {
    /// Returns the name at an address.
    fn at(self, addr: SocketAddr) -> io::Result<UnixAddr> {
        // An address with a scope has the scope in its text.
        let prefix = format!("adverb/{addr}/");
        let name = match self {
            Name::Joining => format!("{prefix}joining"),
            Name::Device => format!("{prefix}device"),
            Name::Share(share) => format!("{prefix}share/{}", share.index()),
            Name::Service(service) => format!("{prefix}service/{:016x}", service.get()),
        };
        Ok(UnixAddr::new_abstract(name.as_bytes())?)
    }

    /// Whether a process with this name accepts rings over the connections to it.
    pub(super) const fn is_for_packets(self) -> bool {
        matches!(self, Name::Device | Name::Share(_))
    }
}

impl Names {
    /// Creates the names of a process at an address, for a user.
    pub(in crate::link) fn new(local: SocketAddr, uid: Uid) -> Names {
        Names { local, uid, disposal: Disposal::of_process() }
    }

    /// Returns the address of this process.
    pub(in crate::link) const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Claims a name at the address of this process, and listens for connections to it.
    ///
    /// # Errors
    ///
    /// Returns `AddrInUse` if another process has the name.
    pub(in crate::link) fn claim(&self, name: Name) -> io::Result<Listener> {
        Listener::open(&name.at(self.local)?, self.uid, &self.disposal, name.is_for_packets())
    }

    /// Connects to the process that has a name at an address, and sends the version of the protocol to a process of this user.
    ///
    /// # Errors
    ///
    /// Returns `WouldBlock` if the process, of whichever user, has too many connections that it has not accepted yet, and
    /// another error if this process has too many file descriptors.
    pub(in crate::link) fn connect(&self, addr: SocketAddr, name: Name) -> io::Result<Holder> {
        // A process that has changed its user since it opened the device is refused by the others, after its first message.
        if geteuid() != self.uid {
            return Err(Errno::EPERM.into());
        }
        let socket = outgoing_socket()?;
        match nix::sys::socket::connect(socket.as_raw_fd(), &name.at(addr)?) {
            Ok(()) if !user::is_peer(&socket, self.uid) => return Ok(Holder::OtherUser),
            Ok(()) => {}
            Err(Errno::ECONNREFUSED) => return Ok(Holder::Absent),
            Err(error) => return Err(error.into()),
        }
        filter::keep_messages(&socket)?;
        match nix::sys::socket::send(socket.as_raw_fd(), &HELLO_MESSAGE, MsgFlags::MSG_NOSIGNAL) {
            Ok(_) => Ok(Holder::OwnUser(socket.into())),
            // The process has just ended.
            Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(Holder::Absent),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns a socket whose messages are dropped: another user may send some with files as soon as it is connected.
fn outgoing_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = nix::sys::socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    filter::drop_messages(&socket)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::listener::tests::{lingering_socket, send_with_file};
    use super::super::verifiable_user;
    use super::*;
    use crate::link::udp::tests::loopback;

    #[test]
    fn messages_are_dropped_with_their_files_until_the_sender_is_known() {
        let addr = SocketAddr::new(loopback(10).into(), 4791);
        let names = Names::new(addr, verifiable_user().unwrap());
        let name = Name::Share(AddressShare::FIRST);
        let listener = names.claim(name).unwrap();
        let outgoing = outgoing_socket().unwrap();
        nix::sys::socket::connect(outgoing.as_raw_fd(), &name.at(addr).unwrap()).unwrap();
        let accepted = listener.accept().unwrap().unwrap();
        let (file, file_peer) = lingering_socket();
        send_with_file(&accepted, &file).unwrap();
        // If the message is in the queue, closing the socket closes the file.
        let sender = std::thread::spawn(move || drop(file));
        std::thread::sleep(Duration::from_millis(10));
        let start = Instant::now();
        drop(outgoing);
        let time = start.elapsed();
        drop(file_peer);
        sender.join().unwrap();
        assert!(time < Duration::from_secs(5), "closing took {time:?}");
        // Messages of a process of this user arrive.
        let Holder::OwnUser(stream) = names.connect(addr, name).unwrap() else { panic!("another user") };
        let accepted = listener.accept().unwrap().unwrap();
        send_with_file(&accepted, &*listener).unwrap();
        nix::sys::socket::recv(stream.as_raw_fd(), &mut [0; 16], MsgFlags::MSG_DONTWAIT).unwrap();
    }
}
