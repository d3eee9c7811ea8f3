//! Traffic options: packet header fields that the network evaluates.

use crate::backend::Address;

/// Packet header fields that the network evaluates: DSCP and ECN, flow label, hop limit, service level.
///
/// Each field has the value from the first of these sources that sets it: the options of the connection or address
/// handle, the options of the [queue pair](crate::QueuePairBuilder::traffic). If neither sets them, DSCP, ECN, flow label
/// and service level are 0, and the hop limit is 64. (The [connection manager](crate::cm) has its own defaults.)
///
/// ```
/// use adverb::verbs::{ConnectOptions, Traffic};
///
/// // For a fabric that has a traffic class for RDMA:
/// let options = ConnectOptions::new().traffic(Traffic::new().dscp(26).service_level(3));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[must_use = "options do nothing by themselves"]
pub struct Traffic {
    pub(crate) traffic_class: Option<u8>,
    flow_label: Option<u32>,
    hop_limit: Option<u8>,
    service_level: Option<u8>,
    route_header: Option<bool>,
}

impl Traffic {
    /// Creates options that set no field.
    pub const fn new() -> Traffic {
        Traffic {
            traffic_class: None,
            flow_label: None,
            hop_limit: None,
            service_level: None,
            route_header: None,
        }
    }

    /// Sets the traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub const fn traffic_class(mut self, traffic_class: u8) -> Traffic {
        self.traffic_class = Some(traffic_class);
        self
    }

    /// Sets the differentiated services code point: the upper six bits of the traffic class. The lower two bits, ECN,
    /// keep their value, or are 0.
    pub const fn dscp(self, dscp: u8) -> Traffic {
        let ecn = match self.traffic_class {
            Some(traffic_class) => traffic_class & 0b11,
            None => 0,
        };
        self.traffic_class(dscp << 2 | ecn)
    }

    /// Sets the flow label, which has 20 bits. On RoCE v2 a label other than 0 determines the UDP source port, and so
    /// the path through a fabric that hashes flows: with the lower 14 bits *l* and the upper six bits *h*, the port is
    /// 0xC000 + (*l* XOR *h*). The software NIC and Linux's drivers mlx5, irdma and hns do this; soft-RoCE (rdma_rxe)
    /// does it for connections only. Over IPv6 and on InfiniBand, packets also carry the label in their header.
    ///
    /// Without a label, or with 0, the port of a connection is a hash of both queue pair numbers, and each address
    /// handle gets one of the device's ports.
    ///
    /// The software NIC opens the ports of flow labels on demand, up to 256 for each of its addresses, and keeps a port
    /// open while a queue pair or an address handle uses it. If it can't open a port, because another program has it,
    /// the process has too many file descriptors or the limit is reached, it uses one of its other ports:
    /// [`AddressHandle::source_port`](crate::AddressHandle::source_port) and
    /// [`PeerAttributes::source_port`](crate::PeerAttributes::source_port) return the actual port. A software NIC that
    /// doesn't receive on port 4791, because another one has its address, sends everything from its own port.
    pub const fn flow_label(mut self, flow_label: u32) -> Traffic {
        self.flow_label = Some(flow_label & 0xf_ffff);
        self
    }

    /// Sets the hop limit. On RoCE, Linux uses the hop limit of its route instead, for connections and for address
    /// handles that the kernel creates (`ib_resolve_unicast_gid_dmac`).
    pub const fn hop_limit(mut self, hop_limit: u8) -> Traffic {
        self.hop_limit = Some(hop_limit);
        self
    }

    /// Sets the service level, which has four bits. On RoCE, the service level is the Ethernet priority.
    pub const fn service_level(mut self, service_level: u8) -> Traffic {
        self.service_level = Some(service_level & 0xf);
        self
    }

    /// Sets whether packets carry a global route header within an InfiniBand subnet, too. Packets always carry one on
    /// RoCE, between subnets, and if the port requires it.
    pub const fn route_header(mut self, route_header: bool) -> Traffic {
        self.route_header = Some(route_header);
        self
    }

    /// Returns these options, with unset fields taken from `other`.
    pub(crate) fn or(self, other: Traffic) -> Traffic {
        Traffic {
            traffic_class: self.traffic_class.or(other.traffic_class),
            flow_label: self.flow_label.or(other.flow_label),
            hop_limit: self.hop_limit.or(other.hop_limit),
            service_level: self.service_level.or(other.service_level),
            route_header: self.route_header.or(other.route_header),
        }
    }

    /// Writes the fields that are set into an address.
    pub(crate) fn apply(self, address: &mut Address) {
        fn set<T>(value: Option<T>, target: &mut T) {
            if let Some(value) = value {
                *target = value;
            }
        }
        set(self.traffic_class, &mut address.traffic_class);
        set(self.flow_label, &mut address.flow_label);
        set(self.hop_limit, &mut address.hop_limit);
        set(self.service_level, &mut address.service_level);
        // The header can be added, but not removed where it is required.
        address.uses_grh |= self.route_header.unwrap_or(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dscp_keeps_the_ecn_bits() {
        assert_eq!(Traffic::new().dscp(26).traffic_class, Some(0x68));
        assert_eq!(Traffic::new().traffic_class(0b10).dscp(26).traffic_class, Some(0x6a));
    }

    #[test]
    fn or_prefers_the_first_options() {
        let first = Traffic::new().dscp(10);
        let second = Traffic::new().dscp(20).hop_limit(3);
        assert_eq!(first.or(second), Traffic::new().dscp(10).hop_limit(3));
    }
}
