//! The capabilities that a link may offer.
//!
//! No packet passes through a capability: packets are sent and received with the methods of [`Link`](super::Link), so a
//! wrapper that acts on packets can return the capabilities of the wrapped link.

use std::io;
use std::net::IpAddr;

use adverb_proto::types::TimestampSource;
use adverb_wire::cm::ServiceId;

use super::{AddressShare, PathSocket};

/// The source ports of a link that determines them ([`Link::source_ports`](super::Link::source_ports)).
pub trait SourcePorts {
    /// Returns the source port for a flow from `local` whose preferred port is `preferred`. A link may have fewer ports
    /// than flows. The result is the same for the same arguments, and the port stays open as long as the link.
    fn source_port(&mut self, local: IpAddr, preferred: u16) -> u16;

    /// Opens the source port `preferred` for a flow from `local`, and returns it. If the link can't open the port, this
    /// method returns the same port as [`source_port`](SourcePorts::source_port). The returned port stays open until
    /// [`close_source_port`](SourcePorts::close_source_port) was called once for each call of this method.
    fn open_source_port(&mut self, local: IpAddr, preferred: u16) -> u16;

    /// Ends one use of a port that [`open_source_port`](SourcePorts::open_source_port) returned.
    fn close_source_port(&mut self, local: IpAddr, port: u16);

    /// Returns a socket that sends packets from `local` and the source port `port` with any hop limit, and receives ICMP
    /// messages about packets from this port, to trace the path of the port's packets. If the link can open the port,
    /// the socket is the link's own, so the link's packets take the same path. While it exists, the link may miss
    /// [send times](super::Link::send_timed) of packets from this port.
    ///
    /// # Errors
    ///
    /// - Returns `Unsupported` if the link doesn't use sockets for this address.
    /// - Returns `AddrInUse` if another program uses the port.
    fn path_socket(&mut self, local: IpAddr, port: u16) -> io::Result<PathSocket>;
}

/// The multicast groups of a link ([`Link::multicast_groups`](super::Link::multicast_groups)).
pub trait MulticastGroups {
    /// Joins a multicast group: the link receives the group's packets until it [leaves](MulticastGroups::leave) the
    /// group. The link doesn't receive its own packets to the group. A link of the other address family ignores the
    /// call.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system can't join the group.
    fn join(&mut self, group: IpAddr) -> io::Result<()>;

    /// Leaves a multicast group that was [joined](MulticastGroups::join).
    fn leave(&mut self, group: IpAddr);
}

/// The receive times of a link ([`Link::receive_timestamps`](super::Link::receive_timestamps)).
pub trait ReceiveTimestamps {
    /// Sets whether received packets have the time at which they were received
    /// ([`RxPacket::received_at`](super::RxPacket::received_at)), and returns the source of these times. Timestamps are
    /// initially disabled.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system can't enable timestamps.
    fn set_timestamps(&mut self, enabled: bool) -> io::Result<TimestampSource>;
}

/// The share of a link whose address other processes share ([`Link::address_sharing`](super::Link::address_sharing)).
pub trait AddressSharing {
    /// Returns the link's share of the queue pair numbers and communication IDs.
    fn address_share(&self) -> AddressShare;

    /// Claims a service at the address: the link receives the connection requests and queries for the service.
    ///
    /// # Errors
    ///
    /// Returns `AddrInUse` if a link of another process has claimed the service.
    fn claim_service(&mut self, service: ServiceId) -> io::Result<()>;

    /// Ends a claim of a service. The link keeps the service until all its [claims](AddressSharing::claim_service) have
    /// ended.
    fn release_service(&mut self, service: ServiceId);
}
