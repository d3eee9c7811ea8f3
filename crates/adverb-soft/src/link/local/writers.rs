//! The rings that this process writes packets into.

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::peer::{Backpressure, OpenFailure, Peer, Route};
use super::ring::{Writer, Written};
use super::{Delivery, Guarded, RING_MESSAGE, WAKE_MESSAGE};
use crate::link::AddressShare;

/// The other processes to which this one sends packets.
#[derive(Debug, Default)]
pub(super) struct Writers {
    processes: Vec<Process>,
    /// The number of lost packets.
    lost: u64,
    /// The number of the next connection.
    next_number: u64,
}

/// Another process.
#[derive(Debug)]
struct Process {
    share: AddressShare,
    peer: Peer,
    /// The connection with the ring, if there is one.
    connection: Option<Connection>,
}

/// A connection to another process, with the ring for packets to its queue pairs.
#[derive(Debug)]
struct Connection {
    number: u64,
    stream: Guarded<UnixStream>,
    writer: Writer,
}

const FLAGS: MsgFlags = MsgFlags::MSG_DONTWAIT.union(MsgFlags::MSG_NOSIGNAL);

impl Writers {
    /// Writes a message with `packet_count` packets, in pieces, into the ring of the process with a share. `connect` returns a
    /// new connection to the process, or `None` if there is no such process. The epoll instance gets an
    /// [event](Writers::end) with the number of the connection when the process ends.
    pub(super) fn write<'a>(
        &mut self,
        readiness: &Epoll,
        share: AddressShare,
        packet_count: usize,
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
        mut connect: impl FnMut() -> io::Result<Option<UnixStream>>,
    ) -> Delivery {
        let index = self.index_of(share);
        for _ in 0..2 {
            let Process { peer, connection, .. } = &mut self.processes[index];
            let is_opened = || connection.as_ref().is_some_and(|connection| connection.writer.is_opened());
            match peer.route(Instant::now, is_opened) {
                Route::Ring => {}
                Route::NewRing => {
                    match connect().and_then(|stream| {
                        stream
                            .map(|stream| Connection::offer(stream, self.next_number, readiness))
                            .transpose()
                    }) {
                        Ok(Some(opened)) => {
                            self.next_number += 1;
                            *connection = Some(opened);
                            peer.record_offer(Instant::now());
                        }
                        Ok(None) => peer.record_failure(Instant::now(), OpenFailure::Unavailable),
                        Err(error) => {
                            let is_queue_full = error.kind() == io::ErrorKind::WouldBlock;
                            let failure =
                                if is_queue_full { OpenFailure::QueueFull } else { OpenFailure::Unavailable };
                            peer.record_failure(Instant::now(), failure);
                        }
                    }
                    continue;
                }
                Route::Udp => return Delivery::OverUdp,
            }
            let Some(Connection { stream, writer, .. }) = connection else { return Delivery::OverUdp };
            match writer.write(pieces.clone()) {
                Written::Full => {
                    return match peer.record_refusal(Instant::now(), writer.written_len()) {
                        Backpressure::Wait => Delivery::Full,
                        Backpressure::Drop => {
                            self.lost += packet_count as u64;
                            Delivery::Accepted
                        }
                    };
                }
                Written::Done => {}
                Written::WakeReader => {
                    match nix::sys::socket::send(stream.as_raw_fd(), &WAKE_MESSAGE, FLAGS) {
                        Ok(_) => {}
                        // The connection is full of messages, which wake the other process, too, or the kernel has no
                        // memory. The next message sends a wake-up again.
                        Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM) => writer.retry_wakeup(),
                        Err(_) => {
                            self.close(index);
                            continue;
                        }
                    }
                }
            }
            peer.record_packets(packet_count);
            peer.record_progress(writer.written_len(), || writer.is_half_empty());
            return Delivery::Accepted;
        }
        Delivery::OverUdp
    }

    /// Whether the last packets to the process with a share didn't fit into its ring.
    pub(super) fn is_full(&self, share: AddressShare) -> bool {
        self.processes.iter().any(|process| process.share == share && process.peer.is_full())
    }

    /// Returns the number of packets that were lost: the other process refused their ring, or did not read it.
    pub(super) const fn lost_packets(&self) -> u64 {
        self.lost
    }

    /// Handles the event of a connection: the process at its other end has ended.
    pub(super) fn end(&mut self, number: u64) {
        let is_ended = |connection: &Connection| connection.number == number;
        let is_ended = |process: &Process| process.connection.as_ref().is_some_and(is_ended);
        if let Some(index) = self.processes.iter().position(is_ended) {
            self.close(index);
        }
    }

    /// Whether the process with a share has a ring.
    #[cfg(test)]
    pub(super) fn has_ring(&self, share: AddressShare) -> bool {
        self.processes.iter().any(|process| process.share == share && process.connection.is_some())
    }

    /// Closes the connection to a process.
    fn close(&mut self, index: usize) {
        let Process { peer, connection, .. } = &mut self.processes[index];
        if let Some(Connection { writer, .. }) = connection.take() {
            self.lost += peer.record_end(Instant::now(), writer.is_opened());
        }
    }

    /// Returns the index of the process with a share.
    #[inline]
    fn index_of(&mut self, share: AddressShare) -> usize {
        let index = self.processes.iter().position(|process| process.share == share);
        index.unwrap_or_else(|| {
            self.processes.push(Process { share, peer: Peer::default(), connection: None });
            self.processes.len() - 1
        })
    }
}

impl Connection {
    /// Creates a ring, and sends it over a connection.
    fn offer(stream: UnixStream, number: u64, readiness: &Epoll) -> io::Result<Connection> {
        let (stream, writer) = (Guarded::new(stream), Writer::create()?);
        // The event is reported once, even if a forked child has a copy of the connection.
        let flags = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLONESHOT;
        readiness.add(&*stream, EpollEvent::new(flags, number))?;
        let files = [writer.file().ok_or(io::ErrorKind::NotFound)?.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&files)];
        sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&RING_MESSAGE)], &rights, FLAGS, None)?;
        Ok(Connection { number, stream, writer })
    }
}
