//! The rings that this process writes packets into.

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::marker::Token;
use super::message::{WAKE_MESSAGE, ring_message};
use super::peer::{Backpressure, OpenFailure, Peer, Route};
use super::ring::{Writer, Written};
use super::{Delivery, Guarded, Outgoing, Outside, PeerAddr};
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
    addr: PeerAddr,
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
    token: Token,
    /// The number of markers that were sent.
    marker_count: u32,
}

/// The error of a connection that has ended.
#[derive(Debug)]
struct Ended;

const FLAGS: MsgFlags = MsgFlags::MSG_DONTWAIT.union(MsgFlags::MSG_NOSIGNAL);

impl Writers {
    /// Writes a message with packets into the ring of another process. The epoll instance gets an [event](Writers::end) with
    /// the number of the connection when the process ends.
    pub(super) fn write<'a>(
        &mut self,
        readiness: &Epoll,
        addr: PeerAddr,
        message: &Outgoing<impl Iterator<Item = &'a [u8]> + Clone>,
        outside: &mut impl Outside,
    ) -> Delivery {
        let index = self.index_of(addr);
        // A new ring, and the end of a connection, change the route.
        for _ in 0..3 {
            let Process { peer, connection, .. } = &mut self.processes[index];
            let is_opened = || connection.as_ref().is_some_and(|connection| connection.writer.is_opened());
            match (peer.route(Instant::now, is_opened), connection) {
                (Route::Ring, Some(connection)) => {
                    let written = connection.write(message.pieces.clone());
                    return match written {
                        Ok(true) => {
                            let writer = &connection.writer;
                            peer.record_progress(writer.written_len(), || writer.is_half_empty());
                            Delivery::Accepted
                        }
                        Ok(false) => {
                            match peer.record_refusal(Instant::now(), connection.writer.written_len()) {
                                Backpressure::Wait => Delivery::Full,
                                Backpressure::Drop => {
                                    self.lost += message.packet_count as u64;
                                    Delivery::Accepted
                                }
                            }
                        }
                        Err(Ended) => {
                            self.close(index);
                            continue;
                        }
                    };
                }
                (Route::Switch, Some(connection)) => {
                    match connection.switch(peer.udp_ports(), addr.share, outside) {
                        Ok(true) => peer.record_switch(),
                        Ok(false) => break,
                        Err(Ended) => self.close(index),
                    }
                }
                (Route::NewRing, connection) => match outside.connect().and_then(|stream| {
                    stream.map(|stream| Connection::offer(stream, self.next_number, readiness)).transpose()
                }) {
                    Ok(Some(opened)) => {
                        self.next_number += 1;
                        *connection = Some(opened);
                        peer.record_offer();
                    }
                    Ok(None) => peer.record_failure(Instant::now(), OpenFailure::Unavailable),
                    Err(error) => {
                        let is_queue_full = error.kind() == io::ErrorKind::WouldBlock;
                        let failure =
                            if is_queue_full { OpenFailure::QueueFull } else { OpenFailure::Unavailable };
                        peer.record_failure(Instant::now(), failure);
                    }
                },
                (Route::Udp | Route::Ring | Route::Switch, _) => break,
            }
        }
        self.processes[index].peer.record_udp(message.source_port);
        Delivery::OverUdp
    }

    /// Whether the last packets to another process didn't fit into its ring.
    pub(super) fn is_full(&self, addr: PeerAddr) -> bool {
        self.processes.iter().any(|process| process.addr == addr && process.peer.is_full())
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

    /// Whether another process has a ring.
    #[cfg(test)]
    pub(super) fn has_ring(&self, addr: PeerAddr) -> bool {
        self.processes.iter().any(|process| process.addr == addr && process.connection.is_some())
    }

    /// Closes the connection to a process.
    fn close(&mut self, index: usize) {
        let Process { peer, connection, .. } = &mut self.processes[index];
        if connection.take().is_some() {
            peer.record_end(Instant::now());
        }
    }

    /// Returns the index of a process.
    #[inline]
    fn index_of(&mut self, addr: PeerAddr) -> usize {
        let index = self.processes.iter().position(|process| process.addr == addr);
        index.unwrap_or_else(|| {
            self.processes.push(Process { addr, peer: Peer::default(), connection: None });
            self.processes.len() - 1
        })
    }
}

impl Connection {
    /// Creates a ring, and sends it over a connection.
    fn offer(stream: UnixStream, number: u64, readiness: &Epoll) -> io::Result<Connection> {
        let (stream, writer, token) = (Guarded::new(stream), Writer::create()?, Token::random()?);
        // The event is reported once, even if a forked child has a copy of the connection.
        let flags = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLONESHOT;
        readiness.add(&*stream, EpollEvent::new(flags, number))?;
        let files = [writer.file().ok_or(io::ErrorKind::NotFound)?.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&files)];
        sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&ring_message(token))], &rights, FLAGS, None)?;
        Ok(Connection { number, stream, writer, token, marker_count: 0 })
    }

    /// Sends a marker from each port, and writes their number into the ring, as the first message. Returns whether packets can
    /// be written into the ring now.
    #[cold]
    fn switch(
        &mut self,
        ports: &[u16],
        share: Option<AddressShare>,
        outside: &mut impl Outside,
    ) -> Result<bool, Ended> {
        let marker = self.token.marker(share);
        for port in ports {
            match outside.send_datagram(*port, &marker) {
                Ok(is_sent) => self.marker_count += u32::from(is_sent),
                // Later, all ports send a marker again, and the receiver waits for those that were sent until then.
                Err(_) => return Ok(false),
            }
        }
        let count = self.marker_count.to_be_bytes();
        self.write(std::iter::once(&count[..]))
    }

    /// Writes a message, and wakes the other process if it sleeps. Returns whether the ring had space.
    fn write<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]> + Clone) -> Result<bool, Ended> {
        let Connection { stream, writer, .. } = self;
        match writer.write(pieces) {
            Written::Full => return Ok(false),
            Written::Done => {}
            Written::WakeReader => match nix::sys::socket::send(stream.as_raw_fd(), &WAKE_MESSAGE, FLAGS) {
                Ok(_) => {}
                // The connection is full of messages, which wake the other process, too, or the kernel has no memory. The
                // next message sends a wake-up again.
                Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM) => writer.retry_wakeup(),
                Err(_) => return Err(Ended),
            },
        }
        Ok(true)
    }
}
