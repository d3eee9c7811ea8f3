//! The sockets by which other processes find this one, and the rings between them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::accept::{self, Acceptor};
use super::listener::Listener;
use super::message::Message;
use super::names::{Holder, Name, Names};
use super::packets::{PACKETS_HEADER_LEN, Packets};
use super::ring::MAX_MESSAGE_LEN;
use super::token::Token;
use super::{
    Delivery, Found, Guarded, LocalRings, Outgoing, Outside, PeerAddr, RingPeers, files, local_addr,
};
use crate::link::datagram::Datagram;
use crate::link::{AddressShare, TxPacket};

/// The names of a process, the connections to them, and the rings between this process and others.
///
/// The owner of an endpoint may give its names a further meaning. The endpoint passes messages that aren't about packets to
/// the owner, as [`Event`]s, and watches connections for the owner.
#[derive(Debug)]
pub(in crate::link) struct Endpoint {
    pub(super) names: Names,
    /// The share of this process in its address, or `None` if it has the address and port to itself.
    share: Option<AddressShare>,
    ring_peers: RingPeers,
    pub(super) sources: BTreeMap<u64, Source>,
    next_source: u64,
    pub(super) acceptor: Acceptor,
    /// The number of open connections that this process has accepted.
    pub(super) inbound_count: usize,
    /// The rings between this process and the others.
    rings: LocalRings,
    /// An epoll instance that is readable when a source is.
    pub(super) readiness: Epoll,
    /// The number of calls until the sources are read.
    calls_left: u32,
    /// The metadata of packets to send.
    buffer: Vec<u8>,
    /// The received message.
    received: Vec<u8>,
    /// The events that the owner has not handled yet.
    events: VecDeque<Event>,
    /// Whether the sources were read since the owner has handled the events.
    has_served: bool,
    /// Whether a thread may sleep on the descriptor.
    wants_wakeup: bool,
    /// Whether the next receive reads the sources, because a thread may have slept on the descriptor.
    must_serve: bool,
    /// The number of calls until the UDP socket is read.
    udp_calls_left: u32,
}

/// An event for the owner of an endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::link) enum Event {
    /// A message that isn't about packets was read from the inbound connection with this number.
    Message(u64, Vec<u8>),
    /// The [watched](Endpoint::watch) connection with this number has ended, and was closed.
    Ended(u64),
}

/// A socket that the process reads from.
#[derive(Debug)]
pub(super) enum Source {
    /// A name of this process.
    Listener(Listener, Name),
    /// A connection to a name of this process, whose first message was not read yet.
    Accepted(Guarded<UnixStream>, Name),
    /// A connection to a name of this process.
    Inbound(Guarded<UnixStream>, Name),
    /// A connection whose end is an event for the owner. It has no messages.
    Watched(Guarded<UnixStream>),
}

impl Source {
    /// Returns the name of this process to which the source is a connection.
    const fn inbound_name(&self) -> Option<Name> {
        match self {
            Source::Accepted(_, name) | Source::Inbound(_, name) => Some(*name),
            Source::Listener(..) | Source::Watched(_) => None,
        }
    }
}

/// The number of receives per read of the sources, unless a thread may have slept. Each read is a system call.
const CALLS_PER_READ: u32 = 64;

/// The maximum number of messages read before another source is served.
const MAX_BATCH: usize = 64;

/// The maximum length of packets in one message.
pub(in crate::link) const MAX_PACKETS_LEN: usize = MAX_MESSAGE_LEN - PACKETS_HEADER_LEN;

/// The number of receives per read of the UDP socket while no thread may sleep, other processes have rings, and the socket
/// had no packets.
const CALLS_PER_UDP_READ: u32 = 4;

