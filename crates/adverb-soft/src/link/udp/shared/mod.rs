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

mod dispatch;
mod election;
mod join;
mod message;
mod passing;
mod program;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use adverb_wire::cm::ServiceId;
use nix::sys::socket::{ControlMessage, MsgFlags};
use nix::unistd::Uid;

use super::UdpConfig;
use super::message::MAX_GSO_BYTES;
use crate::link::datagram::Datagram;
use crate::link::local::{Endpoint, Event, Guarded, Holder, MAX_PACKETS_LEN, Name, Packets};
use crate::link::{AddressShare, AddressSharing};
use dispatch::Target;
pub(super) use dispatch::have_same_process;
use election::{Action, Election, Input};
use join::Membership;
use message::Message;
use passing::{Passed, Passing};

/// The state of a process that shares an address.
#[derive(Debug)]
pub(super) struct SharedAddress {
    share: AddressShare,
    own: Guarded<UdpSocket>,
    /// The sockets with lower indexes than `own`: see [`Membership::lower`].
    lower: Vec<Guarded<UdpSocket>>,
    /// The names of this process, and the connections and rings between it and the others.
    endpoint: Endpoint,
    /// The connections whose end is an input of the election, by their numbers.
    watched: BTreeMap<u64, Watched>,
    /// The services that this process listens on: the number of the name's listener, and the number of listeners.
    services: BTreeMap<ServiceId, (u64, u32)>,
    passing: Passing,
    election: Election,
    /// A message to send.
    buffer: Vec<u8>,
    /// The number of packets that were passed on.
    passed_on: u64,
    /// The number of packets that could not be passed on.
    not_passed_on: u64,
}

/// The process at the other end of a connection that ends with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watched {
    /// A process with a lower share. There is at most one.
    Lower,
    /// The process with this share, which is higher.
    Higher(AddressShare),
}

const _: () = assert!(MAX_GSO_BYTES <= MAX_PACKETS_LEN, "a batch fits into a message");

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
            own: Guarded::new(own),
            lower: lower.into_iter().map(Guarded::new).collect(),
            endpoint: Endpoint::new(names, Some(share), config.ring_peers)?,
            watched: BTreeMap::new(),
            services: BTreeMap::new(),
            passing: Passing::default(),
            election: Election::new(now),
            buffer: Vec::new(),
            passed_on: 0,
            not_passed_on: 0,
        };
        shared.endpoint.listen(listener, Name::Share(share))?;
        shared.run_election(Input::Timeout, now);
        let receiving = Guarded::new(shared.own.try_clone()?);
        Ok((shared, receiving, receive_buffer_bytes))
    }

    /// Returns the number of packets that were passed on to other processes, and the number of packets that could not
    /// be passed on.
    pub(super) const fn passed_packets(&self) -> (u64, u64) {
        (self.passed_on, self.not_passed_on)
    }

    /// Returns the time of the next call to [`receive`](SharedAddress::receive).
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.election.deadline().into_iter().chain(self.endpoint.deadline()).min()
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
        self.buffer.clear();
        Packets {
            source: datagram.source,
            traffic_class: datagram.traffic_class,
            hop_limit: datagram.hop_limit,
            flow_label: datagram.flow_label,
            segment: datagram.bytes.len() as u32,
            bytes: datagram.bytes,
        }
        .emit(&mut self.buffer);
        let passed = self.passing.send(self.endpoint.names(), name, &self.buffer);
        self.passed_on += u64::from(passed == Passed::Sent);
        self.not_passed_on += u64::from(passed == Passed::Failed);
        passed == Passed::Absent
    }

    /// Returns the names of this process, and the connections and rings between it and the others.
    #[inline]
    pub(super) const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the names of this process, and the connections and rings between it and the others.
    #[inline]
    pub(super) const fn endpoint_mut(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// Passes about `max` packets from other processes to `each`, and returns their number. This is called for each
    /// receive.
    #[inline]
    pub(super) fn receive(&mut self, max: usize, each: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let count = self.endpoint.receive(max, each);
        if self.endpoint.take_served() {
            self.handle_events();
        }
        count
    }

    /// Handles the messages that aren't about packets, and the ends of other processes.
    #[cold]
    fn handle_events(&mut self) {
        let now = Instant::now();
        if self.election.deadline().is_some_and(|deadline| deadline <= now) {
            self.run_election(Input::Timeout, now);
        }
        while let Some(event) = self.endpoint.pop_event() {
            match event {
                Event::Message(number, bytes) => match Message::parse(&bytes) {
                    Some(Message::Join) => self.send_sockets(number),
                    Some(Message::Election(share)) => self.watch(number, share),
                    Some(Message::Sockets) | None => self.endpoint.remove(number),
                },
                Event::Ended(number) => match self.watched.remove(&number) {
                    Some(Watched::Lower) => self.run_election(Input::ConnectionLost, now),
                    Some(Watched::Higher(_)) => self.run_election(Input::HigherChanged, now),
                    None => {}
                },
            }
        }
    }

    /// Sends the sockets to a process that joins.
    fn send_sockets(&mut self, number: u64) {
        let Some(stream) = self.endpoint.inbound(number) else { return };
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
            self.endpoint.remove(number);
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
            if self.watched.values().any(|watched| *watched == Watched::Higher(share)) {
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
        let names = self.endpoint.names();
        let Holder::OwnUser(stream) = names.connect(names.local(), Name::Share(share))? else {
            return Ok(false);
        };
        Message::Election(self.share.index()).emit(&mut self.buffer);
        nix::sys::socket::send(stream.as_raw_fd(), &self.buffer, MsgFlags::MSG_NOSIGNAL)?;
        let number = self.endpoint.watch(stream)?;
        self.record_watched(number, share);
        Ok(true)
    }

    /// Handles [`Message::Election`] of the process with a share.
    fn watch(&mut self, number: u64, share: u8) {
        let Some(share) = AddressShare::new(share).filter(|share| *share != self.share) else {
            return self.endpoint.remove(number);
        };
        if self.endpoint.watch_inbound(number) {
            let input = self.record_watched(number, share);
            self.run_election(input, Instant::now());
        }
    }

    /// Records that a connection ends with the process with a share. Returns the input of the election if that process has
    /// opened the connection.
    fn record_watched(&mut self, number: u64, share: AddressShare) -> Input {
        if share < self.share {
            self.remove_lower();
            self.watched.insert(number, Watched::Lower);
            Input::Connected
        } else {
            self.watched.insert(number, Watched::Higher(share));
            Input::HigherChanged
        }
    }

    /// Closes the connection with a process with a lower share.
    fn remove_lower(&mut self) {
        let SharedAddress { watched, endpoint, .. } = self;
        watched.retain(|number, watched| {
            let is_lower = *watched == Watched::Lower;
            if is_lower {
                endpoint.remove(*number);
            }
            !is_lower
        });
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
        let listener = self.endpoint.names().claim(name)?;
        let number = self.endpoint.listen(listener, name)?;
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
        // Another process may claim the service from now on, so the other processes must connect again.
        self.endpoint.release(number);
    }
}
