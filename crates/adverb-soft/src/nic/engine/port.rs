//! The NIC's port: its link, and the packets that wait for it.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use adverb_proto::types::TimestampSource;
use adverb_proto::{Device, EventSink, Path, Time, Transmit};
use adverb_wire::cm::ServiceId;

use super::clock::Clock;
use crate::link::{
    AddressSharing, Link, MulticastGroups, PathSocket, ReceiveTimestamps, RxPacket, SourcePorts,
};
use crate::memory::RegisteredMemory;
use crate::nic::transmit_queue::{QueuedPacket, TransmitQueue};

/// The NIC's port. Without a link, the NIC sends only to itself.
pub(in crate::nic) struct Port {
    link: Option<Box<dyn Link>>,
    queue: TransmitQueue,
}

/// The delay before queued packets are passed to a full link again.
const RETRY_DELAY: Duration = Duration::from_micros(50);

/// The ECN bits of a sender that reacts to congestion (RFC 3168: ECT(0)).
const ECN_CAPABLE: u8 = 0b10;

impl Port {
    pub(super) fn new(link: Option<Box<dyn Link>>) -> Port {
        Port { link, queue: TransmitQueue::default() }
    }

    #[inline]
    pub(super) const fn has_link(&self) -> bool {
        self.link.is_some()
    }

    /// Drops the link, which no longer works.
    pub(super) fn drop_link(&mut self) {
        self.link = None;
    }

    /// Returns the time at which the port has work again without a packet or a caller, or [`Time::MAX`].
    pub(super) fn deadline(&self, clock: &Clock) -> Time {
        let link_deadline = self.link.as_ref().and_then(|link| link.deadline());
        let link_deadline = link_deadline.map_or(Time::MAX, |deadline| clock.time_of(deadline));
        // Packets that the link did not accept are retried soon.
        let retry = if self.has_queued_packets() { clock.now() + RETRY_DELAY } else { Time::MAX };
        link_deadline.min(retry)
    }

    pub(super) fn set_wake_interest(&mut self, enabled: bool) -> io::Result<()> {
        self.link.as_mut().map_or(Ok(()), |link| link.set_wake_interest(enabled))
    }

    /// Returns the number of packets that the link could not send.
    pub(super) fn unsendable_packets(&self) -> u64 {
        self.link.as_ref().map_or(0, |link| link.unsendable_packets())
    }

    /// Returns the path of packets between two addresses, from the source port that the link has for a flow with this
    /// preferred port.
    pub(in crate::nic) fn path(
        &mut self,
        local: IpAddr,
        remote: IpAddr,
        preferred_port: u16,
    ) -> Option<Path> {
        let port =
            self.source_ports().map_or(preferred_port, |ports| ports.source_port(local, preferred_port));
        Path::new(local, remote, port)
    }

    /// Returns the path of packets between two addresses from this source port, which the link opens if it can.
    pub(in crate::nic) fn open_path(
        &mut self,
        local: IpAddr,
        remote: IpAddr,
        preferred_port: u16,
    ) -> Option<Path> {
        // Without a path, no port is opened.
        let path = Path::new(local, remote, preferred_port)?;
        let Some(ports) = self.source_ports() else { return Some(path) };
        Path::new(local, remote, ports.open_source_port(local, preferred_port))
    }

    /// Ends the use of a path that was [opened](Port::open_path).
    pub(in crate::nic) fn close_path(&mut self, path: &Path) {
        if let Some(ports) = self.source_ports() {
            ports.close_source_port(path.source().ip(), path.source_port());
        }
    }

    /// Returns a socket that traces the path of packets from a source port.
    pub(in crate::nic) fn path_socket(&mut self, local: IpAddr, port: u16) -> io::Result<PathSocket> {
        self.source_ports().ok_or(io::ErrorKind::Unsupported)?.path_socket(local, port)
    }

    fn source_ports(&mut self) -> Option<&mut dyn SourcePorts> {
        self.link.as_mut()?.source_ports()
    }

    /// Claims a service at the link's address, if other processes share the address.
    pub(in crate::nic) fn claim_service(&mut self, service: ServiceId) -> io::Result<()> {
        self.address_sharing().map_or(Ok(()), |sharing| sharing.claim_service(service))
    }

    /// Ends a claim of a service.
    pub(in crate::nic) fn release_service(&mut self, service: ServiceId) {
        if let Some(sharing) = self.address_sharing() {
            sharing.release_service(service);
        }
    }

