//! The rings that this process writes packets into.
//!
//! A process at this process's address is known by its share of the address. At another address, there is one process, or
//! several with shares. The state of the address then has no share, and a process with a share has a state of its own only while
//! it has a ring.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::lookups::Lookups;
use super::marker::Token;
use super::message::{WAKE_MESSAGE, ring_message};
use super::peer::{Backpressure, Peer, Route};
use super::ring::{Writer, Written};
use super::{Delivery, Found, Guarded, Outgoing, Outside, PeerAddr};
use crate::link::AddressShare;

/// The other processes to which this one sends packets.
#[derive(Debug)]
pub(super) struct Writers {
    /// The address of this process, which is the source of all packets.
    local: SocketAddr,
    processes: Vec<Process>,
    /// The indexes of the processes.
    indexes: HashMap<PeerAddr, usize>,
    /// The index of the process to which packets were last sent.
    last: usize,
    /// The index of the process that was last forgotten.
    last_forgotten: usize,
    /// Whether a process was forgotten.
    has_forgotten: bool,
    ring_count: usize,
    lookups: Lookups,
    /// The time at which the addresses of rings were last checked.
    checked_at: Option<Instant>,
    /// The number of packets that were written into rings.
    sent: u64,
    /// The number of lost packets.
    lost: u64,
    /// The number of the next connection.
    next_number: u64,
}

/// Another process, or an address at which there may be one.
#[derive(Debug)]
struct Process {
    /// The address. A process at the address of [`Writers::local`] has a share.
    addr: PeerAddr,
    peer: Peer,
    /// The connection with the ring, if there is one.
    connection: Option<Connection>,
    /// Whether a process with a share of this address has a ring. The address is another one than that of this process.
    is_shared: bool,
    /// Whether packets were sent since the process was last spared from being forgotten.
    is_recent: bool,
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

/// The maximum number of rings: one for each other process at a shared address. Packets to further processes are sent over UDP.
const MAX_RINGS: usize = AddressShare::MAX_COUNT as usize - 1;

/// The maximum number of processes. Those with rings, and their addresses, are never forgotten.
const MAX_PROCESSES: usize = 1024;

const _: () = assert!(MAX_PROCESSES > 2 * MAX_RINGS, "a process can be forgotten");

/// The time between two checks of the addresses of rings.
const ADDR_CHECK_INTERVAL: Duration = Duration::from_secs(1);

const FLAGS: MsgFlags = MsgFlags::MSG_DONTWAIT.union(MsgFlags::MSG_NOSIGNAL);

impl Writers {
    pub(super) fn new(local: SocketAddr) -> Writers {
        Writers {
            local,
            processes: Vec::new(),
            indexes: HashMap::new(),
            last: 0,
            last_forgotten: 0,
            has_forgotten: false,
            ring_count: 0,
            lookups: Lookups::default(),
            checked_at: None,
            sent: 0,
            lost: 0,
            next_number: 0,
        }
    }

    /// Writes a message with packets into the ring of another process. The epoll instance gets an [event](Writers::end) with
    /// the number of the connection when the process ends.
    pub(super) fn write<'a>(
        &mut self,
        readiness: &Epoll,
        to: PeerAddr,
        message: &Outgoing<impl Iterator<Item = &'a [u8]> + Clone>,
        outside: &mut impl Outside,
    ) -> Delivery {
        let mut index = self.index_of(to);
        // The end of a connection changes the route.
        for _ in 0..3 {
            let Process { addr, peer, connection, .. } = &mut self.processes[index];
            let is_opened = || connection.as_ref().is_some_and(|connection| connection.writer.is_opened());
            match (peer.route(Instant::now, is_opened), connection) {
                (Route::Ring, Some(connection)) => {
                    let written = connection.write(message.pieces.clone());
                    return match written {
                        Ok(true) => {
                            let writer = &connection.writer;
                            peer.record_progress(writer.written_len(), || writer.is_half_empty());
                            self.sent += message.packet_count as u64;
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
                            index = self.index_of(to);
                            continue;
                        }
                    };
                }
                (Route::Switch, Some(connection)) => match connection.switch(peer, addr.share, outside) {
                    Ok(true) => peer.record_switch(),
                    Ok(false) => break,
                    Err(Ended) => {
                        self.close(index);
                        index = self.index_of(to);
                    }
                },
                (Route::NewRing, _) => {
                    // These packets, which may be for several processes at the address, are sent over UDP.
                    peer.record_udp(message.source_port);
                    self.offer(index, readiness, outside);
                    return Delivery::OverUdp;
                }
                (Route::Udp | Route::Ring | Route::Switch, _) => break,
            }
        }
        self.processes[index].peer.record_udp(message.source_port);
        Delivery::OverUdp
    }

