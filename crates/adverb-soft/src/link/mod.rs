//! Links: senders and receivers of packets.
//!
//! A [`Link`] sends and receives packets in batches, and is independent of queue pairs. [`UdpLink`] uses the kernel's
//! UDP sockets, and [`MemLink`] uses an in-memory [`Switch`]. The other types wrap links: [`Bundle`] combines several
//! links into one, [`FaultLink`] injects faults, and [`PcapLink`] records packets in a [`Capture`].

mod address_share;
mod bundle;
mod fault;
mod mem;
mod pcap;
mod readiness;
mod udp;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use adverb_proto::IcrcCheck;
use adverb_proto::types::TimestampSource;
use adverb_wire::cm::ServiceId;

pub use address_share::AddressShare;
pub use bundle::Bundle;
pub use fault::{FaultConfig, FaultCounts, FaultLink};
pub use mem::{MemLink, Switch, SwitchConfig};
pub use pcap::{Capture, PcapLink};
#[cfg(fuzzing)]
#[doc(hidden)]
pub use udp::fuzzing;
pub use udp::{IcmpError, Interface, PathSocket, UdpConfig, UdpLink, UdpStatistics};

/// The maximum number of packets in a GSO batch of [`UdpLink`]. Adverb's packets therefore have IPv4 IDs below this.
const MAX_GSO_PACKETS: usize = 64;

/// The ICRC check for packets that only Adverb sends, with a strength of 26 bits.
const STRICT_ICRC: IcrcCheck = IcrcCheck::IpIdBelow(MAX_GSO_PACKETS as u16);

/// A packet to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxPacket<'a> {
    /// The source address and port. The port must be one that [`Link::source_port`] or [`Link::open_source_port`]
    /// returned, because the ICRC covers it.
    pub source: SocketAddr,
    /// The destination address and port.
    pub destination: SocketAddr,
    /// The traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// The hop limit (TTL). 0 means the operating system's default.
    pub hop_limit: u8,
    /// The IPv6 flow label (20 bits), or 0 for none.
    pub flow_label: u32,
    /// The payload of the UDP datagram, from the base transport header to the ICRC. The ICRC is computed for IPv4 ID 0.
    pub bytes: &'a [u8],
}

/// A received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxPacket<'a> {
    /// The source address and port.
    pub source: SocketAddr,
    /// The destination address and port.
    pub destination: SocketAddr,
    /// The traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// The remaining hop limit (TTL), or `None` if the link can't determine it.
    pub hop_limit: Option<u8>,
    /// The IPv6 flow label, or 0 for none.
    pub flow_label: u32,
    /// The ICRC check that the receiver must perform.
    pub icrc: IcrcCheck,
    /// The time at which the packet was received, if [timestamps](Link::set_timestamps) are enabled and the link knows
    /// the time.
    pub received_at: Option<Instant>,
    /// The payload of the UDP datagram, from the base transport header to the ICRC. The bytes are untrusted: any host
    /// may have sent them.
    pub bytes: &'a [u8],
}

impl RxPacket<'_> {
    /// Whether a congested switch marked the packet (RFC 3168: both ECN bits are 1).
    pub const fn is_ecn_marked(&self) -> bool {
        self.traffic_class & 0b11 == 0b11
    }
}

/// The result of [`Link::send_timed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimedSend {
    /// The link did not accept the packet. The caller may retry it.
    Refused,
    /// The link accepted the packet. The kernel sent it at the given time, if the link knows the time.
    Accepted(Option<Instant>),
}

impl TimedSend {
    /// Returns the result of sending one packet without a time, if the link accepted `count` packets.
    const fn untimed(count: usize) -> TimedSend {
        if count == 0 { TimedSend::Refused } else { TimedSend::Accepted(None) }
    }
}

