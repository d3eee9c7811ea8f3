//! The rings that other processes write packets into.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use super::marker::{MarkerWait, Token};
use super::packets::Packets;
use super::ring::{MAX_MESSAGE_LEN, Reader};
use crate::channel::Channel;
use crate::link::datagram::Datagram;

/// The rings that other processes write packets into, and the wake-ups of the thread that reads them.
#[derive(Debug)]
pub(super) struct Readers {
    rings: Vec<Ring>,
    /// The index of the ring that is read first, so that each ring is read first in turn.
    first_ring: usize,
    /// The received message.
    received: Vec<u8>,
    /// Whether a thread may sleep until a message of another process, or the wake channel, wakes it.
    wants_wakeup: bool,
    /// A channel whose event wakes a thread that begins to sleep although a ring has packets.
    wake_channel: Channel,
    /// Whether the channel has its event.
    has_wake_event: bool,
    /// The numbers of the connections whose rings violate the format.
    broken: Vec<u64>,
    /// The number of rings that are not read before their markers have arrived.
    waiting_count: usize,
}

/// A ring that another process writes packets into.
#[derive(Debug)]
struct Ring {
    /// The number of the connection to the process.
    number: u64,
    token: Token,
    /// The source address of all packets.
    source: IpAddr,
    reader: Reader,
    /// The wait for the markers, until they have arrived or are lost.
    markers: Option<MarkerWait>,
    /// Whether the other process was asked for a wake-up, whose message was not read yet. The message makes the connection
    /// readable, so that no other one is needed.
    awaits_wakeup: bool,
    state: RingState,
}

/// The state of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RingState {
    Open,
    /// The connection is closed. The ring is removed when it is empty.
    Closed,
    /// The other process violated the format.
    Broken,
    /// The connection is closed, and all packets were read.
    Ended,
}

/// The maximum number of messages that are read from a ring before the next ring.
const MAX_RING_BATCH: usize = 16;

/// The maximum number of rings: one for each process at a shared address, and as many for processes at other addresses. The
/// packets of further processes arrive over UDP.
const MAX_RINGS: usize = 256;

impl Readers {
    pub(super) fn new() -> io::Result<Readers> {
        Ok(Readers {
            rings: Vec::new(),
            first_ring: 0,
            received: vec![0; MAX_MESSAGE_LEN],
            wants_wakeup: true,
            wake_channel: Channel::new()?,
            has_wake_event: false,
            broken: Vec::new(),
            waiting_count: 0,
        })
    }

    /// Returns the channel whose event wakes a thread that begins to sleep although a ring has packets.
    pub(super) const fn wake_channel(&self) -> &Channel {
        &self.wake_channel
    }

    /// Consumes the event of the channel.
    pub(super) fn take_wake_event(&mut self) {
        self.has_wake_event = false;
        _ = self.wake_channel.take();
    }

    /// Opens the ring of the connection with this number, for packets from this source address.
    ///
    /// # Errors
    ///
    /// Returns `QuotaExceeded` if there are [`MAX_RINGS`], and the errors of [`Reader::open`].
    pub(super) fn open(
        &mut self,
        number: u64,
        token: Token,
        source: IpAddr,
        file: OwnedFd,
    ) -> io::Result<()> {
        if self.rings.len() >= MAX_RINGS {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let (reader, markers) = (Reader::open(file)?, Some(MarkerWait::default()));
        self.rings.push(Ring {
            number,
            token,
            source,
            reader,
            markers,
            awaits_wakeup: false,
            state: RingState::Open,
        });
        self.waiting_count += 1;
        Ok(())
    }

    /// Records the marker of a ring. Returns whether there is such a ring.
    #[cold]
    pub(super) fn take_marker(&mut self, token: Token) -> bool {
        let Some(ring) = self.rings.iter_mut().find(|ring| ring.token == token) else { return false };
        if let Some(markers) = &mut ring.markers {
            markers.record_marker();
        }
        true
    }

    /// Whether a ring is not read before its markers have arrived.
    pub(super) fn awaits_markers(&self) -> bool {
        self.waiting_count > 0 && self.waits().any(MarkerWait::has_count)
    }

    /// Records that the UDP socket had no datagrams.
    pub(super) fn record_empty_udp(&mut self, now: Instant) {
        for ring in &mut self.rings {
            if let Some(markers) = &mut ring.markers {
                markers.record_empty_udp(now);
            }
        }
    }

    /// Returns the time at which rings must be read that wait for markers.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.waiting_count == 0 { None } else { self.waits().filter_map(MarkerWait::deadline).min() }
    }

    fn waits(&self) -> impl Iterator<Item = &MarkerWait> {
        self.rings.iter().filter_map(|ring| ring.markers.as_ref())
    }

