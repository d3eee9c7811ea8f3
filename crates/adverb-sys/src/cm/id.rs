//! Identifiers and what a connection is asked for with.

use libc::{c_int, c_uint, c_void, sockaddr};

use crate::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_type, ibv_srq, rdma_cm_event,
    rdma_event_channel, rdma_route,
};

shapes! {
    /// What an identifier is for, and whose port numbers it uses.
    pub enum rdma_port_space: c_uint {
        /// Datagrams of IP over InfiniBand.
        RDMA_PS_IPOIB = 0x0002,
        /// Connections.
        RDMA_PS_TCP = 0x0106,
        /// Datagrams.
        RDMA_PS_UDP = 0x0111,
        /// Anything, with InfiniBand's own service identifiers.
        RDMA_PS_IB = 0x013F,
    }

    pub const u32 {
        /// The key of datagrams of [`RDMA_PS_UDP`].
        RDMA_UDP_QKEY = 0x0123_4567,
    }

    /// An identifier: to the connection manager what a socket is to TCP.
    pub struct rdma_cm_id {
        /// The device, once it is known, opened by the library.
        pub verbs: *mut ibv_context,
        /// Where its events come.
        pub channel: *mut rdma_event_channel,
        /// The consumer's own.
        pub context: *mut c_void,
        /// The queue pair that was made on it.
        pub qp: *mut ibv_qp,
        /// Where it leads.
        pub route: rdma_route,
        /// What it is for.
        pub ps: rdma_port_space,
        /// The device's port, once it is known.
        pub port_num: u8,
        /// The event that ended the last call, without a channel.
        pub event: *mut rdma_cm_event,
        /// Made along with the queue pair.
        pub send_cq_channel: *mut ibv_comp_channel,
        /// Made along with the queue pair.
        pub send_cq: *mut ibv_cq,
        /// Made along with the queue pair.
        pub recv_cq_channel: *mut ibv_comp_channel,
        /// Made along with the queue pair.
        pub recv_cq: *mut ibv_cq,
        /// Made on the identifier.
        pub srq: *mut ibv_srq,
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// The transport.
        pub qp_type: ibv_qp_type,
    }

    pub const u8 {
        /// As many reads and atomics served at a time as the device can.
        RDMA_MAX_RESP_RES = 0xFF,
        /// As many reads and atomics outstanding as the device can.
        RDMA_MAX_INIT_DEPTH = 0xFF,
    }

    /// What a connection is asked for or accepted with.
    #[derive(Debug, Clone, Copy)]
    pub struct rdma_conn_param {
        /// The consumer's own data for the peer.
        pub private_data: *const c_void,
        /// Bytes of it; in an event perhaps more than the peer gave, padded with zeros.
        pub private_data_len: u8,
        /// Reads and atomics that this side serves at a time.
        pub responder_resources: u8,
        /// Reads and atomics that this side has outstanding.
        pub initiator_depth: u8,
        /// Whether there is hardware flow control.
        pub flow_control: u8,
        /// How often to ask again; not when accepting.
        pub retry_count: u8,
        /// How often to ask again when there is no receive.
        pub rnr_retry_count: u8,
        /// Whether there is a shared receive queue; if no queue pair was made on the identifier.
        pub srq: u8,
        /// The queue pair; if none was made on the identifier.
        pub qp_num: u32,
    }

    /// How to join a multicast group.
    #[derive(Debug, Clone, Copy)]
    pub struct rdma_cm_join_mc_attr_ex {
        /// Which of the following are given.
        pub comp_mask: u32,
        /// `RDMA_MC_JOIN_FLAG_*`.
        pub join_flags: u32,
        /// The group.
        pub addr: *mut sockaddr,
    }

    // rdma_cm_join_mc_attr_ex.comp_mask
    pub const u32 {
        /// `addr` is given.
        RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1 << 0,
        /// `join_flags` is given.
        RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
    }

    // rdma_cm_join_mc_attr_ex.join_flags
    pub const u32 {
        /// To send and receive.
        RDMA_MC_JOIN_FLAG_FULLMEMBER = 0,
        /// Only to send.
        RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1,
    }

    // rdma_set_option
    pub const c_int {
        /// The level of options of an identifier.
        RDMA_OPTION_ID = 0,
        /// The level of options of InfiniBand.
        RDMA_OPTION_IB = 1,
        /// The type of service, a `u8`.
        RDMA_OPTION_ID_TOS = 0,
        /// Whether a local address may be used again, a `c_int`.
        RDMA_OPTION_ID_REUSEADDR = 1,
        /// Whether an identifier with an IPv6 address doesn't take IPv4, a `c_int`.
        RDMA_OPTION_ID_AFONLY = 2,
        /// How long a queue pair waits for an answer, a `u8`: 4.096 µs times this power of two.
        RDMA_OPTION_ID_ACK_TIMEOUT = 3,
        /// The paths.
        RDMA_OPTION_IB_PATH = 1,
    }
}

/// The local address of an identifier.
///
/// # Safety
///
/// `id` is alive. The result lives as long as it.
#[inline]
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the caller vouches for the identifier; nothing is read here.
    unsafe { (&raw mut (*id).route.addr.src).cast() }
}

/// The peer's address of an identifier.
///
/// # Safety
///
/// `id` is alive. The result lives as long as it.
#[inline]
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the caller vouches for the identifier; nothing is read here.
    unsafe { (&raw mut (*id).route.addr.dst).cast() }
}
