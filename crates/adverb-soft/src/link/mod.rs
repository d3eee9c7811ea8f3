//! Links: senders and receivers of packets.
//!
//! A [`Link`] sends and receives packets in batches, and is independent of queue pairs. [`UdpLink`] uses the kernel's
//! UDP sockets, and [`MemLink`] uses an in-memory [`Switch`]. The other types wrap links: [`Bundle`] combines several
//! links into one, [`FaultLink`] injects faults, and [`PcapLink`] records packets in a [`Capture`].

mod address_share;
mod bundle;
mod capabilities;
mod datagram;
mod fault;
mod local;
mod mem;
mod pcap;
mod readiness;
mod udp;

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use adverb_proto::IcrcCheck;

pub use address_share::AddressShare;
pub use bundle::Bundle;
pub use capabilities::{AddressSharing, MulticastGroups, ReceiveTimestamps, SourcePorts};
pub use fault::{FaultConfig, FaultCounts, FaultLink};
pub use local::RingPeers;
#[cfg(fuzzing)]
#[doc(hidden)]
pub use local::fuzzing;
pub use mem::{MemLink, Switch, SwitchConfig};
pub use pcap::{Capture, PcapLink};
pub use udp::{IcmpError, Interface, PathSocket, UdpConfig, UdpLink, UdpStatistics};

/// The maximum number of packets in a GSO batch of [`UdpLink`]. Adverb's packets therefore have IPv4 IDs below this.
const MAX_GSO_PACKETS: usize = 64;

/// The ICRC check for packets that only Adverb sends, with a strength of 26 bits.
const STRICT_ICRC: IcrcCheck = IcrcCheck::IpIdBelow(MAX_GSO_PACKETS as u16);

/// A packet to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxPacket<'a> {
    /// The source address and port. The port must be one that [`SourcePorts::source_port`] or
    /// [`SourcePorts::open_source_port`] returned if the link has [source ports](Link::source_ports), because the ICRC
    /// covers it.
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
    /// The time at which the packet was received, if [timestamps](ReceiveTimestamps::set_timestamps) are enabled and
    /// the link knows the time.
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
    pub const fn untimed(count: usize) -> TimedSend {
        if count == 0 { TimedSend::Refused } else { TimedSend::Accepted(None) }
    }
}

/// A sender and receiver of packets: over sockets, in memory, or as a wrapper around another link.
///
/// A link may lose, duplicate and reorder packets, as any network may. The loss of a packet is never an error. An error
/// means that the link itself no longer works.
///
/// Every link sends and receives packets. A link may also offer capabilities: [`source_ports`](Link::source_ports),
/// [`multicast_groups`](Link::multicast_groups), [`receive_timestamps`](Link::receive_timestamps) and
/// [`address_sharing`](Link::address_sharing). No method has a default, so that each wrapper decides about each of them.
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

    /// Whether this packet, which [`send`](Link::send) has just not accepted, waits only for its receiver to read packets, so
    /// that the link may accept packets to other receivers before it.
    fn is_receiver_full(&self, packet: &TxPacket<'_>) -> bool;

    /// Sends one packet like [`send`](Link::send), by itself, and requests the time at which the operating system passed
    /// it to the network interface. A link that can't get the time sends the packet without it ([`TimedSend::untimed`]).
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`send`](Link::send).
    fn send_timed(&mut self, packet: &TxPacket<'_>) -> io::Result<TimedSend>;

    /// Returns the number of packets that were accepted but could not be sent.
    fn unsendable_packets(&self) -> u64;

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

    /// Returns the size of the receive buffer in bytes, or `None` if it isn't limited. Packets that arrive while the
    /// buffer is full are lost.
    fn receive_buffer_bytes(&self) -> Option<usize>;

    /// Returns a file descriptor that becomes readable when packets arrive after [`receive`](Link::receive) returned 0,
    /// while [wake interest](Link::set_wake_interest) is enabled. Returns `None` if the link has no descriptor; the
    /// caller must then call `receive` regularly.
    fn readiness_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Sets whether a thread may sleep on the [`readiness_fd`](Link::readiness_fd) descriptor from now on. Wake interest is
    /// initially enabled. While it is disabled, the descriptor needn't become readable, which saves up to one system
    /// call per packet. A link whose descriptor becomes readable anyway ignores the call.
    ///
    /// # Errors
    ///
    /// Returns an error if the link no longer works.
    fn set_wake_interest(&mut self, enabled: bool) -> io::Result<()>;

    /// Returns the time by which the caller must call [`receive`](Link::receive) even if the descriptor isn't readable:
    /// a wrapper may delay packets, and a link may still hold packets that exceeded `max` in the last call. Returns
    /// `None` if the link has no deadline.
    fn deadline(&self) -> Option<Instant>;

    /// Returns the link's source ports, or `None` if it sends packets from any port.
    fn source_ports(&mut self) -> Option<&mut dyn SourcePorts>;

    /// Returns the link's multicast groups, or `None` if it receives no packets to groups.
    fn multicast_groups(&mut self) -> Option<&mut dyn MulticastGroups>;

    /// Returns the link's receive times, or `None` if received packets have no times.
    fn receive_timestamps(&mut self) -> Option<&mut dyn ReceiveTimestamps>;

    /// Returns the link's share of its address, or `None` if all packets to the address are for this link.
    fn address_sharing(&mut self) -> Option<&mut dyn AddressSharing>;
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn send(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize> {
        (**self).send(packets)
    }

    fn is_receiver_full(&self, packet: &TxPacket<'_>) -> bool {
        (**self).is_receiver_full(packet)
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

    fn receive_buffer_bytes(&self) -> Option<usize> {
        (**self).receive_buffer_bytes()
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).readiness_fd()
    }

    fn set_wake_interest(&mut self, enabled: bool) -> io::Result<()> {
        (**self).set_wake_interest(enabled)
    }

    fn deadline(&self) -> Option<Instant> {
        (**self).deadline()
    }

    fn source_ports(&mut self) -> Option<&mut dyn SourcePorts> {
        (**self).source_ports()
    }

    fn multicast_groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        (**self).multicast_groups()
    }

    fn receive_timestamps(&mut self) -> Option<&mut dyn ReceiveTimestamps> {
        (**self).receive_timestamps()
    }

    fn address_sharing(&mut self) -> Option<&mut dyn AddressSharing> {
        (**self).address_sharing()
    }
}
