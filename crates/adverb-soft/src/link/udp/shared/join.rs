//! Joining the processes that share an address.
//!
//! The index of a process's socket in the kernel's list must be the index of its share, or packets are delivered to other
//! processes. The kernel appends a new socket to the list, and moves the last socket to the index of one that is closed.
//! These rules keep the indexes right:
//!
//! - Each process holds the sockets with lower indexes than its own, so the kernel closes only sockets behind those of all
//!   living processes.
//! - A joining process gets the sockets of the last process, and takes the first free share: with the socket of the share if
//!   it got that, or else with a new socket. It also opens sockets for the shares before it whose names another user has.
//! - Usually, one process joins at a time. Others wait for it, unless it takes too long, or another user has the name. So
//!   a process that joins waits for the response of each process that has a share, also if that is still joining.
//! - A process that ends loses its names and its sockets one after the other. So a joining process asks again if another
//!   process ends before it has responded, and [waits](await_own_packets) until the kernel delivers the packets of its
//!   share to its new socket. That socket is the last one, so it gets the right index when the sockets of ended processes
//!   are closed.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::sockopt::RcvBuf;
use nix::sys::socket::{MsgFlags, getsockopt};
use nix::unistd::Uid;

use super::message::Message;
use super::program;
use crate::link::AddressShare;
use crate::link::local::{Holder, Listener, Name, Names, VERSION, hello_version, receive_files};
use crate::link::udp::{UdpConfig, socket};

/// The membership of a process in the group of processes that share an address.
pub(super) struct Membership {
    pub(super) names: Names,
    pub(super) share: AddressShare,
    /// The socket that has the name of the share.
    pub(super) listener: Listener,
    /// The receiving socket. Its index in the kernel's list of sockets is the index of the share.
    pub(super) own: UdpSocket,
    /// The sockets with lower indexes. A process keeps them open, because the kernel changes the index of another
    /// socket when a socket is closed.
    pub(super) lower: Vec<UdpSocket>,
    pub(super) receive_buffer_bytes: usize,
}

/// The maximum time to wait until other processes have joined.
const MAX_JOIN_WAIT: Duration = Duration::from_secs(5);

/// The maximum time until a name that can't be connected to is taken for another user's. The queue of the name may be full.
const MAX_LOOKUP_WAIT: Duration = Duration::from_millis(200);

/// The maximum time to wait for the sockets of other processes, and until processes that are ending have ended.
const MAX_SETTLE_WAIT: Duration = Duration::from_secs(2);

/// The maximum time to wait for the response of a process.
const MAX_RESPONSE_WAIT: Duration = Duration::from_secs(1);

/// The maximum time to wait for packets to oneself before the process asks the others again.
const MAX_PROBE_TIME: Duration = Duration::from_millis(50);

/// The maximum time to wait before a name is tried again, or another packet is sent to oneself.
const PROBE_WAIT: Duration = Duration::from_millis(1);

/// The maximum number of stale packets that are dropped when a process takes over the share of one that has ended.
const MAX_STALE_PACKETS: usize = 1 << 16;

