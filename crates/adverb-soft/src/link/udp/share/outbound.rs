//! The connections to other processes.

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollFlags};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::Guarded;
use super::message::{Message, WAKE_MESSAGE};
use super::names::{Holder, Name, Names};
use super::ring::{Writer, Written};
use super::token::Token;
use crate::link::AddressShare;

/// The connections to other processes.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    /// The connections, the least recently opened first.
    connections: Vec<ProcessConnection>,
    /// The shares for which no ring could be opened, with the times until which packets to them are sent over UDP.
    avoided: Vec<(AddressShare, Instant)>,
    /// The shares whose processes have refused their last rings, because they have no file descriptor or no memory.
    refusing: Vec<AddressShare>,
    /// The shares that no process has, with the times until which no process is looked for.
    absent: Vec<(AddressShare, Instant)>,
    /// The number of packets in rings that were refused.
    lost: u64,
    /// The number of the next connection with a ring.
    next_number: u64,
}

/// A connection to another process at the address, to which this process sends packets.
#[derive(Debug)]
struct ProcessConnection {
    name: Name,
    stream: Guarded<UnixStream>,
    ring: Option<Ring>,
}

/// The ring for packets to queue pairs of the other process.
#[derive(Debug)]
struct Ring {
    /// The number of the connection.
    number: u64,
    writer: Writer,
    /// The state until the other process opens the ring.
    unopened: Option<Unopened>,
    refusals: Option<Refusals>,
}

/// The state of a ring that the other process has not opened.
#[derive(Debug)]
struct Unopened {
    /// The time until which packets are written into the ring nevertheless.
    deadline: Instant,
    /// The number of packets in the ring.
    packet_count: usize,
}

/// The refusals of messages while the other process reads too slowly.
#[derive(Debug)]
struct Refusals {
    count: u32,
    since: Instant,
    /// The [number of bytes](Writer::written_len) that were written before.
    written_len: u64,
}

/// The result of sending a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    /// The message was sent.
    Accepted,
    /// The other process must read messages first.
    Full,
    /// The other process has read too few messages for [`MAX_REFUSAL_TIME`].
    Stuck,
    /// No process has the name.
    Absent,
    /// The operating system can't connect to the process now, or can't send the message.
    Failed,
}

/// The maximum number of connections that a process keeps open to others: to all of them, and to some services.
const MAX_CONNECTIONS: usize = AddressShare::MAX_COUNT as usize + 32;

/// The time after which a process that doesn't read its messages is considered stuck. Until then, all other packets of the
/// device wait, too, also those to remote peers.
const MAX_REFUSAL_TIME: Duration = Duration::from_millis(10);

/// The number of refusals after which a process can be considered stuck. If they are few, this process may have had no
/// CPU.
const MIN_REFUSALS: u32 = 16;

/// The number of bytes that a process must read in [`MAX_REFUSAL_TIME`] while messages are refused.
const MIN_PROGRESS: u64 = 64 << 10;

/// The time after which packets to a process that has not opened its ring are sent over UDP, until it opens the ring: it
/// may be stopped, or have no file descriptor.
const MAX_OPENING_TIME: Duration = Duration::from_millis(100);

/// The time for which packets to a share are sent over UDP after no ring could be opened: no process has the share, or this
/// process has no file descriptor or no memory.
const AVOIDANCE_TIME: Duration = Duration::from_secs(1);

/// The time for which packets to a share are sent over UDP after its process had too many connections that it has not
/// accepted. Another user may have opened them, so this process tries often.
const FULL_QUEUE_AVOIDANCE_TIME: Duration = Duration::from_millis(1);

/// The time for which the packets of remote peers to a share are dropped after no process was found.
const ABSENCE_TIME: Duration = Duration::from_millis(10);

const FLAGS: MsgFlags = MsgFlags::MSG_DONTWAIT.union(MsgFlags::MSG_NOSIGNAL);

