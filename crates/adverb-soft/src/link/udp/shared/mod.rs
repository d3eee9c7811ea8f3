//! Sharing of an address by several processes of a user.
//!
//! Each process has a receiving socket at the address and UDP port 4791 (`SO_REUSEPORT`, which the kernel permits to one
//! user only) and a [share](AddressShare) of the queue pair numbers. A BPF program of the kernel delivers each packet to
//! the socket whose index is the share of the packet's queue pair number, and the packets to queue pair 1 to the socket of
//! one process, the [dispatcher](election). A packet that reaches another process than its [target](dispatch) is passed
//! on over a Unix socket: the messages of connection managers, and packets that the kernel delivered as one GRO batch with
//! packets of another process. Without the program, more packets are passed on, which takes time, and the packets in the
//! receive buffer of a process that ends are lost.
//!
//! The kernel's table of [names] is the registry of the processes and of the services that they listen on. The kernel
//! removes the names of a process that ends.
//!
//! Packets between these processes, except the messages of connection managers, don't pass through the kernel: the sender
//! writes them into a [ring](crate::link::local) in memory that it shares with the process of the queue pair.

mod accept;
mod dispatch;
mod election;
mod join;
mod message;
mod names;
mod passing;
mod program;
#[cfg(test)]
mod tests;
mod token;
mod user;

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use adverb_wire::cm::ServiceId;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{ControlMessage, MsgFlags};
use nix::unistd::Uid;

use super::UdpConfig;
use super::message::MAX_GSO_BYTES;
use crate::link::datagram::Datagram;
pub(super) use crate::link::local::Delivery;
use crate::link::local::{Guarded, LocalRings, MAX_MESSAGE_LEN, PACKETS_HEADER_LEN, Packets, receive_files};
use crate::link::{AddressShare, AddressSharing, TxPacket};
use accept::Acceptor;
use dispatch::Target;
pub(super) use dispatch::have_same_process;
use election::{Action, Election, Input};
use join::Membership;
use message::Message;
use names::{Holder, Name, Names};
use passing::{Passed, Passing};
use token::Token;
pub(super) use user::verifiable as verifiable_user;

/// The state of a process that shares an address.
#[derive(Debug)]
pub(super) struct SharedAddress {
    share: AddressShare,
    names: Names,
    own: Guarded<UdpSocket>,
    /// The sockets with lower indexes than `own`: see [`Membership::lower`].
    lower: Vec<Guarded<UdpSocket>>,
    sources: BTreeMap<u64, Source>,
    next_source: u64,
    /// The services that this process listens on: the number of the source, and the number of listeners.
    services: BTreeMap<ServiceId, (u64, u32)>,
    passing: Passing,
    /// The rings between this process and the others.
    rings: LocalRings,
    election: Election,
    /// An epoll instance that is readable when a source is.
    readiness: Epoll,
    /// The number of calls until the sources are read.
    calls_left: u32,
    /// A message to send, or the metadata of packets to send.
    buffer: Vec<u8>,
    /// The received message.
    received: Vec<u8>,
    acceptor: Acceptor,
    /// Whether a thread may sleep on the descriptor.
    wants_wakeup: bool,
    /// Whether the next receive reads the sources, because a thread may have slept on the descriptor.
    must_serve: bool,
    /// The number of calls until the UDP socket is read.
    udp_calls_left: u32,
    /// The number of open connections that this process has accepted.
    inbound_count: usize,
    /// The number of packets that were passed on.
    passed_on: u64,
    /// The number of packets that could not be passed on.
    not_passed_on: u64,
}

/// A socket that the process reads from.
#[derive(Debug)]
enum Source {
    /// A name of this process.
    Listener(Guarded<UnixListener>, Name),
    /// A connection to a name of this process, whose first message was not read yet.
    Accepted(Guarded<UnixStream>, Name),
    /// A connection to a name of this process.
    Inbound(Guarded<UnixStream>, Name),
    /// The connection with a process with a lower share, which ends with that process. A process has at most one.
    Lower(Guarded<UnixStream>),
    /// The connection with the process with this share, which is higher.
    Higher(Guarded<UnixStream>, AddressShare),
}

