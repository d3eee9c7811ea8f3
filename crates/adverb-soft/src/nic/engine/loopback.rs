//! Packets from the NIC to itself.

use std::net::SocketAddr;

use adverb_wire::Qpn;

use super::BUDGET;
use crate::link::AddressShare;

/// The NIC's addresses and ports. Packets between queue pairs at these addresses are delivered without the link.
pub(in crate::nic) struct Loopback {
    addresses: Vec<SocketAddr>,
    /// The share of the queue pair numbers, if other processes have the other shares.
    share: Option<AddressShare>,
    /// Whether loopback packets are sent through the link instead of being delivered directly.
    pub(in crate::nic) via_link: bool,
}

/// The maximum number of packets that a NIC sends to itself over the link before it receives them.
const MAX_BURST_VIA_LINK: usize = 16;

impl Loopback {
    pub(super) fn new(addresses: Vec<SocketAddr>, share: Option<AddressShare>) -> Loopback {
        Loopback { addresses, share, via_link: false }
    }

    /// Whether a packet is delivered without the link.
    #[inline]
    pub(super) fn delivers(&self, destination: &SocketAddr, qpn: Qpn, has_link: bool) -> bool {
        (!has_link || !self.via_link)
            && self.addresses.contains(destination)
            && self.share.is_none_or(|share| share.contains(qpn))
    }

    /// Returns the maximum number of packets to send before packets are received. A NIC that sends to itself over the
    /// link must receive its packets before they exceed the receive buffer.
    #[inline]
    pub(super) const fn max_burst(&self) -> usize {
        if self.via_link { MAX_BURST_VIA_LINK } else { BUDGET }
    }
}