/// A sender and receiver of packets: over sockets, in memory, or as a wrapper around another link.
///
/// A link may lose, duplicate and reorder packets, as any network may. The loss of a packet is never an error. An error
/// means that the link itself no longer works.
pub trait Link: Send {
    /// Sends packets in order without blocking, and returns the number of accepted packets. If some packets were not
    /// accepted, the caller may retry them after a receive or a short delay.
    ///
    /// A packet that can't be sent is accepted, dropped and [counted](Link::unsendable_packets), regardless of its
    /// addresses, length and ECN bits, and of the error that the operating system returns.
    ///
    /// # Errors
    ///
    /// Returns an error if the link no longer works and no packet was accepted.
    fn send(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize>;

    /// Sends one packet like [`send`](Link::send), by itself, and requests the time at which the operating system passed
    /// it to the network interface. A link that can't get the time sends the packet without it.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`send`](Link::send).
    fn send_timed(&mut self, packet: &TxPacket<'_>) -> io::Result<TimedSend> {
        Ok(TimedSend::untimed(self.send(std::slice::from_ref(packet))?))
    }

    /// Returns the number of packets that were accepted but could not be sent.
    fn unsendable_packets(&self) -> u64 {
        0
    }

    /// Receives packets without blocking, and calls `each` with every packet. `max`, at least 1, is the maximum number of
    /// packets; a link that receives batches may exceed it by a batch.
    ///
    /// The result is the number of packets received, including packets that the link dropped. If the result isn't 0, or
    /// [wake interest](Link::set_wake_interest) is disabled, more packets may be available. If the link still holds
    /// packets that exceeded `max`, [`deadline`](Link::deadline) returns the current time.
    ///
    /// # Errors
    ///
    /// Returns an error if the link no longer works.
    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&RxPacket<'_>)) -> io::Result<usize>;

    /// Returns a file descriptor that becomes readable when packets arrive after [`receive`](Link::receive) returned 0,
    /// while [wake interest](Link::set_wake_interest) is enabled. Returns `None` if the link has no descriptor; the
    /// caller must then call `receive` regularly.
    fn readiness_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Sets whether a thread may sleep on the [`readiness_fd`](Link::readiness_fd) descriptor from now on. Wake interest is
    /// initially enabled. While it is disabled, the descriptor needn't become readable, which saves up to one system
    /// call per packet.
    ///
    /// # Errors
    ///
    /// Returns an error if the link no longer works.
    fn set_wake_interest(&mut self, enabled: bool) -> io::Result<()> {
        _ = enabled;
        Ok(())
    }

    /// Sets whether received packets have the time at which they were received ([`RxPacket::received_at`]). Timestamps are
    /// initially disabled. A link without timestamps ignores the call.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system can't enable timestamps.
    fn set_timestamps(&mut self, enabled: bool) -> io::Result<()> {
        _ = enabled;
        Ok(())
    }

    /// Returns the source of the [times](RxPacket::received_at) of received packets.
    fn timestamp_source(&self) -> TimestampSource {
        TimestampSource::Process
    }

    /// Returns the time by which the caller must call [`receive`](Link::receive) even if the descriptor isn't readable:
    /// a wrapper may delay packets, and a link may still hold packets that exceeded `max` in the last call. Returns
    /// `None` if the link has no deadline.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Returns the source port for a flow from `local` whose preferred port is `preferred`. A link may have fewer ports
    /// than flows. The result is the same for the same arguments, and the port stays open as long as the link.
    fn source_port(&self, local: IpAddr, preferred: u16) -> u16 {
        _ = local;
        preferred
    }

    /// Opens the source port `preferred` for a flow from `local`, and returns it. If the link can't open the port, this
    /// method returns the same port as [`source_port`](Link::source_port). The returned port stays open until
    /// [`close_source_port`](Link::close_source_port) was called once for each call of this method.
    fn open_source_port(&mut self, local: IpAddr, preferred: u16) -> u16 {
        self.source_port(local, preferred)
    }

    /// Ends one use of a port that [`open_source_port`](Link::open_source_port) returned.
    fn close_source_port(&mut self, local: IpAddr, port: u16) {
        _ = (local, port);
    }

    /// Returns a socket that sends packets from `local` and the source port `port` with any hop limit, and receives ICMP
    /// messages about packets from this port, to trace the path of the port's packets. If the link can open the port,
    /// the socket is the link's own, so the link's packets take the same path. While it exists, the link may miss
    /// [send times](Link::send_timed) of packets from this port.
    ///
    /// # Errors
    ///
    /// - Returns `Unsupported` if the link doesn't use sockets, or not for this address.
    /// - Returns `AddrInUse` if another program uses the port.
    fn path_socket(&mut self, local: IpAddr, port: u16) -> io::Result<PathSocket> {
        _ = (local, port);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the size of the receive buffer in bytes, or `None` if it isn't limited. Packets that arrive while the
    /// buffer is full are lost.
    fn receive_buffer_bytes(&self) -> Option<usize> {
        None
    }

    /// Returns the link's share of the queue pair numbers and communication IDs, if other processes have links at the same
    /// address. Returns `None` if all packets to the address are for this link.
    fn address_share(&self) -> Option<AddressShare> {
        None
    }

    /// Claims a service at a [shared](Link::address_share) address: the link receives the connection requests and queries
    /// for the service. A link whose address isn't shared ignores the call.
    ///
    /// # Errors
    ///
    /// Returns `AddrInUse` if a link of another process has claimed the service.
    fn claim_service(&mut self, service: ServiceId) -> io::Result<()> {
        _ = service;
        Ok(())
    }

    /// Ends a claim of a service. The link keeps the service until all its [claims](Link::claim_service) have ended.
    fn release_service(&mut self, service: ServiceId) {
        _ = service;
    }

    /// Joins a multicast group: the link receives the group's packets until it [leaves](Link::leave) the group. The
    /// link doesn't receive its own packets to the group. A link without multicast support, or of the other address
    /// family, ignores the call.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system can't join the group.
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        _ = group;
        Ok(())
    }

    /// Leaves a multicast group that was [joined](Link::join).
    fn leave(&mut self, group: IpAddr) {
        _ = group;
    }
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn send(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize> {
        (**self).send(packets)
    }

    fn send_timed(&mut self, packet: &TxPacket<'_>) -> io::Result<TimedSend> {
        (**self).send_timed(packet)
    }

    fn unsendable_packets(&self) -> u64 {
        (**self).unsendable_packets()
    }

    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&RxPacket<'_>)) -> io::Result<usize> {
        (**self).receive(max, each)
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).readiness_fd()
    }

