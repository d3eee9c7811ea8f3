//! Identifiers and connection parameters.

use libc::{c_int, c_uint, c_void, sockaddr};

use crate::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_type, ibv_srq, rdma_cm_event,
    rdma_event_channel, rdma_route,
};

shapes! {
    /// The port space of an identifier, which determines whether the identifier is for connections or datagrams.
    pub enum rdma_port_space: c_uint {
        /// The port space of IP over InfiniBand datagrams.
        RDMA_PS_IPOIB = 0x0002,
        /// The port space of connections.
        RDMA_PS_TCP = 0x0106,
        /// The port space of datagrams.
        RDMA_PS_UDP = 0x0111,
        /// The port space of connections or datagrams with InfiniBand service IDs.
        RDMA_PS_IB = 0x013F,
    }

    pub const u32 {
        /// The Q_Key of datagrams in [`RDMA_PS_UDP`].
        RDMA_UDP_QKEY = 0x0123_4567,
    }

    /// A connection identifier: the connection manager's counterpart of a socket.
    pub struct rdma_cm_id {
        /// The device context, which the library opens when the address is resolved.
        pub verbs: *mut ibv_context,
        /// The event channel.
        pub channel: *mut rdma_event_channel,
        /// The consumer's context pointer.
        pub context: *mut c_void,
        /// The queue pair created on the identifier.
        pub qp: *mut ibv_qp,
        /// The route to the peer.
        pub route: rdma_route,
        /// The port space.
        pub ps: rdma_port_space,
        /// The number of the device's port, set when the address is resolved.
        pub port_num: u8,
        /// The event that completed the last call, if the identifier was created without a channel.
        pub event: *mut rdma_cm_event,
        /// The completion channel of `send_cq`, if the library created it with the queue pair.
        pub send_cq_channel: *mut ibv_comp_channel,
        /// The completion queue of the send queue, if the library created it with the queue pair.
        pub send_cq: *mut ibv_cq,
        /// The completion channel of `recv_cq`, if the library created it with the queue pair.
        pub recv_cq_channel: *mut ibv_comp_channel,
        /// The completion queue of the receive queue, if the library created it with the queue pair.
        pub recv_cq: *mut ibv_cq,
        /// The shared receive queue created on the identifier.
        pub srq: *mut ibv_srq,
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// The queue pair type.
        pub qp_type: ibv_qp_type,
    }

    pub const u8 {
        /// The value of `responder_resources` that selects the maximum of the device.
        RDMA_MAX_RESP_RES = 0xFF,
        /// The value of `initiator_depth` that selects the maximum of the device.
        RDMA_MAX_INIT_DEPTH = 0xFF,
    }

    /// The parameters of a connection request or of its acceptance.
    #[derive(Debug, Clone, Copy)]
    pub struct rdma_conn_param {
        /// The private data for the peer.
        pub private_data: *const c_void,
        /// The length of the private data in bytes. In an event, the length may include zero padding.
        pub private_data_len: u8,
        /// The maximum number of RDMA READs and atomics outstanding from the peer.
        pub responder_resources: u8,
        /// The maximum number of RDMA READs and atomics outstanding to the peer.
        pub initiator_depth: u8,
        /// Whether hardware flow control is available.
        pub flow_control: u8,
        /// The maximum number of retransmissions. When a request is accepted, the field is ignored.
        pub retry_count: u8,
        /// The maximum number of retries after an RNR NAK.
        pub rnr_retry_count: u8,
        /// Whether the queue pair has a shared receive queue. If a queue pair was created on the identifier, the
        /// field is ignored.
        pub srq: u8,
        /// The queue pair number. If a queue pair was created on the identifier, the field is ignored.
        pub qp_num: u32,
    }

    /// The attributes for joining a multicast group.
    #[derive(Debug, Clone, Copy)]
    pub struct rdma_cm_join_mc_attr_ex {
        /// The mask of the fields below that are valid.
        pub comp_mask: u32,
        /// The `RDMA_MC_JOIN_FLAG_*` flags.
        pub join_flags: u32,
        /// The address of the multicast group.
        pub addr: *mut sockaddr,
    }

    // rdma_cm_join_mc_attr_ex.comp_mask
    pub const u32 {
        /// The mask bit of the field `addr`.
        RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1 << 0,
        /// The mask bit of the field `join_flags`.
        RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
    }

    // rdma_cm_join_mc_attr_ex.join_flags
    pub const u32 {
        /// Membership as sender and receiver.
        RDMA_MC_JOIN_FLAG_FULLMEMBER = 0,
        /// Membership as sender only.
        RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1,
    }

    // rdma_set_option
    pub const c_int {
        /// The level of identifier options.
        RDMA_OPTION_ID = 0,
        /// The level of InfiniBand options.
        RDMA_OPTION_IB = 1,
        /// The type of service, a `u8`.
        RDMA_OPTION_ID_TOS = 0,
        /// Whether several identifiers may bind to the same local address, a `c_int`.
        RDMA_OPTION_ID_REUSEADDR = 1,
        /// Whether an identifier with an IPv6 address rejects IPv4 connections, a `c_int`.
        RDMA_OPTION_ID_AFONLY = 2,
        /// The ACK timeout exponent, a `u8`: the timeout is 4.096 µs × 2ⁿ.
        RDMA_OPTION_ID_ACK_TIMEOUT = 3,
        /// The option for the path records.
        RDMA_OPTION_IB_PATH = 1,
    }
}

/// Returns the local address of an identifier.
///
/// # Safety
///
/// `id` is alive. The returned pointer is valid until `id` is destroyed.
#[inline]
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the caller vouches for the identifier; nothing is read here.
    unsafe { (&raw mut (*id).route.addr.src).cast() }
}

/// Returns the address of an identifier's peer.
///
/// # Safety
///
/// `id` is alive. The returned pointer is valid until `id` is destroyed.
#[inline]
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the caller vouches for the identifier; nothing is read here.
    unsafe { (&raw mut (*id).route.addr.dst).cast() }
}
