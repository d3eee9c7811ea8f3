//! The addresses of packets, sent and received.

use core::net::{IpAddr, SocketAddr};

use adverb_wire::{Flow, Packet, Qpn};

use crate::Timestamp;
use crate::mutation::mutant;
use crate::types::Gid;

/// The source and destination addresses of the packets of a connection or a datagram, and other fields of their IP
/// header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    source: SocketAddr,
    destination: SocketAddr,
    flow: Flow,
    route: Route,
}

/// The fields of the IP header that routers use besides the addresses. The ICRC does not cover them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Route {
    /// The traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// The flow label of IPv6, 20 bits.
    pub flow_label: u32,
    /// The hop limit (IPv6) or time to live (IPv4). `None` means the operating system's default.
    pub hop_limit: Option<u8>,
}

impl Path {
    /// Returns the path from `local` to `remote`, or `None` if one is IPv4 and the other IPv6. Either address can be a
    /// GID that [carries a UDP port](Gid::udp_addr). Packets are then sent from that port, or to that port. Otherwise
    /// they are sent from `source_port`, and to port 4791.
    ///
    /// All packets of a connection have the same UDP source port, so that they take the same route through a fabric
    /// that hashes flows (Annex A17.9).
    pub fn new(local: IpAddr, remote: IpAddr, source_port: u16) -> Option<Path> {
        let (mut source, destination) = (Gid::from(local).udp_addr(), Gid::from(remote).udp_addr());
        if !Gid::UDP_PORTS.contains(&source.port()) {
            source.set_port(source_port);
        }
        let flow = Flow::new(source, destination)?;
        Some(Path { source, destination, flow, route: Route::default() })
    }

    /// Returns the same path with these fields of the IP header.
    #[must_use]
    pub const fn with_route(mut self, route: Route) -> Path {
        self.route = route;
        self
    }

    /// Returns the fields of the IP header that routers use.
    pub const fn route(&self) -> Route {
        self.route
    }

    /// Returns the UDP source port for a connection between two queue pairs without a flow label: a hash of their
    /// numbers, in the range of 2¹⁴ ports that starts at 0xC000 (Annex A17.9; `rdma_get_udp_sport` in Linux's
    /// `include/rdma/ib_verbs.h`).
    ///
    /// ```
    /// use adverb_proto::Path;
    /// use adverb_proto::types::Qpn;
    ///
    /// let port = Path::source_port_between(Qpn::truncate(0x11), Qpn::truncate(0x2345));
    /// assert!(port >= 0xc000);
    /// ```
    pub const fn source_port_between(local: Qpn, remote: Qpn) -> u16 {
        let product = local.get() as u64 * remote.get() as u64;
        let folded = product ^ product >> 20 ^ product >> 40;
        Path::source_port_of_label((folded & 0xf_ffff) as u32)
    }

    /// Returns the UDP source port for a flow label, of which 20 bits count. Linux's drivers use the same mapping
    /// (`rdma_flow_label_to_udp_sport` in `include/rdma/ib_verbs.h`, `ibv_flow_label_to_udp_sport` of rdma-core).
    /// Labels that differ only in their lower 14 bits have different ports.
    ///
    /// ```
    /// use adverb_proto::Path;
    ///
    /// assert_eq!(Path::source_port_of_label(0x123), 0xc123);
    /// assert_eq!(Path::source_port_of_label(0x1_2345), 0xe341);
    /// ```
    pub const fn source_port_of_label(flow_label: u32) -> u16 {
        let folded = flow_label & 0x3fff ^ (flow_label & 0xf_c000) >> 14;
        0xc000 | folded as u16
    }

    /// Returns the local address, which can be a GID that carries a UDP port.
    pub fn local(&self) -> IpAddr {
        Gid::from(self.source).ip()
    }

    /// Returns the peer's address, which can be a GID that carries a UDP port.
    pub fn remote(&self) -> IpAddr {
        Gid::from(self.destination).ip()
    }

    /// Returns the address and UDP port that packets are sent from.
    pub const fn source(&self) -> SocketAddr {
        self.source
    }

    /// Returns the address and UDP port that packets are sent to.
    pub const fn destination(&self) -> SocketAddr {
        self.destination
    }

    /// Returns the UDP port that packets are sent from.
    pub const fn source_port(&self) -> u16 {
        self.source.port()
    }

    /// Returns the flow for computing the ICRCs of sent packets.
    pub const fn flow(&self) -> &Flow {
        &self.flow
    }
}

/// An address handle of a datagram, which contains the datagram's [`Path`].
///
/// Requests on connections need no address handle: their handle type is `()`.
pub trait AddressVector {
    /// Returns the path, if the handle has one.
    fn path(&self) -> Option<&Path>;
}

impl AddressVector for () {
    fn path(&self) -> Option<&Path> {
        None
    }
}

impl AddressVector for Path {
    fn path(&self) -> Option<&Path> {
        Some(self)
    }
}

impl<T: AddressVector + ?Sized> AddressVector for &T {
    fn path(&self) -> Option<&Path> {
        (**self).path()
    }
}