    /// Whether a process has no ring and gets none now, so that packets from a source port are sent over UDP, which is recorded.
    pub(super) fn is_over_udp(
        &mut self,
        to: PeerAddr,
        source_port: u16,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        let Some(index) = self.find(to) else { return false };
        let Process { peer, is_recent, .. } = &mut self.processes[index];
        let is_over_udp = peer.is_avoided(now);
        if is_over_udp {
            *is_recent = true;
            peer.record_udp(source_port);
        }
        is_over_udp
    }

    /// Whether the packets to an address are sent to different processes, depending on their queue pairs.
    pub(super) fn is_shared(&self, addr: SocketAddr) -> bool {
        match self.processes.get(self.last) {
            _ if addr == self.local => true,
            Some(last) if last.addr.addr == addr => last.addr.share.is_some() || last.is_shared,
            _ => self.address_index(addr).is_some_and(|index| self.processes[index].is_shared),
        }
    }

    /// Whether the last packets to another process didn't fit into its ring.
    pub(super) fn is_full(&self, to: PeerAddr) -> bool {
        self.find(to).is_some_and(|index| self.processes[index].peer.is_full())
    }

    /// Returns the number of packets that were written into rings.
    pub(super) const fn sent_packets(&self) -> u64 {
        self.sent
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

    /// Closes the rings of processes whose addresses are no longer local: another machine may have such an address now. This
    /// takes effect once in a second.
    pub(super) fn check_addrs(&mut self, now: Instant, mut is_local: impl FnMut(SocketAddr) -> bool) {
        let is_due = |checked_at| now.saturating_duration_since(checked_at) >= ADDR_CHECK_INTERVAL;
        if self.ring_count == 0 || !self.checked_at.is_none_or(is_due) {
            return;
        }
        self.checked_at = Some(now);
        for index in 0..self.processes.len() {
            let Process { addr: PeerAddr { addr, .. }, connection, .. } = &self.processes[index];
            if connection.is_some() && *addr != self.local && !is_local(*addr) {
                self.close(index);
            }
        }
    }

    /// Whether another process has a ring.
    #[cfg(test)]
    pub(super) fn has_ring(&self, to: PeerAddr) -> bool {
        self.find(to).is_some_and(|index| self.processes[index].connection.is_some())
    }

    #[cfg(test)]
    pub(super) const fn process_count(&self) -> usize {
        self.processes.len()
    }

    /// Offers a ring to the process at an address, if there is one and the limits permit it.
    #[cold]
    fn offer(&mut self, index: usize, readiness: &Epoll, outside: &mut impl Outside) {
        let now = Instant::now();
        if self.ring_count < MAX_RINGS {
            if !self.lookups.begin(now) {
                return self.processes[index].peer.record_delay(now);
            }
            let opened = outside.connect().and_then(|found| {
                let Some(Found { share, stream }) = found else { return Ok(None) };
                Ok(Some((share, Connection::offer(stream, self.next_number, self.local, readiness)?)))
            });
            match opened {
                Ok(Some((share, connection))) => {
                    self.next_number += 1;
                    self.ring_count += 1;
                    let index = self.share_index(index, share);
                    let Process { peer, connection: ring, .. } = &mut self.processes[index];
                    *ring = Some(connection);
                    return peer.record_offer();
                }
                // The queue of the process is full.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.processes[index].peer.record_delay(now);
                }
                Ok(None) | Err(_) => {}
            }
        }
        self.processes[index].peer.record_failure(now);
    }

    /// Returns the index of the process with a share of the address of the process with this index.
    fn share_index(&mut self, index: usize, share: Option<AddressShare>) -> usize {
        let process = &mut self.processes[index];
        if process.addr.share == share {
            return index;
        }
        process.is_shared = true;
        let (addr, peer) = (PeerAddr { share, ..process.addr }, process.peer.clone());
        let index = self.indexes.get(&addr).copied().unwrap_or_else(|| self.insert(addr));
        self.processes[index].peer.inherit(&peer);
        index
    }

    /// Closes the connection to a process.
    fn close(&mut self, index: usize) {
        let Process { addr, peer, connection, .. } = &mut self.processes[index];
        if connection.take().is_none() {
            return;
        }
        self.ring_count -= 1;
        peer.record_end(Instant::now());
        let addr = *addr;
        if addr.addr == self.local || addr.share.is_none() {
            return;
        }
        // The process had a share of another address, whose state is used until there is a new ring.
        let Some(address_index) = self.address_index(addr.addr) else { return };
        let peer = std::mem::take(&mut self.processes[index].peer);
        let has_ring = |process: &Process| {
            process.addr.addr == addr.addr && process.addr.share.is_some() && process.connection.is_some()
        };
        let is_shared = self.processes.iter().any(has_ring);
        let address = &mut self.processes[address_index];
        address.is_shared = is_shared;
        address.peer.inherit(&peer);
    }

