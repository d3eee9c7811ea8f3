//! The port, the address and the traffic options of a queue pair's packets.

use adverb_proto::types::{Gid, GidEntry, LinkLayer, Port};

use crate::backend::Address;
use crate::device::Traffic;

/// The source of a queue pair's packets: the port, the indices into the port's tables, and the traffic options.
pub(crate) struct Source {
    pub(crate) port: Port,
    pub(crate) gid: GidEntry,
    pub(crate) gid_index: u8,
    pub(crate) pkey_index: u16,
    pub(crate) traffic: Traffic,
}

impl Source {
    /// Returns the route from this queue pair to a port.
    pub(super) fn address_of(&self, gid: Gid, lid: u16, traffic: Traffic) -> Address {
        let subnet = |gid: Gid| gid.bytes().first_chunk::<8>().copied();
        let mut address = Address {
            gid,
            lid,
            port: self.port.number,
            gid_index: self.gid_index,
            uses_grh: self.port.link_layer == LinkLayer::Ethernet
                || self.port.needs_grh
                || subnet(gid) != subnet(self.gid.gid),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            service_level: 0,
        };
        self.traffic(traffic).apply(&mut address);
        address
    }

    /// Returns the traffic options in effect: the given ones first, then those of the queue pair.
    pub(crate) fn traffic(&self, specific: Traffic) -> Traffic {
        specific.or(self.traffic)
    }
}
