//! Between which addresses packets go, and how a packet came.

use core::net::{IpAddr, SocketAddr};

use adverb_wire::{Flow, Packet, Qpn};

use crate::mutation::mutant;
use crate::types::Gid;

/// Between which addresses a connection's packets go, or a datagram does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    source: SocketAddr,
    destination: SocketAddr,
    flow: Flow,
    route: Route,
}

/// How packets are to be treated on their way: what is in their IP header beside the addresses, and not in the ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Route {
    /// DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// IPv6's flow label, of 20 bits.
    pub flow_label: u32,
    /// How many routers may be passed; `None` is as usual.
    pub hop_limit: Option<u8>,
}

impl Path {
    /// The path from `local` to `remote`, or `None` if one is IPv4 and the other IPv6. An address may be one that [says a
    /// port](Gid::udp_address): packets then go there, or come from there.
    ///
    /// The UDP source port stays the same for a connection, so that its packets take the same way through a fabric
    /// that hashes flows (Annex A17.9).
    pub fn new(local: IpAddr, remote: IpAddr, source_port: u16) -> Option<Path> {
        let (mut source, destination) = (Gid::from(local).udp_address(), Gid::from(remote).udp_address());
        if !Gid::PORTS.contains(&source.port()) {
            source.set_port(source_port);
        }
        let flow = Flow::new(source, destination)?;
        Some(Path { source, destination, flow, route: Route::default() })
    }

    /// The same path, on which packets are treated like this.
    #[must_use]
    pub const fn with_route(mut self, route: Route) -> Path {
        self.route = route;
        self
    }

    /// How packets are treated on their way.
    pub const fn route(&self) -> Route {
        self.route
    }

    /// The UDP source port for a connection between two queue pairs: one of the 2¹⁴ from 0xC000 on, always the same
    /// for the same two, and spread over different ones (Annex A17.9; `rdma_get_udp_sport` in Linux's
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
        let label = folded & 0xf_ffff;
        0xc000 | ((label ^ label >> 14) & 0x3fff) as u16
    }

    /// Our address, which may say a port.
    pub fn local(&self) -> IpAddr {
        Gid::from(self.source).ip()
    }

    /// The peer's address, which may say a port.
    pub fn remote(&self) -> IpAddr {
        Gid::from(self.destination).ip()
    }

    /// The address and UDP port that packets are sent from.
    pub const fn source(&self) -> SocketAddr {
        self.source
    }

    /// The address and UDP port that packets are sent to.
    pub const fn destination(&self) -> SocketAddr {
        self.destination
    }

    /// The UDP port that packets are sent from.
    pub const fn source_port(&self) -> u16 {
        self.source.port()
    }

    /// What computes the ICRCs of packets that are sent.
    pub const fn flow(&self) -> &Flow {
        &self.flow
    }
}

/// What a datagram's address handle is to the engine: the [`Path`] that the datagram takes.
///
/// Connections know their path, so that `()` does for their requests.
pub trait AddressVector {
    /// The path, if there is one.
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

/// How a packet came: what the IP and UDP headers said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxMeta {
    /// Where it comes from.
    pub source: SocketAddr,
    /// The address and port that it was sent to.
    pub destination: SocketAddr,
    /// How its ICRC is to be checked.
    pub icrc: IcrcCheck,
    /// Whether a switch on its way was congested, and marked it: the IP header's ECN bits are both 1.
    pub congested: bool,
    /// What else its IP header says, where the link knows it: a datagram's receiver is told.
    pub route: Route,
}

/// How an ICRC is to be checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcrcCheck {
    /// The identification of the IPv4 header is this; IPv6 has none.
    IpId(u16),
    /// The identification isn't known, but it is below this, as those of Adverb are on UDP sockets; IPv6 has none.
    IpIdBelow(u16),
    /// The identification isn't known, as on a UDP socket: any that fits will do.
    AnyIpId,
    /// Not at all: somebody has done it, or the packet never left this machine's memory.
    Trusted,
}

/// What checks the ICRCs of packets. It remembers how for the addresses that came last: a connection has only one
/// peer, and datagrams often come several from one sender.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Incoming {
    cached: Option<(SocketAddr, SocketAddr, Flow)>,
}

impl Incoming {
    /// Whether the packet is whole (vol. 1, 7.8.1 and Annex A17.3; `rxe_icrc.c`).
    #[inline]
    pub(crate) fn is_intact(&mut self, arrival: &RxMeta, packet: &Packet<'_>) -> bool {
        if arrival.icrc == IcrcCheck::Trusted || mutant!(IgnoreIcrc) {
            return true;
        }
        let &RxMeta { source, destination, icrc, .. } = arrival;
        let flow = match self.cached {
            Some((from, to, flow)) if from == source && to == destination => flow,
            _ => {
                let Some(flow) = Flow::new(source, destination) else { return false };
                self.cached = Some((source, destination, flow));
                flow
            }
        };
        match icrc {
            IcrcCheck::IpId(identification) => flow.verify(packet, identification).is_ok(),
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
    fn source_ports_are_spread_and_never_below_0xc000() {
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
    fn path_between_two_families_does_not_exist() {
        let (v4, v6) = ("10.0.0.1".parse().unwrap(), "fd77::1".parse().unwrap());
        assert_eq!(Path::new(v4, v6, 0xc000), None);
        assert!(Path::new(v6, v6, 0xc000).is_some());
        // Which they are is said by where packets go.
        let at_port = Gid::from("10.0.0.2:4792".parse::<SocketAddr>().unwrap()).ip();
        assert!(at_port.is_ipv6() && Path::new(v4, at_port, 0xc000).is_some());
        assert_eq!(Path::new(v6, at_port, 0xc000), None);
    }

    #[test]
    fn an_address_that_says_a_port_is_sent_to_and_from_there() {
        let usual: IpAddr = "10.0.0.1".parse().unwrap();
        let at_port = Gid::from("10.0.0.2:4792".parse::<SocketAddr>().unwrap()).ip();
        let there = Path::new(usual, at_port, 0xc123).unwrap();
        assert_eq!(
            (there.source(), there.destination()),
            (SocketAddr::new(usual, 0xc123), "10.0.0.2:4792".parse().unwrap())
        );
        assert_eq!((there.local(), there.remote()), (usual, at_port));
        let back = Path::new(at_port, usual, 0xc123).unwrap();
        assert_eq!(
            (back.source(), back.destination()),
            ("10.0.0.2:4792".parse().unwrap(), SocketAddr::new(usual, 4791))
        );
        assert_eq!((back.local(), back.remote()), (at_port, usual));
        assert_eq!(*there.flow(), Flow::new(there.source(), there.destination()).unwrap());
        assert_eq!(*back.flow(), Flow::new(back.source(), back.destination()).unwrap());
    }
}
