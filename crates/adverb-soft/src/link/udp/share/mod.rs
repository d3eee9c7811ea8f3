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

mod dispatch;
mod election;
mod fork;
mod join;
mod message;
mod names;
mod program;

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use adverb_wire::cm::ServiceId;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{ControlMessage, MsgFlags};

use super::UdpConfig;
use super::message::Datagram;
use crate::link::AddressShare;
use dispatch::Target;
pub(super) use dispatch::have_same_process;
use election::{Action, Election, Input};
pub(super) use fork::Guarded;
use join::Membership;
use message::{Message, Packet};
use names::{Name, Names};

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
    /// The connections to other processes, the least recently opened first.
    outbound: Vec<(Name, Guarded<UnixStream>)>,
    election: Election,
    /// An epoll instance that is readable when a source is.
    readiness: Epoll,
    /// The number of calls until the sources are read.
    calls_left: u32,
    buffer: Vec<u8>,
    /// The number of connections that this process has accepted.
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
    /// A connection to a name of this process.
    Inbound(Guarded<UnixStream>, Name),
    /// The connection to the dispatcher. It ends with the dispatcher.
    Dispatcher(Guarded<UnixStream>),
}

/// The number of receives per read of the sources. Each read is a system call.
const CALLS_PER_READ: u32 = 64;

/// The maximum number of connections that a process keeps open to others.
const MAX_OUTBOUND: usize = 32;

/// The maximum number of connections that a process accepts: those of all other processes to a few names.
const MAX_INBOUND: usize = 1024;

/// The maximum number of connections accepted, or messages read, before another source is served.
const MAX_BATCH: usize = 64;

/// The size of the buffer for a message: a packet with its metadata.
const BUFFER_LEN: usize = 8192;