impl Endpoint {
    /// Creates an endpoint without names, for a process with a share of its address, or with the address and port to itself.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system can't create a file descriptor.
    pub(in crate::link) fn new(
        names: Names,
        share: Option<AddressShare>,
        ring_peers: RingPeers,
    ) -> io::Result<Endpoint> {
        let endpoint = Endpoint {
            rings: LocalRings::new(names.local())?,
            names,
            share,
            ring_peers,
            sources: BTreeMap::new(),
            next_source: 0,
            acceptor: Acceptor::default(),
            inbound_count: 0,
            readiness: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            calls_left: CALLS_PER_READ,
            buffer: Vec::new(),
            received: vec![0; MAX_MESSAGE_LEN],
            events: VecDeque::new(),
            has_served: false,
            wants_wakeup: true,
            must_serve: true,
            udp_calls_left: 0,
        };
        endpoint.readiness.add(endpoint.rings.readiness(), Token::Rings.event(EpollFlags::EPOLLIN))?;
        Ok(endpoint)
    }

    pub(in crate::link) const fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the number of packets that were sent to other processes in memory.
    pub(in crate::link) const fn sent_packets(&self) -> u64 {
        self.rings.sent_packets()
    }

    /// Returns the number of packets to other processes that were accepted and lost.
    pub(in crate::link) const fn lost_packets(&self) -> u64 {
        self.rings.lost_packets()
    }

