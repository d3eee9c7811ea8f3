//! Between which addresses a connection's packets go, and how a packet came.

use core::net::{IpAddr, SocketAddr};

use adverb_wire::{Flow, Packet, ROCE_PORT};

use crate::mutation::mutant;

/// Between which addresses a connection's packets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    local: IpAddr,
    remote: IpAddr,
    source_port: u16,
    flow: Flow,
}

impl Path {
    /// The path from `local` to `remote`, or `None` if one is IPv4 and the other IPv6.
    ///
    /// The UDP source port stays the same for a connection, so that its packets take the same way through a fabric
    /// that hashes flows (Annex A17.9.2).
    pub fn new(local: IpAddr, remote: IpAddr, source_port: u16) -> Option<Path> {
        let source = SocketAddr::new(local, source_port);
        let flow = Flow::new(source, SocketAddr::new(remote, ROCE_PORT))?;
        Some(Path { local, remote, source_port, flow })
    }

    /// Our address.
    pub const fn local(&self) -> IpAddr {
        self.local
    }

    /// The peer's address.
    pub const fn remote(&self) -> IpAddr {
        self.remote
    }

    /// The UDP port that packets are sent from.
    pub const fn source_port(&self) -> u16 {
        self.source_port
    }

    /// What computes the ICRCs of packets that are sent.
    pub const fn flow(&self) -> &Flow {
        &self.flow
    }
}

/// How a packet came: what the IP and UDP headers said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Where it comes from.
    pub source: SocketAddr,
    /// The address that it was sent to.
    pub destination: IpAddr,
    /// How its ICRC is to be checked.
    pub icrc: IcrcCheck,
}

/// How an ICRC is to be checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcrcCheck {
    /// The identification of the IPv4 header is this; IPv6 has none.
    Identification(u16),
    /// The identification isn't known, as on a UDP socket: any that fits will do.
    AnyIdentification,
    /// Not at all: somebody has done it, or the packet never left this machine's memory.
    Trusted,
}

/// What checks the ICRCs of packets from one peer. Its port isn't known before the first of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Incoming {
    cached: Option<(u16, Flow)>,
}

impl Incoming {
    /// Whether the packet is whole (vol. 1, 7.8.1 and Annex A17.3.3; `rxe_icrc.c`). Its addresses are those of
    /// `path`: that was checked before.
    #[inline]
    pub(crate) fn is_intact(&mut self, path: &Path, arrival: &Arrival, packet: &Packet<'_>) -> bool {
        if arrival.icrc == IcrcCheck::Trusted || mutant!(IgnoreIcrc) {
            return true;
        }
        let port = arrival.source.port();
        let flow = match self.cached {
            Some((cached, flow)) if cached == port => flow,
            _ => {
                let source = SocketAddr::new(path.remote, port);
                let Some(flow) = Flow::new(source, SocketAddr::new(path.local, ROCE_PORT)) else {
                    return false;
                };
                self.cached = Some((port, flow));
                flow
            }
        };
        match arrival.icrc {
            IcrcCheck::Identification(identification) => flow.verify(packet, identification).is_ok(),
            IcrcCheck::AnyIdentification => flow.solve(packet).is_ok(),
            IcrcCheck::Trusted => true,
        }
    }
}