    /// Whether the connection with this number has a ring.
    pub(super) fn has_ring(&self, number: u64) -> bool {
        self.rings.iter().any(|ring| ring.number == number)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    /// Records that the connection with this number is closed. The packets in its ring are still received.
    pub(super) fn close(&mut self, number: u64) {
        for ring in self.rings.iter_mut().filter(|ring| ring.number == number) {
            ring.state = RingState::Closed;
            ring.reader.close();
        }
    }

    /// Records that the message of a wake-up was read from the connection with this number.
    pub(super) fn record_wakeup(&mut self, number: u64) {
        if let Some(ring) = self.rings.iter_mut().find(|ring| ring.number == number) {
            ring.awaits_wakeup = false;
        }
    }

    /// Removes and returns the number of a connection whose ring violates the format.
    pub(super) fn pop_broken(&mut self) -> Option<u64> {
        self.broken.pop()
    }

    /// Passes about `max` packets to `each`, and returns their number.
    #[inline]
    pub(super) fn receive(&mut self, max: usize, each: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        self.first_ring = if self.first_ring + 1 < self.rings.len() { self.first_ring + 1 } else { 0 };
        let mut count = self.read(max, each);
        if self.wants_wakeup && !self.rings.is_empty() {
            // Later packets wake the thread. Packets that are already there are read now.
            if self.request_wakeups() {
                count += self.read(max.saturating_sub(count), each);
            }
            self.wake_for_packets();
        }
        count
    }

    /// Sets whether a thread may sleep from now on.
    pub(super) fn set_wants_wakeup(&mut self, wanted: bool) {
        self.wants_wakeup = wanted;
        if wanted {
            _ = self.request_wakeups();
            self.wake_for_packets();
        } else {
            for ring in &mut self.rings {
                ring.reader.set_wants_wakeup(false);
                ring.awaits_wakeup = false;
            }
        }
    }

    /// Requests that packets wake the thread that sleeps. Returns whether a request is new, so that packets may be there
    /// already.
    fn request_wakeups(&mut self) -> bool {
        let mut requested = None;
        for ring in self.rings.iter_mut().filter(|ring| !ring.awaits_wakeup) {
            ring.reader.set_wants_wakeup(true);
            ring.awaits_wakeup = true;
            requested = Some(&ring.reader);
        }
        // One fence orders all requests.
        requested.map(Reader::wakeup_fence).is_some()
    }

    /// Wakes the thread that is about to sleep if a ring has packets.
    fn wake_for_packets(&mut self) {
        if !self.has_wake_event && self.rings.iter_mut().any(Ring::is_readable) {
            self.wake_channel.notify();
            self.has_wake_event = true;
        }
    }

    /// Reads the rings, passes about `max` packets to `each`, and returns their number.
    #[inline]
    fn read(&mut self, max: usize, each: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let Readers { rings, received, first_ring, waiting_count, .. } = self;
        let (mut count, mut has_ended) = (0, false);
        let first = (*first_ring).min(rings.len());
        let (before, after) = rings.split_at_mut(first);
        for ring in after.iter_mut().chain(before) {
            if ring.markers.is_some() {
                if !ring.is_after_markers(received) {
                    has_ended |= ring.is_over();
                    continue;
                }
                *waiting_count -= 1;
            }
            for _ in 0..MAX_RING_BATCH {
                if count >= max {
                    break;
                }
                let Ok(message) = ring.reader.read(received) else {
                    ring.state = RingState::Broken;
                    break;
                };
                match message.map(|length| Packets::parse(&received[..length])) {
                    Some(Some(packets)) if packets.source.ip() == ring.source => {
                        count += packets.pass_to(each);
                    }
                    Some(_) => ring.state = RingState::Broken,
                    None if ring.state == RingState::Closed => ring.state = RingState::Ended,
                    None => break,
                }
                if ring.is_over() {
                    break;
                }
            }
            has_ended |= ring.is_over();
        }
        if has_ended {
            self.remove_ended();
        }
        count
    }

    /// Removes the rings that are broken or have ended.
    #[cold]
    fn remove_ended(&mut self) {
        let Readers { rings, broken, .. } = self;
        rings.retain(|ring| {
            broken.extend((ring.state == RingState::Broken).then_some(ring.number));
            !ring.is_over()
        });
        self.waiting_count = self.waits().count();
    }
}

impl Ring {
    /// Whether the ring is not read any more.
    const fn is_over(&self) -> bool {
        matches!(self.state, RingState::Broken | RingState::Ended)
    }

    /// Whether the ring has a message that can be read now.
    fn is_readable(&mut self) -> bool {
        // The readiness of the socket, and the deadline, wake a thread when the markers arrive or are lost.
        !self.markers.is_some_and(|markers| markers.has_count()) && self.reader.is_readable()
    }

    /// Reads the number of markers, and returns whether the packets after it can be read. The wait is over then.
    #[cold]
    fn is_after_markers(&mut self, received: &mut [u8]) -> bool {
        let Some(markers) = &mut self.markers else { return true };
        if !markers.has_count() {
            match self.reader.read(received) {
                Ok(Some(length)) if let Ok(count) = received[..length].try_into() => {
                    markers.record_count(u32::from_be_bytes(count), Instant::now());
                }
                Ok(None) => {
                    if self.state == RingState::Closed {
                        self.state = RingState::Ended;
                    }
                    return false;
                }
                Ok(Some(_)) | Err(_) => {
                    self.state = RingState::Broken;
                    return false;
                }
            }
        }
        let is_over = markers.is_over(Instant::now());
        if is_over {
            self.markers = None;
        }
        is_over
    }
}

#[cfg(test)]
impl Readers {
    /// Discards the messages of the first ring, and requests wake-ups, as a thread that is about to sleep does.
    pub(super) fn read_and_prepare_sleep(&mut self) {
        while self.rings[0].reader.read(&mut self.received).unwrap().is_some() {}
        self.request_wakeups();
    }

    /// Returns the number of the connection of the first ring.
    pub(super) fn first_number(&self) -> u64 {
        self.rings[0].number
    }
}