    fn address_sharing(&mut self) -> Option<&mut dyn AddressSharing> {
        self.link.as_mut()?.address_sharing()
    }

    /// Makes the link join a multicast group, if it has groups.
    pub(super) fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.multicast_groups().map_or(Ok(()), |groups| groups.join(group))
    }

    pub(super) fn leave(&mut self, group: IpAddr) {
        if let Some(groups) = self.multicast_groups() {
            groups.leave(group);
        }
    }

    fn multicast_groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        self.link.as_mut()?.multicast_groups()
    }

    /// Makes the link stamp packets, and returns the source of its receive times, or `None` without such a link.
    pub(super) fn start_timestamps(&mut self) -> io::Result<Option<TimestampSource>> {
        self.receive_timestamps().map(|timestamps| timestamps.set_timestamps(true)).transpose()
    }

    /// Ends the stamping of packets.
    pub(super) fn stop_timestamps(&mut self) {
        if let Some(timestamps) = self.receive_timestamps() {
            // If the link continues to stamp packets, the timestamps are ignored.
            _ = timestamps.set_timestamps(false);
        }
    }

    fn receive_timestamps(&mut self) -> Option<&mut dyn ReceiveTimestamps> {
        self.link.as_mut()?.receive_timestamps()
    }

    /// Passes a batch of about `max` packets to `each`, and returns their number.
    #[inline]
    pub(super) fn receive(&mut self, max: usize, each: &mut dyn FnMut(&RxPacket<'_>)) -> io::Result<usize> {
        match &mut self.link {
            Some(link) => link.receive(max, each),
            None => Ok(0),
        }
    }

    /// Whether packets wait for the link to accept them.
    #[inline]
    pub(super) fn has_queued_packets(&self) -> bool {
        !self.queue.is_empty() || self.has_blocked()
    }

    /// Whether no packet waits for the link, except those whose receivers must read others first.
    #[inline]
    pub(super) fn is_queue_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether packets wait whose receivers must read others first.
    #[inline]
    pub(super) const fn has_blocked(&self) -> bool {
        self.queue.has_blocked()
    }

    /// Passes packets to the link whose receivers had to read others first. Their queue pairs are paused until the link has
    /// accepted them.
    #[cold]
    pub(super) fn retry_blocked(&mut self, now: Time, device: &mut Device<impl EventSink>) -> io::Result<()> {
        let Some(link) = &mut self.link else { return Ok(()) };
        self.queue.take_newly_blocked().into_iter().for_each(|qpn| device.pause_qp(qpn));
        self.queue.retry_blocked(link, |qpn| device.resume_qp(now, qpn))
    }

    /// Whether the link must accept packets before more are queued.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.queue.is_full()
    }

    /// Queues a packet, and returns the position of its bytes. If its memory can't be read, the packet is lost.
    #[inline]
    pub(super) fn queue(&mut self, transmit: &Transmit<'_>, memory: &RegisteredMemory) -> Option<usize> {
        let start = self.queue.bytes.len();
        transmit.write_to(memory, 0, &mut self.queue.bytes).ok()?;
        let route = transmit.path.route();
        let ecn = if transmit.ecn_capable { ECN_CAPABLE } else { 0 };
        self.queue.push(QueuedPacket {
            qpn: transmit.qpn,
            source: transmit.path.source(),
            destination: transmit.path.destination(),
            traffic_class: route.traffic_class | ecn,
            hop_limit: route.hop_limit.unwrap_or(0),
            flow_label: route.flow_label,
            bytes: start..self.queue.bytes.len(),
        });
        Some(start)
    }

    /// Returns the bytes of the last packet that was queued, at the position that [`queue`](Port::queue) returned.
    pub(super) fn queued_bytes(&self, start: usize) -> &[u8] {
        &self.queue.bytes[start..]
    }

    /// Passes queued packets to the link.
    #[inline]
    pub(super) fn send(&mut self) -> io::Result<()> {
        match self.link.as_mut() {
            Some(link) if !self.queue.is_empty() => self.queue.send_to(link),
            _ => Ok(()),
        }
    }

    /// Passes queued packets to the link like [`send`](Port::send). If there is one packet and the link accepts it,
    /// returns the time at which the kernel sent it, if the link knows the time.
    pub(super) fn send_timed(&mut self) -> io::Result<Option<Instant>> {
        self.link.as_mut().map_or(Ok(None), |link| self.queue.send_timed_to(link))
    }
}
