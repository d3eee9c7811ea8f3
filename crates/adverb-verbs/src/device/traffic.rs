//! Traffic options: packet header fields that the network evaluates.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::Address;

/// Packet header fields that the network evaluates: DSCP and ECN, flow label, hop limit, service level.
///
/// Each field has the value from the first of these sources that sets it: the options of the connection or address
/// handle, the options of the [queue pair](crate::QueuePairBuilder::traffic), the [process
/// defaults](Traffic::process_default). If no source sets them, DSCP, ECN, flow label and service level are 0, and the
/// hop limit is 64. (The [connection manager](crate::cm) has its own defaults.)
///
/// ```
/// use adverb::verbs::Traffic;
///
/// // At the start of a program whose fabric has a traffic class for RDMA:
/// Traffic::new().dscp(26).service_level(3).make_process_default();
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

/// The process default, packed.
static DEFAULT: AtomicU64 = AtomicU64::new(0);

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

    /// Returns the process defaults. No field is set until [`make_process_default`](Traffic::make_process_default) is
    /// called.
    pub fn process_default() -> Traffic {
        Traffic::unpack(DEFAULT.load(Ordering::Relaxed))
    }

    /// Sets the process defaults to these options, for connections and address handles created after the call. Programs
    /// may call this method; libraries should not.
    pub fn make_process_default(self) {
        DEFAULT.store(self.pack(), Ordering::Relaxed);
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

    /// Packs the options into one word, which can be read and written atomically: five flags, then the fields.
    fn pack(self) -> u64 {
        let mark = |bit: u32, is_set: bool| u64::from(is_set) << bit;
        mark(0, self.traffic_class.is_some())
            | mark(1, self.flow_label.is_some())
            | mark(2, self.hop_limit.is_some())
            | mark(3, self.service_level.is_some())
            | mark(4, self.route_header.is_some())
            | u64::from(self.traffic_class.unwrap_or(0)) << 8
            | u64::from(self.hop_limit.unwrap_or(0)) << 16
            | u64::from(self.service_level.unwrap_or(0)) << 24
            | mark(31, self.route_header.unwrap_or(false))
            | u64::from(self.flow_label.unwrap_or(0)) << 32
    }

    fn unpack(word: u64) -> Traffic {
        let is_set = |bit: u32| word >> bit & 1 != 0;
        let [_, traffic_class, hop_limit, rest, label @ ..] = word.to_le_bytes();
        Traffic {
            traffic_class: is_set(0).then_some(traffic_class),
            flow_label: is_set(1).then_some(u32::from_le_bytes(label)),
            hop_limit: is_set(2).then_some(hop_limit),
            service_level: is_set(3).then_some(rest & 0xf),
            route_header: is_set(4).then_some(is_set(31)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_options_round_trip() {
        let full = Traffic::new()
            .traffic_class(0xff)
            .flow_label(u32::MAX)
            .hop_limit(0xfe)
            .service_level(0xff)
            .route_header(true);
        let each = [
            Traffic::new(),
            Traffic::new().traffic_class(0),
            Traffic::new().traffic_class(0x6a),
            Traffic::new().flow_label(0x1_2345),
            Traffic::new().hop_limit(1),
            Traffic::new().service_level(5),
            Traffic::new().route_header(false),
            Traffic::new().route_header(true),
            full,
        ];
        for traffic in each {
            assert_eq!(Traffic::unpack(traffic.pack()), traffic, "{:#x}", traffic.pack());
        }
    }

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
