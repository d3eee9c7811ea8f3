//! What the connection manager tells.

use libc::{c_int, c_uint, c_void};

use crate::{ibv_ah_attr, rdma_cm_id, rdma_conn_param};

shapes! {
    /// A descriptor that is readable when there is an event.
    pub struct rdma_event_channel {
        /// The descriptor.
        pub fd: c_int,
    }

    /// What happened.
    pub enum rdma_cm_event_type: c_uint {
        /// The device and port to an address are known.
        RDMA_CM_EVENT_ADDR_RESOLVED = 0,
        /// No device leads to the address.
        RDMA_CM_EVENT_ADDR_ERROR = 1,
        /// The path is known.
        RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
        /// There is no path.
        RDMA_CM_EVENT_ROUTE_ERROR = 3,
        /// A peer asks for a connection; it comes with an identifier of its own.
        RDMA_CM_EVENT_CONNECT_REQUEST = 4,
        /// The peer accepted, and the caller takes care of the queue pair.
        RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
        /// A connection couldn't be made.
        RDMA_CM_EVENT_CONNECT_ERROR = 6,
        /// The peer doesn't answer.
        RDMA_CM_EVENT_UNREACHABLE = 7,
        /// The peer rejected; `status` has the reason.
        RDMA_CM_EVENT_REJECTED = 8,
        /// The connection is there.
        RDMA_CM_EVENT_ESTABLISHED = 9,
        /// The connection has ended.
        RDMA_CM_EVENT_DISCONNECTED = 10,
        /// The device is going away.
        RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
        /// A multicast group was joined.
        RDMA_CM_EVENT_MULTICAST_JOIN = 12,
        /// A multicast group couldn't be joined, or has to be left.
        RDMA_CM_EVENT_MULTICAST_ERROR = 13,
        /// The network interface's hardware address changed.
        RDMA_CM_EVENT_ADDR_CHANGE = 14,
        /// The queue pair of an ended connection may be used again.
        RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
    }

    pub const rdma_cm_event_type since "60" {
        /// Names and services are resolved.
        RDMA_CM_EVENT_ADDRINFO_RESOLVED = 16,
        /// Names or services couldn't be resolved.
        RDMA_CM_EVENT_ADDRINFO_ERROR = 17,
        /// Something that the consumer put there itself.
        RDMA_CM_EVENT_USER = 18,
        /// The library's own.
        RDMA_CM_EVENT_INTERNAL = 19,
    }

    /// An event.
    #[derive(Clone, Copy)]
    pub struct rdma_cm_event {
        /// To what it happened; with a request, the new identifier.
        pub id: *mut rdma_cm_id,
        /// With a request, the identifier that listens.
        pub listen_id: *mut rdma_cm_id,
        /// What happened.
        pub event: rdma_cm_event_type,
        /// A reason for rejection, the negative of an error number, or zero.
        pub status: c_int,
        /// What came with it.
        pub param: rdma_cm_event_param,
    }

    /// What came with an event; the identifier's port space says which.
    #[derive(Clone, Copy)]
    pub union rdma_cm_event_param inside rdma_cm_event.param {
        /// Of a connection.
        pub conn: rdma_conn_param,
        /// Of datagrams and multicast.
        pub ud: rdma_ud_param,
        /// Of [`RDMA_CM_EVENT_USER`].
        pub arg: u64 = since "60",
    }

    /// How to send datagrams to a peer.
    #[derive(Debug, Clone, Copy)]
    pub struct rdma_ud_param {
        /// The peer's own data.
        pub private_data: *const c_void,
        /// Bytes of it, padded with zeros.
        pub private_data_len: u8,
        /// The path.
        pub ah_attr: ibv_ah_attr,
        /// The peer's queue pair.
        pub qp_num: u32,
        /// The peer's key for datagrams.
        pub qkey: u32,
    }
}