/// The metadata of a received packet: fields of its IP and UDP headers, the time of its receipt, and the kind of ICRC
/// check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxMeta {
    /// The address and port of the sender.
    pub source: SocketAddr,
    /// The address and port that the packet was sent to.
    pub destination: SocketAddr,
    /// The kind of ICRC check that the device performs.
    pub icrc: IcrcCheck,
    /// Whether a congested switch marked the packet: both ECN bits of the IP header are 1.
    pub is_ecn_marked: bool,
    /// The other fields of the IP header, as far as the link knows them. The device copies them into the GRH of a
    /// received datagram.
    pub route: Route,
    /// The time at which the packet was received, which is the timestamp of the requests that the packet completes.
    /// `None` means the time at which the device handles the packet.
    pub received_at: Option<Timestamp>,
}

/// The kind of ICRC check. The ICRC covers the IPv4 header's identification (IP ID). IPv6 has no IP ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcrcCheck {
    /// The IP ID is known.
    IpId(u16),
    /// The IP ID is unknown, and must be below this limit, as in packets from Adverb's UDP sockets. The check recovers
    /// the IP ID from the ICRC.
    IpIdBelow(u16),
    /// The IP ID is unknown, as in packets from any UDP socket. The check recovers the IP ID from the ICRC, and accepts
    /// any value.
    AnyIpId,
    /// The device performs no check: the link has checked the ICRC, or the packet never left this host's memory.
    Trusted,
}

/// The ICRC checker of received packets. It caches the flow of the last addresses, because a connection has only one
/// peer, and consecutive datagrams often have the same sender.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IcrcChecker {
    cached: Option<(SocketAddr, SocketAddr, Flow)>,
}

impl IcrcChecker {
    /// Whether the ICRC of a packet is correct (vol. 1, 7.8.1 and Annex A17.3; `rxe_icrc.c`).
    #[inline]
    pub(crate) fn is_intact(&mut self, rx_meta: &RxMeta, packet: &Packet<'_>) -> bool {
        let is_trusted = rx_meta.icrc == IcrcCheck::Trusted || mutant!(IgnoreIcrc);
        if is_trusted {
            return true;
        }
        let &RxMeta { source, destination, icrc, .. } = rx_meta;
        let flow = match self.cached {
            Some((from, to, flow)) if from == source && to == destination => flow,
            _ => {
                let Some(flow) = Flow::new(source, destination) else { return false };
                self.cached = Some((source, destination, flow));
                flow
            }
        };
        match icrc {
            IcrcCheck::IpId(ip_id) => flow.verify(packet, ip_id).is_ok(),
            IcrcCheck::IpIdBelow(end) => flow.recover_ip_id(packet).is_ok_and(|found| found < end),
            IcrcCheck::AnyIpId => flow.recover_ip_id(packet).is_ok(),
            IcrcCheck::Trusted => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_are_distributed_and_at_least_0xc000() {
        let mut seen = std::collections::HashSet::new();
        for local in 2..200 {
            for remote in 2..200 {
                let port =
                    Path::source_port_between(Qpn::truncate(local * 0x1357), Qpn::truncate(remote * 0x2468));
                assert!(port >= 0xc000);
                seen.insert(port);
            }
        }
        assert!(seen.len() > 5000, "{}", seen.len());
    }

    #[test]
    fn source_ports_of_flow_labels_match_linux() {
        // The expected ports are results of `ibv_flow_label_to_udp_sport` in rdma-core's `verbs.h`.
        let ports = [
            (0x0_0000, 0xc000),
            (0x0_0001, 0xc001),
            (0x0_3fff, 0xffff),
            (0x0_4000, 0xc001),
            (0x1_2345, 0xe341),
            (0xf_c000, 0xc03f),
            (0xf_ffff, 0xffc0),
            (0xfff0_0001, 0xc001),
        ];
        for (label, port) in ports {
            assert_eq!(Path::source_port_of_label(label), port, "{label:#x}");
        }
    }

    #[test]
    fn path_between_two_address_families_is_rejected() {
        let (v4, v6) = ("10.0.0.1".parse().unwrap(), "fd77::1".parse().unwrap());
        assert_eq!(Path::new(v4, v6, 0xc000), None);
        assert!(Path::new(v6, v6, 0xc000).is_some());
        // The family is that of the address to which packets are sent.
        let port_gid = Gid::from("10.0.0.2:4792".parse::<SocketAddr>().unwrap()).ip();
        assert!(port_gid.is_ipv6() && Path::new(v4, port_gid, 0xc000).is_some());
        assert_eq!(Path::new(v6, port_gid, 0xc000), None);
    }

    #[test]
    fn packets_use_the_port_that_an_address_carries() {
        let plain: IpAddr = "10.0.0.1".parse().unwrap();
        let port_gid = Gid::from("10.0.0.2:4792".parse::<SocketAddr>().unwrap()).ip();
        let forward = Path::new(plain, port_gid, 0xc123).unwrap();
        assert_eq!(
            (forward.source(), forward.destination()),
            (SocketAddr::new(plain, 0xc123), "10.0.0.2:4792".parse().unwrap())
        );
        assert_eq!((forward.local(), forward.remote()), (plain, port_gid));
        let reverse = Path::new(port_gid, plain, 0xc123).unwrap();
        assert_eq!(
            (reverse.source(), reverse.destination()),
            ("10.0.0.2:4792".parse().unwrap(), SocketAddr::new(plain, 4791))
        );
        assert_eq!((reverse.local(), reverse.remote()), (port_gid, plain));
        assert_eq!(*forward.flow(), Flow::new(forward.source(), forward.destination()).unwrap());
        assert_eq!(*reverse.flow(), Flow::new(reverse.source(), reverse.destination()).unwrap());
    }
}