impl Membership {
    /// Joins the processes of a user that share an address. This process may be the first one.
    ///
    /// # Errors
    ///
    /// - Returns `AddrInUse` if another user's socket has the address, if 128 processes share it, or if they have another
    ///   version of the protocol.
    /// - Returns other errors as [`UdpLink::open`](crate::link::UdpLink::open).
    pub(super) fn join(local: SocketAddr, user: Uid, config: &UdpConfig) -> io::Result<Membership> {
        let names = Names::new(local, user);
        // Usually, no other process joins until this listener is dropped.
        let _joining = claim_joining(&names);
        let start = Instant::now();
        let deadline = start + MAX_SETTLE_WAIT;
        // A stopped process is asked only once.
        let mut silent = Vec::new();
        loop {
            let peers = Peers::find(&names, local, start + MAX_LOOKUP_WAIT, &mut silent)?;
            if peers.present.is_empty() && !peers.others.is_empty() {
                // If another user has the port, too, this process takes no name.
                socket::open_shared_receiving(local, config)?;
            }
            let (share, listener) = claim_share(&names, local)?;
            let index = usize::from(share.index());
            let Peers { sockets: mut lower, present, others } = peers;
            if index < lower.len() {
                lower.truncate(index + 1);
                let (own, receive_buffer_bytes) = take_over(lower.pop(), config)?;
                return Ok(Membership { names, share, listener, own, lower, receive_buffer_bytes });
            }
            // After the deadline, this process joins anyway: packets that reach the wrong process are passed on.
            let is_late = Instant::now() >= deadline;
            // The shares from `lower.len()` to `index` are claimed, but a process that is ending may have closed its
            // socket already.
            let is_known = |index| {
                let mut known = present.iter().chain(&others);
                known.any(|share| usize::from(share.index()) == index)
            };
            let are_shares_between_known =
                (lower.len()..index).all(is_known) || start.elapsed() >= MAX_LOOKUP_WAIT;
            if are_shares_between_known || is_late {
                let end = present.iter().map(|share| usize::from(share.index()) + 1).max().unwrap_or(0);
                // The shares between have no sockets, as far as this process can tell, so it opens sockets in their
                // places, which no process reads. It opens none if a process doesn't respond, because the indexes of
                // that process's sockets aren't known, and none after the deadline, because it could then take the
                // place of another process's socket.
                while !is_late && end <= lower.len() && lower.len() < index {
                    let (placeholder, _) = socket::open_shared_receiving(local, config)?;
                    socket::minimize_receive_buffer(&placeholder);
                    lower.push(placeholder);
                }
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
            std::thread::sleep(random_time(PROBE_WAIT));
        }
    }
}

/// The processes at the address.
struct Peers {
    /// The sockets of the processes, in the kernel's order: all of them unless a process doesn't respond.
    sockets: Vec<UdpSocket>,
    /// The shares of this user's processes that have not ended.
    present: Vec<AddressShare>,
    /// The shares whose names other users have.
    others: Vec<AddressShare>,
}

impl Peers {
    /// Finds the processes, and requests their sockets. Names that can't be connected to before the deadline are taken for
    /// other users'. A process that doesn't respond is added to `silent`, and the processes in `silent` aren't asked.
    fn find(
        names: &Names,
        local: SocketAddr,
        deadline: Instant,
        silent: &mut Vec<AddressShare>,
    ) -> io::Result<Peers> {
        let mut peers = Peers { sockets: Vec::new(), present: Vec::new(), others: Vec::new() };
        let mut connections = Vec::new();
        for share in shares() {
            let mut holder = names.connect(names.local(), Name::Share(share));
            while holder.is_err() && Instant::now() < deadline {
                std::thread::sleep(random_time(PROBE_WAIT));
                holder = names.connect(names.local(), Name::Share(share));
            }
            match holder {
                Ok(Holder::OwnUser(connection)) => connections.push((share, connection)),
                Err(error) if is_descriptor_shortage(&error) => return Err(error),
                Ok(Holder::OtherUser) | Err(_) => peers.others.push(share),
                Ok(Holder::Absent) => {}
            }
        }
        let mut has_all = false;
        // The last process has all sockets.
        for (share, connection) in connections.iter().rev() {
            if has_all || silent.contains(share) {
                peers.present.push(*share);
                continue;
            }
            // Usually, no process is stopped. If several are, this process doesn't wait for long.
            let max_wait = if silent.is_empty() { MAX_RESPONSE_WAIT } else { MAX_RESPONSE_WAIT / 10 };
            match request_sockets(connection, local, max_wait)? {
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
                Response::OtherVersion(version) => {
                    let text = format!(
                        "processes with version {version} of the protocol have a software device at {}, and this one has \
                         version {VERSION}: use another address, or the same release of Adverb",
                        local.ip()
                    );
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
                }
            }
        }
        Ok(peers)
    }
}

/// Waits until no other process is joining, and claims the name that shows it. Returns `None` if another user has the name,
/// or the other processes take too long: this process then joins at the same time.
fn claim_joining(names: &Names) -> Option<Listener> {
    let deadline = Instant::now() + MAX_JOIN_WAIT;
    let mut failed_since = None;
    loop {
        match names.claim(Name::Joining) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            claimed => return claimed.ok(),
        }
        match names.connect(names.local(), Name::Joining) {
            // The connection ends when the other process has joined. Then all waiting processes try again, so that each
            // is the next one with the same probability.
            Ok(Holder::OwnUser(connection)) => {
                failed_since = None;
                if !await_readable(&connection, deadline) || Instant::now() >= deadline {
                    return None;
                }
            }
            Ok(Holder::OtherUser) => return None,
            Ok(Holder::Absent) | Err(_) => {
                if failed_since.get_or_insert_with(Instant::now).elapsed() >= MAX_LOOKUP_WAIT {
                    return None;
                }
                std::thread::sleep(random_time(PROBE_WAIT));
            }
        }
    }
}