impl Source {
    /// Returns the name of this process to which the source is a connection.
    const fn inbound_name(&self) -> Option<Name> {
        match self {
            Source::Accepted(_, name) | Source::Inbound(_, name) => Some(*name),
            Source::Listener(..) | Source::Lower(_) | Source::Higher(..) => None,
        }
    }
}

/// The number of receives per read of the sources, unless a thread may have slept. Each read is a system call.
const CALLS_PER_READ: u32 = 64;

/// The maximum number of messages read before another source is served.
const MAX_BATCH: usize = 64;

/// The maximum length of packets in one message.
const MAX_PACKETS_LEN: usize = MAX_MESSAGE_LEN - PACKETS_HEADER_LEN;

const _: () = assert!(MAX_GSO_BYTES <= MAX_PACKETS_LEN, "a batch fits into a message");

/// The number of receives per read of the UDP socket while no thread may sleep, other processes have rings, and the socket
/// had no packets.
const CALLS_PER_UDP_READ: u32 = 4;

impl SharedAddress {
    /// Joins the processes of a user that share an address. Returns the state, the receiving socket, and the size of its buffer.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Membership::join`].
    pub(super) fn open(
        local: SocketAddr,
        user: Uid,
        config: &UdpConfig,
    ) -> io::Result<(SharedAddress, Guarded<UdpSocket>, usize)> {
        let membership = Membership::join(local, user, config)?;
        let Membership { names, share, listener, own, lower, receive_buffer_bytes } = membership;
        let now = Instant::now();
        let mut shared = SharedAddress {
            share,
            names,
            own: Guarded::new(own),
            lower: lower.into_iter().map(Guarded::new).collect(),
            sources: BTreeMap::new(),
            next_source: 0,
            services: BTreeMap::new(),
            passing: Passing::default(),
            rings: LocalRings::new()?,
            election: Election::new(now),
            readiness: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            calls_left: CALLS_PER_READ,
            buffer: Vec::new(),
            received: vec![0; MAX_MESSAGE_LEN],
            acceptor: Acceptor::default(),
            wants_wakeup: true,
            must_serve: true,
            udp_calls_left: 0,
            inbound_count: 0,
            passed_on: 0,
            not_passed_on: 0,
        };
        shared.readiness.add(shared.rings.readiness(), Token::Rings.event(EpollFlags::EPOLLIN))?;
        shared.add(Source::Listener(Guarded::new(listener), Name::Share(share)))?;
        shared.run_election(Input::Timeout, now);
        let receiving = Guarded::new(shared.own.try_clone()?);
        Ok((shared, receiving, receive_buffer_bytes))
    }

    /// Returns the number of packets that were passed on to other processes, and the number of packets that could not
    /// be passed on.
    pub(super) const fn passed_packets(&self) -> (u64, u64) {
        (self.passed_on, self.not_passed_on + self.rings.lost_packets())
    }