impl Outbound {
    /// Sends a message to the process that has a name.
    pub(super) fn send(&mut self, names: &Names, name: Name, message: &[u8]) -> Sent {
        // A connection may be to a process that has ended, or that no longer listens on the service.
        for _ in 0..2 {
            let index = match self.find(name) {
                Some(index) => index,
                None => match names.connect(name) {
                    Ok(Holder::OwnUser(stream)) => self.add(name, Guarded::new(stream), None),
                    Ok(Holder::OtherUser | Holder::Absent) => return Sent::Absent,
                    Err(_) => return Sent::Failed,
                },
            };
            match nix::sys::socket::send(self.connections[index].stream.as_raw_fd(), message, FLAGS) {
                Ok(_) => return Sent::Accepted,
                Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM) => return Sent::Full,
                Err(Errno::EMSGSIZE) => return Sent::Failed,
                Err(_) => self.close(index),
            }
        }
        Sent::Failed
    }

    /// Writes a message with `packet_count` packets, in pieces, into the ring of the process with a share. The epoll instance
    /// gets an [event](Outbound::end) when the process ends.
    pub(super) fn write<'a>(
        &mut self,
        names: &Names,
        readiness: &Epoll,
        share: AddressShare,
        packet_count: usize,
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Sent {
        let name = Name::Share(share);
        for _ in 0..2 {
            let index = match self.find(name).filter(|index| self.connections[*index].ring.is_some()) {
                Some(index) => index,
                None if self.is_avoided(share) => return Sent::Failed,
                None => match self.open_ring(names, readiness, share) {
                    Ok(Some((stream, ring))) => {
                        self.remove(name);
                        self.add(name, stream, Some(ring))
                    }
                    Ok(None) => {
                        self.avoid(share, AVOIDANCE_TIME);
                        return Sent::Absent;
                    }
                    Err(error) => {
                        let is_queue_full = error.kind() == io::ErrorKind::WouldBlock;
                        let time = if is_queue_full { FULL_QUEUE_AVOIDANCE_TIME } else { AVOIDANCE_TIME };
                        self.avoid(share, time);
                        return Sent::Failed;
                    }
                },
            };
            let ProcessConnection { stream, ring: Some(ring), .. } = &mut self.connections[index] else {
                return Sent::Failed;
            };
            if !ring.count_packets(packet_count) {
                return Sent::Failed;
            }
            match ring.writer.write(pieces.clone()) {
                Written::Full => {
                    ring.uncount(packet_count);
                    return ring.refuse();
                }
                Written::Done => {
                    ring.record_progress();
                    return Sent::Accepted;
                }
                Written::WakeReader => {
                    ring.record_progress();
                    match nix::sys::socket::send(stream.as_raw_fd(), &WAKE_MESSAGE, FLAGS) {
                        Ok(_) => return Sent::Accepted,
                        // The connection is full of messages, which wake the other process, too, or the kernel has no
                        // memory. The next message sends a wake-up again.
                        Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM) => {
                            ring.writer.retry_wakeup();
                            return Sent::Accepted;
                        }
                        Err(_) => {
                            ring.uncount(packet_count);
                            self.close(index);
                        }
                    }
                }
            }
        }
        Sent::Failed
    }

    /// Returns the number of packets that were written into rings that the other processes then refused.
    pub(super) const fn lost_packets(&self) -> u64 {
        self.lost
    }

    /// Records that no process has a share.
    pub(super) fn record_absence(&mut self, share: AddressShare) {
        self.absent.retain(|(absent, _)| *absent != share);
        self.absent.push((share, Instant::now() + ABSENCE_TIME));
    }

    /// Whether no process had a share a short time ago.
    pub(super) fn is_absent(&self, share: AddressShare) -> bool {
        let absent = self.absent.iter().find(|(absent, _)| *absent == share);
        absent.is_some_and(|(_, until)| Instant::now() < *until)
    }

    /// Handles the event of a [ring](Token::Ring): the process at the other end of its connection has ended.
    pub(super) fn end(&mut self, number: u64) {
        let is_ended = |ring: &Ring| ring.number == number;
        let is_ended = |connection: &ProcessConnection| connection.ring.as_ref().is_some_and(is_ended);
        if let Some(index) = self.connections.iter().position(is_ended) {
            self.close(index);
        }
    }

    /// Whether the process with a share has a ring.
    #[cfg(test)]
    pub(super) fn has_ring(&self, share: AddressShare) -> bool {
        self.find(Name::Share(share)).is_some_and(|index| self.connections[index].ring.is_some())
    }

    /// Sends packets to a share over UDP for a while.
    fn avoid(&mut self, share: AddressShare, time: Duration) {
        self.avoided.retain(|(avoided, _)| *avoided != share);
        self.avoided.push((share, Instant::now() + time));
    }

    /// Whether packets to a share are sent over UDP for a while.
    fn is_avoided(&self, share: AddressShare) -> bool {
        let avoided = self.avoided.iter().find(|(avoided, _)| *avoided == share);
        avoided.is_some_and(|(_, until)| Instant::now() < *until)
    }

    /// Creates a ring, and sends it to the process with a share. Returns `None` if no process has the share.
    fn open_ring(
        &mut self,
        names: &Names,
        readiness: &Epoll,
        share: AddressShare,
    ) -> io::Result<Option<(Guarded<UnixStream>, Ring)>> {
        let Holder::OwnUser(stream) = names.connect(Name::Share(share))? else { return Ok(None) };
        let (stream, writer) = (Guarded::new(stream), Writer::create()?);
        let number = self.next_number;
        self.next_number += 1;
        // The event is reported once, even if a forked child has a copy of the connection.
        let flags = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLONESHOT;
        readiness.add(&*stream, Token::Ring(number).event(flags))?;
        let mut message = Vec::new();
        Message::Ring.emit(&mut message);
        let files = [writer.file().as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&files)];
        sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&message)], &rights, FLAGS, None)?;
        // A process that has refused a ring may refuse this one, too. Its packets would be lost.
        let is_refusing = self.refusing.contains(&share);
        let time = if is_refusing { Duration::ZERO } else { MAX_OPENING_TIME };
        self.refusing.retain(|refusing| *refusing != share);
        let unopened = Some(Unopened { deadline: Instant::now() + time, packet_count: 0 });
        Ok(Some((stream, Ring { number, writer, unopened, refusals: None })))
    }

    /// Closes the connection to a name.
    fn remove(&mut self, name: Name) {
        if let Some(index) = self.find(name) {
            self.close(index);
        }
    }

    /// Closes a connection.
    fn close(&mut self, index: usize) {
        let ProcessConnection { name, ring, .. } = self.connections.remove(index);
        let Some(Ring { writer, unopened: Some(unopened), .. }) = ring else { return };
        let Name::Share(share) = name else { return };
        if !writer.is_opened() {
            self.lost += unopened.packet_count as u64;
            self.refusing.push(share);
            self.avoid(share, AVOIDANCE_TIME);
        }
    }

    fn find(&self, name: Name) -> Option<usize> {
        self.connections.iter().position(|connection| connection.name == name)
    }

    /// Adds a connection, and returns its index.
    fn add(&mut self, name: Name, stream: Guarded<UnixStream>, ring: Option<Ring>) -> usize {
        if self.connections.len() >= MAX_CONNECTIONS {
            let without_ring = self.connections.iter().position(|connection| connection.ring.is_none());
            self.close(without_ring.unwrap_or(0));
        }
        self.connections.push(ProcessConnection { name, stream, ring });
        self.connections.len() - 1
    }
}

