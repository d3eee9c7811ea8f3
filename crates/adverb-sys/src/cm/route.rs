//! The route of an identifier: its addresses and paths.

use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::{__be16, __be32, ibv_gid};

shapes! {
    /// A route: addresses and paths.
    #[derive(Clone, Copy)]
    pub struct rdma_route {
        /// The local address and the peer's address.
        pub addr: rdma_addr,
        /// The path records, or NULL.
        pub path_rec: *mut ibv_sa_path_rec,
        /// The number of path records.
        pub num_paths: c_int,
    }

    /// The local address and the peer's address.
    #[derive(Clone, Copy)]
    pub struct rdma_addr {
        /// The local address.
        pub src: rdma_addr_src,
        /// The peer's address.
        pub dst: rdma_addr_dst,
        /// The GIDs and the P_Key.
        pub addr: rdma_addr_addr,
    }

    /// The local address. The address family determines the valid member.
    #[derive(Clone, Copy)]
    pub union rdma_addr_src unnamed_in rdma_addr {
        /// The address of any family.
        pub src_addr: sockaddr,
        /// The IPv4 address.
        pub src_sin: sockaddr_in,
        /// The IPv6 address.
        pub src_sin6: sockaddr_in6,
        /// Storage for any address.
        pub src_storage: sockaddr_storage,
    }

    /// The peer's address. The address family determines the valid member.
    #[derive(Clone, Copy)]
    pub union rdma_addr_dst unnamed_in rdma_addr {
        /// The address of any family.
        pub dst_addr: sockaddr,
        /// The IPv4 address.
        pub dst_sin: sockaddr_in,
        /// The IPv6 address.
        pub dst_sin6: sockaddr_in6,
        /// Storage for any address.
        pub dst_storage: sockaddr_storage,
    }

    /// The GIDs and the P_Key of a route.
    #[derive(Clone, Copy)]
    pub union rdma_addr_addr inside rdma_addr.addr {
        /// The GIDs and the P_Key.
        pub ibaddr: rdma_ib_addr,
    }

    /// The GIDs and the P_Key of a route.
    #[derive(Debug, Clone, Copy)]
    pub struct rdma_ib_addr {
        /// The local GID.
        pub sgid: ibv_gid,
        /// The peer's GID.
        pub dgid: ibv_gid,
        /// The P_Key.
        pub pkey: __be16,
    }

    /// A path record of the subnet administrator.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_sa_path_rec {
        /// The peer's GID.
        pub dgid: ibv_gid,
        /// The local GID.
        pub sgid: ibv_gid,
        /// The peer's LID.
        pub dlid: __be16,
        /// The local LID.
        pub slid: __be16,
        /// Whether the path is for raw packets.
        pub raw_traffic: c_int,
        /// The flow label.
        pub flow_label: __be32,
        /// The hop limit.
        pub hop_limit: u8,
        /// The traffic class.
        pub traffic_class: u8,
        /// Whether the path works in both directions.
        pub reversible: c_int,
        /// The number of requested paths.
        pub numb_path: u8,
        /// The P_Key.
        pub pkey: __be16,
        /// The service level.
        pub sl: u8,
        /// The comparison with `mtu`: 0 is greater than, 1 is less than, 2 is equal to, 3 is the largest available.
        pub mtu_selector: u8,
        /// The MTU, an [`ibv_mtu`](crate::ibv_mtu).
        pub mtu: u8,
        /// The comparison with `rate`: 0 is greater than, 1 is less than, 2 is equal to, 3 is the largest available.
        pub rate_selector: u8,
        /// The rate, an [`ibv_rate`](crate::ibv_rate).
        pub rate: u8,
        /// The comparison with `packet_life_time`: 0 is greater than, 1 is less than, 2 is equal to, 3 is the
        /// smallest available.
        pub packet_life_time_selector: u8,
        /// The packet lifetime exponent: the lifetime is 4.096 µs × 2ⁿ.
        pub packet_life_time: u8,
        /// The path's preference relative to other paths.
        pub preference: u8,
    }
}