    fn set_wake_interest(&mut self, enabled: bool) -> io::Result<()> {
        (**self).set_wake_interest(enabled)
    }

    fn set_timestamps(&mut self, enabled: bool) -> io::Result<()> {
        (**self).set_timestamps(enabled)
    }

    fn timestamp_source(&self) -> TimestampSource {
        (**self).timestamp_source()
    }

    fn deadline(&self) -> Option<Instant> {
        (**self).deadline()
    }

    fn source_port(&self, local: IpAddr, preferred: u16) -> u16 {
        (**self).source_port(local, preferred)
    }

    fn open_source_port(&mut self, local: IpAddr, preferred: u16) -> u16 {
        (**self).open_source_port(local, preferred)
    }

    fn close_source_port(&mut self, local: IpAddr, port: u16) {
        (**self).close_source_port(local, port);
    }

    fn path_socket(&mut self, local: IpAddr, port: u16) -> io::Result<PathSocket> {
        (**self).path_socket(local, port)
    }

    fn receive_buffer_bytes(&self) -> Option<usize> {
        (**self).receive_buffer_bytes()
    }

    fn address_share(&self) -> Option<AddressShare> {
        (**self).address_share()
    }

    fn claim_service(&mut self, service: ServiceId) -> io::Result<()> {
        (**self).claim_service(service)
    }

    fn release_service(&mut self, service: ServiceId) {
        (**self).release_service(service);
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        (**self).join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        (**self).leave(group);
    }
}
