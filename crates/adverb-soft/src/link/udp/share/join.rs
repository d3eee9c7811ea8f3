//! Joining the processes that share an address.
//!
//! The index of a process's socket in the kernel's list must be the index of its share, or packets are delivered to other
//! processes. The kernel appends a new socket to the list, and moves the last socket to the index of one that is closed.
//! These rules keep the indexes right:
//!
//! - Each process holds the sockets with lower indexes than its own, so the kernel closes only sockets behind those of all
//!   living processes.
//! - Only one process joins at a time. It gets the sockets of the last process, and takes the first free share: with the
//!   socket of the share if it got that, or else with a new socket.
//! - A process that ends loses its names and its sockets one after the other. So a joining process asks again if another
//!   process ends before it has responded, and [waits](await_own_packets) until the kernel delivers the packets of its
//!   share to its new socket. That socket is the last one, so it gets the right index when the sockets of ended processes
//!   are closed.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::sockopt::RcvBuf;
use nix::sys::socket::{MsgFlags, getsockopt};

use super::files;
use super::message::Message;
use super::names::{Name, Names};
use super::program;
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
}

/// The maximum time to wait until another process has joined.
const MAX_JOIN_WAIT: Duration = Duration::from_secs(5);

/// The maximum time to wait for the sockets of other processes, and until processes that are ending have ended.
const MAX_SETTLE_WAIT: Duration = Duration::from_secs(2);

/// The maximum time to wait for the response of a process.
const MAX_RESPONSE_WAIT: Duration = Duration::from_secs(1);

/// The time to wait for a packet to oneself before another one is sent.
const PROBE_WAIT: Duration = Duration::from_millis(1);

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
        let deadline = Instant::now() + MAX_SETTLE_WAIT;
        // A stopped process is asked only once.
        let mut silent = Vec::new();
        loop {
            let peers = Peers::find(&names, local, &mut silent);
            let (share, listener) = claim_share(&names, local)?;
            let index = usize::from(share.index());
            let Peers { sockets: mut lower, present } = peers;
            if index < lower.len() {
                lower.truncate(index + 1);
                let (own, receive_buffer_bytes) = take_over(lower.pop())?;
                return Ok(Membership { names, share, listener, own, lower, receive_buffer_bytes });
            }
            // After the deadline, this process joins anyway: packets that reach the wrong process are passed on.
            let is_late = Instant::now() >= deadline;
            // The shares from `lower.len()` to `index` are claimed, but a process that is ending may have closed its
            // socket already.
            let are_shares_between_present = (lower.len()..index)
                .all(|index| present.iter().any(|share| usize::from(share.index()) == index));
            if are_shares_between_present || is_late {
                let (own, receive_buffer_bytes) = socket::open_shared_receiving(local, config)?;
                if present.is_empty() {
                    // No other process has joined yet. A dispatcher attaches the program again later.
                    let _ = program::attach(&own, share);
                }
                let can_wait = !is_late && program::is_supported();
                if !can_wait || await_own_packets(&own, local, share, deadline) {
                    return Ok(Membership { names, share, listener, own, lower, receive_buffer_bytes });
                }
            }
            drop(listener);
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// The processes at the address.
struct Peers {
    /// The sockets of the processes, in the kernel's order: all of them unless a process doesn't respond.
    sockets: Vec<UdpSocket>,
    /// The shares of the processes that have not ended.
    present: Vec<AddressShare>,
}

impl Peers {
    /// Finds the processes, and requests their sockets. A process that doesn't respond is added to `silent`, and the
    /// processes in `silent` aren't asked.
    fn find(names: &Names, local: SocketAddr, silent: &mut Vec<AddressShare>) -> Peers {
        let connect = |share| Some((share, names.connect(Name::Share(share)).ok().flatten()?));
        let connections: Vec<(AddressShare, UnixStream)> = shares().filter_map(connect).collect();
        let mut peers = Peers { sockets: Vec::new(), present: Vec::new() };
        let mut has_all = false;
        // The last process has all sockets.
        for (share, connection) in connections.iter().rev() {
            if has_all || silent.contains(share) {
                peers.present.push(*share);
                continue;
            }
            match request_sockets(connection, local) {
                Response::Sockets(sockets) => {
                    has_all = sockets.len() > usize::from(share.index());
                    peers.present.push(*share);
                    if sockets.len() > peers.sockets.len() {
                        peers.sockets = sockets;
                    }
                }
                Response::Silent => {
                    peers.present.push(*share);
                    silent.push(*share);
                }
                Response::Ended => {}
            }
        }
        peers
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

/// Returns all shares.
fn shares() -> impl Iterator<Item = AddressShare> {
    (0..AddressShare::MAX_COUNT).filter_map(AddressShare::new)
}

/// Claims the first free share.
fn claim_share(names: &Names, local: SocketAddr) -> io::Result<(AddressShare, UnixListener)> {
    for share in shares() {
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

/// The response of a process to [`Message::Join`].
enum Response {
    Sockets(Vec<UdpSocket>),
    /// The process has closed the connection.
    Ended,
    /// The process did not respond in time.
    Silent,
}

/// Requests the sockets that another process has.
fn request_sockets(peer: &UnixStream, local: SocketAddr) -> Response {
    let mut request = Vec::new();
    Message::Join.emit(&mut request);
    if nix::sys::socket::send(peer.as_raw_fd(), &request, MsgFlags::MSG_NOSIGNAL).is_err() {
        return Response::Ended;
    }
    if !await_readable(peer, Instant::now() + MAX_RESPONSE_WAIT) {
        return Response::Silent;
    }
    let has_address = |socket: &UdpSocket| socket.local_addr().is_ok_and(|address| address == local);
    match receive_sockets(peer) {
        Ok(sockets) if sockets.iter().all(has_address) => Response::Sockets(sockets),
        _ => Response::Ended,
    }
}

/// Waits until a socket is readable, and returns whether it is.
fn await_readable(socket: &impl AsFd, deadline: Instant) -> bool {
    loop {
        // The time is rounded up, so that the last wait isn't empty.
        let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        match nix::poll::poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], timeout) {
            Err(Errno::EINTR) => {}
            result => return result.is_ok_and(|count| count > 0),
        }
    }
}

/// Receives the response to [`Message::Join`].
fn receive_sockets(peer: &UnixStream) -> io::Result<Vec<UdpSocket>> {
    let mut response = [0; 16];
    let (length, files) = files::receive(peer, &mut response)?;
    match Message::parse(&response[..length]) {
        Some(Message::Sockets) => Ok(files.into_iter().map(UdpSocket::from).collect()),
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

/// Waits until the kernel delivers the packets of a share to its socket, and returns whether it does. Drops all packets
/// that arrive until then: the process has no queue pairs yet.
fn await_own_packets(socket: &UdpSocket, local: SocketAddr, share: AddressShare, deadline: Instant) -> bool {
    // No RoCEv2 packet is as short, so any other receiver drops it.
    let probe = [std::process::id().to_be_bytes(), share.qpn(u32::MAX).to_be_bytes()].concat();
    while Instant::now() < deadline {
        // The kernel may have no memory for the packet. Another one is sent later.
        let _ = socket.send_to(&probe, local);
        await_readable(socket, Instant::now() + PROBE_WAIT);
        let mut received = [0; 16];
        while let Ok((length, source)) = socket.recv_from(&mut received) {
            if received[..length] == probe && source == local {
                return true;
            }
        }
    }
    false
}