impl SharedAddress {
    /// Joins the processes that share an address. Returns the state, the receiving socket, and the size of its buffer.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Membership::join`].
    pub(super) fn open(
        local: SocketAddr,
        config: &UdpConfig,
    ) -> io::Result<(SharedAddress, Guarded<UdpSocket>, usize)> {
        let membership = Membership::join(local, config)?;
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
            outbound: Vec::new(),
            election: Election::new(now),
            readiness: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            calls_left: CALLS_PER_READ,
            buffer: Vec::with_capacity(BUFFER_LEN),
            inbound_count: 0,
            passed_on: 0,
            not_passed_on: 0,
        };
        shared.add(Source::Listener(Guarded::new(listener), Name::Share(share)))?;
        shared.run_election(Input::Timeout, now);
        let receiving = Guarded::new(shared.own.try_clone()?);
        Ok((shared, receiving, receive_buffer_bytes))
    }

    /// Returns the share of this process.
    pub(super) const fn share(&self) -> AddressShare {
        self.share
    }

    /// Returns the number of packets that were passed on to other processes, and the number of packets that could not
    /// be passed on.
    pub(super) const fn passed_packets(&self) -> (u64, u64) {
        (self.passed_on, self.not_passed_on)
    }

    /// Returns the descriptor that is readable when [`serve`](SharedAddress::serve) has work.
    pub(super) fn readiness(&self) -> BorrowedFd<'_> {
        self.readiness.0.as_fd()
    }

    /// Returns the time of the next call to [`serve`](SharedAddress::serve).
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.election.deadline()
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
        let is_absent = self.pass_on(name, datagram);
        is_absent && replies_if_absent
    }

    /// Passes a packet on to the process with a name. Returns whether no process has the name.
    fn pass_on(&mut self, name: Name, datagram: &Datagram<'_>) -> bool {
        Message::Packet(Packet {
            source: datagram.source,
            traffic_class: datagram.traffic_class,
            hop_limit: datagram.hop_limit,
            flow_label: datagram.flow_label,
            bytes: datagram.bytes,
        })
        .emit(&mut self.buffer);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        // A connection may be to a process that has ended, or that no longer listens on the service.
        for _ in 0..2 {
            let index = match self.outbound.iter().position(|(known, _)| *known == name) {
                Some(index) => index,
                None => match self.names.connect(name) {
                    Ok(Some(stream)) => {
                        if self.outbound.len() >= MAX_OUTBOUND {
                            self.outbound.remove(0);
                        }
                        self.outbound.push((name, Guarded::new(stream)));
                        self.outbound.len() - 1
                    }
                    Ok(None) => return true,
                    Err(_) => break,
                },
            };
            match nix::sys::socket::send(self.outbound[index].1.as_raw_fd(), &self.buffer, flags) {
                Ok(_) => {
                    self.passed_on += 1;
                    return false;
                }
                Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM | Errno::EMSGSIZE) => break,
                Err(_) => drop(self.outbound.remove(index)),
            }
        }
        self.not_passed_on += 1;
        false
    }

    /// Whether it is time to call [`serve`](SharedAddress::serve). This is called for each receive.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.calls_left -= 1;
        self.calls_left == 0
    }

    /// Reads the sources, passes up to `max` packets from other processes to `each`, and returns their number.
    #[cold]
    pub(super) fn serve(&mut self, max: usize, each: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        self.calls_left = CALLS_PER_READ;
        let now = Instant::now();
        if self.election.deadline().is_some_and(|deadline| deadline <= now) {
            self.run_election(Input::Timeout, now);
        }
        let mut events = [EpollEvent::empty(); 16];
        let Ok(event_count) = self.readiness.wait(&mut events, EpollTimeout::ZERO) else { return 0 };
        let mut count = 0;
        for event in &events[..event_count] {
            let number = event.data();
            match self.sources.get(&number) {
                Some(Source::Listener(..)) => self.accept(number),
                Some(Source::Inbound(..)) => count += self.receive(number, max.saturating_sub(count), each),
                Some(Source::Dispatcher(_)) => {
                    self.remove(number);
                    self.run_election(Input::ConnectionLost, now);
                }
                None => {}
            }
        }
        // More events may be pending.
        if event_count > 0 {
            self.calls_left = 1;
        }
        count
    }

    /// Claims a service for this process, so that it receives the requests to the service.
    ///
    /// # Errors
    ///
    /// Returns `AddrInUse` if another process listens on the service.
    pub(super) fn claim_service(&mut self, service: ServiceId) -> io::Result<()> {
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

    /// Ends a [claim](SharedAddress::claim_service).
    pub(super) fn release_service(&mut self, service: ServiceId) {
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
        let is_open =
            |source: &mut Source| !matches!(source, Source::Inbound(_, inbound) if *inbound == name);
        self.sources.retain(|_, source| is_open(source));
        self.inbound_count =
            self.sources.values().filter(|source| matches!(source, Source::Inbound(..))).count();
    }

    /// Adds a source, and returns its number.
    fn add(&mut self, source: Source) -> io::Result<u64> {
        let number = self.next_source;
        let event = |flags| EpollEvent::new(EpollFlags::EPOLLIN | flags, number);
        match &source {
            // The event is edge-triggered, so that a process without free file descriptors doesn't try to accept again
            // and again.
            Source::Listener(listener, _) => self.readiness.add(&**listener, event(EpollFlags::EPOLLET))?,
            Source::Inbound(stream, _) | Source::Dispatcher(stream) => {
                self.readiness.add(&**stream, event(EpollFlags::empty()))?;
            }
        }
        self.next_source += 1;
        self.inbound_count += usize::from(matches!(source, Source::Inbound(..)));
        self.sources.insert(number, source);
        Ok(number)
    }

    /// Closes a source.
    fn remove(&mut self, number: u64) {
        if let Some(Source::Inbound(..)) = self.sources.remove(&number) {
            self.inbound_count -= 1;
        }
    }

    /// Accepts connections to a name of this process, from processes of this user.
    fn accept(&mut self, number: u64) {
        for _ in 0..MAX_BATCH {
            let Some(Source::Listener(listener, name)) = self.sources.get(&number) else { return };
            let (Ok((stream, _)), name) = (listener.accept(), *name) else { return };
            if self.names.is_own_user(&stream)
                && self.inbound_count < MAX_INBOUND
                && stream.set_nonblocking(true).is_ok()
            {
                // Without memory for the source, the connection is closed.
                let _ = self.add(Source::Inbound(Guarded::new(stream), name));
            }
        }
    }

    /// Reads up to `max` messages of a connection, and returns the number of packets.
    fn receive(&mut self, number: u64, max: usize, each: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(BUFFER_LEN, 0);
        let mut count = 0;
        for _ in 0..max.min(MAX_BATCH) {
            let Some(Source::Inbound(stream, _)) = self.sources.get(&number) else { break };
            let length = match nix::sys::socket::recv(stream.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)
            {
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => continue,
                // The other process has closed the connection.
                Ok(0) | Err(_) => {
                    self.remove(number);
                    break;
                }
                Ok(length) => length,
            };
            match Message::parse(&buffer[..length]) {
                Some(Message::Packet(packet)) => {
                    count += 1;
                    each(&Datagram {
                        source: packet.source,
                        traffic_class: packet.traffic_class,
                        hop_limit: packet.hop_limit,
                        flow_label: packet.flow_label,
                        received_at: None,
                        bytes: packet.bytes,
                    });
                }
                Some(Message::Join) => self.send_sockets(number),
                Some(Message::Sockets) | None => self.remove(number),
            }
        }
        self.buffer = buffer;
        count
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

    /// Handles an input of the election of the dispatcher, and runs the resulting actions.
    fn run_election(&mut self, input: Input, now: Instant) {
        let mut action = self.election.handle(input, now);
        while let Some(next) = action {
            let input = match next {
                Action::Claim => {
                    let claimed = self.names.claim(Name::Dispatcher);
                    match claimed.and_then(|listener| {
                        self.add(Source::Listener(Guarded::new(listener), Name::Dispatcher))
                    }) {
                        Ok(_) => {
                            // Without the program, processes pass packets on.
                            let _ = program::attach(&*self.own, self.share);
                            Input::Claimed
                        }
                        Err(_) => Input::NameTaken,
                    }
                }
                Action::Connect => {
                    let connected = self.names.connect(Name::Dispatcher).ok().flatten();
                    let added =
                        connected.and_then(|stream| self.add(Source::Dispatcher(Guarded::new(stream))).ok());
                    added.map_or(Input::NotConnected, |_| Input::Connected)
                }
            };
            action = self.election.handle(input, now);
        }
    }
}