    /// Returns the descriptor that is readable when [`receive`](Endpoint::receive) has work.
    pub(in crate::link) fn readiness(&self) -> BorrowedFd<'_> {
        self.readiness.0.as_fd()
    }

    /// Returns the time of the next call to [`receive`](Endpoint::receive).
    pub(in crate::link) fn deadline(&self) -> Option<Instant> {
        self.acceptor.deadline().into_iter().chain(self.rings.deadline()).min()
    }

    /// Accepts connections to a name of this process from now on. Returns the number of the listener.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system has no memory.
    pub(in crate::link) fn listen(&mut self, listener: Listener, name: Name) -> io::Result<u64> {
        self.add(Source::Listener(listener, name))
    }

    /// Gives up a name of this process, and closes the connections to it.
    pub(in crate::link) fn release(&mut self, listener: u64) {
        let Some(Source::Listener(_, name)) = self.sources.remove(&listener) else { return };
        let is_to_name = |source: &Source| source.inbound_name() == Some(name);
        let is_to_name = |(number, source): (&u64, &Source)| is_to_name(source).then_some(*number);
        let connections: Vec<u64> = self.sources.iter().filter_map(is_to_name).collect();
        connections.into_iter().for_each(|number| self.remove(number));
    }

    /// Returns the inbound connection with this number.
    pub(in crate::link) fn inbound(&self, number: u64) -> Option<&UnixStream> {
        match self.sources.get(&number) {
            Some(Source::Inbound(stream, _)) => Some(stream.socket()),
            _ => None,
        }
    }

    /// Watches a connection: its end is an [event](Event::Ended) with the returned number.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system has no memory.
    pub(in crate::link) fn watch(&mut self, stream: UnixStream) -> io::Result<u64> {
        self.add(Source::Watched(Guarded::new(stream)))
    }

    /// Watches the inbound connection with this number. Returns whether there is such a connection.
    pub(in crate::link) fn watch_inbound(&mut self, number: u64) -> bool {
        match self.sources.remove(&number) {
            Some(Source::Inbound(stream, _)) => {
                self.inbound_count -= 1;
                self.sources.insert(number, Source::Watched(stream));
                true
            }
            Some(source) => {
                self.sources.insert(number, source);
                false
            }
            None => false,
        }
    }

    /// Adds a source, and returns its number.
    pub(super) fn add(&mut self, source: Source) -> io::Result<u64> {
        let number = self.next_source;
        match &source {
            Source::Listener(listener, _) => self.readiness.add(&**listener, accept::event(number))?,
            Source::Accepted(stream, _) | Source::Inbound(stream, _) | Source::Watched(stream) => {
                self.readiness.add(&**stream, Token::Source(number).event(EpollFlags::EPOLLIN))?;
            }
        }
        self.next_source += 1;
        self.inbound_count += usize::from(source.inbound_name().is_some());
        self.sources.insert(number, source);
        Ok(number)
    }

    /// Closes a source.
    pub(in crate::link) fn remove(&mut self, number: u64) {
        let removed = self.sources.remove(&number);
        self.inbound_count -= usize::from(removed.is_some_and(|source| source.inbound_name().is_some()));
        self.rings.close_reader(number);
    }

    /// Returns the process to which a packet may be sent in memory. The process may not exist. A message to queue pair 1 is never
    /// sent in memory, because no queue pair number tells which process it is for.
    #[inline]
    pub(in crate::link) fn receiver(&self, packet: &TxPacket<'_>) -> Option<PeerAddr> {
        let (local, addr) = (self.names.local(), packet.destination);
        let share = AddressShare::of_packet(packet.bytes)?;
        let is_receiver = if addr == local {
            self.ring_peers != RingPeers::None && self.share.is_some_and(|own| own != share)
        } else {
            self.ring_peers == RingPeers::AllLocal
                && addr.is_ipv4() == local.is_ipv4()
                && !addr.ip().is_multicast()
        };
        (is_receiver && packet.source.ip() == local.ip()).then_some(PeerAddr { addr, share: Some(share) })
    }

    /// Returns the number of packets at the front that are sent over UDP now, whatever packets were sent before. Packets to an
    /// address that several processes share count only if the address is `shared`.
    pub(in crate::link) fn over_udp_len(
        &mut self,
        packets: &[TxPacket<'_>],
        shared: Option<SocketAddr>,
    ) -> usize {
        let mut now = None;
        let is_over_udp = |packet: &&TxPacket<'_>| {
            (shared == Some(packet.destination) || !self.is_shared(packet.destination))
                && self.is_over_udp(packet, || *now.get_or_insert_with(Instant::now))
        };
        packets.iter().take_while(is_over_udp).count()
    }

    /// Whether a packet is sent over UDP now, whatever packets were sent before.
    pub(in crate::link) fn is_over_udp(
        &mut self,
        packet: &TxPacket<'_>,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        let receiver = self.receiver(packet);
        receiver.is_none_or(|receiver| self.rings.is_over_udp(receiver, packet.source.port(), now))
    }

    /// Whether the packets to an address are for different processes, depending on their queue pairs.
    #[inline]
    pub(in crate::link) fn is_shared(&self, addr: SocketAddr) -> bool {
        let is_own = addr == self.names.local();
        is_own || self.ring_peers == RingPeers::AllLocal && self.rings.is_shared(addr)
    }

    /// Sends packets, which form a GSO batch, to their [receiver](Endpoint::receiver). The first packet has the maximum length. If
    /// the address [is shared](Endpoint::is_shared), all packets are for the same process. `send_datagram` sends a datagram from a
    /// source port to the process over UDP, as [`Outside::send_datagram`].
    pub(in crate::link) fn send(
        &mut self,
        peer: PeerAddr,
        batch: &[TxPacket<'_>],
        send_datagram: impl FnMut(u16, &[u8]) -> io::Result<bool>,
    ) -> Delivery {
        let [first, ..] = batch else { return Delivery::Accepted };
        if first.bytes.len() > MAX_PACKETS_LEN {
            // Sending a packet over UDP that is too long is an error, which the link counts.
            return Delivery::OverUdp;
        }
        self.buffer.clear();
        Packets {
            source: first.source,
            traffic_class: first.traffic_class,
            hop_limit: (first.hop_limit != 0).then_some(first.hop_limit),
            flow_label: first.flow_label,
            segment: first.bytes.len() as u32,
            bytes: &[],
        }
        .emit(&mut self.buffer);
        let Endpoint { names, rings, buffer, .. } = self;
        let pieces = std::iter::once(&**buffer).chain(batch.iter().map(|packet| packet.bytes));
        let message = Outgoing { packet_count: batch.len(), source_port: first.source.port(), pieces };
        rings.send(peer, &message, &mut Ways { names, peer, send_datagram })
    }

    /// Whether another process must read packets before it can be sent more.
    pub(in crate::link) fn is_full(&self, peer: PeerAddr) -> bool {
        self.rings.is_full(peer)
    }

    /// Passes about `max` packets from other processes to `each`, and returns their number. This is called for each
    /// receive.
    #[inline]
    pub(in crate::link) fn receive(&mut self, max: usize, each: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        self.calls_left -= 1;
        let mut count = 0;
        if self.calls_left == 0 || self.must_serve {
            count = self.serve(max, each);
        }
        count += self.rings.receive(max.saturating_sub(count), each);
        while let Some(number) = self.rings.pop_broken() {
            self.remove(number);
        }
        self.must_serve = self.wants_wakeup && count == 0;
        count
    }

    /// Whether the sources were read since the last call of this method. The owner then handles the
    /// [events](Endpoint::pop_event).
    #[inline]
    pub(in crate::link) const fn take_served(&mut self) -> bool {
        std::mem::replace(&mut self.has_served, false)
    }

    /// Removes and returns the next event.
    pub(in crate::link) fn pop_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Sets whether a thread may sleep on the [descriptor](Endpoint::readiness) from now on.
    pub(in crate::link) fn set_wants_wakeup(&mut self, wanted: bool) {
        self.wants_wakeup = wanted;
        self.must_serve |= wanted;
        self.rings.set_wants_wakeup(wanted);
    }

    /// Whether a datagram is a marker, which tells this process that it can read a ring.
    #[inline]
    pub(in crate::link) fn take_marker(&mut self, datagram: &[u8]) -> bool {
        self.rings.take_marker(datagram)
    }

    /// Whether other processes send packets in rings.
    pub(in crate::link) fn has_rings(&self) -> bool {
        self.rings.has_readers()
    }

    /// Counts a receive, and returns whether it reads the UDP socket, too.
    #[inline]
    pub(in crate::link) fn count_receive(&mut self) -> bool {
        self.udp_calls_left = self.udp_calls_left.saturating_sub(1);
        let may_skip = self.udp_calls_left > 0 && !self.wants_wakeup && self.rings.has_readers();
        !may_skip || self.rings.awaits_markers()
    }

    /// Records that a receive got `count` packets from the UDP socket.
    #[inline]
    pub(in crate::link) fn record_udp(&mut self, count: usize) {
        self.udp_calls_left = if count == 0 { CALLS_PER_UDP_READ } else { 1 };
        if count == 0 && self.rings.awaits_markers() {
            self.rings.record_empty_udp();
        }
    }

    /// Reads the sources, passes about `max` packets from other processes to `each`, and returns their number.
    #[cold]
    fn serve(&mut self, max: usize, each: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        self.calls_left = CALLS_PER_READ;
        self.has_served = true;
        let now = Instant::now();
        self.rings.check_addrs(now);
        let mut events = [EpollEvent::empty(); 16];
        let Ok(event_count) = self.readiness.wait(&mut events, EpollTimeout::ZERO) else { return 0 };
        let mut count = 0;
        for event in &events[..event_count] {
            let number = match Token::of(event) {
                Token::Source(number) => number,
                Token::Rings => {
                    self.rings.serve();
                    continue;
                }
            };
            match self.sources.get(&number) {
                Some(Source::Listener(..)) => {
                    self.acceptor.add(number, now);
                }
                Some(Source::Accepted(..) | Source::Inbound(..)) => {
                    count += self.receive_from(number, max.saturating_sub(count), each);
                }
                Some(Source::Watched(_)) => {
                    self.remove(number);
                    self.events.push_back(Event::Ended(number));
                }
                // An earlier event has removed the source.
                None => {}
            }
        }
        let has_accepted = self.acceptor.deadline().is_some_and(|time| time <= now) && self.accept(now);
        // More events may be pending, and a new connection has its first message.
        if count > 0 || has_accepted || event_count == events.len() || !self.events.is_empty() {
            self.calls_left = 1;
        }
        count
    }

    /// Reads messages with about `max` packets from a connection, and returns the number of packets.
    fn receive_from(&mut self, number: u64, max: usize, each: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let mut buffer = std::mem::take(&mut self.received);
        let mut count = 0;
        for _ in 0..MAX_BATCH {
            let (stream, is_new) = match self.sources.get(&number) {
                Some(Source::Accepted(stream, _)) => (stream, true),
                Some(Source::Inbound(stream, _)) => (stream, false),
                _ => break,
            };
            if count >= max {
                break;
            }
            let (length, mut files) = match files::receive(stream, &mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The other process has closed the connection.
                Ok((0, _)) | Err(_) => {
                    self.remove(number);
                    break;
                }
                Ok(received) => received,
            };
            let message = Message::parse(&buffer[..length]);
            if is_new {
                self.greet(number, message);
                continue;
            }
            match (message, files.pop()) {
                // No packets are passed on to a process that has its address to itself.
                (Message::Packets(packets), _) if self.share.is_some() => {
                    count += packets.pass_to(&mut |datagram| {
                        if !self.rings.take_marker(datagram.bytes) {
                            each(datagram);
                        }
                    });
                }
                (Message::Wake, _) => {
                    self.rings.record_wakeup(number);
                    // Usually, no other message follows. If one does, the descriptor stays readable.
                    break;
                }
                (Message::Ring(token, source), Some(file)) if self.may_have_ring(number, source) => {
                    if self.rings.open_reader(number, token, source.ip(), file).is_err() {
                        self.remove(number);
                    }
                }
                (Message::Other(bytes), _) => {
                    // The owner handles the message before the next one is read.
                    self.events.push_back(Event::Message(number, bytes.to_vec()));
                    break;
                }
                (Message::Hello(_) | Message::Ring(..) | Message::Packets(_), _) => self.remove(number),
            }
        }
        self.received = buffer;
        count
    }

    /// Whether a connection may have a ring for packets from an address: it is to the name under which this process receives
    /// packets, and the sender may have the address.
    fn may_have_ring(&self, number: u64, source: SocketAddr) -> bool {
        let local = self.names.local();
        let is_for_packets =
            matches!(self.sources.get(&number), Some(Source::Inbound(_, name)) if name.is_for_packets());
        let is_source = match self.ring_peers {
            RingPeers::None => false,
            RingPeers::SharedAddress => source == local,
            RingPeers::AllLocal => {
                source.is_ipv4() == local.is_ipv4()
                    && local_addr::is_local(source).is_ok_and(|is_local| is_local)
            }
        };
        is_for_packets && is_source
    }
}

