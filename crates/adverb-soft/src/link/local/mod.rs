//! Packets between processes of a user, in memory that they share.
//!
//! The sender writes packets into a [ring] in memory, which the receiver reads. Each pair of processes has a connection, a
//! Unix socket, for each direction: the sender sends the file of the ring over it, and later the wake-ups of a receiver that
//! sleeps. The connection ends with either process. An [`Endpoint`] opens the connections, accepts them, and reads their
//! messages. Its owner decides which packets are sent to which process.
//!
//! The kernel's table of [names] is the registry of the processes. The kernel removes the names of a process that ends.
//!
//! The processes have the same address, or all addresses are those of this machine: see [`RingPeers`]. A process has a name for its
//! share of an address, or for the whole address. Processes of other users have no rings, but they may take any name: see
//! [`Listener`].
//!
//! Packets are sent over UDP until the receiver has opened its ring. They stay in order when they change to the ring: see
//! [`marker`].
//!
//! [`Peer`](peer::Peer) decides about the packets to each process, and [`Writers`] and [`Readers`] do the work. A process
//! that reads slowly loses no packets unless its ring stays full for a while.

mod accept;
mod disposal;
mod endpoint;
mod files;
mod filter;
mod fork;
mod listener;
mod local_addr;
mod lookups;
mod marker;
mod message;
mod names;
mod packets;
mod peer;
mod readers;
mod ring;
mod ring_peers;
#[cfg(test)]
mod tests;
mod token;
mod user;
mod writers;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::AddressShare;
use super::datagram::Datagram;
pub(super) use endpoint::{Endpoint, Event, MAX_PACKETS_LEN};
pub(super) use files::receive as receive_files;
pub(super) use filter::Program;
pub(super) use fork::Guarded;
pub(super) use listener::Listener;
use local_addr::LocalAddrs;
use marker::Token;
#[cfg(test)]
pub(super) use message::HELLO_MESSAGE;
pub(super) use message::{VERSION, hello_version};
pub(super) use names::{Holder, Name, Names};
pub(super) use packets::Packets;
use readers::Readers;
#[cfg(fuzzing)]
pub use ring::fuzzing;
pub use ring_peers::RingPeers;
pub(super) use user::verifiable as verifiable_user;
use writers::Writers;

/// The receiver of packets: a process at an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct PeerAddr {
    /// The address and port.
    pub(super) addr: SocketAddr,
    /// The share of the queue pair number to which the packets are sent. If the address is that of one process alone, that process
    /// has all shares.
    pub(super) share: Option<AddressShare>,
}

/// A connection to another process.
pub(super) struct Found {
    /// The share of the process in its address, or `None` if it has the address and port to itself.
    pub(super) share: Option<AddressShare>,
    pub(super) stream: UnixStream,
}

/// The rings between this process and others.
#[derive(Debug)]
pub(super) struct LocalRings {
    readers: Readers,
    writers: Writers,
    /// An epoll instance that is readable when [`serve`](LocalRings::serve) has work. The events of connections to other
    /// processes have the connection's number.
    readiness: Epoll,
}

/// The number of the wake channel's event. There are never as many connections.
const WAKE_CHANNEL: u64 = u64::MAX;

/// The result of [`LocalRings::send`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Delivery {
    /// The packets were written into the ring, or lost because the other process doesn't read them.
    Accepted,
    /// The other process must read packets first.
    Full,
    /// The packets must be sent over UDP.
    OverUdp,
}

/// Packets to another process.
pub(super) struct Outgoing<I> {
    pub(super) packet_count: usize,
    /// The source port of the packets.
    pub(super) source_port: u16,
    /// The pieces of the message with the packets.
    pub(super) pieces: I,
}

/// The ways to another process besides its ring.
pub(super) trait Outside {
    /// Returns a new connection to the process, or `None` if there is no such process.
    fn connect(&mut self) -> io::Result<Option<Found>>;

    /// Sends a datagram from a source port to the process over UDP. Returns whether it was sent: if not, no datagram can be
    /// sent from this port.
    ///
    /// # Errors
    ///
    /// Returns an error if the datagram can be sent later.
    fn send_datagram(&mut self, source_port: u16, bytes: &[u8]) -> io::Result<bool>;
}

impl LocalRings {
    /// Creates a state without rings, for a process at an address.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system can't create a file descriptor.
    pub(super) fn new(local: SocketAddr) -> io::Result<LocalRings> {
        let (readers, readiness) = (Readers::new()?, Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        readiness.add(readers.wake_channel(), EpollEvent::new(EpollFlags::EPOLLIN, WAKE_CHANNEL))?;
        Ok(LocalRings { readers, writers: Writers::new(local), readiness })
    }

    /// Returns the descriptor that is readable when [`serve`](LocalRings::serve) has work.
    pub(super) fn readiness(&self) -> BorrowedFd<'_> {
        self.readiness.0.as_fd()
    }