    /// Returns the descriptor that is readable when [`receive`](SharedAddress::receive) has work.
    pub(super) fn readiness(&self) -> BorrowedFd<'_> {
        self.readiness.0.as_fd()
    }

    /// Returns the time of the next call to [`receive`](SharedAddress::receive).
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.election.deadline().into_iter().chain(self.acceptor.deadline()).min()
    }

    /// Returns whether this process must handle a packet from the socket: the packet is for it, or it needs a reply
    /// although no process is its target. Passes other packets on.
    #[inline]
    pub(super) fn accept_or_pass_on(&mut self, datagram: &Datagram<'_>) -> bool {
        dispatch::is_own(datagram.bytes, self.share) || self.accept_or_pass_on_foreign(datagram)
    }

    #[cold]
    fn accept_or_pass_on_foreign(&mut self, datagram: &Datagram<'_>) -> bool {
        let (name, replies_if_absent) = match dispatch::target(datagram.bytes) {
            Target::ThisProcess => return true,
            Target::QueuePair(share) | Target::Connection(share) if share == self.share => return true,
            Target::Service(service) if self.services.contains_key(&service) => return true,
            Target::QueuePair(share) => (Name::Share(share), false),
            Target::Connection(share) => (Name::Share(share), true),
            Target::Service(service) => (Name::Service(service), true),
        };
        // A remembered absence is used only for packets that would be dropped. A reply needs a new lookup, because the
        // other process may have started since.
        let share = match name {
            Name::Share(share) if !replies_if_absent => Some(share),
            _ => None,
        };
        if share.is_some_and(|share| self.passing.is_absent(share)) {
            return false;
        }
        let is_absent = self.pass_on(name, datagram);
        if let Some(share) = share.filter(|_| is_absent) {
            self.passing.record_absence(share);
        }
        is_absent && replies_if_absent
    }

    /// Passes a packet on to the process with a name. Returns whether no process has the name.
    fn pass_on(&mut self, name: Name, datagram: &Datagram<'_>) -> bool {
        Message::Packets(Packets {
            source: datagram.source,
            traffic_class: datagram.traffic_class,
            hop_limit: datagram.hop_limit,
            flow_label: datagram.flow_label,
            segment: datagram.bytes.len() as u32,
            bytes: datagram.bytes,
        })
        .emit(&mut self.buffer);
        let passed = self.passing.send(&self.names, name, &self.buffer);
        self.passed_on += u64::from(passed == Passed::Sent);
        self.not_passed_on += u64::from(passed == Passed::Failed);
        passed == Passed::Absent
    }

    /// Sends packets to this address, which form a GSO batch, to the process with their queue pair.
    pub(super) fn send(&mut self, batch: &[TxPacket<'_>]) -> Delivery {
        let [first, ..] = batch else { return Delivery::Accepted };
        let share = match self.other_share(first.bytes) {
            // A packet that is too long is sent over UDP, which counts it.
            Some(share) if first.bytes.len() <= MAX_PACKETS_LEN => share,
            _ => return Delivery::OverUdp,
        };
        Message::Packets(Packets {
            source: first.source,
            traffic_class: first.traffic_class,
            hop_limit: (first.hop_limit != 0).then_some(first.hop_limit),
            flow_label: first.flow_label,
            segment: first.bytes.len() as u32,
            bytes: &[],
        })
        .emit(&mut self.buffer);
        let SharedAddress { names, rings, buffer, .. } = self;
        let pieces = std::iter::once(&**buffer).chain(batch.iter().map(|packet| packet.bytes));
        rings.send(share, batch.len(), pieces, || match names.connect(Name::Share(share))? {
            Holder::OwnUser(stream) => Ok(Some(stream)),
            Holder::OtherUser | Holder::Absent => Ok(None),
        })
    }

    /// Whether the process to which a packet to this address is sent must read packets before it can be sent more.
    pub(super) fn is_receiver_full(&self, packet: &[u8]) -> bool {
        self.other_share(packet).is_some_and(|share| self.rings.is_full(share))
    }

    /// Returns the share of the process to which a packet to this address is sent, if it is another process and the packet
    /// isn't a message to queue pair 1.
    pub(super) fn other_share(&self, packet: &[u8]) -> Option<AddressShare> {
        dispatch::share_of(packet).filter(|share| *share != self.share)
    }

    /// Passes about `max` packets from other processes to `each`, and returns their number. This is called for each
    /// receive.
    #[inline]
    pub(super) fn receive(&mut self, max: usize, each: &mut dyn FnMut(&Datagram<'_>)) -> usize {
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

    /// Sets whether a thread may sleep on the [descriptor](SharedAddress::readiness) from now on.
    pub(super) fn set_wants_wakeup(&mut self, wanted: bool) {
        self.wants_wakeup = wanted;
        self.must_serve |= wanted;
        self.rings.set_wants_wakeup(wanted);
    }

    /// Whether other processes send packets in rings.
    pub(super) fn has_rings(&self) -> bool {
        self.rings.has_readers()
    }

    /// Counts a receive, and returns whether it reads the UDP socket, too.
    #[inline]
    pub(super) fn count_receive(&mut self) -> bool {
        self.udp_calls_left = self.udp_calls_left.saturating_sub(1);
        self.udp_calls_left == 0 || self.wants_wakeup || !self.rings.has_readers()
    }

    /// Records that a receive got `count` packets from the UDP socket.
    #[inline]
    pub(super) fn record_udp(&mut self, count: usize) {
        self.udp_calls_left = if count == 0 { CALLS_PER_UDP_READ } else { 1 };
    }

    /// Reads the sources, passes about `max` packets from other processes to `each`, and returns their number.
    #[cold]
    fn serve(&mut self, max: usize, each: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        self.calls_left = CALLS_PER_READ;
        let now = Instant::now();
        if self.election.deadline().is_some_and(|deadline| deadline <= now) {
            self.run_election(Input::Timeout, now);
        }
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
                Some(Source::Lower(_)) => {
                    self.remove(number);
                    self.run_election(Input::ConnectionLost, now);
                }
                Some(Source::Higher(..)) => {
                    self.remove(number);
                    self.run_election(Input::HigherChanged, now);
                }
                // An earlier event has removed the source.
                None => {}
            }
        }
        let has_accepted = self.acceptor.deadline().is_some_and(|time| time <= now) && self.accept(now);
        // More events may be pending, and a new connection has its first message.
        if count > 0 || has_accepted || event_count == events.len() {
            self.calls_left = 1;
        }
        count
    }

    /// Adds a source, and returns its number.
    fn add(&mut self, source: Source) -> io::Result<u64> {
        let number = self.next_source;
        match &source {
            Source::Listener(listener, _) => self.readiness.add(&**listener, accept::event(number))?,
            Source::Accepted(stream, _)
            | Source::Inbound(stream, _)
            | Source::Lower(stream)
            | Source::Higher(stream, _) => {
                self.readiness.add(&**stream, Token::Source(number).event(EpollFlags::EPOLLIN))?;
            }
        }
        self.next_source += 1;
        self.inbound_count += usize::from(source.inbound_name().is_some());
        self.sources.insert(number, source);
        Ok(number)
    }

    /// Closes a source.
    fn remove(&mut self, number: u64) {
        let removed = self.sources.remove(&number);
        self.inbound_count -= usize::from(removed.is_some_and(|source| source.inbound_name().is_some()));
        self.rings.close_reader(number);
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
            let (length, mut files) = match receive_files(stream, &mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The other process has closed the connection.
                Ok((0, _)) | Err(_) => {
                    self.remove(number);
                    break;
                }
                Ok(received) => received,
            };
            if is_new {
                self.greet(number, Message::parse(&buffer[..length]));
                continue;
            }
            match (Message::parse(&buffer[..length]), files.pop()) {
                (Some(Message::Packets(packets)), _) => count += packets.pass_to(each),
                (Some(Message::Join), _) => self.send_sockets(number),
                (Some(Message::Election(share)), _) => self.watch(number, share),
                (Some(Message::Wake), _) => {
                    self.rings.record_wakeup(number);
                    // Usually, no other message follows. If one does, the descriptor stays readable.
                    break;
                }
                (Some(Message::Ring), Some(file)) if self.may_have_ring(number) => {
                    if self.rings.open_reader(number, file).is_err() {
                        self.remove(number);
                    }
                }
                (Some(Message::Hello(_) | Message::Sockets | Message::Ring) | None, _) => self.remove(number),
            }
        }
        self.received = buffer;
        count
    }

    /// Whether a connection may have a ring: it is to the share of this process.
    fn may_have_ring(&self, number: u64) -> bool {
        matches!(self.sources.get(&number), Some(Source::Inbound(_, Name::Share(_))))
    }

    /// Sends the sockets to a process that joins.
    fn send_sockets(&mut self, number: u64) {
        let Some(Source::Inbound(stream, _)) = self.sources.get(&number) else { return };
        let mut descriptors: Vec<RawFd> = self.lower.iter().map(|socket| socket.as_raw_fd()).collect();
        if descriptors.len() == usize::from(self.share.index()) {
            descriptors.push(self.own.as_raw_fd());
        }
        let mut response = Vec::new();
        Message::Sockets.emit(&mut response);
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let response = [IoSlice::new(&response)];
        if nix::sys::socket::sendmsg::<()>(stream.as_raw_fd(), &response, &rights, flags, None).is_err() {
            self.remove(number);
        }
    }

    /// Handles an input of the [election] of the dispatcher, and runs the resulting actions.
    fn run_election(&mut self, input: Input, now: Instant) {
        let mut action = self.election.handle(input, now);
        while let Some(next) = action {
            action = match next {
                Action::Connect => {
                    let input = self.connect_for_election();
                    self.election.handle(input, now)
                }
                Action::Attach => {
                    // Without the program, processes pass packets on.
                    let _ = program::attach(&*self.own, self.share);
                    None
                }
            };
        }
    }

    /// Runs [`Action::Connect`].
    fn connect_for_election(&mut self) -> Input {
        let mut is_unknown = false;
        let own = self.share;
        for share in join::shares().filter(|share| *share != own) {
            let is_watched =
                |source: &Source| matches!(source, Source::Higher(_, higher) if *higher == share);
            if self.sources.values().any(is_watched) {
                continue;
            }
            match self.connect_to_watch(share) {
                Ok(true) if share < own => return Input::Connected,
                Ok(_) => {}
                Err(_) => is_unknown = true,
            }
        }
        if is_unknown { Input::Unknown } else { Input::Lowest }
    }

    /// Connects to the process with a share, so that each of the two notices when the other one ends. Returns whether a process
    /// of this user has the share.
    fn connect_to_watch(&mut self, share: AddressShare) -> io::Result<bool> {
        let Holder::OwnUser(stream) = self.names.connect(Name::Share(share))? else { return Ok(false) };
        Message::Election(self.share.index()).emit(&mut self.buffer);
        nix::sys::socket::send(stream.as_raw_fd(), &self.buffer, MsgFlags::MSG_NOSIGNAL)?;
        let stream = Guarded::new(stream);
        if share < self.share {
            self.remove_lower();
            self.add(Source::Lower(stream))?;
        } else {
            self.add(Source::Higher(stream, share))?;
        }
        Ok(true)
    }

    /// Handles [`Message::Election`] of the process with a share.
    fn watch(&mut self, number: u64, share: u8) {
        let Some(share) = AddressShare::new(share).filter(|share| *share != self.share) else {
            return self.remove(number);
        };
        let Some(Source::Inbound(stream, _)) = self.sources.remove(&number) else { return };
        self.inbound_count -= 1;
        let input = if share < self.share {
            self.remove_lower();
            self.sources.insert(number, Source::Lower(stream));
            Input::Connected
        } else {
            self.sources.insert(number, Source::Higher(stream, share));
            Input::HigherChanged
        };
        self.run_election(input, Instant::now());
    }

    /// Closes the connection with a process with a lower share.
    fn remove_lower(&mut self) {
        self.sources.retain(|_, source| !matches!(source, Source::Lower(_)));
    }
}

impl AddressSharing for SharedAddress {
    fn address_share(&self) -> AddressShare {
        self.share
    }

    fn claim_service(&mut self, service: ServiceId) -> io::Result<()> {
        if let Some((_, listeners)) = self.services.get_mut(&service) {
            *listeners += 1;
            return Ok(());
        }
        let name = Name::Service(service);
        let listener = self.names.claim(name)?;
        let number = self.add(Source::Listener(Guarded::new(listener), name))?;
        self.services.insert(service, (number, 1));
        Ok(())
    }

    fn release_service(&mut self, service: ServiceId) {
        let Some((number, listeners)) = self.services.get_mut(&service) else { return };
        *listeners -= 1;
        if *listeners > 0 {
            return;
        }
        let number = *number;
        self.services.remove(&service);
        self.remove(number);
        // Another process may claim the service from now on, so the other processes must connect again.
        let name = Name::Service(service);
        self.sources.retain(|_, source| source.inbound_name() != Some(name));
        self.inbound_count = self.sources.values().filter(|source| source.inbound_name().is_some()).count();
    }
}
