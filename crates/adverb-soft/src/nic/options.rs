//! The options of a NIC.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adverb_proto::types::PathMtu;

use crate::link::Link;

/// The options of [`Nic::open`](super::Nic::open).
pub struct NicOptions {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) link: Option<Box<dyn Link>>,
    pub(super) mtu: PathMtu,
    pub(super) loopback_via_link: bool,
}

impl NicOptions {
    /// Creates options for a NIC without a link, with the addresses 127.0.0.1 and ::1. The NIC's queue pairs can
    /// connect only to each other.
    pub fn loopback() -> NicOptions {
        let addresses = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        NicOptions { addresses, link: None, mtu: PathMtu::Mtu4096, loopback_via_link: false }
    }

    /// Creates options for a NIC with these addresses that sends packets to other NICs over `link`. If the link
    /// receives on a UDP port other than 4791, the address encodes the port
    /// ([`Gid::udp_addr`](adverb_proto::types::Gid::udp_addr)).
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>, link: impl Link + 'static) -> NicOptions {
        NicOptions::boxed(addresses, Box::new(link))
    }

    /// Creates the same options as [`new`](NicOptions::new) for a boxed link.
    pub fn boxed(addresses: impl IntoIterator<Item = IpAddr>, link: Box<dyn Link>) -> NicOptions {
        NicOptions {
            addresses: addresses.into_iter().collect(),
            link: Some(link),
            mtu: PathMtu::Mtu4096,
            loopback_via_link: false,
        }
    }

    /// Sets the path MTU: the maximum RDMA payload per packet on the link. The default is 4096 bytes.
    #[must_use]
    pub fn mtu(mut self, mtu: PathMtu) -> NicOptions {
        self.mtu = mtu;
        self
    }

    /// Sets whether loopback packets are sent through the link instead of being delivered directly. Tests use this to
    /// capture the packets between a NIC's own queue pairs, or to inject faults into them. The default is false.
    #[must_use]
    pub fn loopback_via_link(mut self, loopback_via_link: bool) -> NicOptions {
        self.loopback_via_link = loopback_via_link;
        self
    }
}

impl fmt::Debug for NicOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NicOptions").field("addresses", &self.addresses).field("mtu", &self.mtu).finish()
    }
}