/// Returns a random time of at most `max`.
fn random_time(max: Duration) -> Duration {
    // Without a random number, all processes wait for the same time.
    max.mul_f64(f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX))
}

/// Returns all shares.
pub(super) fn shares() -> impl Iterator<Item = AddressShare> {
    (0..AddressShare::MAX_COUNT).filter_map(AddressShare::new)
}

/// Claims the first free share.
fn claim_share(names: &Names, local: SocketAddr) -> io::Result<(AddressShare, Listener)> {
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
    /// The process has this version of the protocol.
    OtherVersion(u8),
}

/// Requests the sockets that another process has.
///
/// # Errors
///
/// Returns an error if this process has no descriptors for the sockets.
fn request_sockets(peer: &UnixStream, local: SocketAddr, max_wait: Duration) -> io::Result<Response> {
    let mut request = Vec::new();
    Message::Join.emit(&mut request);
    // A process with another version closes the connection, but its response is there.
    let _ = nix::sys::socket::send(peer.as_raw_fd(), &request, MsgFlags::MSG_NOSIGNAL);
    if !await_readable(peer, Instant::now() + max_wait) {
        return Ok(Response::Silent);
    }
    let mut response = [0; 16];
    let mut received = receive_files(peer, &mut response);
    if matches!(&received, Err(error) if error.kind() == io::ErrorKind::ConnectionReset) {
        // The process has closed the connection without reading the request. Its response follows the error.
        received = receive_files(peer, &mut response);
    }
    let (length, files) = match received {
        Ok(received) => received,
        Err(error) if is_descriptor_shortage(&error) => return Err(error),
        Err(_) => return Ok(Response::Ended),
    };
    let sockets: Vec<UdpSocket> = files.into_iter().map(UdpSocket::from).collect();
    let has_address = |socket: &UdpSocket| socket.local_addr().is_ok_and(|address| address == local);
    let response = &response[..length];
    Ok(match (Message::parse(response), hello_version(response)) {
        (Some(Message::Sockets), _) if sockets.iter().all(has_address) => Response::Sockets(sockets),
        (_, Some(version)) => Response::OtherVersion(version),
        _ => Response::Ended,
    })
}

/// Whether the process, or the system, has no free descriptor.
fn is_descriptor_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
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

/// Takes over the socket of a process that has ended, and drops the packets that were sent to that process.
fn take_over(socket: Option<UdpSocket>, config: &UdpConfig) -> io::Result<(UdpSocket, usize)> {
    let socket = socket.ok_or(io::ErrorKind::NotFound)?;
    socket::set_receive_buffer(&socket, config)?;
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
/// that arrive until then: the process has no queue pairs yet. If another process joins at once, both may have the
/// wrong sockets, so each waits for a random time before it asks the others again.
fn await_own_packets(socket: &UdpSocket, local: SocketAddr, share: AddressShare, deadline: Instant) -> bool {
    // No RoCEv2 packet is as short, so any other receiver drops it.
    let probe = [std::process::id().to_be_bytes(), share.qpn(u32::MAX).to_be_bytes()].concat();
    let deadline = deadline.min(Instant::now() + MAX_PROBE_TIME / 2 + random_time(MAX_PROBE_TIME / 2));
    while Instant::now() < deadline {
        // The kernel may have no memory for the packet. Another one is sent later.
        let _ = socket.send_to(&probe, local);
        await_readable(socket, Instant::now() + PROBE_WAIT);
        let mut received = [0; 16];
        for _ in 0..MAX_STALE_PACKETS {
            let Ok((length, source)) = socket.recv_from(&mut received) else { break };
            if received[..length] == probe && source == local {
                return true;
            }
        }
    }
    false
}