    /// Returns the index of an address that isn't that of this process.
    fn address_index(&self, addr: SocketAddr) -> Option<usize> {
        self.indexes.get(&PeerAddr { addr, share: None }).copied()
    }

    /// Returns the index of the process that has a share of an address, or has the address to itself.
    #[inline]
    fn find(&self, to: PeerAddr) -> Option<usize> {
        let is_own = to.addr == self.local;
        if let Some(Process { addr, connection, is_shared, .. }) = self.processes.get(self.last) {
            let is_found = if *addr == to {
                is_own || connection.is_some()
            } else {
                addr.addr == to.addr && addr.share.is_none() && !is_shared
            };
            if is_found {
                return Some(self.last);
            }
        }
        let exact = self.indexes.get(&to).copied();
        if is_own {
            return exact;
        }
        let has_ring = |index: &usize| self.processes[*index].connection.is_some();
        exact.filter(has_ring).or_else(|| self.address_index(to.addr))
    }

    /// Returns the index of the process to which packets are sent now.
    #[inline]
    fn index_of(&mut self, to: PeerAddr) -> usize {
        let index = self.find(to).unwrap_or_else(|| {
            self.insert(if to.addr == self.local { to } else { PeerAddr { share: None, ..to } })
        });
        self.last = index;
        self.processes[index].is_recent = true;
        index
    }

    /// Adds a process, and returns its index. If there are too many, another one is forgotten.
    #[cold]
    fn insert(&mut self, addr: PeerAddr) -> usize {
        // Packets may have been sent over UDP to a process that was forgotten.
        let peer = if self.has_forgotten { Peer::with_unknown_ports() } else { Peer::default() };
        let process = Process { addr, peer, connection: None, is_shared: false, is_recent: false };
        let index = if self.processes.len() < MAX_PROCESSES {
            self.processes.push(process);
            self.processes.len() - 1
        } else {
            let index = self.forget();
            self.processes[index] = process;
            index
        };
        self.indexes.insert(addr, index);
        index
    }

    /// Forgets a process without a ring, to which no packets were sent since the last search for one, and returns its index.
    fn forget(&mut self) -> usize {
        self.has_forgotten = true;
        loop {
            self.last_forgotten = (self.last_forgotten + 1) % self.processes.len();
            let Process { addr, connection, is_shared, is_recent, .. } =
                &mut self.processes[self.last_forgotten];
            if connection.is_none() && !*is_shared && !std::mem::take(is_recent) {
                self.indexes.remove(addr);
                return self.last_forgotten;
            }
        }
    }
}

impl Connection {
    /// Creates a ring for packets from an address, and sends it over a connection.
    fn offer(
        stream: UnixStream,
        number: u64,
        source: SocketAddr,
        readiness: &Epoll,
    ) -> io::Result<Connection> {
        let (stream, writer, token) = (Guarded::new(stream), Writer::create()?, Token::random()?);
        // The event is reported once, even if a forked child has a copy of the connection.
        let flags = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLONESHOT;
        readiness.add(&*stream, EpollEvent::new(flags, number))?;
        let files = [writer.file().ok_or(io::ErrorKind::NotFound)?.as_raw_fd()];
        let (message, rights) = (ring_message(token, source), [ControlMessage::ScmRights(&files)]);
        sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&message)], &rights, FLAGS, None)?;
        Ok(Connection { number, stream, writer, token, marker_count: 0 })
    }

    /// Sends a marker from each port, and writes their number into the ring, as the first message. Returns whether packets can
    /// be written into the ring now.
    #[cold]
    fn switch(
        &mut self,
        peer: &Peer,
        share: Option<AddressShare>,
        outside: &mut impl Outside,
    ) -> Result<bool, Ended> {
        let marker = self.token.marker(share);
        for port in peer.udp_ports() {
            match outside.send_datagram(*port, &marker) {
                Ok(is_sent) => self.marker_count += u32::from(is_sent),
                // Later, all ports send a marker again, and the receiver waits for those that were sent until then.
                Err(_) => return Ok(false),
            }
        }
        // Without the marker of an unknown port, the receiver waits until its socket has no datagrams.
        let count = self.marker_count + u32::from(peer.has_unknown_ports());
        self.write(std::iter::once(&count.to_be_bytes()[..]))
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
