//! Packets between processes of a user, in memory that they share.
//!
//! The sender writes packets into a [ring] in memory, which the receiver reads. Each pair of processes has a connection, a
//! Unix socket, for each direction: the sender sends the file of the ring over it, and later the wake-ups of a receiver that
//! sleeps. The connection ends with either process. The owner of [`LocalRings`] opens the connections, accepts them, and
//! reads their messages.
//!
//! [`Peer`](peer::Peer) decides about the packets to each process, and [`Writers`] and [`Readers`] do the work. A process
//! that reads slowly loses no packets unless its ring stays full for a while.

mod files;
mod fork;
mod packets;
mod peer;
mod readers;
mod ring;
mod writers;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::AddressShare;
use super::datagram::Datagram;
pub(super) use files::receive as receive_files;
pub(super) use fork::Guarded;
pub(super) use packets::{PACKETS_HEADER_LEN, Packets};
use readers::Readers;
pub(super) use ring::MAX_MESSAGE_LEN;
#[cfg(fuzzing)]
pub use ring::fuzzing;
use writers::Writers;

/// The message with which a process offers a ring, whose file accompanies it.
pub(super) const RING_MESSAGE: [u8; 1] = [5];

/// The message that wakes a process, because a ring has packets.
pub(super) const WAKE_MESSAGE: [u8; 1] = [3];

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

impl LocalRings {
    /// Creates a state without rings.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system can't create a file descriptor.
    pub(super) fn new() -> io::Result<LocalRings> {
        let (readers, readiness) = (Readers::new()?, Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        readiness.add(readers.wake_channel(), EpollEvent::new(EpollFlags::EPOLLIN, WAKE_CHANNEL))?;
        Ok(LocalRings { readers, writers: Writers::default(), readiness })
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

    /// Sends a message with `packet_count` packets, which consists of pieces, to the process with a share. `connect` returns
    /// a new connection to the process, or `None` if there is no such process.
    pub(super) fn send<'a>(
        &mut self,
        share: AddressShare,
        packet_count: usize,
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
        connect: impl FnMut() -> io::Result<Option<UnixStream>>,
    ) -> Delivery {
        self.writers.write(&self.readiness, share, packet_count, pieces, connect)
    }

    /// Whether the last packets to the process with a share didn't fit into its ring.
    pub(super) fn is_full(&self, share: AddressShare) -> bool {
        self.writers.is_full(share)
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
    /// process sends a [wake-up](WAKE_MESSAGE).
    pub(super) fn set_wants_wakeup(&mut self, wanted: bool) {
        self.readers.set_wants_wakeup(wanted);
    }

    /// Whether other processes send packets in rings.
    pub(super) fn has_readers(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Opens the ring that another process has [offered](RING_MESSAGE) over the connection with this number. A connection has
    /// at most one ring.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection has a ring, the file isn't that of a ring, or the operating system has no memory.
    pub(super) fn open_reader(&mut self, number: u64, file: OwnedFd) -> io::Result<()> {
        if self.readers.has_ring(number) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.readers.open(number, file)
    }

    /// Records that the connection with this number is closed. The packets in its ring are still received.
    pub(super) fn close_reader(&mut self, number: u64) {
        self.readers.close(number);
    }

    /// Records that a [wake-up](WAKE_MESSAGE) was read from the connection with this number.
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
    /// Whether this process has a ring to the process with a share.
    pub(super) fn has_writer(&self, share: AddressShare) -> bool {
        self.writers.has_ring(share)
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