impl Ring {
    /// Returns whether the other process has opened the ring, or still has time for it. Counts the packets that the caller then
    /// writes.
    fn count_packets(&mut self, packet_count: usize) -> bool {
        let Some(unopened) = &mut self.unopened else { return true };
        if self.writer.is_opened() {
            self.unopened = None;
            return true;
        }
        let is_in_time = Instant::now() < unopened.deadline;
        unopened.packet_count += if is_in_time { packet_count } else { 0 };
        is_in_time
    }

    /// Ends the count of packets that were not written.
    fn uncount(&mut self, packet_count: usize) {
        if let Some(unopened) = &mut self.unopened {
            unopened.packet_count -= packet_count;
        }
    }

    /// Records that a message was written.
    fn record_progress(&mut self) {
        let Some(refusals) = &self.refusals else { return };
        let progress = self.writer.written_len() - refusals.written_len;
        if progress >= MIN_PROGRESS || self.writer.is_half_empty() {
            self.refusals = None;
        }
    }

    /// Records that a message was refused, and returns whether the other process is stuck.
    fn refuse(&mut self) -> Sent {
        let written_len = self.writer.written_len();
        let refusals =
            self.refusals.get_or_insert_with(|| Refusals { count: 0, since: Instant::now(), written_len });
        refusals.count = refusals.count.saturating_add(1);
        let is_stuck = refusals.count >= MIN_REFUSALS && refusals.since.elapsed() >= MAX_REFUSAL_TIME;
        if is_stuck { Sent::Stuck } else { Sent::Full }
    }
}
