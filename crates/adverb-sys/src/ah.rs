//! Address handles and routes to peers.

use libc::c_uint;

use crate::{__be16, __be32, ibv_context, ibv_gid, ibv_pd};

shapes! {
    /// The global route of an address handle. RoCE requires a global route.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_global_route {
        /// The peer's GID.
        pub dgid: ibv_gid,
        /// The flow label, 20 bits. In RoCEv2 it determines the UDP source port.
        pub flow_label: u32,
        /// The index of the local GID in the port's GID table.
        pub sgid_index: u8,
        /// The hop limit.
        pub hop_limit: u8,
        /// The traffic class: DSCP and ECN.
        pub traffic_class: u8,
    }

    /// A global route header (GRH), which fills the first 40 bytes of a datagram's receive buffer.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_grh {
        /// The version 6 in the upper four bits, then the traffic class and the flow label.
        pub version_tclass_flow: __be32,
        /// The payload length in bytes.
        pub paylen: __be16,
        /// The next header.
        pub next_hdr: u8,
        /// The remaining hop limit.
        pub hop_limit: u8,
        /// The sender's GID.
        pub sgid: ibv_gid,
        /// The receiver's GID.
        pub dgid: ibv_gid,
    }

    /// A static rate limit.
    pub enum ibv_rate: c_uint {
        /// The full rate of the port.
        IBV_RATE_MAX = 0,
        /// 2.5 Gbit/s.
        IBV_RATE_2_5_GBPS = 2,
        /// 5 Gbit/s.
        IBV_RATE_5_GBPS = 5,
        /// 10 Gbit/s.
        IBV_RATE_10_GBPS = 3,
        /// 20 Gbit/s.
        IBV_RATE_20_GBPS = 6,
        /// 30 Gbit/s.
        IBV_RATE_30_GBPS = 4,
        /// 40 Gbit/s.
        IBV_RATE_40_GBPS = 7,
        /// 60 Gbit/s.
        IBV_RATE_60_GBPS = 8,
        /// 80 Gbit/s.
        IBV_RATE_80_GBPS = 9,
        /// 120 Gbit/s.
        IBV_RATE_120_GBPS = 10,
        /// 14 Gbit/s.
        IBV_RATE_14_GBPS = 11,
        /// 56 Gbit/s.
        IBV_RATE_56_GBPS = 12,
        /// 112 Gbit/s.
        IBV_RATE_112_GBPS = 13,
        /// 168 Gbit/s.
        IBV_RATE_168_GBPS = 14,
        /// 25 Gbit/s.
        IBV_RATE_25_GBPS = 15,
        /// 100 Gbit/s.
        IBV_RATE_100_GBPS = 16,
        /// 200 Gbit/s.
        IBV_RATE_200_GBPS = 17,
        /// 300 Gbit/s.
        IBV_RATE_300_GBPS = 18,
        /// 28 Gbit/s.
        IBV_RATE_28_GBPS = 19,
        /// 50 Gbit/s.
        IBV_RATE_50_GBPS = 20,
        /// 400 Gbit/s.
        IBV_RATE_400_GBPS = 21,
        /// 600 Gbit/s.
        IBV_RATE_600_GBPS = 22,
        /// 800 Gbit/s.
        IBV_RATE_800_GBPS = 23,
        /// 1200 Gbit/s.
        IBV_RATE_1200_GBPS = 24,
    }

    /// The attributes of an address handle: the path to a peer.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_ah_attr {
        /// The global route, valid if `is_global` is nonzero.
        pub grh: ibv_global_route,
        /// The peer's LID.
        pub dlid: u16,
        /// The service level.
        pub sl: u8,
        /// The low bits of the local LID.
        pub src_path_bits: u8,
        /// The rate limit, an [`ibv_rate`].
        pub static_rate: u8,
        /// Whether packets have a global route header. If so, the field `grh` is valid.
        pub is_global: u8,
        /// The number of the local port.
        pub port_num: u8,
    }

    /// An address handle: the path of datagrams to a peer.
    pub struct ibv_ah {
        /// The device context.
        pub context: *mut ibv_context,
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// The kernel's handle.
        pub handle: u32,
    }

    pub const u16 {
        /// The minimum UDP source port derived from a flow label.
        IB_ROCE_UDP_ENCAP_VALID_PORT_MIN = 0xC000,
        /// The maximum UDP source port derived from a flow label.
        IB_ROCE_UDP_ENCAP_VALID_PORT_MAX = 0xFFFF,
    }

    pub const u32 {
        /// The mask of a flow label's 20 bits.
        IB_GRH_FLOWLABEL_MASK = 0x000F_FFFF,
    }
}

/// Returns the UDP source port derived from a flow label.
#[must_use]
pub const fn ibv_flow_label_to_udp_sport(flow_label: u32) -> u16 {
    let folded = (flow_label & 0x3FFF) ^ ((flow_label & 0xFC000) >> 14);
    folded as u16 | IB_ROCE_UDP_ENCAP_VALID_PORT_MIN
}