    /// Handles the ends of other processes, and wake-ups.
    pub(super) fn serve(&mut self) {
        let mut events = [EpollEvent::empty(); 16];
        let Ok(event_count) = self.readiness.wait(&mut events, EpollTimeout::ZERO) else { return };
        for event in &events[..event_count] {
            match event.data() {
                WAKE_CHANNEL => self.readers.take_wake_event(),
                number => self.writers.end(number),
            }
        }
    }

    /// Sends a message to another process.
    pub(super) fn send<'a>(
        &mut self,
        to: PeerAddr,
        message: &Outgoing<impl Iterator<Item = &'a [u8]> + Clone>,
        peer: &mut impl Outside,
    ) -> Delivery {
        self.writers.write(&self.readiness, to, message, peer)
    }

    /// Whether a process has no ring and gets none now, so that packets from a source port are sent over UDP, which is recorded.
    pub(super) fn is_over_udp(
        &mut self,
        to: PeerAddr,
        source_port: u16,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        self.writers.is_over_udp(to, source_port, now)
    }

    /// Whether the packets to an address are sent to different processes, depending on their queue pairs.
    pub(super) fn is_shared(&self, addr: SocketAddr) -> bool {
        self.writers.is_shared(addr)
    }

    /// Closes the rings of processes whose addresses have left this machine. This takes effect once in a second.
    fn check_addrs(&mut self, now: Instant) {
        // Without a descriptor, it isn't known.
        let mut local = LocalAddrs::default();
        self.writers.check_addrs(now, |addr| !matches!(local.contains(addr), Ok(false)));
    }

    /// Whether the last packets to another process didn't fit into its ring.
    pub(super) fn is_full(&self, process: PeerAddr) -> bool {
        self.writers.is_full(process)
    }

    /// Returns the number of packets that were written into rings.
    pub(super) const fn sent_packets(&self) -> u64 {
        self.writers.sent_packets()
    }

    /// Returns the number of packets that were accepted and lost: the other process refused their ring, or did not read it.
    pub(super) const fn lost_packets(&self) -> u64 {
        self.writers.lost_packets()
    }

    /// Passes about `max` packets of other processes to `each`, and returns their number.
    #[inline]
    pub(super) fn receive(&mut self, max: usize, each: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        self.readers.receive(max, each)
    }

    /// Sets whether a thread may sleep from now on, until the [descriptor](LocalRings::readiness) is readable, or another
    /// process sends a [wake-up](message::Message::Wake).
    pub(super) fn set_wants_wakeup(&mut self, wanted: bool) {
        self.readers.set_wants_wakeup(wanted);
    }

    /// Returns the time at which rings must be read that wait for markers.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.readers.deadline()
    }

    /// Whether a datagram is a [marker](marker) of a ring, which is then recorded.
    #[inline]
    pub(super) fn take_marker(&mut self, datagram: &[u8]) -> bool {
        Token::of_marker(datagram).is_some_and(|token| self.readers.take_marker(token))
    }

    /// Whether a ring waits for markers.
    pub(super) fn awaits_markers(&self) -> bool {
        self.readers.awaits_markers()
    }

    /// Records that the UDP socket had no datagrams.
    pub(super) fn record_empty_udp(&mut self) {
        self.readers.record_empty_udp(Instant::now());
    }

    /// Whether other processes send packets in rings.
    pub(super) fn has_readers(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Opens the ring that another process has [offered](message::Message::Ring) over the connection with this number, for packets
    /// from a source address. A connection has at most one ring.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection has a ring, there are too many, the file isn't that of a ring, or the operating system
    /// has no memory.
    fn open_reader(&mut self, number: u64, token: Token, source: IpAddr, file: OwnedFd) -> io::Result<()> {
        if self.readers.has_ring(number) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.readers.open(number, token, source, file)
    }

    /// Records that the connection with this number is closed. The packets in its ring are still received.
    pub(super) fn close_reader(&mut self, number: u64) {
        self.readers.close(number);
    }

    /// Records that a [wake-up](message::Message::Wake) was read from the connection with this number.
    pub(super) fn record_wakeup(&mut self, number: u64) {
        self.readers.record_wakeup(number);
    }

    /// Removes and returns the number of a connection whose ring violates the format. The caller closes the connection.
    #[inline]
    pub(super) fn pop_broken(&mut self) -> Option<u64> {
        self.readers.pop_broken()
    }
}

#[cfg(test)]
impl LocalRings {
    /// Whether this process has a ring to another process.
    pub(super) fn has_writer(&self, process: PeerAddr) -> bool {
        self.writers.has_ring(process)
    }

    /// Discards the packets of the first ring, and requests wake-ups, as a thread that is about to sleep does.
    pub(super) fn read_and_prepare_sleep(&mut self) {
        self.readers.read_and_prepare_sleep();
    }

    /// Returns the number of the connection of the first ring.
    pub(super) fn first_reader(&self) -> u64 {
        self.readers.first_number()
    }
}
