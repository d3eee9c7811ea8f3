//! What packets carry that the network looks at.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::Address;

/// How the network is to treat packets: DSCP and ECN, flow label, hop limit, service level.
///
/// It is looked for in this order: what a connection or an address handle was made with, what its queue pair was
/// [made with](super::QueuePairBuilder::traffic), the process' [default](Traffic::process_default), and last what everybody
/// has who says nothing: no marks, flow label 0, 64 hops, service level 0. (With the [connection manager](super::cm) its own
/// values come last.)
///
/// ```
/// use adverb::verbs::Traffic;
///
/// // At the beginning of a program whose fabric keeps RDMA in a class of its own:
/// Traffic::new().dscp(26).service_level(3).make_process_default();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[must_use = "it does nothing by itself"]
pub struct Traffic {
    pub(super) traffic_class: Option<u8>,
    flow_label: Option<u32>,
    hop_limit: Option<u8>,
    service_level: Option<u8>,
    route_header: Option<bool>,
}

/// The process' default, packed.
static DEFAULT: AtomicU64 = AtomicU64::new(0);

impl Traffic {
    /// One that says nothing.
    pub const fn new() -> Traffic {
        Traffic {
            traffic_class: None,
            flow_label: None,
            hop_limit: None,
            service_level: None,
            route_header: None,
        }
    }

    /// The traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub const fn traffic_class(mut self, traffic_class: u8) -> Traffic {
        self.traffic_class = Some(traffic_class);
        self
    }

    /// The differentiated services code point, of six bits: the upper ones of the traffic class, whose lower two, ECN, are
    /// as before, or 0.
    pub const fn dscp(self, dscp: u8) -> Traffic {
        let ecn = match self.traffic_class {
            Some(traffic_class) => traffic_class & 0b11,
            None => 0,
        };
        self.traffic_class(dscp << 2 | ecn)
    }

    /// The flow label of IPv6, of 20 bits.
    pub const fn flow_label(mut self, flow_label: u32) -> Traffic {
        self.flow_label = Some(flow_label & 0xf_ffff);
        self
    }

    /// How many routers packets may pass. With RoCE, Linux takes what its route says instead, for connections and for
    /// address handles that the kernel makes (`ib_resolve_unicast_gid_dmac`).
    pub const fn hop_limit(mut self, hop_limit: u8) -> Traffic {
        self.hop_limit = Some(hop_limit);
        self
    }

    /// The service level, of four bits: with RoCE, the Ethernet priority.
    pub const fn service_level(mut self, service_level: u8) -> Traffic {
        self.service_level = Some(service_level & 0xf);
        self
    }

    /// Whether packets carry a global route header within an InfiniBand subnet, too. They do between subnets and where the
    /// port needs it, and with RoCE always.
    pub const fn route_header(mut self, route_header: bool) -> Traffic {
        self.route_header = Some(route_header);
        self
    }

    /// What the process has as a default: nothing, until somebody [makes](Traffic::make_process_default) one.
    pub fn process_default() -> Traffic {
        Traffic::unpack(DEFAULT.load(Ordering::Relaxed))
    }

    /// Makes this the process' default, instead of the one before: for what is connected, and for address handles that are
    /// made, from now on. A library leaves that to its program.
    pub fn make_process_default(self) {
        DEFAULT.store(self.pack(), Ordering::Relaxed);
    }

    /// What this says, and where it says nothing, the other.
    pub(super) fn or(self, other: Traffic) -> Traffic {
        Traffic {
            traffic_class: self.traffic_class.or(other.traffic_class),
            flow_label: self.flow_label.or(other.flow_label),
            hop_limit: self.hop_limit.or(other.hop_limit),
            service_level: self.service_level.or(other.service_level),
            route_header: self.route_header.or(other.route_header),
        }
    }

    /// Puts what this says into an address.
    pub(super) fn apply(self, address: &mut Address) {
        fn set<T>(value: Option<T>, place: &mut T) {
            if let Some(value) = value {
                *place = value;
            }
        }
        set(self.traffic_class, &mut address.traffic_class);
        set(self.flow_label, &mut address.flow_label);
        set(self.hop_limit, &mut address.hop_limit);
        set(self.service_level, &mut address.service_level);
        // It can be added, but not where it is needed be left out.
        address.uses_grh |= self.route_header.unwrap_or(false);
    }

    /// In one word, which can be read and written at once: five marks of what is said, and then what.
    fn pack(self) -> u64 {
        let mark = |bit: u32, is_said: bool| u64::from(is_said) << bit;
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
        let is_said = |bit: u32| word >> bit & 1 != 0;
        let [_, traffic_class, hop_limit, rest, label @ ..] = word.to_le_bytes();
        Traffic {
            traffic_class: is_said(0).then_some(traffic_class),
            flow_label: is_said(1).then_some(u32::from_le_bytes(label)),
            hop_limit: is_said(2).then_some(hop_limit),
            service_level: is_said(3).then_some(rest & 0xf),
            route_header: is_said(4).then_some(is_said(31)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
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
    fn dscp_is_above_ecn_and_leaves_it() {
        assert_eq!(Traffic::new().dscp(26).traffic_class, Some(0x68));
        assert_eq!(Traffic::new().traffic_class(0b10).dscp(26).traffic_class, Some(0x6a));
    }

    #[test]
    fn the_nearer_says_more() {
        let near = Traffic::new().dscp(10);
        let far = Traffic::new().dscp(20).hop_limit(3);
        assert_eq!(near.or(far), Traffic::new().dscp(10).hop_limit(3));
    }
}
