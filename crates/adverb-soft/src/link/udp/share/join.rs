//! Joining the processes that share an address.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::sockopt::RcvBuf;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, getsockopt};

use super::message::Message;
use super::names::{Name, Names};
use crate::link::AddressShare;
use crate::link::udp::{UdpConfig, socket};

/// The membership of a process in the group of processes that share an address.
pub(super) struct Membership {
    pub(super) names: Names,
    pub(super) share: AddressShare,
    /// The socket that has the name of the share.
    pub(super) listener: UnixListener,
    /// The receiving socket. Its index in the kernel's list of sockets is the index of the share.
    pub(super) own: UdpSocket,
    /// The sockets with lower indexes. A process keeps them open, because the kernel changes the index of another
    /// socket when a socket is closed.
    pub(super) lower: Vec<UdpSocket>,
    pub(super) receive_buffer_bytes: usize,
    /// Whether other processes share the address.
    pub(super) has_peers: bool,
}

/// The maximum time to wait until another process has joined.
const MAX_JOIN_WAIT: Duration = Duration::from_secs(5);

/// The maximum time to wait for the sockets of other processes.
const MAX_SOCKETS_WAIT: Duration = Duration::from_secs(2);

/// The maximum number of stale packets that are dropped when a process takes over the share of one that has ended.
const MAX_STALE_PACKETS: usize = 1 << 16;

impl Membership {
    /// Joins the processes that share an address. This process may be the first one.
    ///
    /// # Errors
    ///
    /// - Returns `AddrInUse` if another user's socket has the address, if 128 processes share it, or if another process
    ///   takes too long to join.
    /// - Returns other errors as [`UdpLink::open`](crate::link::UdpLink::open).
    pub(super) fn join(local: SocketAddr, config: &UdpConfig) -> io::Result<Membership> {
        let names = Names::new(local);
        // No other process can join until this listener is dropped.
        let _joining = claim_joining(&names, local)?;
        let shares = || (0..AddressShare::MAX_COUNT).filter_map(AddressShare::new);
        // A process that accepts no connections still has its name, so its share isn't free.
        let connect = |share| names.connect(Name::Share(share)).ok().flatten();
        let peers: Vec<UnixStream> = shares().filter_map(connect).collect();
        let (share, listener) = claim_share(&names, local, shares())?;
        let deadline = Instant::now() + MAX_SOCKETS_WAIT;
        // The last process has all sockets. If it doesn't respond, another process has some of them. Packets that reach
        // the wrong process are then passed on.
        let sockets = peers.iter().rev().find_map(|peer| request_sockets(peer, local, deadline));
        let mut lower = sockets.unwrap_or_default();
        lower.truncate(usize::from(share.index()) + 1);
        let (own, receive_buffer_bytes) = if lower.len() > usize::from(share.index()) {
            take_over(lower.pop())?
        } else {
            socket::open_shared_receiving(local, config)?
        };
        let has_peers = !peers.is_empty();
        Ok(Membership { names, share, listener, own, lower, receive_buffer_bytes, has_peers })
    }
}

/// Waits until no other process is joining.
fn claim_joining(names: &Names, local: SocketAddr) -> io::Result<UnixListener> {
    let deadline = Instant::now() + MAX_JOIN_WAIT;
    loop {
        match names.claim(Name::Joining) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            claimed => return claimed,
        }
        if Instant::now() >= deadline {
            let text = format!(
                "another process has been opening a software device at {} for {} s: end it, or use another address",
                local.ip(),
                MAX_JOIN_WAIT.as_secs()
            );
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Claims the first free share.
fn claim_share(
    names: &Names,
    local: SocketAddr,
    shares: impl Iterator<Item = AddressShare>,
) -> io::Result<(AddressShare, UnixListener)> {
    for share in shares {
        match names.claim(Name::Share(share)) {
            Ok(listener) => return Ok((share, listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    let text = format!(
        "{} processes have a software device at {}, which is the maximum: use another address",
        AddressShare::MAX_COUNT,
        local.ip()
    );
    Err(io::Error::new(io::ErrorKind::AddrInUse, text))
}

/// Requests the sockets that another process has. Returns `None` if it doesn't respond in time.
fn request_sockets(peer: &UnixStream, local: SocketAddr, deadline: Instant) -> Option<Vec<UdpSocket>> {
    let mut request = Vec::new();
    Message::Join.emit(&mut request);
    nix::sys::socket::send(peer.as_raw_fd(), &request, MsgFlags::MSG_NOSIGNAL).ok()?;
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
    let mut ready = [PollFd::new(peer.as_fd(), PollFlags::POLLIN)];
    // A signal ends the wait early, and the caller tries another process.
    nix::poll::poll(&mut ready, timeout).ok().filter(|count| *count > 0)?;
    let sockets = receive_sockets(peer).ok()?;
    let has_address = |socket: &UdpSocket| socket.local_addr().is_ok_and(|address| address == local);
    sockets.iter().all(has_address).then_some(sockets)
}

/// Receives the response to [`Message::Join`].
fn receive_sockets(peer: &UnixStream) -> io::Result<Vec<UdpSocket>> {
    let mut response = [0; 16];
    let mut control = nix::cmsg_space!([RawFd; AddressShare::MAX_COUNT as usize]);
    let mut pieces = [IoSliceMut::new(&mut response)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let received = nix::sys::socket::recvmsg::<()>(peer.as_raw_fd(), &mut pieces, Some(&mut control), flags)?;
    let mut sockets = Vec::new();
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = message {
            for descriptor in descriptors {
                // SAFETY: the kernel has just created the descriptor for this message, and nothing else has it.
                sockets.push(UdpSocket::from(unsafe { OwnedFd::from_raw_fd(descriptor) }));
            }
        }
    }
    let length = received.bytes;
    match Message::parse(&response[..length]) {
        Some(Message::Sockets) => Ok(sockets),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Takes over the socket of a process that has ended, and drops the packets that were sent to that process.
fn take_over(socket: Option<UdpSocket>) -> io::Result<(UdpSocket, usize)> {
    let socket = socket.ok_or(io::ErrorKind::NotFound)?;
    socket::set_timestamps(&socket, false)?;
    let mut byte = [0];
    for _ in 0..MAX_STALE_PACKETS {
        match socket.recv(&mut byte) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            _ => {}
        }
    }
    let receive_buffer_bytes = getsockopt(&socket, RcvBuf)?;
    Ok((socket, receive_buffer_bytes))
}