/// The ways to another process besides its ring.
struct Ways<'a, F> {
    names: &'a Names,
    peer: PeerAddr,
    send_datagram: F,
}

impl<F: FnMut(u16, &[u8]) -> io::Result<bool>> Outside for Ways<'_, F> {
    fn connect(&mut self) -> io::Result<Option<Found>> {
        let PeerAddr { addr, share } = self.peer;
        let is_own = addr == self.names.local();
        let mut result = Ok(None);
        for share in [None, share].into_iter().skip(usize::from(is_own)) {
            match self.names.connect(addr, share.map_or(Name::Device, Name::Share)) {
                // A process may keep the name of an address that has moved to another machine.
                Ok(Holder::OwnUser(stream)) if is_own || local_addr::is_local(addr)? => {
                    return Ok(Some(Found { share, stream }));
                }
                Ok(_) => {}
                Err(error) => result = Err(error),
            }
        }
        result
    }

    fn send_datagram(&mut self, source_port: u16, bytes: &[u8]) -> io::Result<bool> {
        (self.send_datagram)(source_port, bytes)
    }
}

#[cfg(test)]
impl Endpoint {
    pub(in crate::link) const fn rings(&mut self) -> &mut LocalRings {
        &mut self.rings
    }

    /// Writes a message with any bytes into the ring of another process, which is in use.
    pub(in crate::link) fn send_message(&mut self, peer: PeerAddr, bytes: &[u8]) -> Delivery {
        let message = Outgoing { packet_count: 1, source_port: 0, pieces: std::iter::once(bytes) };
        let send_datagram = |_, _: &[u8]| panic!("the ring is in use");
        self.rings.send(peer, &message, &mut Ways { names: &self.names, peer, send_datagram })
    }

    /// Whether this process has a ring to another process.
    pub(in crate::link) fn has_writer(&self, process: PeerAddr) -> bool {
        self.rings.has_writer(process)
    }
}
